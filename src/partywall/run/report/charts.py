"""Charts of a run: one function for each, from findings and evidence to an Altair chart. Data are inlined.

A colour never carries a meaning alone: a label, shape or position repeats it. Fonts, inks and palette are in `theme`,
apart from the charts, so that a page can draw the same chart light or dark.
"""

from __future__ import annotations

import math
import re
from typing import Any

import altair as alt

from partywall.core.report import figures
from partywall.core.report.charts import (
    BAND,
    BASELINE,
    HEIGHT,
    MUTED,
    TREATED,
    WIDTH,
    AnyChart,
    inlined,
    slower,
    titled,
)
from partywall.core.report.wording import levels_text
from partywall.run.report import series
from partywall.run.report.figures import latency_of
from partywall.run.report.matrix import (
    Row,
    Severity,
    cell_title,
    emulated,
    matrix,
    sentence,
    severity,
    treatment_title,
    victim_title,
)
from partywall.run.values import finding
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Cell, Curve, Findings

HARM = {
    Severity.GAIN: "#9ecae1",
    Severity.NONE: "#eef0f2",
    Severity.NOT_KNOWN: "#ffffff",
    Severity.SLIGHT: "#fde3c8",
    Severity.CLEAR: "#f6b26b",
    Severity.SEVERE: "#d9772b",
}


def heatmap(findings: Findings) -> AnyChart:
    """Victims by treatments. Each cell shows the isolation factor with its interval."""
    grid = matrix(findings)
    rows = [
        _heat_row(cell, row.title, column.title)
        for row in grid.rows
        for column in grid.columns
        if (cell := grid.at(row, column))
    ]
    top = alt.Axis(orient="top", labelAngle=-35, labelLimit=220, ticks=False)
    left = alt.Axis(labelLimit=260, ticks=False)
    base = inlined(rows).encode(
        x=alt.X("treatment:N", sort=[c.title for c in grid.columns], title=None, axis=top),
        y=alt.Y("victim:N", sort=[r.title for r in grid.rows], title=None, axis=left),
    )
    colour = alt.Color(
        "severity:N",
        title="throughput lost",
        scale=alt.Scale(domain=[s.words for s in HARM], range=list(HARM.values())),
    )
    cells = base.mark_rect(stroke="white", strokeWidth=2).encode(color=colour, tooltip=[alt.Tooltip("sentence:N")])
    text = base.mark_text(fontSize=11, color="#1c2126").encode(text=alt.Text("text:N"))
    marks = base.mark_text(fontSize=9, dy=15, color="#1c2126").encode(text=alt.Text("mark:N"))
    return alt.layer(cells, text, marks).properties(width=alt.Step(104), height=alt.Step(56))


def _heat_row(cell: Cell, row: str, column: str) -> dict[str, Any]:
    level = severity(cell)
    return {
        "victim": row,
        "treatment": column,
        "severity": level.words,
        "text": figures.ratio(cell.isolation),
        "mark": level.mark + (" emulated" if emulated(cell) else ""),
        "sentence": sentence(cell),
    }


def sensitivity(findings: Findings, trial: str) -> AnyChart:
    """Isolation factor against intensity: one line for each aggressor, with intervals, over the A/A band."""
    curves = [curve for curve in findings.curves if curve.trial == trial]
    rows = [
        {
            "aggressor": c.aggressor,
            "intensity": x,
            "factor": e.value,
            "low": e.low,
            "high": e.high,
            "text": figures.ratio(e),
        }
        for c in curves
        for x, e in c.points
    ]
    order = [curve.aggressor for curve in curves]
    factor = alt.Y("factor:Q", title="isolation factor (1 = unharmed)", scale=alt.Scale(zero=False, nice=True))
    intensity = alt.X(
        "intensity:Q",
        title="intensity of the aggressor",
        axis=alt.Axis(format="%"),
        scale=alt.Scale(domain=[0, 1], nice=False),
    )
    colour = alt.Color("aggressor:N", legend=None, sort=order)
    base = inlined(rows).encode(x=intensity, color=colour)
    area = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=None), y2=alt.Y2("high:Q"))
    whiskers = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", title=None), y2=alt.Y2("high:Q"))
    line = base.mark_line(strokeWidth=2).encode(y=factor)
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        y=factor,
        shape=alt.Shape("aggressor:N", legend=None, sort=order),
        tooltip=[alt.Tooltip("aggressor:N"), alt.Tooltip("intensity:Q", format="%"), alt.Tooltip("text:N")],
    )
    names = (
        inlined(_names(curves))
        .mark_text(align="left", dx=10)
        .encode(x=intensity, y=alt.Y("place:Q", title=None), text=alt.Text("aggressor:N"), color=colour)
    )
    return alt.layer(*_band(findings, trial), area, whiskers, line, points, names).properties(
        width=WIDTH, height=HEIGHT + 60
    )


