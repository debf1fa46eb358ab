"""What becomes of guests when a consolidation plan goes wrong?

Each trial carries a plan out on a cluster of files (`partywall.consolidate.practice`), by `partywall consolidate apply`
as a process of its own, and something fails: the manager is killed (-9) at a random moment, and again, until it has
ended; a destination dies during a move; or a power control lies, with and without kills. Moves go on without the
manager, as those of a hypervisor do. The log of the cluster has every state that it was ever in.

Bar: in every state of every trial each guest is on one host, which is on unless the trial killed it, and no host is
overfilled, in CPU, memory, promises or interference. At the end the plan is done, or each of its moves is done or
undone as the journal says and no guest is on a host whose power control lied, or it has stopped with the names of the
guests that the dead host had. Managers were killed, 30 times or more.

If too few managers lived long enough to be killed, further trials follow.

--quick: 4 trials instead of 32, and a kill for each trial that has any.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frame import Options, Outcome, bench
from partywall.consolidate import load
from partywall.consolidate.practice import LIES, PracticeCluster
from partywall.model.cluster import Cluster
from partywall.model.consolidation import ConsolidationPlan
from partywall.placement import plan
from partywall.placement.room import Room
from partywall.placement.state import z_of
from partywall.store.consolidation import ConsolidationDirectory

FAULTS = ("killed", "destination dies", "says off, is on", "killed, says off, is on")
LONGEST_S = 1.2
KILLS_LEAST, TRIALS_MAX = 30, 64
TRIES_MAX = 12
PATCHES = {
    "trust": "Applying._await = lambda self, is_so, otherwise, seconds=None: None",
    "blind": "Applying._sleep = lambda self, host: self._powers[host].switch_off()",
}
PLANTS = {
    "trust": "the manager believes the power control, and does not ask the host",
    "blind": "the manager switches hosts off without asking where guests are",
}
MANAGER = """
import sys
from partywall.consolidate.apply import Applying, Timing
from partywall.errors import PartywallError
from partywall.events import silent
from partywall.kinds.consolidation import applied
from partywall.store.consolidation import ConsolidationDirectory
from pathlib import Path
{patch}
try:
    done = applied(ConsolidationDirectory.open(Path(sys.argv[1])), silent, Timing(0.5, 5.0, 0.01))
except PartywallError as error:
    sys.exit(f"stopped: {{error}}")
print("done" if done else "undone")
"""


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    chance = random.Random(1)
    trials = list(FAULTS if options.quick else FAULTS * 8)
    killing = [fault for fault in trials if fault.startswith("killed")]
    least = len(killing) if options.quick else KILLS_LEAST
    sound, kills, number = 0, 0, 0
    while number < len(trials):
        fault = trials[number]
        number += 1
        wrong, text, killed = trial(fault, chance, PATCHES.get(options.plant, ""))
        sound += not wrong
        kills += killed
        print(f"{'FAIL' if wrong else 'ok  '} {number}, {fault}: {wrong or text} after {killed} kills", flush=True)
        if number == len(trials) and kills < least and number < TRIALS_MAX:
            trials.append(killing[number % len(killing)])
    figure = f"{sound} of {len(trials)} trials end as they should, {kills} managers killed"
    return Outcome(figure, sound == len(trials) and kills >= least)


def trial(fault: str, chance: random.Random, patch: str) -> tuple[str, str, int]:
    """(what is wrong, how it ended, how many managers were killed)."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        cluster = document(Path(folder))
        at = {name: spec.host or "" for name, spec in cluster.guests.items()}
        files = PracticeCluster.create(Path(folder, "cluster"), dict.fromkeys(cluster.hosts, True), at, move_s=0.2)
        made = plan.make(plan.known(cluster), solver="heuristic")
        record = ConsolidationDirectory.create(Path(folder, "record"), "plan", cluster, {}, {}, made)
        dead = None
        if fault == "destination dies":
            dead = chance.choice(sorted({step.host for step in made.moves}))
            files.die_during_move_to(dead)
        liar = None
        if fault.endswith("is on"):
            liar = chance.choice([step.host for step in made.steps if step.action == "sleep"])
            files.lie(liar, LIES[0])
        ended, kills = manage(record.path, chance, patch, kill=fault.startswith("killed"))
        entries = files.log
        back = {entry.number: entry.outcome for entry in record.evidence().journal}
        # A move whose last line says that it was done stays, and so does one that was never begun.
        left = {step.guest: step.host for step in made.moves if back.get(step.number) == "done"}
        wrong = judged(cluster, made, entries, ended, dead, at, files, left)
        if not wrong and any(liar in hosts for hosts in files.observe().places.values()):
            wrong = f"a guest is on {liar}, whose power control lies"
        return wrong, ended, kills


