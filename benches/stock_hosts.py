"""Partywall on stock hosts: hosts × (install, doctor, tour, run, container limits, load, guard, trace, reap, tests).

Boots each host of labs/hosts in QEMU and does there what README says; `make hosts` is the same and writes the matrix in
docs/hosts.md. --quick: one Debian 13 with install, doctor, topology, a run with container limits, guard and trace, in
at most five minutes. Where no image is cached, building one takes a minute or two more.

Bar: every host does what the matrix promises, no less and no more; no output of any of them holds a traceback. With
--quick also: the checks take at most five minutes.
"""

from __future__ import annotations

import time

from common import arguments, conclude
from stock import PLANTS, lab

QUICK = ("doctor", "topology", "container-limits", "guard", "trace")
QUICK_S = 300


def main() -> None:
    options = arguments(__doc__ or "", plants=PLANTS)
    quick = ("--host", "debian-13", *(word for check in QUICK for word in ("--check", check)))
    began = time.monotonic()
    hosts, as_promised = lab(*(quick if options.quick else ()), plant=options.plant)
    results = [result for checks in hosts.values() for result in checks.values()]
    failed = sum(result["status"] == "failed" for result in results)
    checked_s = sum(result["seconds"] for result in results)
    figure = (
        f"{len(results)} checks on {len(hosts)} hosts, {failed} failed, {checked_s:.0f} s of "
        f"{time.monotonic() - began:.0f} s with images and boots"
    )
    in_time = not options.quick or checked_s <= QUICK_S
    conclude("stock-hosts", figure, met=as_promised and in_time)


if __name__ == "__main__":
    main()
