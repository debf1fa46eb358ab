"""Kills at random moments of a run in guests: what is left on the host, and whether the run can be resumed.

As benches/robustness.py, with guests: `kill -9` strikes the controller, one of the QEMUs or the monitor's agent. Every
guest has a tap on the run's bridge and, where root images can be built, the root that all share.

Bar: no process, cgroup, namespace, tap, file or disk of Partywall left after the next start; every resume ends with all
blocks and none twice, so that no image is left locked; the shared root is what it was.
"""

from __future__ import annotations

import random
import subprocess
import time

import robustness
from common import PARTYWALL
from frame import Options, Outcome, bench
from guests import lacking
from partywall.errors import CapabilityError
from partywall.host import Host
from partywall.sandbox import switch
from partywall.sandbox.qemu import root

# A run of two trials, each with four guests to start: kills strike from the first start to the last block.
RUN_S = 32
# Eight emulated guests start in a run, and as many again after a kill.
PATIENCE_S = 600


def shared_root() -> root.RootImage | None:
    """The base system alone, built if it was not yet; None where that cannot be."""
    try:
        return root.build(root.Recipe.of((), Host.here()), lambda text: print(text, flush=True), Host.here())
    except CapabilityError as error:
        print(f"without a root image: {error}", flush=True)
        return None


@bench(plants=robustness.PLANTS, lacking=lacking)
def main(options: Options) -> Outcome:
    kills = 1 if options.quick else 20
    chance = random.Random(7 if options.quick else time.time_ns())
    robustness.BACKEND, robustness.NAME = "qemu", "vm-kill-run"
    robustness.PATIENCE_S = PATIENCE_S
    image = shared_root()
    robustness.SANDBOX = ({} if switch.lacking(Host.here()) else {"network": "bridge"}) | (
        {"root": []} if image else {}
    )
    before = image and image.file.stat().st_mtime_ns
    print(f"every guest: {robustness.SANDBOX or 'no network, no root image'}", flush=True)
    subprocess.run([*PARTYWALL, "reap"], check=False, capture_output=True)
    wrong = []
    for number in range(kills):
        problem = robustness.one_kill(number, chance, within_s=RUN_S, leaks=bool(options.plant), budget="14s")
        print(problem or f"kill {number}: clean, resumed", flush=True)
        wrong += [problem] if problem else []
    if image and image.file.stat().st_mtime_ns != before:
        wrong.append("the root image was written to")
    figure = f"{kills - len(wrong)} of {kills} kills left nothing and resumed to all blocks, none twice"
    return Outcome(figure, not wrong)


if __name__ == "__main__":
    main()
