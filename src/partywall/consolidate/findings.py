"""Findings of the consolidation manager: what a plan promises or became, and how policies compare. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from partywall import units
from partywall.consolidate.values import (
    Compared,
    ConsolidationEvidence,
    ConsolidationFindings,
    ConsolidationPlan,
    PolicyResult,
    Seen,
    Simulation,
)
from partywall.core.stats.estimate import Outcome, Span
from partywall.power.findings import spans
from partywall.power.findings.spans import Energy

OWN, REFERENCE = "partywall", "static"
FIGURES = (
    *("energy_kwh", "slav", "slatah", "pdm", "unserved", "moves", "boots", "ping_pongs", "short_cycles", "hosts_on"),
)
ALIKE_SHARE = 0.01
"""Figures of two policies that differ by less are alike: the next day would turn them round."""
LEAST_MISSING_S = 0.5
ONE_DAY = "one day in one order has no intervals; simulate several with --days, --traces or --orders"


def findings(evidence: ConsolidationEvidence) -> ConsolidationFindings:
    """Derives the findings."""
    if evidence.mode == "plan" and evidence.plan is not None:
        return _planned(evidence, evidence.plan)
    return _watched(evidence) if evidence.mode == "watch" else _simulated(evidence)


def _watched(evidence: ConsolidationEvidence) -> ConsolidationFindings:
    """What a watch has done. A goal that was missed makes it violated, as a plan that was undone does."""
    seen, acted = evidence.seen, evidence.acted
    undone = [each for each in acted if not each.done]
    missed = missed_goals(evidence)
    moves = sum(title.startswith("move ") for each in acted for title in each.steps)
    switches = sum(title.startswith("switch ") for each in acted for title in each.steps)
    if not seen:
        outcome, said = Outcome.INCONCLUSIVE, "Nothing was seen"
    else:
        counts = [len(each.on) for each in seen]
        span = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
        said = (
            f"{len(acted)} plans with {moves} moves and {switches} switched hosts in "
            f"{units.format_duration(round(seen[-1].at_s) * 10**9)}; {span} of {len(evidence.cluster.hosts)} hosts on"
        )
        if (joules := energy_j(seen)) is not None:
            said += f"; {joules / units.WH:.3g} Wh, {evidence.watts_are}"
            said += " (without times that are not known)" if unknown_s(seen) else ""
        outcome = Outcome.VIOLATED if undone or missed else Outcome.HOLDS
    notes = [
        f"{host}: its watts are not known for {units.format_duration(seconds * 1e9)}, whose energy is not included"
        for host, seconds in unknown_s(seen).items()
    ]
    notes += [f"undone: {', '.join(each.steps)} ({each.record})" for each in undone]
    notes += [f"{guest}: p99 of up to {units.format_duration(worst * 1e9)} missed its goal" for guest, worst in missed]
    return ConsolidationFindings(
        name=evidence.name, headline=said, outcome=outcome, evidence=evidence, notes=tuple(notes)
    )


def energy_j(seen: Sequence[Seen]) -> float | None:
    """The energy of all hosts, without times in which one is not known; None if one was never, or with one look."""
    each = _energies(seen)
    joules = [energy.joules for energy in each.values() if energy is not None]
    return sum(joules) or None if len(joules) == len(each) else None


def unknown_s(seen: Sequence[Seen]) -> dict[str, float]:
    """How long the watts of each host are not known between the first look and the last; only of such hosts."""
    if len(seen) < 2:
        return {}
    whole_s = seen[-1].at_s - seen[0].at_s
    missing = {host: energy.missing_s if energy else whole_s for host, energy in _energies(seen).items()}
    return {host: seconds for host, seconds in missing.items() if seconds > LEAST_MISSING_S}


def _energies(seen: Sequence[Seen]) -> dict[str, Energy | None]:
    """The energy of each host from the first look to the last; None with fewer than two looks that know it."""
    energies: dict[str, Energy | None] = {}
    for host in seen[0].watts if seen else ():
        known = [(each.at_s, watts) for each in seen if (watts := each.watts.get(host)) is not None]
        pairs = np.array(known, dtype=np.float64).reshape(-1, 2)
        energies[host] = spans.energy(pairs[:, 0], pairs[:, 1], seen[0].at_s, seen[-1].at_s)
    return energies


def missed_goals(evidence: ConsolidationEvidence) -> list[tuple[str, float]]:
    """Guests whose p99 was above their goal at some look, with the highest."""
    worst = {
        name: max((each.p99_s[name] for each in evidence.seen if name in each.p99_s), default=0.0)
        for name, spec in evidence.cluster.guests.items()
        if spec.slo.p99 is not None
    }
    goals = {name: spec.slo.p99 / 1e9 for name, spec in evidence.cluster.guests.items() if spec.slo.p99 is not None}
    return [(name, seconds) for name, seconds in worst.items() if seconds > goals[name]]


def _planned(evidence: ConsolidationEvidence, plan: ConsolidationPlan) -> ConsolidationFindings:
    failed = [entry for entry in evidence.journal if entry.outcome in ("failed", "undone")]
    done = {entry.number for entry in evidence.journal if entry.outcome == "done"}
    if failed:
        outcome, said = Outcome.VIOLATED, f"stopped after {len(done)} of {len(plan.steps)} steps: {failed[0].reason}"
    elif evidence.journal and len(done) < len(plan.steps):
        outcome, said = Outcome.INCONCLUSIVE, f"{len(done)} of {len(plan.steps)} steps are done"
    elif evidence.journal:
        outcome, said = Outcome.HOLDS, f"all {len(plan.steps)} steps are done"
    else:
        outcome, said = Outcome.HOLDS, headline(plan)
    return ConsolidationFindings(
        name=evidence.name, headline=said, outcome=outcome, evidence=evidence, notes=plan.notes
    )


def headline(plan: ConsolidationPlan) -> str:
    """A plan in one sentence."""
    if not plan.steps:
        return "Nothing to do: no change saves energy within the horizon"
    net = plan.net_j
    return (
        f"{len(plan.moves)} moves leave {plan.hosts_on_after} of {plan.hosts_on_before} hosts on and save "
        f"{net.value / units.WH:.0f} Wh ({net.low / units.WH:.0f} to {net.high / units.WH:.0f}) "
        f"in {plan.horizon_s / 3600:g} h, modelled"
    )


def _simulated(evidence: ConsolidationEvidence) -> ConsolidationFindings:
    simulations = evidence.simulations
    names = [result.policy for result in simulations[0].results] if simulations else []
    compared = tuple(
        Compared(policy=name, figures={figure: _over(simulations, name, figure) for figure in FIGURES})
        for name in names
    )
    share = _share(simulations)
    worse = _worse(compared)
    return ConsolidationFindings(
        name=evidence.name,
        headline=_said(compared, share),
        outcome=Outcome.INCONCLUSIVE if not simulations else Outcome.VIOLATED if worse else Outcome.HOLDS,
        evidence=evidence,
        compared=compared,
        share_of_bound=share,
        notes=(*worse, *([ONE_DAY] if len(simulations) == 1 else [])),
    )


def _of(simulation: Simulation, policy: str) -> PolicyResult:
    return next(result for result in simulation.results if result.policy == policy)


def _over(simulations: Sequence[Simulation], policy: str, figure: str) -> Span:
    return interval([float(getattr(_of(each, policy), figure)) for each in simulations])


def interval(values: Sequence[float]) -> Span:
    """The mean with its 95 % interval by Student's t; with one value, that alone."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Span(value=mean, low=mean, high=mean)
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return Span(value=mean, low=mean - half, high=mean + half)


