"""The findings of a study of a path: a target's bandwidth by its neighbour's datagrams, and its waiting times. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from partywall import units
from partywall.core.stats.estimate import Emulated
from partywall.study import pairing
from partywall.study.document import Section
from partywall.study.paper import Beside, Paper, PaperTable, Place
from partywall.study.path.model import Cell, Size, Study, Traced
from partywall.trace.record import HopFinding, TraceFindings, WayFinding

NAMESPACES = "tenants are network namespaces of one host instead of VMs; their traffic shares a bridge and an uplink"
VIRTUAL = "tenants are guests of QEMU instead of Xen; their traffic enters at taps and shares a bridge and an uplink"
NO_CPU = (
    "the CPU time of a datagram is not measured for guests: from outside, a guest's CPU time contains its other work "
    "and the hypervisor's"
)
COST = "section 5.5 (CPU)"
"""The figure with the CPU time of a datagram."""


def beside(study: Study, cells: Sequence[Cell], paper: Paper, *, virtual: bool = False) -> Beside:
    """Figure 10: the target's bandwidth beside each size, as a share of its bandwidth alone in the same block.

    study: with the rates it was carried out with; virtual: True if tenants are guests.
    """
    differs = (
        VIRTUAL if virtual else NAMESPACES,
        f"the target sends {target_text(study)}, and the neighbour {rate_text(study.neighbour_rate)} at every size; "
        "the paper states neither rate",
    )
    emulated: Emulated | None = "victim" if any(cell.emulated for cell in cells) else None
    return pairing.marked(pairing.beside(paper, _bandwidths(paper), _shares(study, cells), differs), emulated)


def _bandwidths(paper: Paper) -> PaperTable:
    """The table or figure of the target's bandwidth: the first one that is not about CPU time."""
    return next(table for table in paper.exhibits if table.id != COST)


def places(study: Study, paper: Paper, *, virtual: bool) -> dict[str, frozenset[Place]]:
    """The points of a study, by table or figure. virtual: True if tenants are guests."""
    series = {_bandwidths(paper).id: "target"} | ({COST: "sender"} if _has_cost(paper) and not virtual else {})
    return {
        figure: frozenset(Place(name, float(size)) for size in study.neighbour_bytes) for figure, name in series.items()
    }


def comparisons(study: Study, cells: Sequence[Cell], paper: Paper, *, virtual: bool) -> tuple[Beside, ...]:
    """The paper's tables and figures beside the study's. See `beside`."""
    costs = (cost(study, cells, paper, virtual=virtual),) if _has_cost(paper) else ()
    return (beside(study, cells, paper, virtual=virtual), *costs)


def _has_cost(paper: Paper) -> bool:
    return any(table.id == COST for table in paper.exhibits)


def target_text(study: Study) -> str:
    """How fast the target sends."""
    return "as fast as possible" if study.target_rate is None else rate_text(study.target_rate)


def rate_text(pps: int) -> str:
    """A rate of datagrams."""
    return f"{units.format_decimals(pps, 0)} datagrams a second"


def cost(study: Study, cells: Sequence[Cell], paper: Paper, *, virtual: bool = False) -> Beside:
    """The CPU time that a datagram of each size takes its sender, in µs. virtual: True if tenants are guests."""
    if virtual:
        return Beside(paper=paper, table=paper.table(COST), differs=(NO_CPU,))
    by_place: dict[Place, dict[int, float]] = {Place("sender", float(size)): {} for size in study.neighbour_bytes}
    for cell in cells:
        if cell.bytes is not None and cell.cpu_ns:
            by_place[Place("sender", float(cell.bytes))][cell.block] = cell.cpu_ns / 1e3
    differs = (
        "the sender's own CPU time, the kernel's work for it included; the paper argues and shows no measurement",
    )
    return pairing.beside(paper, paper.table(COST), by_place, differs)


def short_of_cpu(study: Study, cells: Sequence[Cell]) -> dict[int, float]:
    """Most datagrams a second that a neighbour's CPU can send, by size, where that is less than its rate."""
    spent: dict[int, list[float]] = {}
    for cell in cells:
        if cell.bytes is not None and cell.cpu_ns:
            spent.setdefault(cell.bytes, []).append(cell.cpu_ns)
    most = {size: 1e9 / statistics.fmean(each) for size, each in sorted(spent.items())}
    return {size: pps for size, pps in most.items() if pps < study.neighbour_rate}


def shares(cells: Sequence[Cell]) -> dict[tuple[int, Size], float]:
    """By (block, size): delivered traffic divided by that beside a quiet neighbour in the same block.

    Later cells win.
    """
    bps = {(cell.block, cell.bytes): cell.bps for cell in cells}
    return {(block, size): got / bps[block, None] for (block, size), got in bps.items() if bps.get((block, None))}


