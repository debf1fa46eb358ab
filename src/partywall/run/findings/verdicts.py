"""Judges goals against cells.

An interval decides only if all of it is on one side; otherwise the verdict is inconclusive. A goal about a neighbour's
effect is violated only where there is an effect (`partywall.run.findings.states`), by the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from partywall.agent.catalogue import Warn
from partywall.core.stats.estimate import Estimate, Outcome
from partywall.run.document.scenario import Goal
from partywall.run.findings.latency import JUDGED
from partywall.run.findings.reliability import rough, understated
from partywall.run.findings.states import isolation_of, latency_ratio_of, too_few
from partywall.run.values.finding import Band, Cell, CpuTime, Effect, Verdict

Judgement = tuple[Outcome, str]

DISTURBED = frozenset((Warn.FOREIGN_LOAD, Warn.STEAL))
"""Warnings that a victim waited for its CPU in quiet slots too."""

TOO_FEW: Judgement = (
    Outcome.INCONCLUSIVE,
    "too few operations for a 99th percentile; give the run more budget or shorter operations",
)
_IN_ALL = ", in all slots"
_WAITED = "it waited for a CPU that others used, or did not use its share; run again on a host without other work"


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
    return [_of_cell(goal, cell, bands) for cell in about]


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


def _of_cell(goal: Goal, cell: Cell, bands: Sequence[Band]) -> Verdict:
    judged = [
        *_isolation(goal, cell, bands),
        *_latency(goal, cell, bands),
        *_latency_itself(goal, cell),
        *_efficiency(goal, cell),
    ]
    outcome = _worst([outcome for outcome, _ in judged])
    reasons = [reason for outcome_of_goal, reason in judged if outcome_of_goal == outcome]
    blocks = _blocks(goal, cell, judged)
    limits = rough(blocks)
    if Warn.FEW_BLOCKS in cell.warnings:
        outcome = Outcome.INCONCLUSIVE
        reasons = [too_few(cell.isolation.n)]
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
        blocks=blocks,
        rough=bool(limits),
    )


def _blocks(goal: Goal, cell: Cell, judged: Sequence[Judgement]) -> int:
    """The number of values behind the estimate that was judged."""
    given = cell.cpu_time
    if given is None or goal.efficiency is None or not _owes_share(goal, cell):
        return cell.isolation.n
    return given.got.n if any(_IN_ALL in reason for _, reason in judged) else given.judged.n


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    for outcome in (Outcome.VIOLATED, Outcome.INCONCLUSIVE):
        if outcome in outcomes:
            return outcome
    return Outcome.HOLDS


def _isolation(goal: Goal, cell: Cell, bands: Sequence[Band]) -> list[Judgement]:
    if goal.isolation_factor is None or cell.aggressor is None:
        return []
    name = f"isolation factor{_widened(cell, Warn.NULL_EFFECT)}"
    judgement = _judge(name, isolation_of(cell, bands), at_least=goal.isolation_factor)
    return [_if_effect(judgement, cell.effect, cell.why)]


def _latency(goal: Goal, cell: Cell, bands: Sequence[Band]) -> list[Judgement]:
    if goal.latency_impact_p99 is None or cell.aggressor is None:
        return []
    if JUDGED not in cell.latency:
        return [TOO_FEW]
    ratio = latency_ratio_of(cell, bands)
    impact = ratio.mapped(lambda times: times - 1)
    name = f"latency impact at {JUDGED}{_widened(cell, Warn.NULL_LATENCY)}"
    judgement = _judge(name, impact, at_most=goal.latency_impact_p99)
    return [_if_effect(judgement, cell.latency_effect.get(JUDGED, Effect.NOT_KNOWN), "")]


def _widened(cell: Cell, warn: Warn) -> str:
    return " (widened, because the A/A check failed)" if warn in cell.warnings else ""


def _if_effect(judgement: Judgement, effect: Effect, why: str) -> Judgement:
    """A goal about an effect is not violated where it is not known whether there is one."""
    outcome, reason = judgement
    if outcome is not Outcome.VIOLATED or effect is Effect.SEEN:
        return judgement
    return Outcome.INCONCLUSIVE, f"{reason}, but whether there is an effect is not known{f': {why}' if why else ''}"


def _latency_itself(goal: Goal, cell: Cell) -> list[Judgement]:
    if goal.latency_p99 is None or cell.aggressor is None:
        return []
    if JUDGED not in cell.latency_ns:
        return [TOO_FEW]
    # The A/A band is of ratios: a neighbour that does nothing makes no latency.
    in_ms = cell.latency_ns[JUDGED].mapped(lambda ns: ns / 1e6)
    return [_judge(f"latency at {JUDGED} in ms", in_ms, at_most=goal.latency_p99 / 1e6)]


def _efficiency(goal: Goal, cell: Cell) -> list[Judgement]:
    if goal.efficiency is None or cell.efficiency is None or not _owes_share(goal, cell):
        return []
    low, high = goal.efficiency
    if cell.cpu_time is not None:
        return [_cpu_time(cell, cell.cpu_time, low, None if cell.promise == "reservation" else high)]
    # Nobody is given more than the whole baseline: a ratio above it shows that the baseline was slowed down.
    capped = cell.promise == "limit" and not (cell.by_baseline and (cell.promised or 0.0) >= 1)
    outcome, reason = _judge("efficiency q", cell.efficiency, at_least=low, at_most=high if capped else None)
    if outcome is Outcome.VIOLATED and cell.by_baseline and not DISTURBED.isdisjoint(cell.warnings):
        return [(Outcome.INCONCLUSIVE, f"{reason}, but the baseline waited for a CPU")]
    return [(outcome, reason)]


def _cpu_time(cell: Cell, given: CpuTime, low: float, high: float | None) -> Judgement:
    """Whether a setting gave the CPU time that it promises, as a share of the promise.

    Less than promised is the setting's fault only if nothing else took the time: a limit that was used up in every
    period, or a sandbox that gets its share without the neighbour.
    """
    outcome, reason = _judge("CPU time / promised", given.of_promise, at_least=low, at_most=high)
    if high is not None and given.held is not None:
        # Others may take time from a sandbox, but nobody gives it more than its limit: slots in which the limit was not
        # used up show whether it was enforced there.
        over, why = _judge(f"CPU time / promised{_IN_ALL}", given.promise_kept(given.got), at_most=high)
        if over is Outcome.VIOLATED or (over is Outcome.INCONCLUSIVE and outcome is Outcome.HOLDS):
            return over, why
    may_be_short = outcome is not Outcome.HOLDS and given.of_promise.low < low
    if not may_be_short or given.held is not None:
        return outcome, reason
    if given.alone is not None:
        explained = given.promise_kept(given.alone).low >= low
    else:
        explained = given.held_share is None and DISTURBED.isdisjoint(cell.warnings)
    return (outcome, reason) if explained else (Outcome.INCONCLUSIVE, f"{reason}; {_WAITED}")


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