def _names(curves: list[Curve]) -> list[dict[str, Any]]:
    """The position of each curve's name: beside its last point, moved down until no two overlap."""
    ends = sorted(
        ((*max(c.points, key=lambda point: point[0]), c.aggressor) for c in curves if c.points),
        key=lambda end: -end[1].value,
    )
    values = [estimate.value for curve in curves for _, estimate in curve.points]
    apart = (max([*values, 1.0]) - min([*values, 1.0])) * 0.05
    names: list[dict[str, Any]] = []
    for intensity, estimate, aggressor in ends:
        place = min(estimate.value, names[-1]["place"] - apart) if names else estimate.value
        names.append({"aggressor": aggressor, "intensity": intensity, "place": place})
    return names


def _band(findings: Findings, trial: str, baseline: str = finding.BASELINE) -> list[alt.Chart]:
    """The A/A band over the whole width, with its name. If each kind of block has one, the wider band."""
    own = [band for band in findings.bands if (band.trial, band.baseline) == (trial, baseline)]
    widest = sorted(own, key=lambda band: band.high)[-1:]
    rows = [{"low": band.low, "high": band.high, "one": 1.0, "text": "A/A band"} for band in widest]
    base = inlined(rows)
    return [
        base.mark_rect(color=BAND, opacity=0.22, tooltip="A/A band: effects within it may be chance").encode(
            y=alt.Y("low:Q", title=None), y2=alt.Y2("high:Q")
        ),
        base.mark_rule(strokeDash=[4, 3]).encode(y=alt.Y("one:Q", title=None)),
        base.mark_text(align="left", baseline="bottom", dx=4, dy=-3, fontSize=10, color=MUTED).encode(
            x=alt.value(0), y=alt.Y("high:Q", title=None), text=alt.Text("text:N")
        ),
    ]


def effect_over_time(findings: Findings, evidence: Evidence, cell: Cell) -> AnyChart:
    """Each block's own isolation factor, and the running mean with its narrowing interval."""
    rows, blocks = series.effects(evidence, cell), len(series.pairs_of(evidence, cell))
    left_out = f" ({len(rows)} of {blocks} blocks are drawn)" if len(rows) < blocks else ""
    base = inlined(rows).encode(x=alt.X("time_s:Q", title=f"seconds since the trial began{left_out}"))
    scale = alt.Scale(zero=False)
    points = base.mark_point(filled=True, size=28, color=MUTED, opacity=0.85).encode(
        y=alt.Y("factor:Q", title="isolation factor", scale=scale),
        tooltip=[alt.Tooltip("block:Q"), alt.Tooltip("factor:Q", format=".4f")],
    )
    known = base.transform_filter("isValid(datum.mean)")
    area = known.mark_area(color=TREATED, opacity=0.25).encode(
        y=alt.Y("low:Q", title=None, scale=scale), y2=alt.Y2("high:Q")
    )
    line = known.mark_line(color=TREATED, strokeWidth=2).encode(y=alt.Y("mean:Q", title=None, scale=scale))
    return alt.layer(*_band(findings, cell.trial, cell.baseline), points, area, line).properties(
        width=WIDTH, height=HEIGHT
    )


def _states() -> alt.Color:
    return alt.Color("state:N", title=None, scale=alt.Scale(domain=["baseline", "treated"], range=[BASELINE, TREATED]))


