"""Charts of a series of migrations: one function each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import altair as alt
import numpy as np

from partywall.core.report.charts import BASELINE, HEIGHT, MUTED, TREATED, WIDTH, AnyChart, inlined
from partywall.core.report.value import Chart
from partywall.migrate.document import MigrationFindings, MoveFinding

Rows = list[dict[str, Any]]
BLACKOUTS = {
    "downtime_s": "QEMU's downtime",
    "events_s": "STOP to RESUME",
    "stopped_s": "guest's clock stopped",
    "clients_s": "clients waited",
}


def all_charts(findings: MigrationFindings) -> Iterator[Chart]:
    """The charts that have something to draw."""
    if any("clients_s" in cell.figures for cell in findings.cells):
        yield Chart(
            "blackouts",
            "Blackouts of each method",
            "Each point is a move. QEMU's downtime ends before the guest goes on; clients wait until it answers.",
            lambda: blackouts(findings),
        )
        yield Chart(
            "parts",
            "What clients waited for",
            "Mean over moves. The parts add up to the time that clients waited.",
            lambda: parts(findings),
        )
    if used := [move for move in _typical(findings) if move.users_timeline]:
        yield Chart(
            "users-timeline",
            "Virtual users during a move",
            "One move of each workload by each method; a point a second. Slowest response (red) and median (blue); the "
            "shaded time is the move.",
            lambda: timeline(used, users=True),
        )
    if shown := _typical(findings):
        yield Chart(
            "timeline",
            "Response times during a move",
            "One move of each workload by each method; bins of 50 ms. The slowest response "
            "of a bin (red), with the median (blue); the shaded time is the move. "
            "Requests without an answer are not drawn.",
            lambda: timeline(shown),
        )


def blackouts(findings: MigrationFindings) -> AnyChart:
    rows = [
        {"cell": _cell(move), "seen by": name, "ms": value * 1e3}
        for move in _in_order(findings)
        if move.clients_ns is not None
        for key, name in BLACKOUTS.items()
        if (value := move.values.get(key)) is not None
    ]
    chart: alt.Chart = (
        inlined(rows)
        .mark_point(filled=True, size=45, opacity=0.8)
        .encode(
            x=alt.X("ms:Q", title="ms", scale=alt.Scale(zero=True)),
            y=alt.Y("cell:N", title=None, sort=None),
            yOffset=alt.YOffset("seen by:N", sort=list(BLACKOUTS.values())),
            color=alt.Color("seen by:N", title=None, sort=list(BLACKOUTS.values())),
            shape=alt.Shape("seen by:N", legend=None, sort=list(BLACKOUTS.values())),
            tooltip=["cell:N", "seen by:N", alt.Tooltip("ms:Q", format=".1f")],
        )
        .properties(width=WIDTH, height=alt.Step(14))
    )
    return chart


def parts(findings: MigrationFindings) -> AnyChart:
    sums: dict[tuple[str, str], list[float]] = {}
    names: list[str] = []
    for move in _in_order(findings):
        for part in move.parts:
            sums.setdefault((_cell(move), part.name), []).append(part.ns / 1e6)
            if part.name not in names:
                names.append(part.name)
    rows = [
        {"cell": cell, "part": name, "ms": float(np.mean(values)), "order": names.index(name)}
        for (cell, name), values in sums.items()
    ]
    chart: alt.Chart = (
        inlined(rows)
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="ms", stack="zero"),
            y=alt.Y("cell:N", title=None, sort=None),
            color=alt.Color("part:N", title=None, sort=names, legend=alt.Legend(columns=2, labelLimit=400)),
            order=alt.Order("order:Q"),
            tooltip=["cell:N", "part:N", alt.Tooltip("ms:Q", format=".1f")],
        )
        .properties(width=WIDTH, height=alt.Step(22))
    )
    return chart


def timeline(shown: list[MoveFinding], *, users: bool = False) -> alt.VConcatChart:
    """Response times over time, a row for each move."""
    layers = []
    for move in shown:
        rows = [
            {"s": each.at_s, "ms": each.slowest_ns / 1e6, "median": each.median_ns / 1e6}
            for each in (move.users_timeline if users else move.timeline)
        ]
        span = {"begin": 0.0, "end": (move.move.end_ns - move.move.begin_ns) / 1e9}
        shade = inlined([span]).mark_rect(color=MUTED, opacity=0.18).encode(x="begin:Q", x2="end:Q")
        base = inlined(rows)
        x = alt.X("s:Q", title="s from the start of the move")
        y = alt.Y("ms:Q", title="ms", scale=alt.Scale(type="log"))
        slowest = base.mark_line(color=TREATED, strokeWidth=1.3).encode(x=x, y=y)
        median = base.mark_line(color=BASELINE, strokeWidth=1.3).encode(x=x, y=alt.Y("median:Q"))
        layers.append(alt.layer(shade, slowest, median).properties(width=WIDTH, height=HEIGHT // 2, title=_cell(move)))
    return alt.vconcat(*layers, spacing=14)


def _in_order(findings: MigrationFindings) -> list[MoveFinding]:
    """The moves by their cells, as the plan lists them."""
    cells = [(cell.workload, cell.method) for cell in findings.cells]
    return sorted(findings.moves, key=lambda move: cells.index(move.move.cell))


def _typical(findings: MigrationFindings) -> list[MoveFinding]:
    """Of each cell the completed move with the median time without an answer."""
    shown = []
    for cell in findings.cells:
        own = [
            move
            for move in findings.moves
            if move.move.cell == (cell.workload, cell.method) and move.clients_ns is not None
        ]
        if own:
            shown.append(sorted(own, key=lambda move: move.clients_ns or 0)[len(own) // 2])
    return shown


def _cell(move: MoveFinding) -> str:
    return f"{move.move.workload}, {move.move.method}"
