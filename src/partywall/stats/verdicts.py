"""Judges goals against cells.

An interval decides only if all of it is on one side; otherwise the verdict is inconclusive.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from partywall.model.finding import Band, Cell, Estimate, Outcome, Verdict, Warn
from partywall.model.scenario import Goal
from partywall.stats.latency import JUDGED
from partywall.stats.reliability import rough, understated

Judgement = tuple[Outcome, str]

TOO_FEW: Judgement = (
    Outcome.INCONCLUSIVE,
    "too few operations for a 99th percentile; give the run more budget or shorter operations",
)
_WIDENED = "(widened, because the A/A check failed)"


def verdicts_of(goals: Sequence[Goal], cells: Sequence[Cell], bands: Sequence[Band]) -> tuple[Verdict, ...]:
    """A verdict for each goal and each matching cell. A goal without a matching cell gets one inconclusive verdict."""
    return tuple(verdict for goal in goals for verdict in _of_goal(goal, cells, bands))


def _of_goal(goal: Goal, cells: Sequence[Cell], bands: Sequence[Band]) -> list[Verdict]:
    about = [cell for cell in cells if _concerns(goal, cell)]
    if not about:
        reason = (
            f"no measured cell matches victim {goal.victim!r} and aggressor {goal.aggressor!r}; "
            "check the names of victims and aggressors in the goal"
        )
        return [Verdict(goal=goal, trial="", treatment="", outcome=Outcome.INCONCLUSIVE, reason=reason)]
    return [_of_cell(goal, cell, next((band for band in bands if band.of(cell)), None)) for cell in about]


def _concerns(goal: Goal, cell: Cell) -> bool:
    if not fnmatchcase(cell.victim, goal.victim) or not fnmatchcase(cell.aggressor or "", goal.aggressor):
        return False
    return (cell.aggressor is not None and goal.is_about_neighbours) or _owes_share(goal, cell)


def _owes_share(goal: Goal, cell: Cell) -> bool:
    """Efficiency needs a promised share: by a limit alone, or by a reservation beside any neighbour.

    A limit is no guarantee against neighbours, so a limited victim beside one is judged only if the goal names that
    neighbour.
    """
    if goal.efficiency is None or cell.efficiency is None:
        return False
    return cell.promise == "reservation" or cell.aggressor is None or cell.aggressor == goal.aggressor


def _of_cell(goal: Goal, cell: Cell, band: Band | None) -> Verdict:
    judged = [
        *_isolation(goal, cell, band),
        *_latency(goal, cell, band),
        *_latency_itself(goal, cell),
        *_efficiency(goal, cell),
    ]
    outcome = _worst([outcome for outcome, _ in judged])
    reasons = [reason for outcome_of_goal, reason in judged if outcome_of_goal == outcome]
    limits = rough(cell)
    if Warn.FEW_BLOCKS in cell.warnings:
        outcome = Outcome.INCONCLUSIVE
        reasons = [f"only {cell.isolation.n} blocks; give the run more budget"]
    elif limits:
        reasons = [*reasons, limits]
    reservations = [f"but {reason}" for reason in understated(cell)]
    if outcome is Outcome.HOLDS and reservations:
        outcome = Outcome.INCONCLUSIVE
    return Verdict(
        goal=goal,
        trial=cell.trial,
        treatment=cell.treatment,
        outcome=outcome,
        reason="; ".join([*reasons, *reservations]),
        blocks=cell.isolation.n,
        rough=bool(limits),
    )


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    for outcome in (Outcome.VIOLATED, Outcome.INCONCLUSIVE):
        if outcome in outcomes:
            return outcome
    return Outcome.HOLDS


def _isolation(goal: Goal, cell: Cell, band: Band | None) -> list[Judgement]:
    if goal.isolation_factor is None or cell.aggressor is None:
        return []
    estimate, name = cell.isolation, "isolation factor"
    if band is not None and Warn.NULL_EFFECT in cell.warnings:
        # A host that shows an effect of nothing may add the same error to any effect.
        estimate = estimate.model_copy(update={"low": estimate.low * band.low, "high": estimate.high * band.high})
        name = f"{name} {_WIDENED}"
    return [_judge(name, estimate, at_least=goal.isolation_factor)]


def _latency(goal: Goal, cell: Cell, band: Band | None) -> list[Judgement]:
    if goal.latency_impact_p99 is None or cell.aggressor is None:
        return []
    if JUDGED not in cell.latency:
        return [TOO_FEW]
    estimate, name = cell.latency[JUDGED], f"latency impact at {JUDGED}"
    if band is not None and Warn.NULL_LATENCY in cell.warnings:
        low, high = band.latency[JUDGED]
        ends = {"low": (1 + estimate.low) * (1 + low) - 1, "high": (1 + estimate.high) * (1 + high) - 1}
        estimate, name = estimate.model_copy(update=ends), f"{name} {_WIDENED}"
    return [_judge(name, estimate, at_most=goal.latency_impact_p99)]


def _latency_itself(goal: Goal, cell: Cell) -> list[Judgement]:
    if goal.latency_p99 is None or cell.aggressor is None:
        return []
    if JUDGED not in cell.latency_ns:
        return [TOO_FEW]
    # The A/A band is of ratios: a neighbour that does nothing makes no latency.
    ms = cell.latency_ns[JUDGED]
    in_ms = ms.model_copy(update={name: getattr(ms, name) / 1e6 for name in ("value", "low", "high")})
    return [_judge(f"latency at {JUDGED} in ms", in_ms, at_most=goal.latency_p99 / 1e6)]


def _efficiency(goal: Goal, cell: Cell) -> list[Judgement]:
    if goal.efficiency is None or cell.efficiency is None or not _owes_share(goal, cell):
        return []
    low, high = goal.efficiency
    ceiling = None if cell.promise == "reservation" else high
    return [_judge("efficiency q", cell.efficiency, at_least=low, at_most=ceiling)]


def _judge(name: str, estimate: Estimate, at_least: float | None = None, at_most: float | None = None) -> Judgement:
    shown = f"{name} {estimate.value:.4g}, interval {estimate.low:.4g} to {estimate.high:.4g}"
    if at_least is not None and estimate.high < at_least:
        return Outcome.VIOLATED, f"{shown}: all of it below {at_least:g}"
    if at_most is not None and estimate.low > at_most:
        return Outcome.VIOLATED, f"{shown}: all of it above {at_most:g}"
    inside = [f"{at_least:g}"] if at_least is not None and estimate.low < at_least else []
    inside += [f"{at_most:g}"] if at_most is not None and estimate.high > at_most else []
    if inside:
        lie = f"{' and '.join(inside)} {'lies' if len(inside) == 1 else 'lie'} within it"
        return Outcome.INCONCLUSIVE, f"{shown}: {lie}; more blocks would narrow it"
    bounds = (("at least", at_least), ("at most", at_most))
    wanted = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
    return Outcome.HOLDS, f"{shown}: all of it {wanted}"
