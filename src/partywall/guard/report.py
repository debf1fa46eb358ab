"""A guard's report as text for a terminal, as a page, and as files for other programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import altair as alt
from rich.console import Console
from rich.text import Text

from partywall import units
from partywall.core.report import page
from partywall.core.report.charts import HEIGHT, WIDTH, AnyChart, titled
from partywall.core.report.compared import figures_of
from partywall.core.report.files import Files
from partywall.guard.findings import GuardRun, Means

POINTS_MAX = 600
"""Points in one line of a chart. A page cannot show more detail."""

VIFS_MAX = 12
"""Vifs drawn in one page. The Parquet file contains all."""

Reports = Sequence[Mapping[str, Any]]

SERIES: Mapping[str, Mapping[str, str]] = {
    "bits": {
        "offered": "offered_bps",
        "granted": "granted_bps",
        "passed": "passed_bps",
        "guaranteed": "guarantee_bps",
    },
    "packets": {"offered": "offered_pps", "granted": "granted_pps", "passed": "passed_pps"},
    "waits": {"mean wait": "delay_ns", "jitter": "jitter_ns"},
}
AXES = {"bits": ("Mbit/s", 1e6), "packets": ("packets/s", 1.0), "waits": ("ms in queues", 1e6)}
TITLES = {"bits": "Bits", "packets": "Packets", "waits": "Waiting"}
DASHES = {
    "offered": [2, 3],
    "granted": [6, 3],
    "passed": [1, 0],
    "guaranteed": [8, 2, 2, 2],
    "mean wait": [1, 0],
    "jitter": [2, 3],
}


def render(run: GuardRun) -> str | None:
    """The page: totals of every vif, findings, and rates over time. None if there was no report."""
    if not run.reports:
        return None
    drawn = [vif for vif in run.vifs if any(report["rows"][vif]["offered_bps"] for report in run.reports)][:VIFS_MAX]
    specs: dict[str, Any] = {}
    figures = []
    for at, vif in enumerate(drawn):
        for kind in SERIES:
            if (chart := over_time(run.reports, vif, kind)) is not None:
                specs[f"vif-{at}-{kind}"] = page.fluid(chart)
                figures.append((vif, f"vif-{at}-{kind}", TITLES[kind]))
    return page.framed(
        "guard.html.j2",
        specs,
        title=f"{run.run}: offered, granted and passed",
        headline=headline(run),
        drawn=drawn,
        figures=figures,
        left_out=len(run.vifs) - len(drawn),
        links=run.links,
        rows=[(vif, *_summary(run, vif)) for vif in run.vifs],
        notes=[(at_ns / 1e9, *note) for at_ns, *note in run.notes],
        policies=[
            (at_ns / 1e9, changed, [(vif, *_summary(part, vif)[:3]) for vif in part.vifs])
            for at_ns, changed, part in run.parts
        ]
        if run.adjustments
        else [],
    )


def headline(run: GuardRun) -> str:
    """The result in one line."""
    if not run.reports:
        return "The guard ended before its first report"
    problems = f"{units.counted(run.wrong, 'finding')}, see below" if run.wrong else "no problem was found"
    unread = f"; reports of {units.format_duration(run.unread_ns)} were lost" if run.unread_ns else ""
    return f"Kept for {units.format_duration(run.length_ns)}: {problems}{unread}"


def show(run: GuardRun, console: Console) -> None:
    """Shows the headline and the findings."""
    console.print(Text(headline(run), style="bold"), soft_wrap=True)
    for at_ns, hook, kind, text in run.notes:
        console.print(Text(f"{at_ns / 1e9:.1f} s, {hook}: {kind}: {text}"), soft_wrap=True)
    for at_ns, changed, _ in run.parts[1:]:
        console.print(Text(f"{at_ns / 1e9:.1f} s, the policy was changed: {', '.join(changed)}"), soft_wrap=True)
    for said in got(run.means):
        console.print(Text(said), soft_wrap=True)


def got(means: Means) -> Iterator[str]:
    """A sentence for each vif that sent: what it got while it did, beside its promise. At most VIFS_MAX."""
    rows = means.rows()
    for vif in [vif for vif in rows if means.sent_ns[vif]][:VIFS_MAX]:
        passed, offered = (means.while_sending(vif, key) for key in ("passed_bps", "offered_bps"))
        guarantee, ceiling = rows[vif].get("guarantee_bps"), rows[vif].get("ceiling_bps")
        said = (
            f"{vif} got {units.format_bit_rate(passed)} while it sent, for {units.format_duration(means.sent_ns[vif])}"
        )
        if guarantee:
            said += f"; guaranteed: {units.format_bit_rate(guarantee)}"
        elif ceiling:
            said += f"; at most: {units.format_bit_rate(ceiling)}"
        yield said + (f"; it offered {units.format_bit_rate(offered)}" if guarantee and offered < guarantee else "")


def figures(run: GuardRun) -> dict[str, Any]:
    """The figures as a JSON value: the duration, every vif's means and dropped packets, and the findings.

    A vif also has its link if the policy's links have names.
    """
    return {
        "reports": len(run.reports),
        "length_ns": run.length_ns,
        "unread_ns": run.unread_ns,
        "vifs": {vif: _link(run, vif) | _means(run, vif) for vif in run.vifs},
        "notes": [{"at_ns": at_ns, "hook": hook, "kind": kind, "text": text} for at_ns, hook, kind, text in run.notes],
        "policies": [
            {"from_ns": at_ns, "changes": list(changed), "vifs": {vif: _means(part, vif) for vif in part.vifs}}
            for at_ns, changed, part in run.parts
        ],
    }


def _link(run: GuardRun, vif: str) -> dict[str, Any]:
    return {"link": run.links[vif]} if vif in run.links else {}


def _means(run: GuardRun, vif: str) -> dict[str, float | None]:
    """Means over all reports, weighted by their duration, and the number of dropped packets."""
    keys = [key for series in SERIES.values() for key in series.values()]
    return {key: run.mean(vif, key) for key in keys} | {"dropped_packets": run.dropped(vif)}


def _summary(run: GuardRun, vif: str) -> list[str]:
    """The figures of a vif as cells of the table."""
    means = _means(run, vif)

    def formatted(key: str, form: Callable[[float], str], none: str) -> str:
        value = means[key]
        return none if value is None else form(value)

    return [
        *(formatted(key, units.format_bit_rate, "–") for key in ("offered_bps", "passed_bps", "granted_bps")),
        *(formatted(key, units.format_packet_rate, "–") for key in ("offered_pps", "passed_pps")),
        formatted("dropped_packets", units.format_number, "0"),
        formatted("delay_ns", units.format_duration, "no queue"),
        formatted("jitter_ns", units.format_duration, "no queue"),
    ]


def over_time(reports: Reports, vif: str, kind: str) -> AnyChart | None:
    """A chart of one vif over time; None if there is nothing of this kind to draw."""
    title, unit = AXES[kind]
    begun = reports[0]["from_ns"]
    step = max(1, len(reports) // POINTS_MAX)
    rows = [
        {"time_s": (report["at_ns"] - begun) / 1e9, "what": what, "value": report["rows"][vif][key] / unit}
        for report in reports[::step]
        for what, key in SERIES[kind].items()
        if report["rows"][vif].get(key) is not None
    ]
    if not any(row["value"] for row in rows):
        return None
    names = [what for what in SERIES[kind] if any(row["what"] == what for row in rows)]
    dash = alt.StrokeDash(
        "what:N", title=None, sort=names, scale=alt.Scale(domain=names, range=[DASHES[n] for n in names])
    )
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=2, interpolate="step-before")
        .encode(
            x=alt.X("time_s:Q", title="seconds since the guard began"),
            y=alt.Y("value:Q", title=title),
            color=alt.Color("what:N", title=None, sort=names, scale=alt.Scale(domain=names)),
            strokeDash=dash,
            tooltip=[
                alt.Tooltip("what:N"),
                alt.Tooltip("time_s:Q", format=".2f"),
                alt.Tooltip("value:Q", format=".4~g"),
            ],
        )
        .properties(width=WIDTH, height=HEIGHT - 40)
    )
    return chart


def _charts(run: GuardRun) -> Mapping[str, dict[str, Any]]:
    """Stand-alone charts over time for each vif that sent packets."""
    return {
        f"{vif}-{kind}": titled(chart, f"{vif}: {TITLES[kind]}")
        for vif in run.vifs
        for kind in SERIES
        if (chart := over_time(run.reports, vif, kind)) is not None
    }


def rows(run: GuardRun) -> list[dict[str, Any]]:
    """One row for each vif."""
    return [{"vif": vif, **means} for vif, means in figures(run)["vifs"].items()] if run.reports else []


COMPARED = {
    "offered_bps": ("offered", "bit/s"),
    "passed_bps": ("passed", "bit/s"),
    "granted_bps": ("granted", "bit/s"),
    "guarantee_bps": ("guaranteed", "bit/s"),
    "offered_pps": ("packets offered", "p/s"),
    "passed_pps": ("packets passed", "p/s"),
    "dropped_packets": ("packets dropped", ""),
    "delay_ns": ("mean wait", "ns"),
    "jitter_ns": ("jitter", "ns"),
}

FILES: Files[GuardRun] = Files(
    of="a guard",
    show=show,
    documents={
        "html": ("report.html", render),
        "json": ("findings.json", lambda run: json.dumps(figures(run), indent=2) + "\n"),
    },
    rows=rows,
    table="vifs.csv",
    charts=_charts,
    compared=lambda run: figures_of(rows(run), ("vif",), COMPARED),
    headline=headline,
    goals=lambda run: len(run.vifs),
)
"""Formats."""
