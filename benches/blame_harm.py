"""What does an experiment cost those who are innocent, and does it leave anything behind? On this host.

`partywall blame` tests two neighbours with its usual --harm of 2 %. What the innocent one lost of its work is counted
from its CPU time. Then experiments with pulses at random moments are killed with SIGKILL: on plain groups, and, where
it can be started, on units of a real systemd in namespaces, which is reloaded in every second one.

Bar: the innocent one loses at most 2 % of its work in the time of --budget; after each of 50 kills (10 with --quick)
all limits are byte for byte as before.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from blamed import expect_host, experiment, neighbours
from frame import Options, Outcome, bench
from partywall.host.settings import ledger
from tests import systemd

KILLS, QUICK = 50, 10
HARM, BUDGET_S = 0.02, 60
UNITS = ("plain.service", "limited.service")
PULSES = """
import itertools, os, random, sys, time
from partywall.blame.measure.levers import Held, lever
from partywall.blame.measure.owners import Kind
from partywall.sandbox import cgroups
has_systemd, here = sys.argv[1] == "systemd", cgroups.read()
levers = {name: lever(Kind.CPU, name, here, has_systemd=has_systemd) for name in sys.argv[2:]}
with Held(levers) as held:
    print(os.getpid(), flush=True)
    for n in itertools.count():
        held.beat()
        for name in levers:
            held.hold(name, 0.3, 0.5 + 0.01 * (n % 7)) if random.random() < 0.5 else held.release(name)
        time.sleep(random.random() * 0.002)
"""
LIMITS = """
import glob, sys
patterns = [f"/sys/fs/cgroup/**{group}/cpu.*" for group in sys.argv[1:]] + ["/run/systemd/system.control/**"]
for name in sorted(each for pattern in patterns for each in glob.glob(pattern, recursive=True)):
    print(name, repr(open(name).read()) if name.endswith(("_us", ".max", ".conf")) else "")
"""
PLANTS = {"forget": "the watchdog is killed too, and nobody starts again"}


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    cpus, kills = expect_host(), QUICK if options.quick else KILLS
    with tempfile.TemporaryDirectory() as folder, neighbours({"guilty": cpus[0], "innocent": cpus[1]}) as groups:
        os.environ["PARTYWALL_STATE"] = f"{folder}/state"
        found = experiment(Path(folder), cpus[0], list(groups.values()), "--budget", f"{BUDGET_S}s", "--harm", "2%")
        lost = next(each["lost"] for each in found["suspects"] if each["suspect"] == groups["innocent"])
        share = (lost or 0.0) * found["seconds"] / BUDGET_S
        wrong = {"groups": _killed("", list(groups.values()), kills, lambda *words: list(words), options.plant)}
        if not (why := systemd.lacking()):
            with systemd.started() as host:
                host.service(UNITS[0])
                host.service(UNITS[1], "CPUQuota=80%")
                units = [f"/system.slice/{name}" for name in UNITS]
                wrong["systemd"] = _killed("systemd", units, kills, host.argv, options.plant)
    figure = f"the innocent one loses {share:.1%} of its work in the time of --budget (bar {HARM:.0%}); "
    figure += ", ".join(f"{count} of {kills} kills leave something ({kind})" for kind, count in wrong.items())
    figure += f"; not tried: systemd ({why})" if why else ""
    return Outcome(figure, share <= HARM and not any(wrong.values()))


def _killed(owner: str, groups: Sequence[str], kills: int, inside: Callable[..., list[str]], plant: str | None) -> int:
    """How many kills leave a limit changed. inside: makes the command line of a command where the groups are."""
    chance, wrong = random.Random(53), 0
    before = _limits(groups, inside)
    for number in range(kills):
        argv = inside(sys.executable, "-c", PULSES, owner or "files", *groups)
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            pid = running.stdout.readline().strip()
            time.sleep(chance.random() * 0.1)
            if owner and number % 2:
                subprocess.run(inside("systemctl", "daemon-reload"), check=True)
            if plant:
                subprocess.run(inside("pkill", "-9", "-P", pid), check=False)
            subprocess.run(inside("kill", "-9", pid), check=True)
        wrong += not _as_before(before, groups, inside)
    return wrong


def _as_before(before: str, groups: Sequence[str], inside: Callable[..., list[str]]) -> bool:
    deadline = time.monotonic() + 10
    note = Path(os.environ["PARTYWALL_STATE"]) / ledger.LEVERS
    while note.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return _limits(groups, inside) == before


def _limits(groups: Sequence[str], inside: Callable[..., list[str]]) -> str:
    return subprocess.run(
        inside(sys.executable, "-c", LIMITS, *groups), capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main()
