"""A paper's tables and figures beside ours: a table for a terminal, a section for a page, and a chart for each.

Published values are hollow marks; ours are filled ones with intervals. Which points are measured, and when they agree,
is decided elsewhere (`study.agreement`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
from markupsafe import Markup
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.core.report import figures, page
from partywall.core.report.charts import HEIGHT, WIDTH, AnyChart
from partywall.study.agreement import Bounded, Comparison, Likeness, Pair, Verdict, best_text, judge, reasons, sentence
from partywall.study.paper import Beside, Bound, Claim, Measured, Number, Place

STYLES = {
    Likeness.SAME_ORDER: "bold green",
    Likeness.SAME_DIRECTION: "green",
    Likeness.DIFFERS: "bold red",
    Likeness.UNTOLD: "magenta",
    Likeness.MISSING: "dim",
    Likeness.UNSTATED: "dim",
    Likeness.MODELLED: "dim",
}
BADGES = {
    Likeness.SAME_ORDER: ("✓", "holds"),
    Likeness.SAME_DIRECTION: ("✓", "holds"),
    Likeness.DIFFERS: ("✗", "violated"),
    Likeness.UNTOLD: ("?", "inconclusive"),
    Likeness.MISSING: ("–", "none"),
    Likeness.UNSTATED: ("–", "none"),
    Likeness.MODELLED: ("–", "none"),
}
WIDE_FROM = 200
"""An axis whose numbers span more than this factor is logarithmic."""
LOGARITHMIC_FROM = 20.0
"""Values that span more than this factor get a logarithmic axis: published values may be orders of magnitude away."""

NOT_PRINTED = "not printed"
NOT_MEASURED = "not measured"
UNDER = {None: "", "victim": " under emulation", "neighbour": " beside an emulated neighbour"}


# Table contents


def rows(beside: Beside) -> list[tuple[str, ...]]:
    """(series, x, published, here) of every point that the paper or we have a value for, and the other record's."""
    values, measured = beside.table.values, [each.points for each in records(beside)]
    return [
        (
            place.series,
            x_text(place),
            NOT_PRINTED if place not in values else str(values[place]),
            *(measured_text(points[place]) if place in points else NOT_MEASURED for points in measured),
        )
        for place in _places(beside)
    ]


def columns(beside: Beside) -> list[str]:
    """The headings of `rows`."""
    table = beside.table
    return ["", str(table.x), f"paper ({table.y})", *(each.name or "here" for each in records(beside))]


def records(beside: Beside) -> list[Beside]:
    """The table or figure as this record has it, and the other record, if one is shown beside it."""
    return [beside, beside.other] if beside.other else [beside]


SIMULATED = "S: the meter is simulated, so the value confirms nothing."


def measured_text(point: Measured) -> str:
    """'41.2 ± 0.8 (sd 3.1)', marked E if emulated and S if its meter is simulated."""
    deviation = "" if point.deviation is None else f" (sd {units.format_number(point.deviation, 3)})"
    marks = figures.mark(point.emulated) + (" S" if point.simulated else "")
    return figures.interval(point.value, point.low, point.high) + deviation + marks


def _places(beside: Beside) -> list[Place]:
    """All points, grouped by series: those with published values, those that only the paper mentions, and ours."""
    claimed = [place for claim in beside.table.claims for place in (claim.than, claim.left)]
    measured = (place for each in records(beside) for place in each.points)
    every = dict.fromkeys([*beside.table.values, *claimed, *measured])
    series = list(dict.fromkeys(place.series for place in every))
    xs = list(dict.fromkeys(place.x for place in every))

    def key(place: Place) -> tuple[int, bool, float]:
        number = isinstance(place.x, float)
        return series.index(place.series), not number, float(place.x) if number else xs.index(place.x)

    return sorted(every, key=key)


def x_text(place: Place) -> str:
    return f"{place.x:g}" if isinstance(place.x, float) else place.x


def claim_text(claim: Claim) -> str:
    by = f", by some {figures.bare_percent(claim.by)}" if claim.by else ""
    # 6 times as large is easier to read than larger by 500 %.
    by = f", some {1 + claim.by:g} times" if claim.by and claim.by >= 1 and claim.direction > 0 else by
    inferred = " (inferred)" if claim.inferred else ""
    return f"{claim.left} is {claim.is_} than {claim.than}{by}{inferred}".replace("alike than", "like")


