"""Charts of a guard: bits, packets and waiting of a vif over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from partywall.core.report.charts import HEIGHT, WIDTH, AnyChart, Rows, inlined

POINTS_MAX = 600
"""Points in one line of a chart. A page cannot show more detail."""
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


def rows(reports: Sequence[Mapping[str, Any]], vif: str, kind: str) -> Rows:
    """The points of one vif over time; none if all are 0."""
    _, unit = AXES[kind]
    begun = reports[0]["from_ns"]
    step = max(1, len(reports) // POINTS_MAX)
    every = [
        {"time_s": (report["at_ns"] - begun) / 1e9, "what": what, "value": report["rows"][vif][key] / unit}
        for report in reports[::step]
        for what, key in SERIES[kind].items()
        if report["rows"][vif].get(key) is not None
    ]
    return every if any(row["value"] for row in every) else []


def over_time(points: Rows, kind: str) -> AnyChart:
    """A chart of one vif over time."""
    title, _ = AXES[kind]
    names = [what for what in SERIES[kind] if any(row["what"] == what for row in points)]
    dash = alt.StrokeDash(
        "what:N", title=None, sort=names, scale=alt.Scale(domain=names, range=[DASHES[n] for n in names])
    )
    chart: alt.Chart = (
        inlined(points)
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
