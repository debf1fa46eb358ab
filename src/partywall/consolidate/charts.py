"""Charts of a plan, of simulated policies, and of a watched cluster: one function each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from partywall import units
from partywall.consolidate.values import (
    ConsolidationEvidence,
    ConsolidationFindings,
    ConsolidationPlan,
    PolicyResult,
    Sample,
)
from partywall.core.report.charts import BASELINE, HEIGHT, MUTED, TREATED, WIDTH, AnyChart, inlined
from partywall.core.report.value import Chart

POINTS_MAX = 300
Rows = list[dict[str, Any]]


def all_charts(findings: ConsolidationFindings) -> Iterator[Chart]:
    """The charts that have something to draw."""
    evidence = findings.evidence
    if evidence.plan is not None:
        yield from _of_plan(evidence.plan)
    elif evidence.mode == "watch":
        yield from _of_watch(evidence)
    elif evidence.simulations:
        yield from _of_simulations(findings)


def _of_simulations(findings: ConsolidationFindings) -> Iterator[Chart]:
    yield Chart(
        "energy",
        "Energy by policy",
        "Simulated; the mean over traces. No placement takes less than the line.",
        lambda: energy(findings),
    )
    first = findings.evidence.simulations[0]
    if managed := [each for each in first.results if each.policy != "static"]:
        yield Chart(
            "trade",
            "Energy and violations",
            "Simulated; a point is a policy over one trace. Lower left is better.",
            lambda: trade(findings),
        )
        yield Chart(
            "timeline",
            "A day",
            f"Simulated: {first.trace}. Demand and hosts that are on; by the hour, moves (0 is drawn as 1) "
            "and unserved demand.",
            lambda: timeline(managed),
        )


def energy(findings: ConsolidationFindings) -> AnyChart:
    order = [each.policy for each in findings.compared]
    sims = findings.evidence.simulations
    bound = sum(each.bound_kwh for each in sims) / len(sims)
    parts = [("hosts", TREATED), ("switching", MUTED), ("moves", BASELINE)]
    data = []
    for name in order:
        results = [result for each in sims for result in each.results if result.policy == name]
        boots = sum(each.boots_kwh for each in results) / len(results)
        moves = sum(each.moves_kwh for each in results) / len(results)
        whole = sum(each.energy_kwh for each in results) / len(results)
        for number, (part, value) in enumerate(
            (("hosts", whole - boots - moves), ("switching", boots), ("moves", moves))
        ):
            data.append({"policy": name, "part": part, "kWh": value, "order": number})
    bars = (
        inlined(data)
        .mark_bar()
        .encode(
            x=alt.X("kWh:Q", title="kWh", stack="zero"),
            y=alt.Y("policy:N", sort=order, title=None),
            color=alt.Color("part:N", title=None, sort=[name for name, _ in parts]),
            order=alt.Order("order:Q"),
            tooltip=["policy:N", "part:N", alt.Tooltip("kWh:Q", format=".2f")],
        )
    )
    line = inlined([{"bound": bound}]).mark_rule(strokeDash=[4, 3], strokeWidth=1.5).encode(x="bound:Q")
    text = (
        inlined([{"bound": bound, "said": "bound"}])
        .mark_text(align="left", dx=4, y=-6)
        .encode(x="bound:Q", text="said:N")
    )
    return alt.layer(bars, line, text).properties(width=WIDTH, height=alt.Step(26))


def trade(findings: ConsolidationFindings) -> AnyChart:
    data = [
        {"policy": result.policy, "trace": each.trace, "kWh": result.energy_kwh, "unserved": 100 * result.unserved}
        for each in findings.evidence.simulations
        for result in each.results
        if result.policy != "static"
    ]
    chart: alt.Chart = (
        inlined(data)
        .mark_point(filled=True, size=80, opacity=0.9)
        .encode(
            x=alt.X("kWh:Q", title="kWh", scale=alt.Scale(zero=False, padding=20)),
            y=alt.Y("unserved:Q", title="unserved demand, %"),
            color=alt.Color("policy:N", title=None, sort=None),
            shape=alt.Shape("policy:N", title=None, sort=None),
            tooltip=[
                "policy:N",
                "trace:N",
                alt.Tooltip("kWh:Q", format=".1f"),
                alt.Tooltip("unserved:Q", format=".3f"),
            ],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart


def timeline(results: Sequence[PolicyResult]) -> alt.VConcatChart:
    """Over the day: demand and hosts on; by the hour, moves and unserved demand. A line for each policy."""
    names = [result.policy for result in results]
    colour = alt.Color("policy:N", title=None, sort=names)
    hours = alt.X("h:Q", title="h")

    def lines(data: Rows, field: str, title: str, *, log: bool = False) -> alt.Chart:
        scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=True)
        chart: alt.Chart = (
            inlined(data)
            .mark_line(strokeWidth=1.6, interpolate="step-after" if "for_h" in data[0] else "linear")
            .encode(
                x=hours,
                y=alt.Y(f"{field}:Q", title=title, scale=scale),
                color=colour,
                strokeDash=alt.StrokeDash("policy:N", legend=None, sort=names),
                tooltip=["policy:N", "h:Q", alt.Tooltip(f"{field}:Q", format=".3~f")],
            )
            .properties(width=WIDTH, height=HEIGHT // 2)
        )
        return chart

    hosts = [
        {"policy": result.policy, "h": sample.at_s / 3600, "hosts": max(1, sample.hosts_on), "demand": sample.demand}
        for result in results
        for sample in result.samples[1 :: max(1, len(result.samples) // POINTS_MAX)]
    ]
    hourly = [row for result in results for row in _hourly(result)]
    demand = (
        inlined([row for row in hosts if row["policy"] == names[0]])
        .mark_area(color=MUTED, opacity=0.35)
        .encode(x=alt.X("h:Q", title=None), y=alt.Y("demand:Q", title="demand, cores"))
        .properties(width=WIDTH, height=HEIGHT // 3)
    )
    return alt.vconcat(
        demand,
        lines(hosts, "hosts", "hosts on", log=True),
        lines(hourly, "moves", "moves in an hour", log=True),
        lines(hourly, "unserved", "unserved, cores"),
        spacing=10,
    )


def _hourly(result: PolicyResult) -> Rows:
    """Moves and mean unserved demand of each hour."""
    hours: dict[int, list[Sample]] = {}
    for sample in result.samples:
        hours.setdefault(int(sample.at_s // 3600), []).append(sample)
    return [
        {
            "policy": result.policy,
            "h": hour,
            "for_h": 1,
            "moves": max(1, sum(each.moves for each in own)),
            "unserved": sum(each.unserved for each in own) / len(own),
        }
        for hour, own in hours.items()
    ]


def _of_watch(evidence: ConsolidationEvidence) -> Iterator[Chart]:
    watts = {
        "metered": "from the hosts' meters",
        "simulated": "from a simulated meter",
        "modelled": "modelled, except of hosts with a meter",
    }[evidence.watts_are]
    caption = (
        f"Plans were carried out in the shaded times. Watts are {watts}. A guest's p99 is that of the window of its "
        "goal before each time; the dashed line is the goal."
    )
    if evidence.seen:
        yield Chart("watched", "What was seen", caption, lambda: watched(evidence))


def watched(evidence: ConsolidationEvidence) -> alt.VConcatChart:
    """Over time: hosts that are on, guests of each host, watts of each host, and the p99 of guests."""
    hosts, seen = list(evidence.cluster.hosts), evidence.seen[:: max(1, len(evidence.seen) // POINTS_MAX)]
    over = alt.Scale(domain=[0, evidence.seen[-1].at_s], nice=False)
    acted = [{"s": each.at_s, "end": each.ended_s, "steps": ", ".join(each.steps)} for each in evidence.acted]

    def row(data: Rows, field: str, title: str, key: str, *, last: bool = False) -> AnyChart:
        x = alt.X("s:Q", title="seconds" if last else None, scale=over)
        shade = inlined(acted).mark_rect(color=MUTED, opacity=0.18).encode(x=x, x2="end:Q", tooltip=["steps:N"])
        order = hosts if key == "host" else list(evidence.cluster.guests)
        # Hosts have the colours of the row above.
        legend = None if field == "watts" else alt.Legend()
        colour = alt.Color(f"{key}:N", title=key, sort=order, legend=legend) if key else alt.value(BASELINE)
        base = inlined(data).encode(x=x, tooltip=["s:Q", *([f"{key}:N"] if key else []), f"{field}:Q"])
        if key == "host":
            y = alt.Y(f"{field}:Q", title=title, stack="zero", axis=alt.Axis(tickMinStep=1))
            drawn = base.mark_area(interpolate="step-after", opacity=0.85).encode(y=y, color=colour)
        else:
            y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=True), axis=alt.Axis(tickMinStep=1))
            drawn = base.mark_line(strokeWidth=1.8, interpolate="linear" if key else "step-after").encode(
                y=y, color=colour
            )
        goals = [
            {"goal": spec.slo.p99 / 1e9} for spec in evidence.cluster.guests.values() if field == "p99" and spec.slo.p99
        ]
        rule = inlined(goals).mark_rule(strokeDash=[4, 3]).encode(y="goal:Q")
        layers = [shade, drawn, *([rule] if goals else [])]
        return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT // 2)

    on = [{"s": each.at_s, "hosts": len(each.on)} for each in seen]
    guests = [
        {"s": each.at_s, "host": host, "guests": sum(place == host for place in each.places.values())}
        for each in seen
        for host in hosts
    ]
    watts = [
        {"s": each.at_s, "host": host, "watts": each.watts[host]}
        for each in seen
        for host in hosts
        if each.watts.get(host) is not None
    ]
    p99 = [{"s": each.at_s, "guest": guest, "p99": seconds} for each in seen for guest, seconds in each.p99_s.items()]
    rows: alt.VConcatChart = alt.vconcat(
        row(on, "hosts", "hosts on", ""),
        row(guests, "guests", "guests", "host"),
        row(watts, "watts", "watts", "host", last=not p99),
        *([row(p99, "p99", "p99, s", "guest", last=True)] if p99 else []),
        spacing=10,
    ).resolve_scale(color="independent")
    return rows


def _of_plan(plan: ConsolidationPlan) -> Iterator[Chart]:
    if plan.steps:
        yield Chart(
            "course",
            "Course of the plan",
            "Batches follow each other; steps of one batch run at the same time. Modelled watts are in the table.",
            lambda: course(plan),
        )
    if len(plan.alternatives) > 1:
        yield Chart(
            "alternatives",
            "What else was considered",
            "Energy saved within the horizon, beyond what moves and switching cost; modelled.",
            lambda: alternatives(plan),
        )


def course(plan: ConsolidationPlan) -> AnyChart:
    """Each step as a bar over its batch."""
    data = [
        {"begin": step.batch - 0.42, "end": step.batch + 0.42, "step": step.title, "what": step.action}
        for step in plan.steps[:60]
    ]
    chart: alt.Chart = (
        inlined(data)
        .mark_bar(height=12)
        .encode(
            x=alt.X("begin:Q", title="batch", axis=alt.Axis(tickMinStep=1, format="d")),
            x2="end:Q",
            y=alt.Y("step:N", sort=None, title=None, axis=alt.Axis(labelLimit=320)),
            color=alt.Color("what:N", title=None, sort=["wake", "move", "sleep"]),
            tooltip=["step:N", "what:N"],
        )
        .properties(width=WIDTH, height=alt.Step(20))
    )
    return chart


def alternatives(plan: ConsolidationPlan) -> AnyChart:
    data = [
        {
            "plan": each.name,
            "Wh": each.net_j / units.WH,
            "said": f"{each.moves} moves, {each.hosts_on} hosts on",
        }
        for each in plan.alternatives
    ]
    base = inlined(data).encode(
        x=alt.X("Wh:Q", title="Wh saved", scale=alt.Scale(padding=60)),
        y=alt.Y("plan:N", sort=None, title=None, axis=alt.Axis(labelLimit=260)),
    )
    bars = base.mark_bar(color=BASELINE)
    text = base.mark_text(align="left", dx=4).encode(text="said:N")
    return alt.layer(bars, text).properties(width=WIDTH, height=alt.Step(26))
