"""Charts of a power record: one function each. Every chart of watts says where they come from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import altair as alt
import numpy as np

from partywall.core.report.charts import BAND, BASELINE, HEIGHT, MUTED, TREATED, WIDTH, AnyChart, inlined
from partywall.power.values import Attribution, Fit, PowerFindings

AXIS = {"measured": "watts", "modelled": "watts (modelled)", "simulated": "watts (simulated meter)"}
CURVE_POINTS = 60


def all_charts(findings: PowerFindings) -> dict[str, tuple[str, str, Callable[[], Any]]]:
    """(title, caption, what draws the chart) by id."""
    title = AXIS[findings.origin]
    drawn: dict[str, tuple[str, str, Callable[[], Any]]] = {}
    if findings.attribution is not None:
        drawn["shares"] = (
            "Attributed watts, and the common rule",
            "Watts of activity with their interval (dot and line), and what the common rule says (diamond).",
            partial(shares, findings.attribution, title),
        )
    if findings.fit is not None:
        drawn["ladder"] = (
            "The model and the load ladder",
            "Each dot is a level, with the interval of its mean. The line is the model, with its error band.",
            partial(ladder, findings.fit, title),
        )
    if findings.timeline:
        drawn["timeline"] = (
            "Power over time",
            "As the meters showed it, at the time of reading; below, the busy cores of the same times.",
            partial(timeline, findings, title),
        )
    return drawn


def shares(attribution: Attribution, title: str) -> AnyChart:
    """Consumers with intervals, and the common rule beside them."""
    rows = [
        {
            "consumer": share.name,
            "watts": share.active.value,
            "low": share.active.low,
            "high": share.active.high,
            "common": share.common,
        }
        for share in sorted(attribution.shares, key=lambda share: -share.active.value)
    ]
    base = inlined(rows).encode(y=alt.Y("consumer:N", sort=None, title=None, axis=alt.Axis(labelLimit=300)))
    name = f"{title} of activity"
    whiskers = base.mark_rule(strokeWidth=2, color=BASELINE).encode(x=alt.X("low:Q", title=name), x2="high:Q")
    dots = base.mark_point(filled=True, size=70, color=BASELINE, opacity=1).encode(
        x=alt.X("watts:Q", title=name, scale=alt.Scale(zero=True)),
        tooltip=["consumer:N", alt.Tooltip("watts:Q", format=".2f"), alt.Tooltip("common:Q", format=".2f")],
    )
    other = base.mark_point(shape="diamond", size=70, color=TREATED, opacity=1).encode(x=alt.X("common:Q", title=name))
    return alt.layer(whiskers, dots, other).properties(width=WIDTH, height=max(60, 32 * len(rows)))


def ladder(fit: Fit, title: str) -> AnyChart:
    """Levels, and the model's curve through them."""
    rows = [
        {
            "level": rung.level,
            "busy": rung.busy,
            "watts": rung.mean_watts,
            "low": rung.watts.low if rung.watts else rung.mean_watts,
            "high": rung.watts.high if rung.watts else rung.mean_watts,
        }
        for rung in fit.rungs
    ]
    model = fit.model
    busiest = max(model.cpus, *(rung.busy for rung in fit.rungs))
    curve = [_on_curve(fit, float(busy)) for busy in np.linspace(0, busiest, CURVE_POINTS)]
    x = alt.X("busy:Q", title="busy cores")
    y = alt.Y("watts:Q", title=title, scale=alt.Scale(zero=False, padding=12))
    band = inlined(curve).mark_area(color=BAND, opacity=0.22).encode(x=x, y=alt.Y("low:Q", title=title), y2="high:Q")
    line = inlined(curve).mark_line(color=MUTED, strokeWidth=1.5).encode(x=x, y=y)
    base = inlined(rows)
    whiskers = base.mark_rule(strokeWidth=2, color=BASELINE).encode(x=x, y=alt.Y("low:Q", title=title), y2="high:Q")
    dots = base.mark_point(filled=True, size=60, color=BASELINE, opacity=1).encode(
        x=x, y=y, tooltip=["level:N", alt.Tooltip("busy:Q", format=".2f"), alt.Tooltip("watts:Q", format=".1f")]
    )
    return alt.layer(band, line, whiskers, dots).properties(width=WIDTH, height=HEIGHT + 40)


def _on_curve(fit: Fit, busy: float) -> dict[str, float]:
    estimate = fit.model.estimate(busy)
    return {"busy": busy, "watts": estimate.value, "low": estimate.low, "high": estimate.high}


def timeline(findings: PowerFindings, title: str) -> alt.VConcatChart:
    """Watts of each meter, and the busy cores."""
    rows = [{"s": point.at_s, "meter": point.meter, "watts": point.watts} for point in findings.timeline]
    colour = alt.Color("meter:N", title=None, legend=alt.Legend(labelLimit=500, columns=1))
    watts = (
        inlined(rows)
        .mark_line(strokeWidth=1.3, interpolate="step-after")
        .encode(
            x=alt.X("s:Q", title=None),
            y=alt.Y("watts:Q", title=title, scale=alt.Scale(zero=False)),
            color=colour,
            strokeDash=alt.StrokeDash("meter:N", legend=None),
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    busy = (
        inlined([{"s": s, "busy": cores} for s, cores in findings.busy])
        .mark_area(color=MUTED, opacity=0.5, interpolate="step")
        .encode(x=alt.X("s:Q", title="s"), y=alt.Y("busy:Q", title="busy cores"))
        .properties(width=WIDTH, height=HEIGHT // 3)
    )
    chart: alt.VConcatChart = alt.vconcat(watts, busy, spacing=8).resolve_scale(x="shared")
    return chart
