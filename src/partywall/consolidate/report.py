"""A plan or simulation of the consolidation manager as text for a terminal, as a page, and as files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
from rich.console import Console
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.consolidate.document import Cluster
from partywall.consolidate.values import (
    Acted,
    Compared,
    ConsolidationEvidence,
    ConsolidationFindings,
    ConsolidationPlan,
    PolicyResult,
    Sample,
    Step,
)
from partywall.core.report import page
from partywall.core.report.charts import BASELINE, HEIGHT, MUTED, TREATED, WIDTH, AnyChart, inlined, titled
from partywall.core.report.compared import figures_of
from partywall.core.report.files import Files
from partywall.core.stats.estimate import Span

POINTS_MAX = 300
Rows = list[dict[str, Any]]

POLICY_COLUMNS = (
    *("policy", "energy, kWh", "SLA violation", "SLATAH", "PDM", "unserved", "moves", "boots", "came back"),
    *("woken too early", "hosts on"),
)
POLICY_WORDS = (
    "SLA violation: SLATAH times PDM. SLATAH: share of a host's active time in which demand is at least its CPUs. PDM: "
    "share of its CPU that a guest loses to moves. All policies but partywall are published ones (docs/consolidate.md)."
)
ACTED_COLUMNS = ("at", "took", "steps", "saves (planned)", "outcome")
STEP_COLUMNS = ("batch", "step", "why", "takes", "blackout", "p99", "energy")


def show(findings: ConsolidationFindings, console: Console) -> None:
    """Everything, at the end."""
    console.print(Text(findings.headline, style="bold"), soft_wrap=True)
    if (plan := findings.evidence.plan) is not None:
        _show_plan(plan, findings.evidence, console)
    elif findings.evidence.mode == "watch":
        table = Table(*ACTED_COLUMNS)
        for acted in findings.evidence.acted:
            table.add_row(*acted_texts(acted))
        console.print(table)
    elif findings.compared:
        table = Table(*POLICY_COLUMNS)
        for column in table.columns[1:]:
            column.justify = "right"
        for each in findings.compared:
            table.add_row(*policy_texts(each))
        console.print(table)
        console.print(Text(_bound_text(findings)), soft_wrap=True)
        console.print(Text(POLICY_WORDS, style="dim"), soft_wrap=True)
    for note in findings.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _show_plan(plan: ConsolidationPlan, evidence: ConsolidationEvidence, console: Console) -> None:
    outcomes = {entry.number: entry.outcome for entry in evidence.journal}
    if plan.steps:
        table = Table(*STEP_COLUMNS, *(("outcome",) if outcomes else ()))
        for step in plan.steps[:40]:
            texts = step_texts(step)
            table.add_row(*texts, *((outcomes.get(step.number, ""),) if outcomes else ()))
        console.print(table)
        if len(plan.steps) > 40:
            console.print(Text(f"… and {len(plan.steps) - 40} more steps, all in the page"))
    for name, text in plan_facts(plan):
        console.print(Text(f"{name}: {text}"), soft_wrap=True)


def acted_texts(acted: Acted) -> list[str]:
    """A row of a plan that `watch` carried out, under ACTED_COLUMNS."""
    outcome = "done" if acted.done else "undone"
    took = _time(round(acted.ended_s - acted.at_s))
    return [_time(round(acted.at_s)), took, ", ".join(acted.steps), _span(acted.net_j, 1 / units.WH, "Wh"), outcome]


def step_texts(step: Step) -> list[str]:
    """A step's row under STEP_COLUMNS."""
    energy = "–" if step.energy_j is None else _span(step.energy_j, 1 / units.WH, "Wh")
    p99 = "–" if step.p99_s is None else f"up to {_time(step.p99_s.high)}"
    takes, blackout = (
        "–" if each is None else f"{_time(each.value)} ({_time(each.low)} to {_time(each.high)})"
        for each in (step.time_s, step.blackout_s)
    )
    return [str(step.batch), step.title, step.reason, takes, blackout, p99, energy]


def plan_facts(plan: ConsolidationPlan) -> list[tuple[str, str]]:
    """Figures of a whole plan, as (name, text)."""
    pays = "never" if plan.pays_after_s is None else f"after {_time(plan.pays_after_s)}"
    facts = [
        ("power now (modelled)", _span(plan.before_w, 1, "W")),
        ("power afterwards (modelled)", _span(plan.after_w, 1, "W")),
        (f"saved in {_time(plan.horizon_s)}", _span(plan.saved_j, 1 / units.WH, "Wh")),
        ("spent on moves", _span(plan.moves_j, 1 / units.WH, "Wh")),
        ("spent on switching", _span(plan.switching_j, 1 / units.WH, "Wh")),
        ("pays", pays),
        ("placement", solver_text(plan)),
        ("plan", plan.digest[:16]),
    ]
    return facts if plan.steps else [*facts[:1], *facts[-2:]]


