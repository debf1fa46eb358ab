"""Partywall on stock hosts: hosts × (install, doctor, tour, run, container limits, load, guard, trace, reap, tests).

Boots each host of labs/hosts in QEMU and does there what README says; `make hosts` is the same and writes the matrix in
docs/hosts.md. --quick: one Debian 13 with install, doctor, a run with container limits, guard and trace, in at most
five minutes. Where no image is cached, building one takes a minute or two more.

The long form takes some ten minutes for each host, and an hour or more for the one with KVM. With --folder it is done
in parts: a host whose checks are all in the folder is not booted again, and no host is begun after --minutes.

Bar: every host does what the matrix promises, no less and no more; no output of any of them holds a traceback. With
--quick also: the checks take at most five minutes. Of a check that got a second try, only that one counts.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from frame import NotMeasured, Options, Outcome, bench
from labs.hosts.catalogue import HOSTS
from labs.hosts.lab import RECORD, Result, chosen, unexpected
from stock import PLANTS, lab

QUICK = ("doctor", "container-limits", "guard", "trace")
QUICK_S = 300
Hosts = dict[str, dict[str, dict[str, Any]]]


@bench(
    plants=PLANTS,
    more={
        "--folder": {"type": Path, "help": "keep what was checked here, and go on with what is left"},
        "--minutes": {"type": float, "default": float("inf"), "help": "begin no host after this time"},
    },
)
def main(options: Options) -> Outcome:
    began = time.monotonic()
    if options.quick:
        quick = ("--host", "debian-13", *(word for check in QUICK for word in ("--check", check)))
        hosts, as_promised = lab(*quick, plant=options.plant)
    else:
        with tempfile.TemporaryDirectory() as passing:
            hosts = _in_parts(options.folder or Path(passing), options.minutes * 60, options.plant)
        as_promised = not [fault for name, checks in hosts.items() for fault in _unexpected(name, checks)]
    results = [result for checks in hosts.values() for result in checks.values()]
    failed = sum(result["status"] == "failed" for result in results)
    checked_s = sum(result["seconds"] for result in results)
    figure = f"{len(results)} checks on {len(hosts)} hosts, {failed} failed, {checked_s:.0f} s for the checks"
    commits = sorted({result["commit"] for result in results if result.get("commit")})
    if len(commits) > 1:
        figure += f", at commits {', '.join(commits)}"
    in_time = not options.quick or checked_s <= QUICK_S
    print(f"{time.monotonic() - began:.0f} s in all, with images and boots")
    return Outcome(figure, as_promised and in_time)


def _in_parts(folder: Path, seconds: float, plant: str | None) -> Hosts:
    """The results of all hosts; those that the folder holds already are not checked again."""
    ends = time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    for name in HOSTS:
        if not _is_whole(name, _kept(folder)) and time.monotonic() < ends:
            lab("--host", name, plant=plant, folder=folder)
    hosts = _kept(folder)
    if left := [name for name in HOSTS if not _is_whole(name, hosts)]:
        raise NotMeasured(f"{', '.join(left)} left: run it again with --folder {folder}")
    return hosts


def _kept(folder: Path) -> Hosts:
    record = folder / RECORD
    return json.loads(record.read_text())["hosts"] if record.exists() else {}


def _is_whole(name: str, hosts: Hosts) -> bool:
    """Whether all checks of a host were done; a host that ended in the middle is whole too, and failed."""
    results = hosts.get(name, {})
    ended = any(results.get(check, {}).get("status") == "failed" for check in ("install", "kernel"))
    return ended or set(chosen(None, HOSTS[name])) <= set(results)


def _unexpected(name: str, checks: dict[str, dict[str, Any]]) -> list[str]:
    results = {check: Result(result["status"], result["text"], result["seconds"]) for check, result in checks.items()}
    return unexpected(HOSTS[name], results)


if __name__ == "__main__":
    main()