def document(folder: Path) -> Cluster:
    cluster = load.load(load.find("cluster"))
    return cluster.model_copy(update={"hypervisor": "practice", "folder": str(folder / "cluster")})


def manage(record: Path, chance: random.Random, patch: str, *, kill: bool) -> tuple[str, int]:
    """Starts managers until one ends by itself. (its last line, number of kills)."""
    for kills in range(TRIES_MAX):
        argv = [sys.executable, "-c", MANAGER.format(patch=patch), str(record)]
        running = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        if kill and kills < TRIES_MAX - 1:
            wait_for_journal(record, running)
            time.sleep(chance.uniform(0, LONGEST_S))
            if running.poll() is None:
                running.kill()
                running.communicate()
                continue
        said, error = running.communicate(timeout=120)
        last = (said or error).strip().splitlines()[-1]
        # The manager before this one was killed between its last line and its exit.
        if "has been carried out" in last:
            failed = any(entry.outcome == "failed" for entry in ConsolidationDirectory.open(record).evidence().journal)
            last = "undone" if failed else "done"
        return last, kills
    raise AssertionError("unreachable")


def wait_for_journal(record: Path, running: subprocess.Popen[str]) -> None:
    """Until this manager has begun: its imports take most of its time."""
    events = record / "events.jsonl"
    before = events.stat().st_size if events.exists() else 0
    deadline = time.monotonic() + 60
    while running.poll() is None and time.monotonic() < deadline:
        if events.exists() and events.stat().st_size > before:
            return
        time.sleep(0.01)


def judged(
    cluster: Cluster,
    made: ConsolidationPlan,
    entries: list[dict[str, Any]],
    ended: str,
    dead: str | None,
    before: dict[str, str],
    files: PracticeCluster,
    left: Mapping[str | None, str],
) -> str:
    """What is wrong; empty if nothing is. left: where guests are whose moves were not undone."""
    planned = before | {step.guest: step.host for step in made.moves}
    for entry in entries:
        off = {guest for guest, host in entry["at"].items() if not entry["on"][host]}
        if any(entry["at"][guest] != dead for guest in off):
            return f"{', '.join(sorted(off))} lost: {entry['why']}"
        if sorted(entry["at"]) != sorted(before):
            return "guests are missing"
        if hosts := overfilled(cluster, entry["at"]):
            return f"{hosts} overfilled: {entry['why']}"
    now, state = {name: next(iter(hosts), None) for name, hosts in files.observe().places.items()}, files.observe()
    return ending(made, ended, dead, before, now, state.up, planned, left)


def ending(
    made: ConsolidationPlan,
    ended: str,
    dead: str | None,
    before: dict[str, str],
    now: dict[str, str | None],
    up: Mapping[str, bool],
    planned: dict[str, str],
    left: Mapping[str | None, str],
) -> str:
    """What is wrong at the end."""
    if ended == "done" and (now != planned or any(up[s.host] for s in made.steps if s.action == "sleep")):
        return f"it says done, but it is not: {now}"
    if ended == "undone" and any(place != left.get(guest, before[guest]) for guest, place in now.items() if place):
        return f"it says undone, but it is not: {now}"
    lost = [guest for guest, place in now.items() if place is None]
    if lost and not ended.startswith("stopped: guest"):
        return f"{lost} are gone with {dead}, but the manager says {ended}"
    return "" if ended in ("done", "undone") or lost else f"it ended with: {ended}"


def overfilled(cluster: Cluster, at: dict[str, str]) -> str:
    guests = {name: spec.model_copy(update={"host": at[name]}) for name, spec in cluster.guests.items()}
    what = plan.known(cluster.model_copy(update={"guests": guests}))
    wrong = Room(what.state, what.forecast, z_of(what.rules.overload_risk)).broken()
    return ", ".join(name for name, bad in zip(what.state.hosts.names, wrong, strict=True) if bad)


if __name__ == "__main__":
    main()
