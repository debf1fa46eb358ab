"""Does the manager save on a real run what its plan says, without breaking promises?

Three hosts (`cluster.py`): real libvirt daemons in namespaces with a share of a CPU each, and with one guest each, a
real emulated machine with a web server. Virtual users of a real `partywall load` send requests to each guest. Power is
switched, and watts are read, through Redfish by sushy-tools. The watts are those of simulated machines (table I of
Cervera et al.), driven by the CPU time that the hosts really use, and by whether they are on.

While load is low, the power of all three hosts is read without a manager. Then `partywall consolidate watch` begins. It
empties two hosts by live migration and switches them off. After the horizon of its plan, the load rises until each
guest needs a host of its own, so the two have to be woken before response times break their goal. Costs of moves and
of requests are measured before, and given to the manager in its cluster file.

Energy saved is the power before, over the plan's horizon, less the energy metered in it and the energy of the boots.

Bar: energy saved within 10 % of the plan's figure; no p99 above its goal, unless a plan's interval reaches there;
every guest answers with the identifier of its first boot, goes on to count on its disk, and runs on one host.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

import cluster
from common import PARTYWALL
from frame import Options, Outcome, bench
from partywall import units
from partywall.consolidate import check
from partywall.consolidate.document import Cluster
from partywall.consolidate.measure.libvirt import Libvirt
from partywall.consolidate.record import ConsolidationDirectory
from partywall.consolidate.values import ConsolidationEvidence, Step
from partywall.core.report.latency import quantiles
from partywall.host import Host
from partywall.load import recent
from partywall.load.record import LoadDirectory
from partywall.load.second import add_pairs, histogram
from partywall.migrate.document import Method
from partywall.migrate.measure.owned import move_domain
from partywall.power.meters import MeterError, make
from partywall.power.published import CERVERA
from partywall.testing import power

GUESTS = {"web1": "a", "web2": "b", "web3": "c"}
REAL_CPUS, CPUS = 0.6, 0.4
"""Of a real CPU: what a host has, and what of it guests are planned to use. The rest is for moves and the daemon."""
LOW, HIGH = 0.05, 0.3
"""Demand of a guest, in cores. Three high ones need a host each."""
WORK = 1_500_000
REQUESTS = 100
BOOT_W = 68.0
"""Table I: 1.42 Wh in 75 s."""
REQUESTED_S, STARTED_S = 6.0, 1.5
"""How long sushy-tools waits until a state changes, on average; how long a daemon takes to start."""
GOAL, WINDOW_S = "1s", 60.0
SETTLE_S, DECIDES_S = 10.0, 40.0
BAR = 0.10
PLANTS = {
    "idle": "hosts that are off take their idle power",
    "late": "the manager ends before the load rises",
    "lost": "a guest is started again while load is low",
}


@dataclass(frozen=True)
class Form:
    """Times in seconds."""

    before: float
    horizon: float
    ramp: float
    high: float
    every: float
    boot: float

    @property
    def low(self) -> float:
        return SETTLE_S + self.before + DECIDES_S + self.horizon


QUICK, LONG = Form(30, 120, 240, 40, 5, 15), Form(180, 1800, 300, 180, 10, 75)


@dataclass
class Meters:
    """Watts of all hosts, each second, until it is closed."""

    names: Mapping[str, str]
    readings: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def joules(self, begin_s: float, end_s: float, host: str | None = None) -> float:
        """Between two moments, of one host or of all: the mean of the readings times the time."""
        own = [
            watts[host] if host else sum(watts.values()) for at_s, watts in self.readings if begin_s <= at_s <= end_s
        ]
        return statistics.fmean(own) * (end_s - begin_s) if own else math.nan

    def _run(self) -> None:
        meters = {name: make(text, Host.here()) for name, text in self.names.items()}
        while not self._ended.wait(1.0):
            with contextlib.suppress(MeterError):
                self.readings.append(
                    (time.monotonic(), {name: each.read().watts or 0.0 for name, each in meters.items()})
                )


@bench(
    plants=PLANTS,
    lacking=cluster.lacking,
    more={"--keep": {"type": Path, "help": "keep the records there, with the page of the run"}},
)
def main(options: Options) -> Outcome:
    form = QUICK if options.quick else LONG
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pw-") as folder, power.password():
        made = cluster.Cluster(
            Path(folder, "c"), CERVERA, REAL_CPUS, form.boot, BOOT_W, WORK, GUESTS, idles=options.plant == "idle"
        )
        with made:
            run = Run(made, form, options.plant, options.keep or Path(folder))
            run.carry_out()
            verdicts = run.judged()
    return Outcome("; ".join(text for text, _ in verdicts.values()), all(good for _, good in verdicts.values()))


class Run:
    """One run. records: the folder for what it leaves."""

    def __init__(self, made: cluster.Cluster, form: Form, plant: str | None, records: Path) -> None:
        self.made, self.form, self.plant, self.records = made, form, plant, records
        records.mkdir(parents=True, exist_ok=True)
        self.loads = {guest: records / f"load-{guest}" for guest in GUESTS}
        self._begun_s = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begun_s:4.0f} s] {text}", flush=True)

    # The run

    def carry_out(self) -> None:
        form, made = self.form, self.made
        request_s = self._request_s()
        self.say(f"a request takes {request_s * 1e3:.1f} ms of CPU")
        setup_s, downtime_s = self._move_s()
        self.say(f"a move takes {setup_s:.1f} s, of which the guest stands still for {downtime_s:.2f} s")
        source, destination = self.move_cores
        self.say(f"a move uses {source:.2f} of a CPU on the host that the guest leaves, {destination:.2f} on the other")
        with Meters(made.meters) as self.meters, self._loads(request_s):
            time.sleep(SETTLE_S + form.before)
            self.before = (time.monotonic() - form.before, time.monotonic())
            self.watts_before = self.meters.joules(*self.before) / form.before
            p99_s = {guest: recent.p99_s(self.loads[guest], form.before, time.monotonic_ns()) for guest in GUESTS}
            self.say(f"low load takes {self.watts_before:.1f} W without a manager; p99 {said(p99_s)}")
            self.cluster = self._cluster_file(setup_s, downtime_s, p99_s)
            self._watch()
        self.counted = {guest: made.counter(guest) for guest in GUESTS}
        time.sleep(3)

    def _request_s(self) -> float:
        """CPU time of one request to a warm guest, over a connection that is kept. Also measures an idle guest."""
        hypervisor = Libvirt(self._bare())
        for guest in GUESTS:
            self.made.pages(guest, REQUESTS)
        before = hypervisor.cpu_s()["web1"]
        self.made.pages("web1", REQUESTS)
        after, at = hypervisor.cpu_s()["web1"], time.monotonic()
        time.sleep(5)
        self.idle = (hypervisor.cpu_s()["web1"] - after) / (time.monotonic() - at)
        return max(1e-4, (after - before) / REQUESTS)

    def _move_s(self) -> tuple[float, float]:
        """How long a move takes, and its downtime: the mean of one there and one back. Also measures its CPU time."""
        moves, used_s = [], np.zeros(2)
        for begin, end in (("b", "a"), ("a", "b")):
            ends = (self.made.hosts.uri(begin), self.made.hosts.uri(end))
            before = np.array([self.made.used_s[name]() for name in (begin, end)])
            move = move_domain("web2", *ends, Method(downtime="300ms"), 120 * 10**9)
            if move.outcome != "completed":
                raise SystemExit(f"a move before the run {move.outcome}: {move.reason}")
            used_s += np.array([self.made.used_s[name]() for name in (begin, end)]) - before
            # Its host has web2 until the end of a move; web1 stays on a.
            guests = np.array([1, 1]) if end == "a" else np.array([2, 0])
            used_s -= guests * self.idle * (move.end_ns - move.begin_ns) / 1e9
            moves.append(move)
        self.move_cores = np.maximum(used_s, 0.0) / sum((move.end_ns - move.begin_ns) / 1e9 for move in moves)
        return (
            statistics.fmean((move.end_ns - move.begin_ns) / 1e9 for move in moves),
            statistics.fmean((move.downtime_ns or 0) / 1e9 for move in moves),
        )

    @contextlib.contextmanager
    def _loads(self, request_s: float) -> Iterator[None]:
        """Virtual users of all guests, whose rate follows the course of the load."""
        form, running = self.form, []
        low, high = (max(2.0, (demand - self.idle) / request_s) for demand in (LOW, HIGH))
        self.say(f"{low:.1f} requests a second to each guest while load is low, {high:.1f} while it is high")
        for guest, path in self.loads.items():
            course = [(low, SETTLE_S / 2), (low, form.low), (high, form.ramp), (high, form.high)]
            stages = ", ".join(f"{{to: {rate:.2f}, for: {seconds:.0f}s}}" for rate, seconds in course)
            plan = self.records / f"{guest}.yaml"
            plan.write_text(
                f"partywall_load: 1\nname: {guest}\nbase: http://{self.made.address(guest)}\n"
                "users: {visitor: {actions: [{http: {url: /, timeout: 10s}}]}}\n"
                f"open: {{users_max: 200, stages: [{stages}]}}\n"
            )
            running.append(self._started("load", str(plan), "--out", str(path), inside=True, log=f"load-{guest}.log"))
        self.ends_s = time.monotonic() + SETTLE_S / 2 + form.low + form.ramp + form.high
        self.rises_s = self.ends_s - form.ramp - form.high
        try:
            yield
            for each in running:
                each.wait(60)
        finally:
            for each in running:
                each.kill()
                each.wait()

    def _watch(self) -> None:
        """The manager, until the load ends."""
        left_s = (self.rises_s if self.plant == "late" else self.ends_s) - time.monotonic()
        options = ("--every", f"{self.form.every:g}s", "--for", f"{left_s:.0f}s", "--out", str(self.records))
        manager = self._started("consolidate", "watch", str(self.records / "cluster.yaml"), *options, log="watch.log")
        self.watched_s = time.monotonic()
        try:
            if self.plant == "lost":
                time.sleep(max(0.0, self.rises_s - time.monotonic() - 20))
                self.made.restart("web3")
            code = manager.wait(left_s + 300)
            self.say(f"the manager ended with exit code {code}")
            time.sleep(max(0.0, self.ends_s - time.monotonic()))
        finally:
            manager.kill()
            manager.wait()

    def _started(self, *words: str, log: str, inside: bool = False) -> subprocess.Popen[bytes]:
        enter = self.made.hosts.enter if inside else ()
        command = [*enter, sys.executable, "-m", "partywall", *words]
        with (self.records / log).open("wb") as file:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def _bare(self) -> Cluster:
        text = self._hosts() + "guests:\n" + "".join(f"  {guest}: {{host: {host}}}\n" for guest, host in GUESTS.items())
        return check.loads(text.encode(), "cluster.yaml")

    def _hosts(self) -> str:
        boards, form = self.made.boards, self.form
        wait_s = REQUESTED_S + STARTED_S
        boot_j = REQUESTED_S * 9 + (form.boot + STARTED_S) * BOOT_W
        # The profile up to what guests are planned to use.
        cores = [CERVERA.cpus * CPUS / REAL_CPUS * step / 4 for step in range(5)]
        watts = np.interp(cores, *zip(*CERVERA.points, strict=True)).round(1).tolist()
        curve = (
            f"  bench:\n    watts: {watts}\n    off: 9\n"
            f"    boot: {{time: {form.boot + wait_s:g}s, energy: {boot_j:g}J}}\n"
            f"    shutdown: {{time: {REQUESTED_S:g}s, energy: {REQUESTED_S * 50:g}J}}\n"
        )
        hosts = "".join(
            f"  {name}: {{cpus: {CPUS}, memory: 1GiB, power: bench, uri: '{self.made.hosts.uri(name)}', "
            f"meter: '{self.made.meters[name]}', "
            f"control: {{kind: redfish, address: '{boards.address}', system: {boards.systems[name]}}}}}\n"
            for name in cluster.NAMES
        )
        about = "Three hosts on one machine. Their meters show simulated machines, driven by the CPU time really used."
        head = f"partywall_cluster: 1\nname: live\ndescription: {about}\nhypervisor: libvirt\n"
        return f"{head}power:\n{curve}hosts:\n{hosts}"

    def _cluster_file(self, setup_s: float, downtime_s: float, p99_s: Mapping[str, float | None]) -> Cluster:
        memory = cluster.MEMORY_KIB << 10
        guests = "".join(
            f"  {guest}: {{cpus: {CPUS}, memory: {memory >> 20}MiB, content: 40MiB, dirty_rate: 1MB/s, "
            f"working_set: 4MiB, p99: {max(0.001, p99_s[guest] or 0.001) * 1e3:.0f}ms, responses: {self.loads[guest]}, "
            f"slo: {{p99: {GOAL}, downtime: 3s, window: {WINDOW_S:g}s}}}}\n"
            for guest in GUESTS
        )
        carried_s = (40 << 20) * 8 / 400e6
        # Clients also wait at the start of a move, and for TCP to send again.
        rest = (
            f"link: {{rate: 400Mbit/s, spread: 20%, setup: {max(0.1, setup_s - carried_s):.1f}s, "
            f"blackout: {downtime_s * 1e3 + 400:.0f}ms, "
            f"source_cores: {self.move_cores[0]:.3f}, destination_cores: {self.move_cores[1]:.3f}}}\n"
            f"limits: {{horizon: {self.form.horizon:g}s, hold: 30s, overload_risk: 1%, relief_risk: 3%}}\n"
        )
        text = self._hosts() + "guests:\n" + guests + rest
        (self.records / "cluster.yaml").write_text(text)
        return check.loads(text.encode(), "cluster.yaml")

    # What became of it

    def judged(self) -> dict[str, tuple[str, bool]]:
        records = [ConsolidationDirectory.open(path) for path in sorted(self.records.glob("consolidation-*"))]
        plans = [each.evidence() for each in records]
        for evidence in plans:
            for step in evidence.plan.steps if evidence.plan else ():
                self.say(f"{evidence.about['started_at'][11:19]} {step.title}: {step.reason}")
        watches = sorted(self.records.glob("watch-*"))
        for watch in watches:
            subprocess.run([*PARTYWALL, "report", str(watch)], check=False)
        return {
            "energy": self._energy(plans),
            "goals": self._goals(plans),
            "guests": self._guests(),
        }

    def _energy(self, plans: Sequence[ConsolidationEvidence]) -> tuple[str, bool]:
        """What the plans that emptied hosts said, over the horizon of the first, and what was metered."""
        emptying = [each for each in plans if each.plan and any(step.action == "sleep" for step in each.plan.steps)]
        slept = {step.host for each in emptying if each.plan for step in each.plan.steps if step.action == "sleep"}
        woken = [each for each in self.made.switched if each.to == "on" and each.done_s]
        if len(slept) < 2 or len({each.host for each in woken}) < 2:
            return f"{len(slept)} hosts were emptied and {len(woken)} woken, of 2", False
        begin_s = monotonic(emptying[0].about["started_at"])
        horizon_s = self.form.horizon
        said_j, low_j, high_j = 0.0, 0.0, 0.0
        for each in emptying:
            if each.plan is None or (late_s := monotonic(each.about["started_at"]) - begin_s) > horizon_s:
                continue
            left = 1 - late_s / horizon_s
            cost = each.plan.moves_j.value + each.plan.switching_j.value
            said_j += (each.plan.net_j.value + cost) * left - cost
            low_j, high_j = low_j + each.plan.net_j.low, high_j + each.plan.net_j.high
        metered_j = self.meters.joules(begin_s, begin_s + horizon_s)
        boots_j = sum(
            self.meters.joules(each.begun_s, each.done_s, each.host) - 9 * (each.done_s - each.begun_s)
            for each in woken
        )
        saved_j = self.watts_before * horizon_s - metered_j - boots_j
        off = saved_j / said_j - 1
        return (
            f"saved {saved_j / units.WH:.2f} Wh of {said_j / units.WH:.2f} ({low_j / units.WH:.2f} to "
            f"{high_j / units.WH:.2f}) planned in {horizon_s:g} s, {off:+.1%}, simulated meters",
            abs(off) <= BAR,
        )

    def _goals(self, plans: Sequence[ConsolidationEvidence]) -> tuple[str, bool]:
        """The highest p99 of each guest over its window, and whether it was allowed."""
        goal_s = units.parse_duration_ns(GOAL) / 1e9
        worst, broken = {}, []
        for guest, path in self.loads.items():
            seconds = responses(path)
            if not seconds:
                return f"no response of {guest}", False
            allowed = {
                (began, ended): step.p99_s.high
                for step, began, ended in moves_of(plans, guest)
                if step.p99_s is not None
            }
            first_s = min(seconds)
            for end_s in sorted(seconds):
                if end_s < first_s + WINDOW_S:
                    continue
                within = [seconds[at] for at in seconds if end_s - WINDOW_S < at <= end_s]
                p99_s = p99(within)
                limit_s = max(
                    [goal_s, *(high for (began, ended), high in allowed.items() if began <= end_s <= ended + WINDOW_S)]
                )
                worst[guest] = max(worst.get(guest, 0.0), p99_s)
                if p99_s > limit_s:
                    broken.append((guest, end_s, p99_s))
        for guest, end_s, p99_s in broken[:3]:
            self.say(f"p99 of {guest} was {p99_s:.2f} s at {end_s - self.watched_s:.0f} s of the watch")
        guests = sorted({guest for guest, _, _ in broken})
        said_broken = f", goals of {', '.join(guests)} broken" if guests else ""
        return f"highest p99 {said(worst)}, goal {GOAL}{said_broken}", not broken

    def _guests(self) -> tuple[str, bool]:
        places = Libvirt(self.cluster).observe().places
        lost = [
            guest
            for guest in GUESTS
            if self.made.page(guest) != self.made.first[guest]
            or self.made.counter(guest) <= self.counted[guest]
            or len(places[guest]) != 1
        ]
        return f"{len(lost)} of {len(GUESTS)} guests lost{': ' + ', '.join(lost) if lost else ''}", not lost


def monotonic(stamp: str) -> float:
    """A wall-clock time on the monotonic clock. The machine's clock must not have been set meanwhile."""
    return time.monotonic() - time.time() + datetime.datetime.fromisoformat(stamp).timestamp()