def bound_text(bound: Bound) -> str:
    """'integer, no load is at least 96 from 5 to 100'."""
    return f"{bound.series}{_range_text(bound.at)} is {bound}"


def _range_text(at: tuple[float, float] | str | None) -> str:
    if isinstance(at, tuple):
        return f" at {at[0]:g}" if at[0] == at[1] else f" from {at[0]:g} to {at[1]:g}"
    return f", {at}" if at else ""


def scale_text(verdict: Verdict) -> str:
    """The ratio of our values to the paper's; empty if it prints none."""
    if verdict.scale is None:
        return ""
    low, high = (f"{end:.2g}" for end in verdict.scale)
    return f"our values are {low} of the paper's" if low == high else f"our values are {low} to {high} of the paper's"


def title(beside: Beside) -> str:
    name = beside.table.id
    return f"{name[0].upper()}{name[1:]}: {beside.table.title}"


def verdict_text(verdict: Verdict) -> str:
    return "; ".join(part for part in (verdict.reason, scale_text(verdict)) if part)


# Terminal


def show(comparisons: Sequence[Beside], console: Console) -> None:
    """Shows the papers, and then every table and figure in order."""
    for part in parts(comparisons):
        console.print(part)


def parts(comparisons: Sequence[Beside]) -> Iterator[RenderableType]:
    for cite in dict.fromkeys(beside.paper.cite for beside in comparisons):
        yield Text(f"\nBeside {cite}", style="bold")
    shared = common(comparisons)
    yield from (Text(f"differs here: {text}", style="dim") for text in shared)
    yield from (Text(text, style="dim") for text in legend(comparisons))
    yield from (_group(beside, shared) for beside in comparisons)


def legend(comparisons: Sequence[Beside]) -> list[str]:
    """The meaning of the marks that occur."""
    points = [point for beside in comparisons for point in beside.measured]
    emulated = [figures.EMULATED] if any(point.emulated for point in points) else []
    return emulated + ([SIMULATED] if any(point.simulated for point in points) else [])


def common(comparisons: Sequence[Beside]) -> list[str]:
    """Differences that apply to all tables and figures."""
    return [
        text for text in (comparisons[0].differs if comparisons else ()) if all(text in b.differs for b in comparisons)
    ]


def _group(beside: Beside, shared: Sequence[str] = ()) -> Group:
    verdict = judge(beside)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in columns(beside):
        table.add_column(heading)
    for row in rows(beside):
        table.add_row(*row)
    notes = [Text(f"measured: {text}") for text in reasons(beside, verdict)]
    notes += [Text(f"differs here: {text}", style="dim") for text in beside.differs if text not in shared]
    answer = [Text(text, style="bold")] if (text := best_text(beside)) else []
    judged = Text("\n").join(
        Text.assemble(
            f"{each.name}: " if each.name else "", (own.likeness, STYLES[own.likeness]), f" – {verdict_text(own)}"
        )
        for each, own in ((each, judge(each)) for each in records(beside))
    )
    about = Text(f"the paper: {beside.table.says}" if beside.table.says else "", style="dim")
    inside = Padding(Group(table, *answer, judged, about, *notes), (0, 0, 0, 2))
    return Group(Text(f"\n{title(beside)}", style="bold"), inside)


# Chart


HERE, THERE = "here", "there"
SHIFT = 4
"""Pixels to the left and right of their x for the marks of two records, so that intervals do not hide each other."""


def has_chart(beside: Beside) -> bool:
    return beside.table.chart and bool(beside.table.published or any(each.measured for each in records(beside)))