def explained(plan: ConsolidationPlan, cluster: Cluster, guest: str | None = None) -> list[str]:
    """Why a plan is as it is, a line each. guest: only this one."""
    steps = [step for step in plan.steps if guest is None or step.guest == guest]
    lines = [line for step in steps for line in _why(step)]
    if guest is not None and not steps:
        pinned = cluster.guests[guest].pinned if guest in cluster.guests else False
        lines.append(f"{guest} stays where it is{', because it is pinned' if pinned else ''}")
    if guest is not None:
        return [*lines, *(note for note in plan.notes if note.startswith(f"{guest} "))]
    lines.append(f"placement: {solver_text(plan)}")
    lines += [
        f"{each.name}: saves {each.net_j / units.WH:.1f} Wh with {each.moves} moves and {each.hosts_on} hosts on"
        for each in plan.alternatives
    ]
    return [*lines, *plan.notes]


def _why(step: Step) -> list[str]:
    lines = [f"{step.title}: {step.reason}"]
    better = [choice for choice in step.choices if not choice.refused]
    if better:
        best = better[0]
        lines.append(f"  next best place: {best.host}, which would then take {best.watts:.1f} W more")
    return lines + [f"  not {choice.host}: {choice.refused}" for choice in step.choices if choice.refused]


def solver_text(plan: ConsolidationPlan) -> str:
    """How good the placement is, in words."""
    solver = plan.solver
    if solver.gap is None:
        return f"by the {solver.name}"
    return (
        "by the exact solver, proven to be the best within 0.1 %"
        if solver.gap < 1e-3
        else f"by the exact solver; a better one would take up to {solver.gap:.1%} less energy"
    )


def policy_texts(each: Compared) -> list[str]:
    """A policy's row under POLICY_COLUMNS."""
    figures = each.figures
    return [
        each.policy,
        _pm(figures["energy_kwh"], "{:.1f}"),
        _pm(figures["slav"], "{:.2e}"),
        *(_percent(figures[key]) for key in ("slatah", "pdm", "unserved")),
        *(_pm(figures[key], "{:.0f}") for key in ("moves", "boots", "ping_pongs", "short_cycles", "hosts_on")),
    ]


def _pm(span: Span, form: str) -> str:
    half = (span.high - span.low) / 2
    return form.format(span.value) + (f" ± {form.format(half)}" if half else "")


def _percent(span: Span) -> str:
    half = 50 * (span.high - span.low)
    return f"{100 * span.value:.3f}" + (f" ± {half:.3f}" if half else "") + " %"


def _span(span: Span, factor: float, unit: str) -> str:
    return f"{span.value * factor:.3g} {unit} ({span.low * factor:.3g} to {span.high * factor:.3g})"


def _time(seconds: float) -> str:
    return units.format_duration(seconds * 1e9)


def _bound_text(findings: ConsolidationFindings) -> str:
    simulations = findings.evidence.simulations
    bounds = ", ".join(f"{each.bound_kwh:.1f}" for each in simulations[:4])
    text = f"no placement takes less than {bounds} kWh (with the whole day known, without moves and switching)"
    if findings.share_of_bound is not None:
        share = findings.share_of_bound
        span = f" ({share.low:.1%} to {share.high:.1%})" if share.high > share.low else ""
        text += f"; partywall reaches {share.value:.1%}{span} of that saving"
    return text


def rows(findings: ConsolidationFindings) -> list[dict[str, Any]]:
    """A step each, a look and host each, or a policy and trace each, as flat values."""
    if (plan := findings.evidence.plan) is not None:
        outcomes = {entry.number: entry.outcome for entry in findings.evidence.journal}
        return [
            {
                **step.model_dump(include={"number", "batch", "action", "host", "guest", "source", "reason"}),
                "time_s": step.time_s.value if step.time_s else None,
                "blackout_s": step.blackout_s.value if step.blackout_s else None,
                "energy_j": step.energy_j.value if step.energy_j else None,
                "outcome": outcomes.get(step.number),
            }
            for step in plan.steps
        ]
    if findings.evidence.mode == "watch":
        return [
            {
                "at_s": seen.at_s,
                "host": host,
                "on": host in seen.on,
                "guests": sum(place == host for place in seen.places.values()),
                "demand": sum(seen.demand.get(guest, 0.0) for guest, place in seen.places.items() if place == host),
                "watts": seen.watts.get(host),
                "metered": host in seen.metered,
                "watts_are": findings.evidence.watts_of(host),
            }
            for seen in findings.evidence.seen
            for host in findings.evidence.cluster.hosts
        ]
    return [
        {
            "trace": each.trace,
            "order": each.order,
            "bound_kwh": each.bound_kwh,
            **result.model_dump(exclude={"samples"}),
            "slav": result.slav,
        }
        for each in findings.evidence.simulations
        for result in each.results
    ]


# Page


