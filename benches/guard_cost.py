"""What does the guard cost? CPU time a packet beside HTB in the same set-up, and a round of the loop for 10,000 vifs.

One sender on one core, and the same core does all the work as far as the sink's port.

Passing: the sender sends flat out and nothing is limited; what nothing costs is measured in turn with the guard and
with HTB, and taken away.

Limited: more is offered than may pass. A loop at idle priority on the core measures what is left of it: its work a
second is compared with its work there alone, so that interrupts count. The figure is the core's time for each delivered
packet. Datagrams at twice the limit, and TCP (iperf3), which slows down: that
takes some 5 % of the core under either, about what the core itself wanders, so it is shown and not judged.

Bar: in the median below HTB at 64 and 1514 bytes, passing and limited; reading, deciding and writing for 10,000 vifs in
under 5 ms. Whether the turns tell guard and HTB apart is said with each. The short form has too few turns to compare
medians: it measures 64 bytes, passing and limited, and fails if the guard is distinguishably dearer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import guards
from agents import Kernel, Resident, now_ns, rate
from common import busy_cpu, interval_of_median
from frame import NotMeasured, Options, Outcome, bench
from guards import has_fq
from partywall.host.label import Label
from partywall.sandbox import reap, reaper
from partywall.sandbox.lab import Lab, lab, sender, tc

AGENT = Path(__file__).parents[1] / "agent"
VIFS, ROUND_BAR_NS = 10_000, 5_000_000
FREE_BPS = 20e9
FRAME = 1514
CORE = max(os.sched_getaffinity(0))
"""It does all the work. What watches it runs elsewhere."""

Way = Callable[[Lab, float], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def nothing(_made: Lab, _bps: float) -> Iterator[None]:
    yield


@contextlib.contextmanager
def htb(made: Lab, bps: float) -> Iterator[None]:
    inside = made.namespace("vm")
    tc(inside, *["qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10"])
    whole = ["classid", "1:10", "htb", "rate", f"{bps:.0f}bit", "ceil", f"{bps:.0f}bit"]
    tc(inside, "class", "add", "dev", "eth0", "parent", "1:", *whole)
    try:
        yield
    finally:
        tc(inside, "qdisc", "del", "dev", "eth0", "root")


def guarded(
    made: Lab, bps: float, excess: str = "hold", queue: str | None = None
) -> contextlib.AbstractContextManager[object]:
    send = {"guarantee": f"{bps:.0f}bit/s", "ceiling": f"{bps:.0f}bit/s", "packets": "50M/s"}
    vifs = {"vm": {"excess": excess, "send": send}}
    return guards.guarded(made, vifs, f"{bps:.0f}bit/s", queue=queue)


def by_rate(made: Lab, bps: float) -> contextlib.AbstractContextManager[object]:
    return guarded(made, bps, queue="tbf")


def dropping(made: Lab, bps: float) -> contextlib.AbstractContextManager[object]:
    return guarded(made, bps, "drop")


WAYS: dict[str, Way] = {
    "nothing": nothing,
    "HTB": htb,
    "guard, holding": guarded,
    "guard, dropping": dropping,
}
SHORT = ("nothing", "HTB", "guard, holding")
"""What the short form measures."""


def beside(way: Way) -> Way:
    """A way that shares its core with another program."""

    @contextlib.contextmanager
    def both(made: Lab, bps: float) -> Iterator[None]:
        with busy_cpu(CORE), way(made, bps):
            yield

    return both


def cost_ns(made: Lab, seconds: float) -> float:
    """Wall time a packet on the one core that does everything."""
    before = made.read()
    time.sleep(seconds)
    return 1e9 / before.rates(made.read())["vm"][1]


def in_turn(ways: dict[str, Way], rounds: int, measure: Callable[[Way], float]) -> dict[str, list[float]]:
    """What each way costs, once a round, in an order of its own."""
    costs: dict[str, list[float]] = {way: [] for way in ways}
    chance = random.Random(1)
    for _ in range(rounds):
        for way in chance.sample(list(ways), len(ways)):
            costs[way].append(measure(ways[way]))
    return costs


@dataclass(frozen=True)
class Beside:
    """The guard's and HTB's costs, turn by turn, ns."""

    guard: list[float]
    htb: list[float]

    @property
    def less(self) -> float:
        """What the guard takes less than HTB, by medians."""
        return statistics.median(self.htb) - statistics.median(self.guard)

    @property
    def more(self) -> tuple[float, float]:
        """What the guard takes more than HTB, turn by turn: the median's interval."""
        return interval_of_median([guard - htb for guard, htb in zip(self.guard, self.htb, strict=True)])

    def __str__(self) -> str:
        low, high = self.more
        summarised = "different" if low > 0 or high < 0 else "not distinguishable"
        of = f"{statistics.median(self.guard):.0f} ns (HTB {statistics.median(self.htb):.0f}"
        return f"{of}, turn by turn {low:+.0f} to {high:+.0f}: {summarised})"


