"""Charts of a load: one function for each, from its findings to an Altair chart. Doubtful seconds are shaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt

from partywall import units
from partywall.core.report.charts import HEIGHT, MUTED, WIDTH, AnyChart, inlined, slower
from partywall.core.report.latency import quantiles, tail_shares
from partywall.core.stats.histogram import Histogram
from partywall.load.values import LoadRun, SecondPoint, Series

Rows = list[dict[str, Any]]
POINTS_MAX = 1200
"""Seconds that a chart draws. For longer loads, every nth second is drawn."""
LINES_MAX = 6
WHOLE_S = 0.9


def _x() -> alt.X:
    return alt.X("at_s:Q", title="seconds since the load began", scale=alt.Scale(nice=False))


def _shade(run: LoadRun) -> list[alt.Chart]:
    """Shading of seconds with unreliable figures, with the reason."""
    rows = [
        {
            "at_s": _short(second.at_s),
            "to_s": _short(second.at_s + second.length_s),
            "why": "doubtful: " + ", ".join(f"{what} ({figure})" for what, figure in second.doubts.items()),
        }
        for second in run.seconds
        if second.doubts
    ]
    if not rows:
        return []
    shade = inlined(rows).mark_rect(color=MUTED, opacity=0.25)
    return [shade.encode(x=_x(), x2=alt.X2("to_s:Q"), tooltip=[alt.Tooltip("why:N")])]


def _lines(
    run: LoadRun, rows: Rows, y: alt.Y, names: Sequence[str], height: int = HEIGHT, columns: int = 0
) -> AnyChart:
    """One line for each name, over the shading. columns: number of columns in the legend; 0 for one row."""
    legend = alt.Legend(columns=columns, labelLimit=210)
    colour = alt.Color("what:N", title=None, sort=list(names), scale=alt.Scale(domain=list(names)), legend=legend)
    tooltip = [alt.Tooltip("what:N"), alt.Tooltip("value:Q", format=".4~g"), alt.Tooltip("at_s:Q", title="at s")]
    lines = inlined(rows).mark_line(strokeWidth=1.8, point=alt.OverlayMarkDef(size=14))
    return alt.layer(*_shade(run), lines.encode(x=_x(), y=y, color=colour, tooltip=tooltip)).properties(
        width=WIDTH, height=height
    )


def _rows(points: Iterable[tuple[float, Mapping[str, float | None]]]) -> Rows:
    return [
        {"at_s": _short(at_s), "what": what, "value": _short(value)}
        for at_s, values in points
        for what, value in values.items()
        if value is not None
    ]


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _thinned(run: LoadRun) -> list[SecondPoint]:
    """Complete seconds: the first and the last are usually partial."""
    whole = [second for second in run.seconds if second.length_s > WHOLE_S] or list(run.seconds)
    every = -(-len(whole) // POINTS_MAX)
    return [second for number, second in enumerate(whole) if number % every == 0]


def percentiles_over_time(run: LoadRun) -> AnyChart:
    """Response times for each second: corrected, and the raw 99th percentile."""
    names = ["p50", "p90", "p99", "p99.9", "raw p99"]
    points = [
        (s.at_s, {n: v / 1e6 for n, v in (dict(s.quantiles_ns) | {"raw p99": s.raw_ns.get("p99", 0)}).items() if v > 0})
        for s in _thinned(run)
    ]
    y = alt.Y("value:Q", title="ms", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(format="~g"))
    return _lines(run, _rows(points), y, names)


def rate_over_time(run: LoadRun) -> AnyChart:
    """Responses, transactions and errors per second."""
    transactions = any(second.transactions for second in run.seconds)
    names = ["responses", *(["transactions"] if transactions else []), "errors"]
    points = [
        (
            s.at_s,
            {"responses": s.rate, "transactions": s.transactions if transactions else None}
            | {"errors": s.errors / s.length_s},
        )
        for s in _thinned(run)
    ]
    return _lines(run, _rows(points), alt.Y("value:Q", title="per second"), names)


def users_over_time(run: LoadRun) -> AnyChart:
    """Number of users, users waiting for a response, and arrivals waiting for a user, at the end of each second."""
    names = [
        "users",
        "waiting for a response",
        *(["arrivals without a user"] if any(s.waiting for s in run.seconds) else []),
    ]
    points = [
        (s.at_s + s.length_s, dict(zip(names, (float(s.users), float(s.in_flight), float(s.waiting)), strict=False)))
        for s in _thinned(run)
    ]
    return _lines(run, _rows(points), alt.Y("value:Q", title="users"), names, HEIGHT - 60)


def distribution(run: LoadRun) -> AnyChart:
    """Response time by percentile, one line for each request or transaction; the raw time is dashed."""
    rows: Rows = []
    shown = sorted(run.labels, key=lambda label: -label.done)[:LINES_MAX]
    for label in shown:
        for sort, counts in (("from intended start", label.corrected), ("raw", label.raw)):
            histogram = Histogram(dict(counts))
            shares = tail_shares(histogram)
            rows += [
                {"what": label.name, "time": sort, "slower": 1 - share, "value": _short(max(value, 1.0) / 1e6)}
                for share, value in zip(shares, quantiles(histogram, shares), strict=False)
            ]
    dashes = alt.Scale(domain=["from intended start", "raw"], range=[[1, 0], [5, 4]])
    chart: alt.Chart = (
        inlined(rows)
        .mark_line(strokeWidth=1.8, interpolate="monotone")
        .encode(
            x=slower("responses"),
            y=alt.Y("value:Q", title="ms", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(format="~g")),
            color=alt.Color("what:N", title=None, sort=[label.name for label in shown]),
            strokeDash=alt.StrokeDash("time:N", title=None, scale=dashes),
            tooltip=[alt.Tooltip("what:N"), alt.Tooltip("time:N"), alt.Tooltip("value:Q", title="ms", format=".4~g")],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart


def generator_over_time(run: LoadRun) -> AnyChart:
    """CPU use of the generator's threads. Near their number, the generator is saturated."""
    points = [(s.at_s, {"busy threads": s.busy}) for s in _thinned(run)]
    return _lines(run, _rows(points), alt.Y("value:Q", title="threads"), ["busy threads"], HEIGHT - 60)