def moves_of(plans: Sequence[ConsolidationEvidence], guest: str) -> Iterator[tuple[Step, float, float]]:
    """Moves of a guest, with their begin and end."""
    for evidence in plans:
        for step in evidence.plan.moves if evidence.plan else ():
            times = [monotonic(entry.at) for entry in evidence.journal if entry.number == step.number]
            if step.guest == guest and times:
                yield step, min(times), max(times)


def responses(path: Path) -> dict[float, tuple[dict[int, int], int]]:
    """Of each second: response times by bucket, and the number of requests without a response."""
    seconds: dict[float, tuple[dict[int, int], int]] = {}
    for row in LoadDirectory.open(path).table("timings"):
        counts = {pair["bucket"]: pair["count"] for pair in row["corrected"]}
        seconds[row["start_ns"] / 1e9] = (counts, row["failed"])
    return seconds


def p99(seconds: Sequence[tuple[dict[int, int], int]]) -> float:
    """Requests without a response count as slower than all others."""
    merged: dict[int, int] = {}
    for counts, _ in seconds:
        add_pairs(merged, counts.items())
    answered, failed = sum(merged.values()), sum(each for _, each in seconds)
    if failed > 0.01 * (answered + failed) or not answered:
        return math.inf
    return quantiles(histogram(merged), (0.99 * (answered + failed) / answered,))[0] / 1e9


def said(seconds: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {'–' if each is None else f'{each * 1e3:.0f} ms'}" for name, each in seconds.items())


if __name__ == "__main__":
    main()
