"""Charts of an experiment: who takes what, who was pulsed, and the victim's rate. From findings to an Altair chart."""

from __future__ import annotations

from typing import Any

import altair as alt

from partywall.blame.decide import State
from partywall.blame.findings import BlameFindings
from partywall.core.report.charts import CATEGORIES, HEIGHT, MUTED, WIDTH, inlined

SLOTS_DRAWN = 600
COLOURS = {State.GUILTY: CATEGORIES[1], State.CLEARED: CATEGORIES[2], State.OPEN: CATEGORIES[0], State.UNHELD: MUTED}


def ranking(findings: BlameFindings) -> Any:
    """What each suspect takes, with its interval."""
    rows = [
        {"suspect": each.name, "is": each.state, **{end: getattr(each.taken, end) for end in ("value", "low", "high")}}
        for each in findings.suspects
    ]
    order = [each.name for each in findings.suspects]
    colours = alt.Scale(domain=[str(state) for state in COLOURS], range=list(COLOURS.values()))
    base: Any = inlined(rows).encode(
        y=alt.Y("suspect:N", sort=order, title=None, axis=alt.Axis(labelLimit=320)),
        color=alt.Color("is:N", title=None, scale=colours),
        tooltip=["suspect:N", "is:N", *(alt.Tooltip(f"{name}:Q", format=".1%") for name in ("value", "low", "high"))],
    )
    x = alt.X("value:Q", title="share of what the victim would do alone", axis=alt.Axis(format="%"))
    point = base.mark_point(filled=True, size=60).encode(x=x)
    interval = base.mark_rule().encode(x=alt.X("low:Q"), x2="high:Q")
    zero = inlined([{"x": 0}]).mark_rule(strokeDash=[4, 4], color=MUTED).encode(x="x:Q")
    drawn: Any = alt.layer(zero, interval, point)
    return drawn.properties(width=WIDTH, height=max(60, 26 * len(rows)))


def _seconds(findings: BlameFindings) -> list[tuple[float, float]]:
    """Begin and end of each slot that is drawn."""
    slots = findings.slots[:SLOTS_DRAWN]
    begin_ns = slots[0].start_ns if slots else 0
    ends = [(each.start_ns - begin_ns, each.start_ns - begin_ns + each.length_ns) for each in slots]
    return [(begin / 1e9, end / 1e9) for begin, end in ends]


def pulses(findings: BlameFindings) -> Any:
    """Who was pulsed when, and how deep."""
    rows = [
        {"s": begin, "end": end, "suspect": name, "depth": depth}
        for (begin, end), slot in zip(_seconds(findings), findings.slots, strict=False)
        for name, depth in zip(findings.names, slot.depths, strict=True)
        if depth
    ]
    bars: Any = inlined(rows).mark_rect()
    return bars.encode(
        x=alt.X("s:Q", title="seconds"),
        x2="end:Q",
        y=alt.Y("suspect:N", title=None, axis=alt.Axis(labelLimit=200)),
        opacity=alt.Opacity("depth:Q", legend=None),
        tooltip=["suspect:N", alt.Tooltip("depth:Q", format=".0%")],
    ).properties(width=WIDTH, height=max(40, 16 * len(findings.names)))


def rate(findings: BlameFindings) -> Any:
    """The victim's rate, slot by slot."""
    rows = []
    for (begin, end), slot in zip(_seconds(findings), findings.slots, strict=False):
        known = [value for value in slot.ticks if value is not None]
        rows.append({"s": (begin + end) / 2, "rate": sum(known) / len(known) if known else None})
    line: Any = inlined(rows).mark_line(strokeWidth=1)
    y = alt.Y("rate:Q", title=findings.unit, scale=alt.Scale(zero=False))
    return line.encode(x=alt.X("s:Q", title="seconds"), y=y).properties(width=WIDTH, height=HEIGHT)
