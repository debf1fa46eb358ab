"""A plan, a simulation or a watch as a report: what a terminal, a page, a notebook and a spreadsheet show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from partywall import units
from partywall.consolidate.document import Cluster
from partywall.consolidate.values import (
    Acted,
    Compared,
    ConsolidationEvidence,
    ConsolidationFindings,
    ConsolidationPlan,
    Step,
)
from partywall.core.report.value import Column, Lines, On, Report, Row, Section, Table, of_texts, spread
from partywall.core.stats.estimate import Span

POLICY_COLUMNS = (
    *("policy", "energy, kWh", "SLA violation", "SLATAH", "PDM", "unserved", "moves", "boots", "came back"),
    *("woken too early", "hosts on"),
)
POLICY_WORDS = (
    "SLA violation: SLATAH times PDM. SLATAH: share of a host's active time in which demand is at least its CPUs. PDM: "
    "share of its CPU that a guest loses to moves. All policies but partywall are published ones (docs/consolidate.md)."
)
ACTED_COLUMNS = ("at", "took", "steps", "saves (planned)", "outcome")
STEP_COLUMNS = ("step", "batch", "why", "takes", "blackout", "p99", "energy")
STEPS_SHOWN = 40
RAW: Any = {"evidence": {"seen": True, "simulations": {"__all__": {"results": {"__all__": {"samples"}}}}}}
"""Left out of findings: the record has it."""
FIGURES = {
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
"""Figures of rows that are put side by side: their names and units."""
ABOUT = ("action", "guest", "source", "host", "policy", "trace")
TERMS = {
    "plan": {
        "Intervals": "Watts: the stated error of the power curves, all the same way. Moves: the slowest and the "
        "fastest link, and the highest and the lowest dirty rate.",
        "p99": "The highest p99 response time over the window of the guest's SLO that contains the move.",
        "Pays": "How long hosts must stay as planned until the saving exceeds what moves and switching cost.",
    },
    "watch": {
        "Saves (planned)": "What the plan said it saves within the horizon, beyond what moves and switching cost. "
        "Negative for a plan that wakes a host to keep promises.",
        "Watts": "As each host's meter showed them, at the time of reading. Of hosts without a meter: modelled by "
        "their power curve.",
        "Demand, places": "As the hypervisor reports them. A guest that is on its way counts where it runs.",
    },
    "simulation": {
        "SLATAH": "The share of its active time in which a host's demand is at least its CPUs; mean over hosts "
        "(Beloglazov and Buyya 2012).",
        "PDM": "The share of its CPU that a guest loses to moves, 10 % while one goes on; mean over guests (same "
        "source).",
        "SLA violation": "SLATAH times PDM (same source).",
        "Unserved": "The share of all demand that found no CPU. Unlike SLATAH, it weighs how much is missing.",
        "Came back": "Moves of a guest to the host that it left within the last hour.",
        "Woken too early": "Hosts that were switched on before their break-even time.",
        "Assumptions": "Load is constant for five minutes. A policy knows the samples up to the last complete one. "
        "Moves take a guest's memory over the link; guests count where they came from until all moves of a decision "
        "have ended. Demand that is not served is lost. Intervals are 95 %, Student's t, over traces and orders.",
    },
}


def report(findings: ConsolidationFindings) -> Report:
    """Everything that a record of the manager shows."""
    evidence = findings.evidence
    watts = {"watch": f"watts {evidence.watts_are}", "plan": "watts modelled"}
    return Report(
        findings.headline,
        findings.outcome,
        # Guests that have a response time to keep.
        sum(guest.slo.p99 is not None for guest in evidence.cluster.guests.values()),
        sections=tuple(_sections(findings)),
        notes=findings.notes,
        warnings=(watts.get(evidence.mode, "simulated, watts modelled"),),
        terms=TERMS[evidence.mode],
        values=findings.model_dump(mode="json", exclude=RAW),
        name=findings.name,
        about=f"{evidence.mode} of {evidence.cluster.name}",
        started_at=str(evidence.about.get("started_at", "")),
        host=evidence.host,
    )


def _sections(findings: ConsolidationFindings) -> Iterator[Section]:
    from partywall.consolidate import charts  # noqa: PLC0415 - Altair is slow to import

    evidence, lead = findings.evidence, findings.evidence.cluster.description
    if (plan := evidence.plan) is not None:
        yield _steps(plan, evidence)
        yield Lines("plan", "The plan", [f"{name}: {text}" for name, text in plan_facts(plan)])
    elif evidence.mode == "watch":
        rows = map(acted_texts, evidence.acted)
        yield of_texts("acted", "Plans that were carried out", ACTED_COLUMNS, rows, lead=lead)
        yield _compared("looks", _looks(evidence))
    else:
        yield of_texts("policies", "Policies", POLICY_COLUMNS, map(policy_texts, findings.compared), lead=lead)
        if findings.compared:
            yield Lines("bound", "What they are compared with", (_bound_text(findings), POLICY_WORDS))
        yield _compared("results", _results(evidence))
    yield from charts.all_charts(findings)
    yield _curves(evidence)


def _compared(identity: str, rows: list[dict[str, Any]]) -> Table:
    """Rows for programs, whose figures people see beside those of another record."""
    return Table(identity, "", _figures(rows), rows)


def _figures(rows: list[dict[str, Any]]) -> tuple[Column, ...]:
    there = [key for key in FIGURES if rows and key in rows[0]]
    figures = (Column(key, FIGURES[key][0], FIGURES[key][1], On.COMPARISON) for key in there)
    return Column("about", "", on=On.COMPARISON, is_key=True, text=_about), *figures


def _about(row: Row) -> str:
    return ", ".join(str(row[key]) for key in ABOUT if row.get(key) is not None)


def _steps(plan: ConsolidationPlan, evidence: ConsolidationEvidence) -> Table:
    entries, by_number = {entry.number: entry for entry in evidence.journal}, {step.number: step for step in plan.steps}
    rows = [
        {
            **step.model_dump(include={"number", "batch", "action", "host", "guest", "source", "reason"}),
            "time_s": step.time_s.value if step.time_s else None,
            "blackout_s": step.blackout_s.value if step.blackout_s else None,
            "energy_j": step.energy_j.value if step.energy_j else None,
            "outcome": entries[step.number].outcome if step.number in entries else None,
        }
        for step in plan.steps
    ]

    def of(title: str, text: Callable[[Step], str], on: On = On.EVERYWHERE) -> Column:
        return Column(title, title, on=on, text=lambda row: text(by_number[row["number"]]))

    def outcome(step: Step) -> str:
        entry = entries.get(step.number)
        return ": ".join(filter(None, (entry.outcome, entry.reason))) if entry else ""

    hidden = () if any(step.p99_s for step in plan.steps) else ("p99",)
    shown = (
        of(title, lambda step, at=at: step_texts(step)[at], On.PAGE if title in hidden else On.EVERYWHERE)  # type: ignore[misc]
        for at, title in enumerate(STEP_COLUMNS)
    )
    columns = (*shown, of("other places", _places, On.PAGE), *([of("outcome", outcome)] if entries else []))
    lead = evidence.cluster.description
    return Table("steps", "Steps", (*columns, *_figures(rows)), rows, lead, STEPS_SHOWN)


def _places(step: Step) -> str:
    return "; ".join(f"{each.host}: {each.refused or f'+{each.watts:.1f} W'}" for each in step.choices)


def _looks(evidence: ConsolidationEvidence) -> list[dict[str, Any]]:
    """A row for each host at each look."""
    return [
        {
            "at_s": seen.at_s,
            "host": host,
            "on": host in seen.on,
            "guests": sum(place == host for place in seen.places.values()),
            "demand": sum(seen.demand.get(guest, 0.0) for guest, place in seen.places.items() if place == host),
            "watts": seen.watts.get(host),
            "metered": host in seen.metered,
            "watts_are": evidence.watts_of(host),
        }
        for seen in evidence.seen
        for host in evidence.cluster.hosts
    ]


def _results(evidence: ConsolidationEvidence) -> list[dict[str, Any]]:
    """A row for each policy over each trace."""
    return [
        {
            "trace": each.trace,
            "order": each.order,
            "bound_kwh": each.bound_kwh,
            **result.model_dump(exclude={"samples"}),
            "slav": result.slav,
        }
        for each in evidence.simulations
        for result in each.results
    ]


def _curves(evidence: ConsolidationEvidence) -> Table:
    """The power curves of the cluster's hosts."""
    lead = (
        "Plans use these curves."
        if evidence.watts_are == "metered"
        else "All watts come from these curves. They were not measured on this cluster."
    )
    curves = {spec.power: evidence.cluster.curve(spec.power) for spec in evidence.cluster.hosts.values()}
    rows = [
        (
            name,
            ", ".join(map(str, curve.watts)),
            f"{curve.off:g} W",
            *(
                f"{units.format_duration(each.time)}, {each.energy / units.WH:.2f} Wh"
                for each in (curve.boot, curve.shutdown)
            ),
            f"{curve.break_even_s:.0f} s",
            f"± {100 * curve.error:g} %",
            curve.source or "the cluster file",
        )
        for name, curve in curves.items()
    ]
    titles = ("curve", "watts from idle to all CPUs busy", "off", "boot", "shutdown", "break-even", "error", "source")
    return of_texts("curves", "Power curves", titles, rows, lead=lead, brief=0)


def acted_texts(acted: Acted) -> list[str]:
    """A row of a plan that `watch` carried out, under ACTED_COLUMNS."""
    outcome = "done" if acted.done else "undone"
    took = _time(round(acted.ended_s - acted.at_s))
    return [_time(round(acted.at_s)), took, ", ".join(acted.steps), _span(acted.net_j, 1 / units.WH, "Wh"), outcome]


def step_texts(step: Step) -> list[str]:
    """A step's row under STEP_COLUMNS."""
    energy = "–" if step.energy_j is None else _span(step.energy_j, 1 / units.WH, "Wh")
    p99 = "–" if step.p99_s is None else f"up to {_time(step.p99_s.high)}"
    takes, blackout = ("–" if each is None else spread(each, "s") for each in (step.time_s, step.blackout_s))
    return [step.title, str(step.batch), step.reason, takes, blackout, p99, energy]


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