def chart(beside: Beside) -> AnyChart:
    """Hollow marks with dashes: published. Filled marks with intervals and lines: measured here.

    Filled triangles: measured by the other record, if one is shown beside this.
    """
    known = list(_drawn(beside))
    names = list(dict.fromkeys(row["series"] for row in known))
    y = alt.Y("value:Q", title=str(beside.table.y), scale=_scale(known))
    x = _axis(beside, known)
    colour = alt.Color("series:N", title=None, sort=names, scale=alt.Scale(domain=names))
    base = alt.Chart(alt.InlineData(values=known)).encode(x=x, y=y, color=colour, tooltip=_tooltips(beside))
    paper = base.transform_filter("datum.from === 'paper'")
    shape = _shape(beside)
    layers = [
        *(layer for origin, shift in _shifts(beside) for layer in _measured_layers(base, beside, origin, shift, shape)),
        paper.mark_point(filled=False, size=80, strokeWidth=2, opacity=1).encode(shape=shape),
    ]
    if any(row["low"] < row["high"] for row in known if row["from"] == "paper"):
        layers.append(paper.mark_rule(strokeWidth=1.5, strokeDash=[2, 3]).encode(y="low:Q", y2="high:Q"))
    if any(row["mark"] for row in known):
        layers.append(base.mark_text(align="left", dx=7, fontSize=11).encode(text="mark:N"))
    if _numeric(known):
        layers[:0] = [paper.mark_line(strokeDash=[4, 4], strokeWidth=1.2), *_lines(base, beside)]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _shifts(beside: Beside) -> list[tuple[str, int]]:
    return [(HERE, -SHIFT), (THERE, SHIFT)] if beside.other else [(HERE, 0)]


def _shape(beside: Beside) -> alt.Shape:
    """The shape of marks by origin, with a legend if there are two records."""
    legend = None
    if beside.other:
        names = {HERE: beside.name, THERE: beside.other.name}
        legend = alt.Legend(
            title=None,
            values=[HERE, THERE],
            labelExpr=f"{json.dumps(names)}[datum.label]",
            labelLimit=400,
            symbolFillColor="#555",
            symbolStrokeColor="#555",
        )
    shapes = {"paper": "circle", HERE: "circle"} | ({THERE: "triangle-up"} if beside.other else {})
    scale = alt.Scale(domain=list(shapes), range=list(shapes.values()))
    return alt.Shape("from:N", title="hollow: published, filled: measured here", legend=legend, scale=scale)


def _measured_layers(base: alt.Chart, beside: Beside, origin: str, shift: int, shape: alt.Shape) -> Iterator[AnyChart]:
    """Marks, intervals and deviations of one record."""
    own = base.transform_filter(f"datum.from === '{origin}'")
    y_title = str(beside.table.y)
    yield own.mark_rule(strokeWidth=1.5, xOffset=shift).encode(y=alt.Y("low:Q", title=y_title), y2=alt.Y2("high:Q"))
    yield own.mark_point(filled=True, size=70, opacity=1, xOffset=shift).encode(shape=shape)
    if any("above" in row for row in _drawn(beside) if row["from"] == origin):
        spread = own.mark_bar(size=9, opacity=0.22, xOffset=shift)
        yield spread.encode(y=alt.Y("below:Q", title=y_title), y2="above:Q")


def _lines(base: alt.Chart, beside: Beside) -> Iterator[AnyChart]:
    for origin, shift in _shifts(beside):
        own = base.transform_filter(f"datum.from === '{origin}'")
        yield own.mark_line(strokeWidth=1.6, strokeDash=[8, 3] if origin == THERE else [], xOffset=shift)


def _drawn(beside: Beside) -> Iterator[dict[str, Any]]:
    values = beside.table.values
    for place in _places(beside):
        if place in values:
            yield _published(place, values[place])
        for origin, each in zip((HERE, THERE), records(beside), strict=False):
            if place in each.points:
                yield _measured(place, origin, each.points[place], each.name or HERE)


def _measured(place: Place, origin: str, point: Measured, where: str) -> dict[str, Any]:
    text = f"{measured_text(point)}, measured {where if where == HERE else f'in {where}'}{UNDER[point.emulated]}"
    row = _row(place, origin, point.value, point.low, point.high, text, mark=figures.mark(point.emulated).strip())
    if point.deviation is not None:
        row |= {"below": max(0.0, point.value - point.deviation), "above": point.value + point.deviation}
    return row


def _published(place: Place, number: Number) -> dict[str, Any]:
    """A range is drawn from end to end; a single bound is a point with its sign."""
    low, high = (end if math.isfinite(end) else number.drawn for end in (number.low, number.high))
    sign = "" if number.value is not None or low < high else "≤" if number.at_least is None else "≥"
    origin = f"inferred: {number.inferred}" if number.inferred else "printed in the paper"
    mark = sign + ("*" if number.inferred else "")
    return _row(place, "paper", number.drawn, low, high, f"{number}, {origin}", mark=mark)


def _row(place: Place, origin: str, value: float, low: float, high: float, text: str, mark: str = "") -> dict[str, Any]:
    return {
        "series": place.series,
        "x": place.x,
        "from": origin,
        "value": value,
        "low": low,
        "high": high,
        "text": text,
        "mark": mark,
    }