def render(findings: ConsolidationFindings) -> str:
    """The whole page."""
    drawn = all_charts(findings)
    evidence, plan = findings.evidence, findings.evidence.plan
    journal = {entry.number: entry for entry in evidence.journal}
    return page.framed(
        "consolidation.html.j2",
        {identity: page.fluid(chart) for identity, (_, _, chart) in drawn.items()},
        findings=findings,
        badge=page.badge(findings.outcome, goals(findings)),
        evidence=evidence,
        plan=plan,
        facts=plan_facts(plan) if plan else [],
        steps=[(step, step_texts(step), journal.get(step.number)) for step in plan.steps] if plan else [],
        step_columns=STEP_COLUMNS,
        policy_columns=POLICY_COLUMNS,
        acted_columns=ACTED_COLUMNS,
        acted=[acted_texts(each) for each in evidence.acted],
        watts_are=evidence.watts_are,
        policies=[policy_texts(each) for each in findings.compared],
        bound=_bound_text(findings) if findings.compared else "",
        figures=[(identity, title, caption) for identity, (title, caption, _) in drawn.items()],
        curves=[
            (name, evidence.cluster.curve(name))
            for name in dict.fromkeys(h.power for h in evidence.cluster.hosts.values())
        ],
        host=page.facts(evidence.host),
    )


Drawn = dict[str, tuple[str, str, AnyChart | alt.VConcatChart]]


def all_charts(findings: ConsolidationFindings) -> Drawn:
    """(title, caption, chart) by id."""
    evidence = findings.evidence
    if evidence.plan is not None:
        return _plan_charts(evidence.plan)
    if evidence.mode == "watch":
        return _watch_charts(evidence)
    if not evidence.simulations:
        return {}
    managed = [each for each in evidence.simulations[0].results if each.policy != "static"]
    first = evidence.simulations[0]
    drawn: Drawn = {
        "energy": (
            "Energy by policy",
            "Simulated; the mean over traces. No placement takes less than the line.",
            energy(findings),
        )
    }
    if managed:
        drawn["trade"] = (
            "Energy and violations",
            "Simulated; a point is a policy over one trace. Lower left is better.",
            trade(findings),
        )
        drawn["timeline"] = (
            "A day",
            f"Simulated: {first.trace}. Demand and hosts that are on; by the hour, moves (0 is drawn as 1) "
            "and unserved demand.",
            timeline(managed),
        )
    return drawn


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


def _watch_charts(evidence: ConsolidationEvidence) -> Drawn:
    if not evidence.seen:
        return {}
    watts = {
        "metered": "from the hosts' meters",
        "simulated": "from a simulated meter",
        "modelled": "modelled, except of hosts with a meter",
    }[evidence.watts_are]
    caption = (
        f"Plans were carried out in the shaded times. Watts are {watts}. A guest's p99 is that of the window of its "
        "goal before each time; the dashed line is the goal."
    )
    return {"watched": ("What was seen", caption, watched(evidence))}


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


def _plan_charts(plan: ConsolidationPlan) -> Drawn:
    drawn: Drawn = {}
    if plan.steps:
        drawn["course"] = (
            "Course of the plan",
            "Batches follow each other; steps of one batch run at the same time. Modelled watts are in the table.",
            course(plan),
        )
    if len(plan.alternatives) > 1:
        drawn["alternatives"] = (
            "What else was considered",
            "Energy saved within the horizon, beyond what moves and switching cost; modelled.",
            alternatives(plan),
        )
    return drawn


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


def _charts(findings: ConsolidationFindings) -> dict[str, dict[str, Any]]:
    return {name: titled(chart, title) for name, (title, _, chart) in all_charts(findings).items()}


RAW: Any = {"evidence": {"seen": True, "simulations": {"__all__": {"results": {"__all__": {"samples"}}}}}}
"""Left out of findings: the record has it."""

COMPARED = {
    "time_s": ("time", "s"),
    "blackout_s": ("blackout", "s"),
    "energy_j": ("energy", "J"),
    "on": ("on", "%"),
    "guests": ("guests", ""),
    "demand": ("CPU demand", "cores"),
    "watts": ("power", "W"),
    "energy_kwh": ("energy", "kWh"),
    "boots_kwh": ("energy of boots", "kWh"),
    "moves_kwh": ("energy of moves", "kWh"),
    "bound_kwh": ("least possible energy", "kWh"),
    "moves": ("moves", ""),
    "boots": ("boots", ""),
    "slatah": ("SLATAH", "%"),
    "pdm": ("PDM", "%"),
    "unserved": ("demand not served", "%"),
    "hosts_on": ("hosts on", ""),
    "ping_pongs": ("guests that came back", ""),
    "short_cycles": ("hosts woken too early", ""),
}
ABOUT = ("action", "guest", "source", "host", "policy", "trace")


def goals(findings: ConsolidationFindings) -> int:
    """How many guests have a response time to keep."""
    return sum(guest.slo.p99 is not None for guest in findings.evidence.cluster.guests.values())


FILES: Files[ConsolidationFindings] = Files(
    of="a consolidation",
    show=show,
    documents={
        "html": ("report.html", render),
        "json": ("findings.json", lambda findings: findings.model_dump_json(indent=2, exclude=RAW) + "\n"),
    },
    rows=rows,
    table="rows.csv",
    charts=_charts,
    compared=lambda findings: figures_of(rows(findings), ABOUT, COMPARED),
    headline=lambda findings: findings.headline,
    goals=goals,
)
"""Formats; adding one is one function and one entry."""
