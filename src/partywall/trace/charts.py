"""Charts of a trace: one function for each, from findings and evidence to an Altair chart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import altair as alt

from partywall.core.report.charts import HEIGHT, WIDTH, AnyChart, inlined, slower
from partywall.core.report.latency import quantiles, tail_shares
from partywall.core.stats.histogram import bucket_bounds
from partywall.trace.record import Delay, Packet, Report, TraceEvidence, merged
from partywall.trace.request import WAYS

Rows = list[dict[str, Any]]
# A histogram is drawn in eighths of a doubling. The agent's buckets are finer than a page can show.
DRAWN_PER_DOUBLING = 8
WATERFALLS = 25


def steps(evidence: TraceEvidence, whole: Report, way: int) -> list[tuple[str, Delay]]:
    """(from → to, delays) of each step in one direction, and of the whole path if there is more than one step."""
    names = evidence.start.asked.names(way)
    rows = [
        (f"{names[place - 1]} → {names[place]}", whole.ways[way].steps[place].delay) for place in range(1, len(names))
    ]
    return rows + ([("whole path", whole.ways[way].total)] if len(rows) > 1 else [])


def _colour(names: Sequence[str]) -> alt.Color:
    return alt.Color("step:N", title=None, scale=alt.Scale(domain=list(names)), sort=list(names))


def histogram(evidence: TraceEvidence, whole: Report, way: int) -> AnyChart:
    """Distribution of the delay of each step; logarithmic, to show both 1 µs and 1 ms."""
    named = [(name, delay) for name, delay in steps(evidence, whole, way) if delay.count]
    rows = [row for name, delay in named for row in _bins(name, delay)]
    chart: alt.Chart = (
        inlined(rows)
        .mark_area(interpolate="step-after", opacity=0.35, line={"strokeWidth": 1.5})
        .encode(
            x=alt.X("delay_us:Q", title="µs from hop to hop", scale=alt.Scale(type="log", nice=False)),
            y=alt.Y("share:Q", title="share of packets", axis=alt.Axis(format="%"), stack=None),
            color=_colour([name for name, _ in named]),
            tooltip=[
                alt.Tooltip("step:N"),
                alt.Tooltip("delay_us:Q", title="from µs", format=".4~g"),
                alt.Tooltip("share:Q", format=".2%"),
            ],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart


def _bins(name: str, delay: Delay) -> Iterator[dict[str, Any]]:
    """Shares in even logarithmic steps, including empty ones, so that the outline falls to zero there."""
    bins: dict[int, int] = {}
    for index, count in delay.histogram:
        low, high = bucket_bounds(index)
        middle = max(1, (low + high) // 2)
        at = int((middle.bit_length() - 1) * DRAWN_PER_DOUBLING + (middle / 2 ** (middle.bit_length() - 1) - 1) * 8)
        bins[at] = bins.get(at, 0) + count
    if not bins:
        return
    for at in range(min(bins) - 1, max(bins) + 2):
        edge_ns = 2 ** (at // DRAWN_PER_DOUBLING) * (1 + (at % DRAWN_PER_DOUBLING) / DRAWN_PER_DOUBLING)
        yield {"step": name, "delay_us": edge_ns / 1e3, "share": bins.get(at, 0) / delay.count}


def percentiles(evidence: TraceEvidence, whole: Report, way: int) -> AnyChart:
    """Delay by percentile. 99 % and 99.9 % are as wide as 90 %."""
    named = [(name, delay) for name, delay in steps(evidence, whole, way) if delay.count]
    rows: Rows = []
    for name, delay in named:
        shares = tail_shares(delay.counts)
        values = map(delay.within, quantiles(delay.counts, shares))
        rows += [
            {"step": name, "slower": 1 - share, "delay_us": max(value, 1.0) / 1e3}
            for share, value in zip(shares, values, strict=True)
        ]
    chart: alt.Chart = (
        inlined(rows)
        .mark_line(strokeWidth=2, interpolate="monotone")
        .encode(
            x=slower("packets"),
            y=alt.Y("delay_us:Q", title="µs", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(format="~g")),
            color=_colour([name for name, _ in named]),
            tooltip=[alt.Tooltip("step:N"), alt.Tooltip("delay_us:Q", title="µs", format=".4~g")],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart


def over_time(evidence: TraceEvidence, way: int) -> AnyChart:
    """The median and 99th percentile of the whole path for each second, and lost packets."""
    start_ns = min(report.start_ns for report in evidence.reports)
    rows: Rows = []
    for report in evidence.reports:
        total = report.ways[way].total
        at_s = (report.start_ns - start_ns) / 1e9
        values = map(total.within, quantiles(total.counts, (0.5, 0.99)))
        for name, value in zip(("median", "99 %"), values, strict=False):
            rows.append({"time_s": at_s, "what": name, "delay_us": max(value, 1.0) / 1e3})
    chart: alt.Chart = (
        inlined(rows)
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=18))
        .encode(
            x=alt.X("time_s:Q", title="seconds since the trace began"),
            y=alt.Y("delay_us:Q", title="µs over the whole path", scale=alt.Scale(type="log", nice=False)),
            color=alt.Color("what:N", title=None, sort=["median", "99 %"]),
        )
        .properties(width=WIDTH, height=HEIGHT - 40)
    )
    return chart


FATES = ("lost", "reordered", "duplicated")


def losses(evidence: TraceEvidence, whole: Report, way: int) -> AnyChart:
    """Lost, reordered and duplicated packets at each hop."""
    names = evidence.start.asked.names(way)
    order = [f"{names[place - 1]} → {names[place]}" for place in range(1, len(names))]
    rows: Rows = []
    for place, name in enumerate(order, start=1):
        step = whole.ways[way].steps[place]
        for what, count in zip(FATES, (step.lost, step.reordered, step.duplicates), strict=True):
            rows.append({"step": name, "what": what, "count": count, "text": f"{count}" if count else ""})
    base = inlined(rows).encode(
        y=alt.Y("step:N", title=None, sort=order, axis=alt.Axis(labelLimit=300)),
        yOffset=alt.YOffset("what:N", sort=list(FATES)),
        x=alt.X("count:Q", title="packets", axis=alt.Axis(tickMinStep=1, format="~s")),
    )
    bars = base.mark_bar().encode(color=alt.Color("what:N", title=None, sort=list(FATES)))
    text = base.mark_text(align="left", dx=4).encode(text=alt.Text("text:N"))
    return alt.layer(bars, text).properties(width=WIDTH, height=alt.Step(16))


def waterfall(evidence: TraceEvidence, whole: Report, way: int) -> AnyChart:
    """The slowest packets, one line each: where on the path each spent its time."""
    names = evidence.start.asked.names(way)
    order = [f"{names[place - 1]} → {names[place]}" for place in range(1, len(names))]
    flows = {flow.flow: str(flow) for flow in whole.flows}
    packets = whole.ways[way].slowest[:WATERFALLS]
    begin_ns = min((report.start_ns for report in evidence.reports), default=0)
    rows = [row for number, packet in enumerate(packets) for row in _pieces(number, packet, names, flows, begin_ns)]
    labels = list(dict.fromkeys(row["packet"] for row in rows))
    chart: alt.Chart = (
        inlined(rows)
        .mark_bar(height={"band": 0.75})
        .encode(
            x=alt.X("from_us:Q", title="µs since the first hop", scale=alt.Scale(nice=False)),
            x2=alt.X2("to_us:Q"),
            y=alt.Y("packet:N", title=None, sort=labels, axis=alt.Axis(labelLimit=200, ticks=False)),
            color=_colour(order),
            tooltip=[
                alt.Tooltip("step:N"),
                alt.Tooltip("spent_us:Q", title="µs", format=".4~g"),
                alt.Tooltip("flow:N"),
                alt.Tooltip("bytes:Q"),
            ],
        )
        .properties(width=WIDTH, height=alt.Step(15))
    )
    return chart


def _pieces(
    number: int, packet: Packet, names: Sequence[str], flows: dict[str, str], begin_ns: int
) -> Iterator[dict[str, Any]]:
    """One piece for each step between places where the packet was seen."""
    seen = [(place, at) for place, at in enumerate(packet.at_ns) if at is not None]
    first_ns = seen[0][1]
    label = f"{number + 1}. at {(first_ns - begin_ns) / 1e9:.3f} s, tag {packet.tag % 10**6}"
    for (_, from_ns), (place, to_ns) in itertools.pairwise(seen):
        yield {
            "packet": label,
            "step": f"{names[place - 1]} → {names[place]}",
            "from_us": (from_ns - first_ns) / 1e3,
            "to_us": (to_ns - first_ns) / 1e3,
            "spent_us": (to_ns - from_ns) / 1e3,
            "flow": flows.get(packet.flow, "unknown"),
            "bytes": packet.length,
        }


def all_charts(evidence: TraceEvidence) -> dict[str, tuple[str, Callable[[], AnyChart]]]:
    """Every chart that has something to draw: identity → (title, what draws it)."""
    if not evidence.reports:
        return {}
    whole = merged(evidence.reports)
    charts: dict[str, tuple[str, Callable[[], AnyChart]]] = {}
    for way in range(1 if evidence.start.asked.one_way else len(WAYS)):
        name = WAYS[way]
        if not whole.ways[way].steps[0].packets:
            continue
        if any(step.lost or step.reordered or step.duplicates for step in whole.ways[way].steps):
            draw = partial(losses, evidence, whole, way)
            charts[f"{name}-losses"] = ("Lost, reordered and duplicated, by hop", draw)
        if not any(delay.count for _, delay in steps(evidence, whole, way)):
            continue
        charts |= {
            f"{name}-histogram": ("Delay by hop", partial(histogram, evidence, whole, way)),
            f"{name}-percentiles": ("Delay by percentile", partial(percentiles, evidence, whole, way)),
            f"{name}-time": ("Delay over time", partial(over_time, evidence, way)),
            f"{name}-waterfall": ("The slowest packets", partial(waterfall, evidence, whole, way)),
        }
    return charts