def _numeric(known: Sequence[Mapping[str, Any]]) -> bool:
    return all(isinstance(row["x"], float) for row in known)


def _axis(beside: Beside, known: Sequence[Mapping[str, Any]]) -> alt.X:
    if not _numeric(known):
        order = list(dict.fromkeys(str(row["x"]) for row in known))
        return alt.X("x:N", title=str(beside.table.x), sort=order, axis=alt.Axis(labelAngle=0))
    ticks = sorted({row["x"] for row in known})
    above = [tick for tick in ticks if tick > 0]
    # Sizes that double each time, including 0.
    wide = min(ticks) >= 0 and bool(above) and max(above) > WIDE_FROM * min(above)
    padded = alt.Scale(type="symlog" if wide else "linear", nice=False, zero=False, padding=24)
    return alt.X(
        "x:Q",
        title=str(beside.table.x),
        scale=padded,
        axis=alt.Axis(values=ticks, labelExpr="datum.value", grid=False),
    )


def _scale(known: Sequence[Mapping[str, Any]]) -> alt.Scale:
    values = [row["value"] for row in known]
    lows = [min(row["low"], row.get("below", row["low"])) for row in known]
    if values and min(lows) > 0 and max(values) > LOGARITHMIC_FROM * min(values):
        return alt.Scale(type="log", padding=8)
    return alt.Scale(zero=True, nice=True)


def _tooltips(beside: Beside) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("series:N"),
        alt.Tooltip("x:N", title=beside.table.x.title),
        alt.Tooltip("text:N", title=beside.table.y.title),
    ]


# Page


def section(comparisons: Sequence[Beside], specs: dict[str, Any]) -> Markup:
    """A section for a page. Its charts are added to `specs`, which the page packs with its own."""
    shown = []
    for number, beside in enumerate(comparisons, start=1):
        identity = None
        if has_chart(beside):
            identity = f"paper-{number}-{slug(beside)}"
            specs[identity] = page.fluid(chart(beside))
        verdict = judge(beside)
        shown.append((beside, verdict, BADGES[verdict.likeness], identity))
    template = page.plain().get_template("paper.html.j2")
    text = template.render(
        shown=shown,
        papers={beside.paper.cite: beside.paper for beside in comparisons}.values(),
        differs=list(dict.fromkeys(text for beside in comparisons for text in beside.differs)),
        title=title,
        rows=rows,
        columns=columns,
        others=_others,
        legend=legend,
        claim=claim_text,
        verdict_text=verdict_text,
        reasons=reasons,
        pair=lambda pair: (sentence(pair), pair.agreement),
        statements=_statements,
        best=best_text,
    )
    return Markup(text)  # noqa: S704 - from a template that escapes


def _others(beside: Beside) -> list[tuple[str, Verdict, tuple[str, str]]]:
    """The name, verdict and badge of the record that is shown beside this one."""
    verdicts = [(each.name, judge(each)) for each in records(beside)[1:]]
    return [(name, verdict, BADGES[verdict.likeness]) for name, verdict in verdicts]


def _statements(beside: Beside, verdict: Verdict) -> list[tuple[str, str]]:
    """The text's claims and bounds, each with its result here."""
    return [
        *((claim_text(claim), _of_claim(claim, verdict.pairs)) for claim in beside.table.claims),
        *((bound_text(bound), _of_bound(bound, verdict.pairs)) for bound in beside.table.bounds),
    ]


def _of_claim(claim: Claim, pairs: Sequence[Comparison]) -> str:
    wanted = (claim.left, claim.than, claim.direction)
    for pair in pairs:
        if isinstance(pair, Pair) and (pair.left, pair.right, pair.direction) == wanted:
            return f"here {figures.interval(*pair.measured)} times: {pair.agreement}"
    return NOT_MEASURED


def _of_bound(bound: Bound, pairs: Sequence[Comparison]) -> str:
    judged = [pair for pair in pairs if isinstance(pair, Bounded) and pair.bound == bound]
    shown = (
        f"here {measured_text(pair.measured)} at {x_text(pair.measured.place)}: {pair.agreement}" for pair in judged
    )
    return "; ".join(shown) or NOT_MEASURED


def slug(beside: Beside) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", beside.table.id).strip("-").lower()
