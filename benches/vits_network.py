"""The network study of VITS (figure 10) on a link that two tenants share, with a trace of every size.

A target sends datagrams of 256 bytes flat out, a neighbour datagrams of 0 to 16384 bytes at a fixed rate. Each is a
network namespace whose interface leads to a bridge; the bridge's uplink, 1 Gbit/s, leads to where both are counted. In
a block every size, and a quiet neighbour, has one slot in random order; what was delivered of the target is read from
the far side's own counters. After that, a trace of the target's path at some sizes says between which hops it waits or
is lost. The paper's shape stands beside ours, with a computed verdict.

Bar: bandwidth at every size known to ± 0.05 of that alone (± 0.1 in the short form), no traced packet unaccounted for.
The shape is a finding and not a bar: this is no Xen.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from agents import now_ns, sleep_until
from common import Ratio, arguments, conclude
from partywall import pipeline, units
from partywall.agent import binary
from partywall.agent.client import AgentClient, start_agent
from partywall.guard.lab import Lab, ip, lab
from partywall.model.paper import Beside, Measured
from partywall.model.trace import Report, merged
from partywall.report import paper as beside_paper
from partywall.sandbox import Label, reap, reaper
from partywall.scenario import papers
from partywall.stats.trace import quantiles
from partywall.trace import Session, ask

SIZES = (0, 1, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
TRACED = (None, 256, 1024, 4096, 16384)
TARGET_BYTES, NEIGHBOUR_PPS = 256, 20_000.0
SLOT_S, SETTLE_S = 0.15, 0.03
HALF_MOST, HALF_MOST_QUICK = 0.05, 0.1
PORT = 9
TARGET_CPU, NEIGHBOUR_CPU = 0, max(os.sched_getaffinity(0))
Size = int | None


class Tenant:
    """An agent in a tenant's namespace with a sender of each size, resident and off."""

    def __init__(self, made: Lab, name: str, cpu: int, senders: dict[str, dict[str, Any]], label: Label) -> None:
        argv = ["ip", "netns", "exec", made.namespace(name), str(binary.find()), "serve", "--die-with-parent"]
        argv += ["--cpus", str(cpu)]
        self.client = AgentClient(name, start_agent(argv, env=os.environ | label.environment), lambda *_: None)
        self.client.greet()
        for id_, params in senders.items():
            kernel = {"name": "udp-send", "params": {"to": f"{made.address(name)}:{PORT}", "batch": 1} | params}
            self.client.call(
                "workload.start", id=id_, work={"kernel": kernel}, pace="scheduled", work_dir=str(label.work)
            )
            self.client.call("workload.calibrate", timeout_s=60, id=id_, for_ns=20_000_000)

    def on(self, id_: str, start_ns: int, end_ns: int) -> None:
        switches = [{"at_ns": start_ns, "intensity": 1.0}, {"at_ns": end_ns, "intensity": 0.0}]
        self.client.call("workload.schedule", id=id_, switches=switches)

    def close(self) -> None:
        self.client.close()


@contextlib.contextmanager
def tenants(made: Lab, label: Label) -> Iterator[tuple[Tenant, Tenant]]:
    target = Tenant(made, "target", TARGET_CPU, {"256": {"datagram_bytes": TARGET_BYTES, "marker": True}}, label)
    senders = {str(size): {"datagram_bytes": size, "rate_pps": NEIGHBOUR_PPS} for size in SIZES}
    try:
        neighbour = Tenant(made, "neighbour", NEIGHBOUR_CPU, senders, label)
        try:
            yield target, neighbour
        finally:
            neighbour.close()
    finally:
        target.close()


def slot(made: Lab, target: Tenant, neighbour: Tenant, size: Size, seconds: float) -> float:
    """Bits a second delivered of the target while the neighbour sends datagrams of one size."""
    start = now_ns() + 3_000_000
    end = start + int((SETTLE_S + seconds) * 1e9)
    target.on("256", start, end)
    if size is not None:
        neighbour.on(str(size), start, end)
    sleep_until(start + int(SETTLE_S * 1e9))
    before = made.read()
    sleep_until(end - 2_000_000)
    after = made.read()
    # What queues hold goes before the next slot begins.
    sleep_until(end + 25_000_000)
    return before.rates(after)["target"][0]


def blocks(made: Lab, target: Tenant, neighbour: Tenant, count: int) -> dict[int, Ratio]:
    """The target's bandwidth at each size over that beside a quiet neighbour in the same block."""
    found: dict[int, list[float]] = {size: [] for size in SIZES}
    order: list[Size] = [None, *SIZES]
    chance = random.Random(1)
    for number in range(count):
        chance.shuffle(order)
        rates = {size: slot(made, target, neighbour, size, SLOT_S) for size in order}
        alone = rates[None]
        for size in SIZES:
            found[size].append(rates[size] / alone)
        if number % 5 == 4:
            print(f"  {number + 1} of {count} blocks", flush=True)
    return {size: Ratio(values) for size, values in found.items()}