def summarised(title: str, costs: dict[str, list[float]]) -> Beside:
    print(title)
    for way, costs_ns in costs.items():
        spread = statistics.quantiles(costs_ns, n=4)
        print(
            f"  {way}: {statistics.median(costs_ns):.0f} ns (half of them {spread[0]:.0f} to {spread[2]:.0f})",
            flush=True,
        )
    return Beside(costs["guard, holding"], costs["HTB"])


@contextlib.contextmanager
def on(cpu: int) -> Iterator[None]:
    """Whatever starts in the block runs there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def passing(size: int, names: tuple[str, ...], rounds: int) -> Beside:
    """CPU time that each way adds to a packet where nothing is limited."""
    cpus = os.sched_getaffinity(0)

    def measure(way: Way) -> float:
        with on(min(cpus)), way(made, FREE_BPS):
            time.sleep(0.1)
            return cost_ns(made, 0.4)

    with lab(["vm"], None) as made, contextlib.ExitStack() as stack:
        with on(CORE):
            stack.enter_context(sender(made, "vm", size, None, batch=64))
        costs = in_turn({way: WAYS[way] for way in names}, rounds, measure)
    base = costs.pop("nothing")
    added = {way: [c - b for c, b in zip(cycles, base, strict=True)] for way, cycles in costs.items()}
    return summarised(
        f"{size} bytes, passing: a packet takes {statistics.median(base):.0f} ns with nothing; added", added
    )


@dataclass(frozen=True)
class Limited:
    """limit: frames that may pass a second. tcp: by iperf3, else datagrams at twice the limit."""

    size: int
    limit: float
    tcp: bool = False

    @property
    def title(self) -> str:
        what = "TCP" if self.tcp else f"{self.size} bytes"
        return f"{what} limited to {self.limit / 1e3:g} kp/s"

    @contextlib.contextmanager
    def offered(self, made: Lab) -> Iterator[None]:
        if not self.tcp:
            with sender(made, "vm", self.size, 2 * self.limit):
                yield
            return
        with guards.server(made.namespace("vm-sink")):
            sender_ = guards.client(made.namespace("vm"), made.address("vm", counted=False), 600)
            try:
                time.sleep(1)
                yield
            finally:
                sender_.kill()
                sender_.wait()


TCP = "limited TCP"
LIMITED = {
    "limited 64 bytes": Limited(64, 50e3),
    "limited 1514 bytes": Limited(FRAME, 20e3),
    TCP: Limited(FRAME, 20e3, tcp=True),
}
PARTS = ("passing", *LIMITED, "round")


def limited(what: Limited, names: tuple[str, ...], rounds: int, seconds: float) -> Beside:
    """CPU time a delivered frame takes under each way, its sender's included."""
    core, other = CORE, min(os.sched_getaffinity(0))
    ways = {way: WAYS[way] for way in names} | ({"guard, holding (tbf)": by_rate} if has_fq() else {})
    reap()
    label = Label.create("guard-cost", Path(tempfile.gettempdir()))
    try:
        with Resident(label, Kernel("integer", {}), [core], flat_out=True) as burner, on(other):
            for task in Path(f"/proc/{burner.pid}/task").iterdir():
                os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))

            def left() -> float:
                began = now_ns()
                time.sleep(seconds)
                ended = now_ns()
                speed = rate(burner.slices(ended), began, ended)
                burner.forget()
                return speed

            def measure(way: Way) -> float:
                alone = left()
                if not alone:
                    raise NotMeasured(f"other programs used all of CPU {core}; stop them and run it again")
                with contextlib.ExitStack() as stack:
                    stack.enter_context(way(made, what.limit * what.size * 8))
                    with on(core):
                        stack.enter_context(what.offered(made))
                    time.sleep(0.7)
                    before = made.read()
                    beside = left()
                    after = made.read()
                frames = (after.bytes["vm"] - before.bytes["vm"]) / what.size
                return (1 - beside / alone) * (after.at_ns - before.at_ns) / frames

            with lab(["vm"], None) as made:
                return summarised(f"{what.title}: the core's time a delivered frame", in_turn(ways, rounds, measure))
    finally:
        reaper.clean(label)