def rate_distribution(evidence: Evidence, cell: Cell) -> AnyChart:
    """The distribution of slot rates, baseline and treated on one axis."""
    scale = series.scale_of(evidence, cell.trial)
    title = f"{scale.label} in one slot ({scale.direction})"
    chart: alt.Chart = (
        inlined(series.rates(evidence, cell))
        .mark_bar(opacity=0.62, binSpacing=0)
        .encode(
            x=alt.X("low:Q", title=title, scale=alt.Scale(zero=False), bin="binned"),
            x2=alt.X2("high:Q"),
            y=alt.Y("slots:Q", title="slots", stack=None),
            color=_states(),
            tooltip=[
                alt.Tooltip("state:N"),
                alt.Tooltip("low:Q", title="from"),
                alt.Tooltip("high:Q", title="to"),
                alt.Tooltip("slots:Q"),
            ],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart


def latency_distribution(evidence: Evidence, cell: Cell) -> AnyChart:
    """Latency percentiles. Both axes are logarithmic, so that 99 % and 99.9 % are as wide as 90 %."""
    what = latency_of(series.trial_of(evidence, cell.trial).victim, evidence.kernels)
    rows = series.latencies(evidence, cell)
    chart: alt.Chart = (
        inlined(rows)
        .mark_line(strokeWidth=2, interpolate="monotone")
        .encode(
            x=slower("operations"),
            y=alt.Y(
                "latency_us:Q",
                title=f"µs, {what}",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(format="~g", values=_decades(rows)),
            ),
            color=_states(),
            strokeDash=alt.StrokeDash(
                "state:N", title=None, scale=alt.Scale(domain=["baseline", "treated"], range=[[1, 0], [6, 3]])
            ),
            tooltip=[
                alt.Tooltip("state:N"),
                alt.Tooltip("slower:Q", title="share slower", format="~g"),
                alt.Tooltip("latency_us:Q", title="µs", format=".4~g"),
            ],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart


def _decades(rows: series.Rows) -> list[float]:
    """1, 2 and 5 of each power of ten in use, or more if there is only one: familiar labels and few grid lines."""
    values = [row["latency_us"] for row in rows if row["latency_us"] > 0]
    if not values:
        return []
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    digits = (1, 2, 5) if max(values) > 10 * min(values) else (1, 1.5, 2, 3, 4, 5, 7)
    return [digit * 10.0**power for power in powers for digit in digits]


def timeline(evidence: Evidence, trial: str, block: int | None = None, focus: str = "") -> AnyChart:
    """The slices of one block over time: switches marked, guard times shaded, treatments named above and coloured.

    `block` and `focus` (a highlighted treatment) are also parameters of the chart, so that a page can change them.
    """
    rows = series.slices(evidence, trial)
    slots = series.stretches(rows, "treatment")
    guards = [row for row in series.stretches(rows, "guard") if row["guard"]]
    scale = series.scale_of(evidence, trial)
    order = list(dict.fromkeys(series.groups_of(evidence, trial).values()))
    first = block if block is not None else (rows[0]["block"] if rows else 0)
    params = [alt.param(name="block", value=first), alt.param(name="focus", value=focus)]
    x = alt.X("start_ms:Q", title="ms since the block began", scale=alt.Scale(nice=False))

    def drawn(values: series.Rows) -> alt.Chart:
        return inlined(values).transform_filter("datum.block === block").encode(x=x)

    stressed = alt.when("focus === '' || datum.treatment === focus || datum.group === 'baseline'").then(alt.value(1.0))
    faint = stressed.otherwise(alt.value(0.4))
    # Names would overlap on a narrow page, so only the highlighted ones are shown there.
    named = stressed.when("width < 480").then(alt.value(0.0)).otherwise(alt.value(0.4))
    colour = alt.Color("group:N", legend=None, scale=alt.Scale(domain=order))
    shade = (
        drawn(guards).mark_rect(color=MUTED, opacity=0.28, tooltip="guard: not counted").encode(x2=alt.X2("end_ms:Q"))
    )
    switches = drawn(slots).mark_rule(strokeDash=[2, 3], opacity=0.6)
    bars = (
        drawn(rows)
        .mark_rule(strokeWidth=3.5, strokeCap="butt")
        .encode(
            x2=alt.X2("end_ms:Q"),
            y=alt.Y("rate:Q", title=f"{scale.label} ({scale.direction})", scale=alt.Scale(zero=False, padding=8)),
            color=colour,
            opacity=faint,
            tooltip=[
                alt.Tooltip("label:N"),
                alt.Tooltip("start_ms:Q", title="from ms"),
                alt.Tooltip("rate:Q", title=scale.label, format=".4~g"),
                alt.Tooltip("guard:N"),
            ],
        )
    )
    names = (
        drawn(slots)
        .mark_text(align="left", baseline="bottom", angle=325, dx=6, dy=-4, fontSize=10)
        .encode(y=alt.value(0), text=alt.Text("label:N"), opacity=named)
    )
    return alt.layer(shade, switches, bars, names).add_params(*params).properties(width=WIDTH, height=HEIGHT)


def efficiency(findings: Findings) -> AnyChart:
    """Efficiency of limited sandboxes: at q = 1 a sandbox got exactly what its settings promise."""
    rows = [
        {
            "what": f"{victim_title(cell)}, {treatment_title(cell)}{' (emulated)' if emulated(cell) else ''}",
            "q": cell.efficiency.value,
            "low": cell.efficiency.low,
            "high": cell.efficiency.high,
            "text": figures.ratio(cell.efficiency),
        }
        for cell in findings.cells
        if cell.efficiency is not None
    ]
    base = inlined(rows).encode(y=alt.Y("what:N", sort=None, title=None, axis=alt.Axis(labelLimit=300, ticks=False)))
    q = alt.X("q:Q", title="efficiency q: share of the promised capacity", scale=alt.Scale(zero=False, padding=20))
    reference = inlined([{"q": 1.0}]).mark_rule(strokeDash=[4, 3]).encode(x=q)
    whiskers = base.mark_rule(strokeWidth=2, color=TREATED).encode(x=alt.X("low:Q", title=None), x2=alt.X2("high:Q"))
    dots = base.mark_point(filled=True, size=70, color=TREATED, opacity=1).encode(
        x=q, tooltip=[alt.Tooltip("what:N"), alt.Tooltip("text:N")]
    )
    values = base.mark_text(dy=-12).encode(x=q, text=alt.Text("text:N"))
    return alt.layer(reference, whiskers, dots, values).properties(width=WIDTH - 160, height=48 * len(rows))


def all_charts(findings: Findings, evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Every chart as a stand-alone specification, by file name without suffix."""
    about = f"{findings.scenario}, run {findings.run}: 1 = unharmed, ± 95 % interval"
    specs = {"isolation": titled(heatmap(findings), "Isolation factor", about)}
    for number, row in enumerate(matrix(findings).rows, start=1):
        if any(curve.trial == row.trial for curve in findings.curves):
            spec = titled(sensitivity(findings, row.trial), f"{row.title}: sensitivity", _subtitle(findings, row.trial))
            specs[f"sensitivity-{number:02d}-{_slug(row.title)}"] = spec
        if evidence.timeline.get(row.trial):
            spec = titled(timeline(evidence, row.trial), "")
            specs[f"timeline-{number:02d}-{_slug(row.title)}"] = spec | {
                "title": _low_title(_timeline_title(findings, row))
            }
    for number, cell in enumerate(findings.cells, start=1):
        if not len(series.pairs_of(evidence, cell)):
            continue
        name = f"cell-{number:03d}-{_slug(victim_title(cell))}-{_slug(treatment_title(cell))}"
        specs |= {f"{name}-{kind}": spec for kind, spec in _cell_charts(findings, evidence, cell).items()}
    if any(cell.efficiency for cell in findings.cells):
        specs["efficiency"] = titled(efficiency(findings), "Efficiency of limits", "q = v / (v_ref · s)")
    return specs


def _cell_charts(findings: Findings, evidence: Evidence, cell: Cell) -> dict[str, dict[str, Any]]:
    title = cell_title(cell)
    drawn = {
        "effect": (effect_over_time(findings, evidence, cell), "isolation factor by block, running mean and interval"),
        "rates": (rate_distribution(evidence, cell), "rates of single slots"),
    }
    if series.latencies(evidence, cell):
        drawn["latency"] = (latency_distribution(evidence, cell), "latency by percentile")
    return {kind: titled(chart, title, subtitle) for kind, (chart, subtitle) in drawn.items()}


def _timeline_title(findings: Findings, row: Row) -> str:
    is_emulated = any(emulated(cell) for cell in findings.cells if cell.trial == row.trial)
    return f"{row.title}: one block{' (emulated)' if is_emulated else ''}"


def _slug(text: str) -> str:
    """Converts text to a part of a file name: letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()


def _low_title(text: str) -> dict[str, Any]:
    """A title below the chart, because treatments are named above it."""
    return {"text": text, "orient": "bottom"}


def _subtitle(findings: Findings, trial: str) -> str:
    cells = [cell for cell in findings.cells if cell.trial == trial]
    label = levels_text(cells[0].levels) if cells else ""
    return ", ".join(
        part for part in (label, "emulated" if any(map(emulated, cells)) else "", "band: 95 % interval") if part
    )