def _shares(study: Study, cells: Sequence[Cell]) -> dict[Place, dict[int, float]]:
    by_place: dict[Place, dict[int, float]] = {Place("target", float(size)): {} for size in study.neighbour_bytes}
    for (block, size), share in shares(cells).items():
        if size is not None:
            by_place[Place("target", float(size))][block] = share
    return by_place


def hops(traces: Sequence[tuple[Traced, TraceFindings]], places: Sequence[str]) -> Section:
    """Where the target's datagrams wait and are lost, by the neighbour's size. places: names of the hops for people."""
    rows = [
        (size_text(traced.bytes), *map(_step, way.steps), _whole(way), _missing(traced, way, findings))
        for traced, findings in traces
        for way in findings.ways[:1]
    ]
    return Section(
        id="hops",
        title="Where the target's datagrams wait",
        lead="From each place to the next: the median delay and the 99th percentile, then the share "
        f"lost there.{_clocks(traces)} Every trace is a run of its own, with all delays, losses and single packets: "
        "partywall report runs/NAME in this folder. The last column shows losses according to the interfaces' "
        "counters.",
        columns=("beside", *(f"to {place}" for place in places[1:]), "in all", "lost, by counters"),
        rows=tuple(rows),
        short=True,
    )


def _clocks(traces: Sequence[tuple[Traced, TraceFindings]]) -> str:
    """How to read delays between two clocks, if there are any."""
    if not any(findings.clocks for _, findings in traces):
        return ""
    return (
        " The path begins inside the target's guest, at the interface that its agent traces; the bridge's port is the "
        "guest's tap. After ±: the largest error of the guest's clock against the host's. A delay that is not larger "
        "is marked as not resolved."
    )


def tracer_text(traces: Sequence[tuple[Traced, TraceFindings]]) -> str:
    """What the tracer's program takes for a record: the highest of all traces, by where it runs; empty if unknown."""
    costs: dict[str, int] = {}
    for _, findings in traces:
        for name, ns in (("on the host", findings.record_ns), *_inside(findings)):
            if ns is not None:
                costs[name] = max(ns, costs.get(name, 0))
    return ", ".join(f"up to {units.format_duration(ns)} {name}" for name, ns in costs.items())


def _inside(findings: TraceFindings) -> Sequence[tuple[str, int | None]]:
    return [(f"in the {name}'s guest", ns) for name, ns in findings.relays_record_ns.items()]


def size_text(size: Size) -> str:
    """The neighbour's size as text."""
    return "a quiet neighbour" if size is None else units.counted(size, "byte")


def unexplained(traced: Traced, findings: TraceFindings) -> int:
    """Difference between the losses in the trace and in the counters, beyond the packets that the tracer missed."""
    way = findings.ways[0]
    account = way.lost + sum(step.astray for step in way.steps)
    return max(0, abs(traced.missing - account) - way.unfinished - sum(findings.missed.values()))


def figures(traces: Sequence[tuple[Traced, TraceFindings]]) -> Mapping[str, object]:
    """The same as JSON values."""
    return {
        "path": [
            {
                "neighbour_bytes": traced.bytes,
                "run": traced.run,
                "missing": traced.missing,
                "unexplained": unexplained(traced, findings),
                "way": findings.ways[0].model_dump(),
            }
            for traced, findings in traces
        ]
    }


def _step(step: HopFinding) -> str:
    lost = f", {step.lost_share:.2%} lost" if step.lost and step.lost_share else ""
    return _delays(step.delay_ns, step.clock_bound_ns) + lost


def _whole(way: WayFinding) -> str:
    return _delays(way.total_ns, way.clock_bound_ns)


def _delays(quantiles: Mapping[str, float], bound_ns: int | None) -> str:
    """Median and 99th percentile. bound_ns: their largest error; None if both places use one clock."""
    shown = [quantiles[name] for name in ("p50", "p99") if name in quantiles]
    if bound_ns is None or not shown:
        return ", ".join(map(units.format_duration, shown)) or "—"
    bound = units.format_duration(bound_ns)
    marked = [units.format_duration(ns) + (" (not resolved)" if ns <= bound_ns else "") for ns in shown]
    return f"{', '.join(marked)} ± {bound}"


def _missing(traced: Traced, way: WayFinding, findings: TraceFindings) -> str:
    """Losses by counters, with a mark if the trace differs."""
    share = f"{traced.missing} of {units.format_decimals(way.sent, 0)}"
    beyond = unexplained(traced, findings)
    return share + (f" (trace: {way.lost})" if beyond else "")