def monitor(run: LoadRun, group: str) -> AnyChart:
    """Figures of one group of counters, of every host, on the load's clock."""
    members = [series for series in run.monitors if series.group == group]
    hosts, units = {series.host for series in members}, {series.unit for series in members}
    named = [(_name(series, hosts, units), series) for series in members]
    rows = [
        {"at_s": _short(at_s), "what": name, "value": _short(value)}
        for name, series in named
        for at_s, value in series.points[:: -(-len(series.points) // POINTS_MAX)]
    ]
    y = alt.Y("value:Q", title=members[0].unit if len(units) == 1 else None)
    return _lines(run, rows, y, [name for name, _ in named], HEIGHT - 80, columns=2)


def _name(series: Series, hosts: set[str], units: set[str]) -> str:
    """Name of a series, as short as the other hosts and units in the chart allow."""
    host = "" if len(hosts) == 1 else f"{series.host}: "
    return f"{host}{series.name}" + ("" if len(units) == 1 else f" ({series.unit})")


def all_charts(run: LoadRun) -> dict[str, tuple[str, str, Callable[[], AnyChart]]]:
    """Every chart that has something to draw: identity → (title, caption, what draws it)."""
    if not run.seconds:
        return {}
    charts: dict[str, tuple[str, str, Callable[[], AnyChart]]] = {}
    if any(second.quantiles_ns for second in run.seconds):
        caption = "From the intended start to the last byte; raw: from the actual start. Logarithmic."
        charts["percentiles"] = ("Response time over time", caption, partial(percentiles_over_time, run))
    caption = "Responses with any status. Errors are requests without a complete response, and failed checks."
    charts["rate"] = ("Throughput and errors", caption, partial(rate_over_time, run))
    charts["users"] = ("Active users", "At the end of each second.", partial(users_over_time, run))
    if any(label.corrected for label in run.labels):
        beyond = len(run.labels) - LINES_MAX
        left_out = f", without {units.counted(beyond, 'name')} with fewer responses" if beyond > 0 else ""
        caption = "Dashed: the raw time. Where the lines diverge, requests waited in the generator or for the service."
        charts["distribution"] = (f"Response time by percentile{left_out}", caption, partial(distribution, run))
    caption = "Time that its threads spent working, without waiting and spinning. Shaded: doubtful seconds."
    charts["generator"] = ("Load of the generator", caption, partial(generator_over_time, run))
    for group in dict.fromkeys(series.group for series in run.monitors):
        if any(value for s in run.monitors if s.group == group for _, value in s.points):
            slug = "".join(char if char.isalnum() else "-" for char in group.lower())
            charts[f"monitor-{slug}"] = (group, "", partial(monitor, run, group))
    return charts
