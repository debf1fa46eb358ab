"""A trace's report as text for a terminal, as a page, and as files for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.core.report import page
from partywall.core.report.charts import titled
from partywall.core.report.compared import Figure, figures_of
from partywall.core.report.files import Files
from partywall.trace import charts
from partywall.trace.pcapng import pcapng
from partywall.trace.record import HopFinding, TraceEvidence, TraceFindings, WayFinding, merged

CAPTIONS = {
    "losses": "Each packet is counted once. Overtaken: it arrived after a packet of its flow that had been behind it.",
    "histogram": "Share of packets by delay from one hop to the next, in steps of an eighth of a doubling.",
    "percentiles": "Both axes are logarithmic; drawn as far as ten packets lie beyond.",
    "time": "One point for each report, about a second.",
    "waterfall": "Where each of the slowest packets spent its time. Hover for its flow.",
}


def summary(findings: TraceFindings) -> Group:
    """Tables of all directions with packets. Also shown live."""
    return Group(*(way_table(way) for way in findings.ways if way.sent or not any(w.sent for w in findings.ways)))


def way_table(way: WayFinding) -> Table:
    title = f"{way.way}: {_whole(way.sent)} packets, {_whole(way.delivered)} delivered"
    table = Table("hop", *COLUMNS, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row(way.hops[0], _whole(way.sent), *[""] * (len(COLUMNS) - 1))
    for step in way.steps:
        table.add_row(f"→ {step.hop}", *_figures(step))
    if len(way.steps) > 1:
        table.add_row("whole path", *[""] * 4, *_delays(way.total_ns))
    return table


COLUMNS = ("packets", "lost", "duplicated", "reordered", "p50", "p99", "max")


def _whole(number: int) -> str:
    return units.format_decimals(number, 0)


def _figures(step: HopFinding) -> list[str]:
    exact = step.lost_low == step.lost_high
    lost = _whole(step.lost) if exact else f"{_whole(step.lost_low)} to {_whole(step.lost_high)}"
    if step.lost and step.lost_share is not None:
        lost += f" ({100 * step.lost_share:.2g} %)"
    return [_whole(step.packets), lost, _whole(step.duplicates), _whole(step.reordered), *_delays(step.delay_ns)]


def _delays(delay_ns: Mapping[str, float]) -> list[str]:
    return [units.format_duration(delay_ns[name]) if name in delay_ns else "–" for name in ("p50", "p99", "max")]


def show(findings: TraceFindings, console: Console) -> None:
    """Shows the whole report at the end."""
    console.print(Text(findings.headline, style="bold"), soft_wrap=True)
    console.print(summary(findings))
    for note in findings.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    console.print(Text(_cost(findings)), soft_wrap=True)


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


def render(findings: TraceFindings, evidence: TraceEvidence) -> str:
    """The whole page."""
    drawn = charts.all_charts(evidence)
    figures = [
        (identity, identity.partition("-")[0], title, CAPTIONS[identity.partition("-")[2]])
        for identity, (title, _) in drawn.items()
    ]
    specs = {identity: page.fluid(chart) for identity, (_, chart) in drawn.items()}
    hooks = next((report.hooks for report in reversed(evidence.reports) if report.hooks), None)
    return page.framed(
        "trace.html.j2",
        specs,
        findings=findings,
        evidence=evidence,
        asked=evidence.start.asked,
        hooks=hooks,
        figures=figures,
        ways=[(way, [(s, _figures(s)) for s in way.steps], _delays(way.total_ns)) for way in findings.ways],
        cost=_cost(findings),
        host=page.facts(evidence.host),
    )


Traced = tuple[TraceFindings, TraceEvidence]


def _pcapng(trace: Traced) -> bytes | None:
    _, evidence = trace
    if not evidence.reports:
        return None
    return pcapng(evidence.start.asked, merged(evidence.reports), evidence.start.wall_ns)


def _charts(trace: Traced) -> dict[str, dict[str, Any]]:
    return {name: titled(chart, title) for name, (title, chart) in charts.all_charts(trace[1]).items()}


def rows(trace: Traced) -> list[dict[str, Any]]:
    """One row for each step between two hops, in each direction."""
    return [
        {
            "way": way.way,
            **step.model_dump(exclude={"delay_ns"}),
            **{f"delay_ns_{name}": value for name, value in step.delay_ns.items()},
        }
        for way in trace[0].ways
        for step in way.steps
    ]


COMPARED = {
    "packets": ("packets", ""),
    "lost": ("lost", ""),
    "lost_share": ("share lost", "%"),
    "delay_ns_p50": ("delay p50", "ns"),
    "delay_ns_p90": ("delay p90", "ns"),
    "delay_ns_p99": ("delay p99", "ns"),
    "reordered": ("reordered", ""),
    "duplicates": ("duplicates", ""),
}


def _between(trace: Traced) -> list[Figure]:
    steps = [row | {"at": f"{row['way']}, {row['origin']} to {row['hop']}"} for row in rows(trace)]
    return figures_of(steps, ("at",), COMPARED)


FILES: Files[Traced] = Files(
    of="a trace",
    show=lambda trace, console: show(trace[0], console),
    documents={
        "html": ("report.html", lambda trace: render(*trace)),
        "json": ("findings.json", lambda trace: trace[0].model_dump_json(indent=2) + "\n"),
        "pcapng": ("packets.pcapng", _pcapng),
    },
    rows=rows,
    table="steps.csv",
    charts=_charts,
    usual=("html", "json", "pcapng"),
    compared=_between,
    headline=lambda trace: trace[0].headline,
)
"""The formats. A new one needs one function and one entry."""
