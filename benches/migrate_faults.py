"""What is left of a guest when a part of its move is killed at a random moment.

Each trial moves a working guest and, at a random moment of the move, kills the QEMU of the source or of the
destination, takes the link down for good or for a second, or kills the client or the whole controller. Afterwards the
guest must run on exactly one host, answering and whole: a known part of its memory is what it was, and programs in it
that write pages to memory and disk, and check them, have found none wrong. Or the guest must be gone with the QEMU that
held it, or, by post-copy without its link, wait for the rest of its memory; and the report must say so. It must never
run on both hosts. Nothing of the trial may be left on this host, and moves that had ended before stay in the record.

In a third of the trials each, both hosts share the guest's disk, a third host serves it, or it moves along.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import moves
from common import PARTYWALL, processes
from frame import Options, Outcome, bench
from partywall.clock import Monotonic
from partywall.errors import TrialError
from partywall.events import Broken
from partywall.migrate.document import Activity, Method
from partywall.migrate.measure.move import Moved, Mover
from partywall.migrate.measure.seen import Seen
from partywall.migrate.measure.series import Series
from partywall.sandbox import networks
from partywall.sandbox.lab import ip
from partywall.sandbox.qemu.monitor import Monitor

PINGS = b"partywall.migrate.measure.pings"

PLAN = """\
partywall_migration: 1
name: faults
guest: {memory: 160MiB}
link: {rate: 200Mbit/s}
clients: {pings: 100}
workloads: {writer: {kernel: memory-dirty, params: {working_set_bytes: 4194304, rate_bytes_per_s: 1048576}}}
methods: {default: {}}
moves: 20
calibration: 0
before: 500ms
after: 500ms
"""
METHODS = {"pre-copy": Method(), "post-copy": Method(postcopy={"after_passes": 1})}
GIVE_UP_NS = 12_000_000_000
LONGEST_S = 5.0
"""Within which a kill falls; a move takes about five seconds, of which post-copy spends the last one or two apart."""
WRITER = Activity(kernel="memory-dirty", params={"working_set_bytes": 64 << 20})


@dataclass(frozen=True)
class Trial:
    """One kill. sound: whether what is left is what should be."""

    fault: str
    method: str
    delay_s: float
    outcome: str
    sound: bool
    text: str


def source(series: Series) -> None:
    series.guest.current().process.kill()


def destination(series: Series) -> None:
    if series.guest.there is not None:
        series.guest.there.process.kill()


def link_down(series: Series) -> None:
    ip("-n", series.network.namespace("a"), "link", "set", "mig0", "down")


def link_blinks(series: Series) -> None:
    link_down(series)
    time.sleep(1)
    ip("-n", series.network.namespace("a"), "link", "set", "mig0", "up")


def both(series: Series) -> None:
    destination(series)
    source(series)


FAULTS: dict[str, Callable[[Series], None]] = {
    "source": source,
    "destination": destination,
    "link down": link_down,
    "link blinks": link_blinks,
}


def trial(fault: str, method: str, chance: random.Random) -> Trial:
    """Moves a guest while something of it is killed."""
    delay_s = chance.uniform(0.2, LONGEST_S)
    storage = chance.choice(["shared", "network", "moved"])
    guest = {"memory": "320MiB", "root": ["nginx-light"], "verify": "4MiB", "storage": storage}
    plan = moves.plan(guest=guest, link={"rate": "400Mbit/s"}, calibration=0)
    with moves.series(plan) as series:
        run = series.label.run
        timer = threading.Timer(delay_s, FAULTS[fault], [series])
        mover = Mover(series.guest, Monotonic())
        with series.working(WRITER):
            timer.start()
            try:
                moved = series.move(mover, METHODS[method], GIVE_UP_NS)
            except TrialError as error:
                moved = Moved(begin_ns=0, outcome="lost", reason=str(error))
            timer.join()
        sound, text = left_of(series, moved, (fault, method))
    if list(networks.NETNS.glob(f"{run}*")) or labelled(run):
        sound, text = False, f"{text}; something of it is left"
    return Trial(fault, method, delay_s, moved.outcome, sound, f"storage {storage}, {text}; {moved.reason}")


STAYS = {"completed", "failed", "gave up"}
ALLOWED = {
    ("source", "pre-copy"): {"completed", "lost"},
    ("source", "post-copy"): {"completed", "lost"},
    ("destination", "pre-copy"): STAYS,
    # After the hand-over the guest is on the destination, and goes with it.
    ("destination", "post-copy"): STAYS | {"paused", "lost"},
    ("link down", "pre-copy"): STAYS,
    ("link down", "post-copy"): STAYS | {"paused"},
    ("link blinks", "pre-copy"): STAYS,
    ("link blinks", "post-copy"): STAYS,
}
"""What may become of a guest, by what was killed. It may be gone with the QEMU that held it only."""


def left_of(series: Series, moved: Moved, case: tuple[str, str]) -> tuple[bool, str]:
    """Whether the guest is where the outcome says, and whole."""
    sides = [side for side in (series.guest.here, series.guest.there) if side is not None]
    running = [side.place for side in sides if runs(side.monitor)]
    if len(running) > 1:
        return False, "it runs on both hosts"
    if moved.outcome not in ALLOWED[case]:
        return False, f"{moved.outcome}, which this fault does not excuse"
    if moved.outcome in ("lost", "paused"):
        # After the hand-over, a guest that waits for the rest of its memory counts as running there.
        sound = bool(moved.reason) and (not running or moved.outcome == "paused")
        return sound, f"gone, and the reason is given; {len(running)} QEMU run on"
    whole = series.digest() == series.original
    checked, wrong = series.pages() or (0, 0)
    whole = whole and not wrong and checked > 0
    text = f"runs on host {', '.join(running)}, {'whole' if whole else 'NOT WHOLE'}, {checked} pages checked"
    return whole and len(running) == 1, text


def runs(monitor: Monitor) -> bool:
    try:
        return bool(monitor.execute("query-status")["status"] == "running")
    except TrialError:
        return False


def labelled(prefix: str) -> list[str]:
    """Processes of any run whose name begins so."""
    wanted = f"PARTYWALL_RUN={prefix}".encode()
    return [folder.name for folder in processes(lambda each: wanted in (each / "environ").read_bytes())]


def controller(chance: random.Random) -> Trial:
    """Kills the controller during its second move, and reaps."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        file, out = Path(folder, "plan.yaml"), Path(folder, "out")
        file.write_text(PLAN)
        argv = [*PARTYWALL, "migrate", str(file), "--out", str(out)]
        running = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 90
        events = out / "events.jsonl"
        while not (events.exists() and events.read_text().count("\n")) and time.monotonic() < deadline:
            time.sleep(0.1)
        delay_s = chance.uniform(0.2, LONGEST_S)
        time.sleep(delay_s)
        running.send_signal(signal.SIGKILL)
        running.wait()
        subprocess.run([*PARTYWALL, "reap"], capture_output=True, check=True)
        left = list(networks.NETNS.glob("migration-faults-*"))
        report = subprocess.run(
            [*PARTYWALL, "report", str(out), "--format", "json"],
            capture_output=True, text=True, check=False, env=os.environ,
        )  # fmt: skip
        kept = events.read_text().count('"kind": "move"') if events.exists() else 0
        sound = (
            not left and not labelled("migration-faults-") and kept >= 1 and '"outcome": "completed"' in report.stdout
        )
        return Trial("controller", "pre-copy", delay_s, f"{kept} moves kept", sound, f"left: {left}")


