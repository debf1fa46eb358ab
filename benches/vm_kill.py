"""Kills at random moments of a run in guests: what is left on the host, and whether the run can be resumed.

As benches/robustness.py, with guests: `kill -9` strikes the controller, one of the QEMUs or the monitor's agent.

Bar: no process, cgroup, file or image of ours left after the next start; every resume ends with all blocks and none
twice.
"""

from __future__ import annotations

import random
import subprocess
import time

import robustness
from common import arguments, conclude
from guests import needed

# A run of two trials, each with four guests to start: kills strike from the first start to the last block.
RUN_S = 32


def main() -> None:
    options = arguments(__doc__ or "")
    needed("vm-kill")
    kills = 1 if options.quick else 20
    chance = random.Random(7 if options.quick else time.time_ns())
    robustness.BACKEND = "qemu"
    subprocess.run([*robustness.PARTYWALL, "reap"], check=False, capture_output=True)
    wrong = []
    for number in range(kills):
        problem = robustness.one_kill(number, chance, within_s=RUN_S, budget="14s")
        print(problem or f"kill {number}: clean, resumed", flush=True)
        wrong += [problem] if problem else []
    figure = f"{kills - len(wrong)} of {kills} kills left nothing and resumed to all blocks, none twice"
    conclude("vm-kill", figure, met=not wrong)


if __name__ == "__main__":
    main()