@dataclass(frozen=True)
class Rounds:
    """Of 200 rounds of 10,000 vifs whose demands change each time, in ns: reading, deciding and writing."""

    median: int
    deciding: int
    longest: int
    written: int


def rounds_of_many() -> Rounds:
    """The loop's own part, over maps of that size in the kernel, with counters changed as packets would change them."""
    test = ["cargo", "test", "--quiet", "--release", "-p", "partywall-guard", "--", "--ignored", "--nocapture"]
    ran = subprocess.run([*test, "rounds_of_ten_thousand"], cwd=AGENT, capture_output=True, text=True, check=True)
    match = re.search(r"median (\d+) of it (\d+) longest (\d+) written (\d+)", ran.stdout)
    assert match, ran.stdout + ran.stderr
    return Rounds(*map(int, match.groups()))


def frame_costs(options: argparse.Namespace) -> Iterator[tuple[str, str, Beside]]:
    """Name of a part, what was measured, and the costs: of the parts that were chosen."""
    quick = options.quick
    chosen = options.only or (("passing", "limited 64 bytes") if quick else PARTS)
    if "passing" in chosen:
        for size in (64,) if quick else (64, FRAME):
            named, rounds = (SHORT, 8) if quick else (tuple(WAYS), 20)
            yield "passing", f"passing {size} bytes adds", passing(size, named, rounds)
    extent = (SHORT[1:], 7, 0.5) if quick else (tuple(WAYS)[1:], 10, 2.0)
    for part, case in LIMITED.items():
        if part in chosen:
            at = replace(case, limit=options.pps) if options.pps else case
            yield part, at.title, limited(at, *extent)


@bench(
    parts=PARTS,
    plants={"shared": "another program on the core while the guard is there"},
    unjudged="medians, frames of 1514 bytes",
    needs=("iperf3",),
    more={"--pps": {"type": float, "help": "frames a second that may pass, if limited (default: 50000 and 20000)"}},
)
def main(options: Options) -> Outcome:
    if options.plant:
        WAYS.update({way: beside(WAYS[way]) for way in WAYS if way.startswith("guard")})
    texts: dict[str, list[str]] = {}
    met: dict[str, bool] = {}
    for part, title, cost in frame_costs(options):
        texts.setdefault(part, []).append(f"{title} {cost}")
        is_cheaper = cost.more[0] <= 0 if options.quick else cost.less > 0
        met[part] = met.get(part, True) and (part == TCP or is_cheaper)
    if "round" in (options.only or PARTS):
        rounds = rounds_of_many()
        print(
            f"{VIFS} vifs, {rounds.written} of whose grants change a round: {rounds.median / 1e6:.2f} ms in the "
            f"median, of it {rounds.deciding / 1e6:.2f} to decide; the longest {rounds.longest / 1e6:.2f}"
        )
        texts["round"] = [f"{VIFS} vifs in {rounds.median / 1e6:.2f} ms a round, {rounds.deciding / 1e6:.2f} to decide"]
        met["round"] = rounds.median < ROUND_BAR_NS
    figures = {part: "; ".join(parts) for part, parts in texts.items()}
    verdicts = {part: (text, met[part]) for part, text in figures.items() if part != TCP}
    return Outcome("; ".join(figures.values()), all(met.values()), verdicts)


if __name__ == "__main__":
    main()