def kill_client() -> None:
    """Kills the client that this process has started, and no other on this machine."""
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            if PINGS in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(child, signal.SIGKILL)


def client(chance: random.Random) -> Trial:
    """Kills the client that asks the guest while it moves."""
    delay_s = chance.uniform(0.7, LONGEST_S)
    plan = moves.plan(guest={"memory": "192MiB"}, link={"rate": "400Mbit/s"}, calibration=0, moves=1)
    kept: list[Seen] = []
    broken: list[Broken] = []
    with moves.series(plan) as series:
        timer = threading.Timer(delay_s, kill_client)
        timer.start()
        series.carry_out(lambda event: broken.append(event) if isinstance(event, Broken) else None, kept.append)
        timer.join()
        (seen,) = kept
        # A client that was killed leaves no table; one that had ended before leaves all of it.
        reported = bool(broken) != bool(len(seen.tables["pings"]))
        sound = seen.move.outcome == "completed" and bool(seen.move.intact) and reported
    return Trial("client", "pre-copy", delay_s, seen.move.outcome, sound, "; ".join(each.text for each in broken))


@bench(plants={"both": "source and destination are killed together"}, lacking=moves.lacking)
def main(options: Options) -> Outcome:
    if options.plant:
        FAULTS["destination"] = both
    chance = random.Random(1)
    cases = [(fault, method) for fault in FAULTS for method in METHODS]
    quick = [("destination", "pre-copy"), ("source", "pre-copy")]
    chosen = quick if options.quick else cases * 4 + [("controller", "")] * 6 + [("client", "")] * 2
    alone = {"controller": controller, "client": client}
    trials = []
    for fault, method in chosen:
        verdict = alone[fault](chance) if fault in alone else trial(fault, method, chance)
        trials.append(verdict)
        mark = "ok  " if verdict.sound else "FAIL"
        print(
            f"{mark} {verdict.fault}, {verdict.method}, after {verdict.delay_s:.1f} s: "
            f"{verdict.outcome}; {verdict.text}",
            flush=True,
        )
    sound = sum(each.sound for each in trials)
    return Outcome(f"{sound} of {len(trials)} trials end as they should", sound == len(trials))


if __name__ == "__main__":
    main()
