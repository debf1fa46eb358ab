"""Xen without a machine for it: Xen and a small dom0 in an emulated PC, PV guests inside, and the guard in dom0.

`make xen-lab`. Fetches Debian packages once and builds dom0's root from them; nothing is installed but what
`make xen-lab` names. The emulator ends with this program, however that ends.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labs.building import Say
from labs.xen import network
from labs.xen.build import CACHE, GUESTS, HERE, prepared
from labs.xen.machine import Lab
from partywall.errors import PartywallError
from partywall.host.label import Label
from partywall.sandbox import Settings, make, reaper
from partywall.sandbox.document import Limits
from partywall.sandbox.libvirt.leftovers import domain_name
from partywall.sandbox.libvirt.library import connect

SPAN_S = 8.0
CAP_POINTS, RATIO_LEAST = 0.03, 1.5
# All that the emulated machine has: the credit scheduler weighs domains over the whole pool, so that on one CPU of two
# each of two guests would get nearly what it wants by its credit, and 200 against 100 would be 1.2 : 1 (seen).
CPUS = (0, 1)
# Shares come first, they say whether cap and weight hold. The parts after `small` are those of the study vits.yaml.
SHARES, GUARD, SMALL = "shares", "guard", "small"
VITS = ("cache", "memory", "communication")
PARTS = (SHARES, GUARD, SMALL, *VITS)


def held(uri: str, say: Say) -> bool:
    """Whether Xen's own accounts say that two guests, which want all of the CPUs, got what they were promised.

    A weight of two to one is to make a clear difference (an emulated machine's credit is not exact); a cap is to hold.
    """
    label = Label.create(f"xen-lab-{os.getpid()}", Path("/var/tmp"))  # noqa: S108 - a folder of the lab's own
    guests = [make(_guest(name, uri, weight), label) for name, weight in (("favoured", 200.0), ("usual", 100.0))]
    try:
        for guest in guests:
            guest.launch(_unheard)
        for guest in guests:
            say(f"starting guest {guest.settings.name}")
            client = guest.start(_unheard)
            guest.settle()
            work = {"kernel": {"name": "integer", "params": {}}}
            start = {"work": work, "pace": "flat_out", "threads": len(CPUS), "work_dir": guest.work_dir}
            client.call("workload.start", timeout_s=120, id="w", **start)
        first, second = _shares(uri, label)
        say(
            f"weight 200 against 100 on both CPUs: {first:.1%} and {second:.1%} of their time, {first / second:.2f} : 1"
        )
        kept = first / second >= RATIO_LEAST
        for cap in (0.25, 0.5):
            guests[0].limit(Limits(cpu_limit=cap))
            got = _shares(uri, label)[0]
            # Less is the host's doing, which had other work for its CPUs.
            kept &= cap / 2 <= got <= cap + CAP_POINTS
            say(f"cap of {cap:.0%}: {got:.1%} of both CPUs' time")
        say("cap and weight hold" if kept else "cap or weight does NOT hold")
        return kept
    finally:
        for guest in guests:
            guest.stop()
        reaper.clean(label)


def measured(uri: str, parts: Sequence[str], out: Path, say: Say) -> int:
    """The shares and the small guests as runs, and the parts of VITS as a study; the worst of their exit codes."""
    vits = [part for part in parts if part in VITS]
    jobs = [("run", part, []) for part in (SHARES, SMALL) if part in parts]
    jobs += [("study", "vits", [f"--only={part}*" for part in vits])] if vits else []
    codes = []
    for command, name, options in jobs:
        file = CACHE / f"{name}.yaml"
        file.write_text((HERE / f"{name}.yaml").read_text().replace("@URI@", uri))
        say(f"{command} {name}, kept in {out / name}")
        argv = [sys.executable, "-m", "partywall", command, str(file), *options, "--out", str(out / name)]
        codes.append(subprocess.call(argv))
    return max(codes, default=0)


def _guest(name: str, uri: str, weight: float) -> Settings:
    place = Settings(name=name, backend="libvirt", cpus=CPUS, uri=uri, boot=GUESTS, files=False)
    return replace(place, cpu_weight=weight, memory=136 << 20)


def _unheard(_method: str, _params: dict[str, Any]) -> None:
    """What guests report of their work is not looked at here."""


def _shares(uri: str, label: Label) -> list[float]:
    """Of the emulated machine's time, what each guest's virtual CPUs ran in the next seconds, by Xen's accounts."""
    connection = connect(uri)
    try:
        domains = [connection.lookupByName(domain_name(label, name)) for name in ("favoured", "usual")]
        before, began = [domain.info()[4] for domain in domains], time.monotonic_ns()
        time.sleep(SPAN_S)
        after, ended = [domain.info()[4] for domain in domains], time.monotonic_ns()
    finally:
        connection.close()
    return [(late - early) / (ended - began) / len(CPUS) for late, early in zip(after, before, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for a run directory of each part; runs/xen-lab-… if not given")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--shell", action="store_true", help="do not run: print the URI and wait until Enter")
    parser.add_argument("--quick", action="store_true", help="cap and weight alone, without the parts")
    arguments = parser.parse_args()

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        with Lab(prepared(say), say) as lab:
            if arguments.shell:
                print(f"a shell in dom0: {shlex.join(lab.shell(''))}")
                input(f"try: virsh -c {lab.uri} list; Enter ends the lab ")
                return 0
            kept = arguments.part is not None or held(lab.uri, say)
            if arguments.quick:
                return int(not kept)
            out = arguments.out or Path("runs") / f"xen-lab-{time.strftime('%Y%m%d-%H%M%S')}"
            parts = arguments.part or PARTS
            kept &= GUARD not in parts or network.kept(lab, out, say)
            return max(int(not kept), measured(lab.uri, parts, out, say))
    except PartywallError as error:
        print(error, file=sys.stderr)
        return int(error.exit)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