def _share(simulations: Sequence[Simulation]) -> Span | None:
    """Of the saving that the bound allows, the share that the manager's policy reaches."""
    shares = []
    for each in simulations:
        own, reference = each.result(OWN), each.result(REFERENCE)
        if own is not None and reference is not None and reference.energy_kwh > each.bound_kwh:
            shares.append((reference.energy_kwh - own.energy_kwh) / (reference.energy_kwh - each.bound_kwh))
    return interval(shares) if shares else None


def _worse(compared: Sequence[Compared]) -> list[str]:
    """Where the manager's policy is worse than a published one."""
    by_name = {each.policy: each for each in compared}
    own = by_name.get(OWN)
    if own is None:
        return []
    return [
        f"{name} has less {said}: {other.figures[figure].value:.4g}, {OWN} {own.figures[figure].value:.4g}"
        for name, other in by_name.items()
        if name not in (OWN, REFERENCE)
        for figure, said in (("energy_kwh", "energy (kWh)"), ("slav", "SLA violation"), ("unserved", "unserved demand"))
        if other.figures[figure].value < (1 - ALIKE_SHARE) * own.figures[figure].value
    ]


def _said(compared: Sequence[Compared], share: Span | None) -> str:
    own = next((each for each in compared if each.policy == OWN), None)
    others = [each for each in compared if each.policy not in (OWN, REFERENCE)]
    if own is None:
        return f"Simulated: {', '.join(each.policy for each in compared) or 'nothing yet'}"
    energy = own.figures["energy_kwh"].value
    parts = [f"Simulated: {OWN} takes {units.format_number(energy)} kWh"]
    if others:
        best = min(others, key=lambda each: each.figures["energy_kwh"].value)
        least = units.format_number(best.figures["energy_kwh"].value)
        parts.append(f"the best published policy, {best.policy}, {least} kWh")
    if share is not None:
        parts.append(f"{share.value:.1%} of the saving that the bound allows")
    return "; ".join(parts)
