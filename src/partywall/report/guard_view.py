"""A guard's time series as one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt

from partywall import __version__, units
from partywall.report import charts, html, page
from partywall.report.charts import HEIGHT, WIDTH, AnyChart
from partywall.report.files import Files

POINTS_MAX = 600
"""Of one line in a chart: more is finer than a page can show."""

VIFS_MAX = 12
"""Drawn in one page; the Parquet file has all."""

Reports = Sequence[Mapping[str, Any]]

SERIES: Mapping[str, Mapping[str, str]] = {
    "bits": {"offered": "offered_bps", "granted": "granted_bps", "passed": "passed_bps"},
    "packets": {"offered": "offered_pps", "granted": "granted_pps", "passed": "passed_pps"},
    "waits": {"mean wait": "delay_ns", "jitter": "jitter_ns"},
}
AXES = {"bits": ("Mbit/s", 1e6), "packets": ("packets/s", 1.0), "waits": ("ms in queues", 1e6)}
TITLES = {"bits": "Bits", "packets": "Packets", "waits": "Waiting"}
DASHES = {"offered": [2, 3], "granted": [6, 3], "passed": [1, 0], "mean wait": [1, 0], "jitter": [2, 3]}


def series_page(name: str, reports: Reports) -> str:
    """The page of a time series: totals of every vif, findings, and what passed over time."""
    vifs = list(reports[-1]["rows"])
    drawn = [vif for vif in vifs if any(report["rows"][vif]["offered_bps"] for report in reports)][:VIFS_MAX]
    specs: dict[str, Any] = {}
    figures = []
    for at, vif in enumerate(drawn):
        for kind in SERIES:
            if (chart := over_time(reports, vif, kind)) is not None:
                specs[f"vif-{at}-{kind}"] = page.fluid(chart)
                figures.append((vif, f"vif-{at}-{kind}", TITLES[kind]))
    begun = reports[0]["from_ns"]
    return _rendered(
        title=f"{name}: what was offered, granted and passed",
        headline=headline(reports),
        specs=specs,
        drawn=drawn,
        figures=figures,
        left_out=len(vifs) - len(drawn),
        rows=[(vif, *_summary(reports, vif)) for vif in vifs],
        notes=[((report["at_ns"] - begun) / 1e9, *note) for report in reports for note in report["notes"]],
    )


def _rendered(*, specs: dict[str, Any], **content: Any) -> str:
    return (
        html.environment()
        .get_template("guard.html.j2")
        .render(
            version=__version__,
            assets={name: page.asset(name) for name in ("report.css", "report.js")},
            data=page.embedded(page.pack(specs) | {"trials": {}}),
            vega=page.vega(),
            **content,
        )
    )


def headline(reports: Reports) -> str:
    """What happened, in a line."""
    spent = units.format_duration(reports[-1]["at_ns"] - reports[0]["from_ns"])
    wrong = sum(1 for report in reports for note in report["notes"] if note[1] != "repaired")
    told = "nothing wrong was found" if not wrong else f"{units.counted(wrong, 'finding')}, see below"
    return f"Kept for {spent}: {told}"


def figures(reports: Reports) -> dict[str, Any]:
    """The figures of a time series: its length, every vif's means and dropped packets, and the findings."""
    begun = reports[0]["from_ns"]
    notes = [(report["at_ns"] - begun, note) for report in reports for note in report["notes"]]
    return {
        "reports": len(reports),
        "length_ns": reports[-1]["at_ns"] - begun,
        "vifs": {vif: _means(reports, vif) for vif in reports[-1]["rows"]},
        "notes": [{"at_ns": at_ns, "hook": hook, "kind": kind, "text": text} for at_ns, (hook, kind, text) in notes],
    }


def _means(reports: Reports, vif: str) -> dict[str, float | None]:
    """Means over all reports, weighted by their time, and the sum of dropped packets."""

    def mean(key: str) -> float | None:
        known = [(report["rows"][vif].get(key), report["at_ns"] - report["from_ns"]) for report in reports]
        weighted = [(value * ns, ns) for value, ns in known if value is not None]
        return sum(v for v, _ in weighted) / sum(ns for _, ns in weighted) if weighted else None

    keys = [key for series in SERIES.values() for key in series.values()]
    dropped = sum(report["rows"][vif]["dropped_packets"] for report in reports)
    return {key: mean(key) for key in keys} | {"dropped_packets": dropped}


def _summary(reports: Reports, vif: str) -> list[str]:
    """The figures of a vif as cells of the table."""
    means = _means(reports, vif)

    def told(key: str, form: Callable[[float], str], none: str) -> str:
        value = means[key]
        return none if value is None else form(value)

    return [
        *(told(key, units.format_bit_rate, "–") for key in ("offered_bps", "passed_bps", "granted_bps")),
        *(told(key, units.format_packet_rate, "–") for key in ("offered_pps", "passed_pps")),
        told("dropped_packets", units.format_number, "0"),
        told("delay_ns", units.format_duration, "no queue"),
        told("jitter_ns", units.format_duration, "no queue"),
    ]


def over_time(reports: Reports, vif: str, kind: str) -> AnyChart | None:
    """One vif over time; None if there is nothing of this kind to draw."""
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


def _charts(series: tuple[str, Reports]) -> Mapping[str, dict[str, Any]]:
    """Each vif that sent, over time: stand-alone charts."""
    _, reports = series
    return {
        f"{vif}-{kind}": charts.titled(chart, f"{vif}: {TITLES[kind]}")
        for vif in reports[-1]["rows"]
        for kind in SERIES
        if (chart := over_time(reports, vif, kind)) is not None
    }


FILES: Files[tuple[str, Reports]] = Files(
    of="a guard",
    documents={"html": ("report.html", lambda series: series_page(*series))},
    charts=_charts,
    usual=("html",),
)
"""Formats; its content is the record's name and reports."""
