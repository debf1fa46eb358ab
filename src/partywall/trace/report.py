"""A trace as a report: what a terminal, a page, a notebook and a spreadsheet show of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from partywall import units
from partywall.core.report.compared import MISSING
from partywall.core.report.value import Chart, Column, On, Report, Row, Section, Table
from partywall.core.stats.estimate import Outcome
from partywall.trace.findings import findings as derived
from partywall.trace.record import Report as Interval
from partywall.trace.record import TraceEvidence, TraceFindings, WayFinding, merged

SLOWEST = 5
CAPTIONS = {
    "losses": "Each packet is counted once. Overtaken: it arrived after a packet of its flow that had been behind it.",
    "histogram": "Share of packets by delay from one hop to the next, in steps of an eighth of a doubling.",
    "percentiles": "Both axes are logarithmic; drawn as far as ten packets lie beyond.",
    "time": "One point for each report, about a second.",
    "waterfall": "Where each of the slowest packets spent its time. Hover for its flow.",
}
HOOKS = {"in": "ingress", "out": "egress"}
TERMS = {
    "Lost": "Seen at the hop before, and neither here nor later within the horizon. Every packet is counted. With "
    "--one-in, it is what this hop counted less than the one before. “3 to 5” means that up to two of the five may "
    "only have escaped the tracer, which says so.",
    "Duplicated, reordered": "Seen more than once at this hop; arrived after a packet of its flow that it preceded at "
    "the previous hop.",
    "Delay": "From one hook to the next. A segment of TCP that was cut or joined on the way has arrived when all of "
    "its bytes have. A retransmission is a packet of its own.",
    "Forward, backward": "Forward is the order in which the hops were named; which side of an interface that is was "
    "found out by watching, unless it was told.",
}


def _whole(number: int) -> str:
    return units.format_decimals(number, 0)


def _lost(row: Row) -> str:
    if row.get("lost") is None:
        return ""
    low, high = row["lost_low"], row["lost_high"]
    share = f" ({100 * row['lost_share']:.2g} %)" if row["lost"] and row["lost_share"] is not None else ""
    return (_whole(row["lost"]) if low == high else f"{_whole(low)} to {_whole(high)}") + share


def _count(key: str, row: Row) -> str:
    return _whole(row[key]) if row.get(key) is not None else ""


STEPS = (
    Column("way", "direction", on=On.COMPARISON, is_key=True),
    Column("hop", "from → to", is_key=True, text=lambda row: row.get("title") or f"{row['origin']} → {row['hop']}"),
    Column("packets", "packets", "", text=partial(_count, "packets")),
    Column("lost", "lost", "", text=_lost),
    Column("lost_share", "share lost", "%", on=On.COMPARISON),
    Column("duplicates", "duplicated", "", text=partial(_count, "duplicates")),
    Column("reordered", "reordered", "", text=partial(_count, "reordered")),
    Column("delay_ns_p50", "p50", "ns", name="delay p50"),
    Column("delay_ns_p90", "p90", "ns", name="delay p90", on=On.COMPARISON),
    Column("delay_ns_p99", "p99", "ns", name="delay p99"),
    Column("delay_ns_max", "max", "ns", name="longest delay"),
)
TRACER = (
    Column("hop", "hop"),
    Column("hook", "forward packets pass its"),
    Column("records", "records", ""),
    Column("missed", "missed by the tracer", ""),
)


def report(findings: TraceFindings, evidence: TraceEvidence) -> Report:
    """Everything that a trace found."""
    asked = evidence.start.asked
    ways = findings.ways
    is_seen = any(way.sent for way in ways)
    length = f"{units.format_duration(findings.duration_ns)}, horizon {units.format_duration(asked.horizon_ns)}"
    return Report(
        findings.headline,
        Outcome.HOLDS if is_seen and not findings.order else Outcome.INCONCLUSIVE,
        sections=(*map(partial(_way, is_seen=is_seen), ways), *_charts(evidence), _tracer(findings, evidence)),
        notes=(*findings.notes, _cost(findings)),
        warnings=tuple(_warnings(findings, evidence)),
        terms=TERMS,
        values=findings.model_dump(mode="json"),
        name=findings.run,
        about=f"{' → '.join(asked.names(0))} · {length}",
        started_at=evidence.start.started,
        host=evidence.host,
    )


def live(seen: TraceEvidence) -> Report:
    """What was seen so far, with the slowest packets of each direction."""
    found = derived(seen)
    is_seen = any(way.sent for way in found.ways)
    tables: list[Section] = []
    for number, way in enumerate(found.ways):
        tables += [_way(way, is_seen=is_seen), _slowest(way, merged(seen.reports), number)]
    return Report(found.headline, sections=tuple(tables))


def _warnings(findings: TraceFindings, evidence: TraceEvidence) -> Iterator[str]:
    if findings.sampled < 1:
        yield f"sampled: {100 * findings.sampled:.3g} % of flows"
    if any(findings.missed.values()):
        yield "the tracer missed packets"
    if evidence.interrupted:
        yield "interrupted"


def _way(way: WayFinding, *, is_seen: bool) -> Table:
    """The steps of one direction. A terminal shows no direction without packets, if there is one with them."""
    rows = [{"way": way.way, **step.model_dump(exclude={"delay_ns"}), **_delays(step.delay_ns)} for step in way.steps]
    lead = f"{_whole(way.sent)} packets seen at {way.hops[0]}, {_whole(way.delivered)} of them at {way.hops[-1]}"
    lead += f"; {way.unfinished} unfinished" if way.unfinished else ""
    lead += f"; {way.other} of other paths, left out" if way.other else ""
    sums = [{"title": "whole path", **_delays(way.total_ns)}] if len(rows) > 1 else []
    title = f"{way.way}: {_whole(way.sent)} packets, {_whole(way.delivered)} delivered"
    brief = 0 if is_seen and not way.sent else None
    return Table(way.way, title, STEPS, rows, lead=f"{lead}.", brief=brief, sums=sums)


def _delays(delay_ns: dict[str, float]) -> dict[str, float]:
    return {f"delay_ns_{name}": value for name, value in delay_ns.items()}


def _slowest(way: WayFinding, whole: Interval, number: int) -> Table:
    """The slowest packets of one direction so far: when each passed the first hop, its flow, and its delays."""
    flows = {flow.flow: str(flow) for flow in whole.flows}
    steps = [f"{step.origin} → {step.hop}" for step in way.steps]
    columns = [Column("at_s", "at", text=_at), Column("flow", "flow"), Column("bytes", "bytes", "")]
    columns += [Column(step, step, "ns", text=partial(_seen, step)) for step in steps]
    columns += [Column("total_ns", "whole path", "ns")] if len(steps) > 1 else []
    rows = [
        {
            "at_s": None if packet.at_ns[0] is None else (packet.at_ns[0] - whole.start_ns) / 1e9,
            "flow": flows.get(packet.flow, "not known"),
            "bytes": packet.length,
            "total_ns": packet.total_ns,
            **dict(zip(steps, packet.delays_ns, strict=True)),
        }
        for packet in whole.ways[number].slowest[:SLOWEST]
    ]
    return Table(f"slowest-{way.way}", f"The slowest packets {way.way}", tuple(columns), rows, in_rows=False)


def _at(row: Row) -> str:
    return MISSING if row["at_s"] is None else f"{row['at_s']:.3f} s"


def _seen(step: str, row: Row) -> str:
    return "not seen" if row[step] is None else units.format_duration(row[step])


def _tracer(findings: TraceFindings, evidence: TraceEvidence) -> Table:
    """What the tracer wrote and missed at each hop. On the page alone."""
    asked = evidence.start.asked
    hooks = next((report.hooks for report in reversed(evidence.reports) if report.hooks), None)
    rows = [
        {
            "hop": hop.name,
            "hook": HOOKS[hooks[number]] if hooks else "not found out",
            "records": findings.recorded[hop.name],
            "missed": findings.missed[hop.name],
        }
        for number, hop in enumerate(asked.hops)
    ]
    clocks = [
        f"The clock of {clock.agent} was brought to this host's by {clock.offset_ns} ns, within "
        f"±{units.format_duration(clock.bound_ns)}."
        for clock in findings.clocks
    ]
    lead = (
        [*clocks, "Delays to and from its hops are uncertain by as much."]
        if clocks
        else ["All hops were on one clock."]
    )
    return Table("tracer", "The tracer", TRACER, rows, lead=" ".join(lead), brief=0, in_rows=False)


def _cost(findings: TraceFindings) -> str:
    recorded = _whole(sum(findings.recorded.values()))
    missed = _whole(sum(findings.missed.values()))
    text = f"The tracer wrote {recorded} records and missed {missed}"
    if findings.cost is not None:
        text += f"; it took at most {100 * findings.cost:.2g} % of this host's CPU time"
    if findings.record_ns is not None:
        elsewhere = "".join(f", {ns} ns on {name}" for name, ns in findings.relays_record_ns.items() if ns is not None)
        text += (
            f", {findings.record_ns} ns a record in the tracer's program{elsewhere} (without the kernel's part of the "
            "hook)"
        )
    return f"{text}."


def _charts(evidence: TraceEvidence) -> Iterator[Chart]:
    """The charts of each direction with packets that have something to draw."""
    from partywall.trace import charts  # noqa: PLC0415 - Altair is slow to import

    for identity, (title, draw) in charts.all_charts(evidence).items():
        way, _, kind = identity.partition("-")
        yield Chart(identity, f"{way.capitalize()}: {title[0].lower()}{title[1:]}", CAPTIONS[kind], draw)


def packets(evidence: TraceEvidence) -> Any:
    """The kept packets as a pcapng file; None if there was no report."""
    from partywall.trace.pcapng import pcapng  # noqa: PLC0415 - of this format alone

    if not evidence.reports:
        return None
    return pcapng(evidence.start.asked, merged(evidence.reports), evidence.start.wall_ns)