def path(made: Lab) -> tuple[str, ...]:
    target, switch, far = (made.namespace(name) for name in ("target", "switch", "far"))
    return f"{target}/eth0:out", f"{switch}/p1:in", f"{switch}/nic:out", f"{far}/uplink:in", f"{far}/p1:out"


def gone(made: Lab) -> int:
    """Packets that left the target's interface so far and did not leave by the port that only its sink hangs on."""
    ends = (made.namespace("target"), "eth0"), (made.namespace("far"), "p1")
    shown = [json.loads(ip("-n", space, "-s", "-j", "link", "show", port))[0]["stats64"] for space, port in ends]
    return int(shown[0]["tx"]["packets"]) - int(shown[1]["tx"]["packets"])


def traced(
    made: Lab, target: Tenant, neighbour: Tenant, size: Size, label: Label, seconds: float
) -> tuple[Report, int]:
    """What the trace found, and how many packets of the target's went missing by the interfaces' own counters."""
    reports: list[Report] = []
    before = gone(made)
    with Session(
        ask(path(made), budget="100%", protocol="udp", port=PORT, packets=0), label, reports.append
    ) as session:
        slot(made, target, neighbour, size, seconds)
        session.finish()
    return merged(reports), gone(made) - before


def unaccounted(report: Report, missing: int) -> int:
    """By how much the trace's losses and the counters' differ, beyond what the tracer says it did not take down."""
    way = report.ways[0]
    told = sum(step.lost + step.astray for step in way.steps)
    slack = way.unfinished + sum(hop.missed + hop.untraced for hop in report.hops)
    return max(0, abs(missing - told) - slack)


def table(made: Lab, reports: dict[Size, Report]) -> Table:
    """Where the target's packets wait and are lost, by the neighbour's size."""
    names = [hop.partition("-")[2] for hop in path(made)]
    shown = Table("neighbour", *(f"→ {name}" for name in names[1:]), title="Hop by hop: p50, p99, lost", box=None)
    for size, report in reports.items():
        way = report.ways[0]
        cells = []
        for before, step in zip(way.steps, way.steps[1:], strict=False):
            delay = quantiles(step.delay)
            lost = f", {step.lost / before.packets:.1%}" if step.lost and before.packets else ""
            times = [units.format_duration(delay[key]) for key in ("p50", "p99") if key in delay]
            cells.append(" ".join(times) + lost)
        shown.add_row("quiet" if size is None else f"{size} bytes", *cells)
    return shown


def beside(ratios: dict[int, Ratio]) -> Beside:
    points = []
    for size, ratio in ratios.items():
        low, high = ratio.interval()
        points.append(Measured(series="target", x=float(size), value=ratio.median, low=low, high=high))
    published = papers.load("vits-network")
    differs = (
        "network namespaces on one host instead of VMs, their traffic sharing a bridge and an uplink of 1 Gbit/s",
        "an MTU of 1500 bytes instead of 1024",
        f"the neighbour sends {NEIGHBOUR_PPS:.0f} datagrams a second at every size; the paper does not say its rate",
    )
    return Beside(paper=published, exhibit=published.exhibit("fig 10"), measured=tuple(points), differs=differs)


def half(ratio: Ratio) -> float:
    low, high = ratio.interval()
    return (high - low) / 2 if ratio.median else math.inf


def main() -> None:
    options = arguments(__doc__ or "")
    if os.geteuid() != 0 or shutil.which("ip") is None:
        conclude("vits-network", "needs root and iproute2 (namespaces, hooks)", met=False)
    reap()
    label = Label.create("vits-network", pipeline.WORK_ROOT)
    count, seconds, most = (12, 0.5, HALF_MOST_QUICK) if options.quick else (40, 3.0, HALF_MOST)
    reports: dict[Size, Report] = {}
    wrong = 0
    try:
        with lab(["target", "neighbour"]) as made, tenants(made, label) as (target, neighbour):
            slot(made, target, neighbour, None, 0.3)
            ratios = blocks(made, target, neighbour, count)
            for size in TRACED:
                reports[size], missing = traced(made, target, neighbour, size, label, seconds)
                wrong += unaccounted(reports[size], missing)
            hops = table(made, reports)
    finally:
        reaper.clean(label)
    console = Console(width=160)
    beside_paper.show([beside(ratios)], console)
    console.print(hops)
    widest = max(half(ratio) for ratio in ratios.values())
    missed = sum(hop.missed for report in reports.values() for hop in report.hops)
    largest = ratios[SIZES[-1]]
    figure = (
        f"beside datagrams of 16384 bytes the target keeps {largest} of its bandwidth alone, beside 1024 bytes "
        f"{ratios[1024].median:.3f}; widest interval ± {widest:.3f}; "
        f"{wrong} packets lost by the interfaces' counters and not by the trace, or the other way, "
        f"{missed} records missed"
    )
    conclude("vits-network", figure, met=widest <= most and not wrong)


if __name__ == "__main__":
    main()
