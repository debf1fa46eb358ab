"""Statistics of a run's observations: every figure with its interval. Pure functions.

docs/statistics.md describes the principle, the estimators and their limits. Nothing here touches a host or a file, or
uses slices: each block gives one value for each treatment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from partywall import units
from partywall.agent.catalogue import Warn
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.interval import PROMISED
from partywall.run.findings import agent_facts, carryover, causes, states
from partywall.run.findings.curves import curves_of
from partywall.run.findings.effects import DISTURBED_SHARE, bands_of, cells_of
from partywall.run.findings.headline import headline
from partywall.run.findings.latency import JUDGED
from partywall.run.findings.series import DECIDING, Measured, Pair, Series, baseline_of, compared, pairs_of
from partywall.run.findings.states import bound_of, judged
from partywall.run.findings.verdicts import verdicts_of
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Band, CarryOver, Cell, Curve, Findings, Precision
from partywall.run.values.observation import Observation, Observations
from partywall.run.values.plan import Treatment, Trial

GROWTH = 1.25
"""Factor on the number of blocks between two checks of the precision, so that repeated checks do not bias it."""


FEWEST_WORTH = 20.0
"""Least number of equivalent independent blocks before a narrow interval is trusted.

An interval that is narrow only because persistence has not shown yet would stop a trial at the wrong moment. One of
fewer blocks is so wide that time would seem to be lost on it.
"""

FIRST_LOOK = 250
"""Least number of blocks before a trial stops for precision, for the same reason."""

FIRST_LOOK_NS = 9_000_000_000
"""Least measuring time as well: short blocks are soon many, and hosts drift with time whatever the length of blocks."""


LEAST_S = 0.5
"""Seconds of blocks below which a difference in the time to a decision means nothing."""


def analyse(evidence: Evidence) -> Findings:
    """All findings of a run."""
    plan = evidence.plan
    cells: list[Cell] = []
    bands: list[Band] = []
    disturbed: list[Disturbed] = []
    watched: dict[str, Series] = {}
    curves: list[Curve] = []
    for trial in plan.trials:
        facts = evidence.agent_facts.get(trial.id)
        disturbed.append(Disturbed.of(evidence.of_trial(trial.id)))
        measured = Measured.of(evidence.of_trial(trial.id), trial.treatments, evidence.decided.get(trial.id, ()))
        own = agent_facts.warned(trial, cells_of(trial, measured, plan.scenario.min_blocks), facts)
        curves += agent_facts.dosed(curves_of(trial, measured, own), facts)
        bands += bands_of(trial, measured)
        watched[trial.id] = measured.watched
        cells += own
    cells = judged(cells, bands, plan.scenario.precision, plan.scenario.min_blocks)
    cells = [cell for trial, series in watched.items() for cell in _with_causes(series, trial, cells, evidence)]
    verdicts = verdicts_of(plan.scenario.goals, cells, bands)
    return Findings(
        run=evidence.run,
        scenario=plan.scenario.name,
        headline=headline(plan, evidence.kernels, cells, bands, evidence.incomplete, verdicts),
        cells=tuple(cells),
        bands=tuple(bands),
        curves=tuple(curves),
        verdicts=verdicts,
        goals=len(verdicts),
        warnings=(
            *plan.warnings,
            *_warnings(plan.trials, cells, bands, disturbed),
            *(
                text
                for t in plan.trials
                if t.id in evidence.agent_facts
                for text in agent_facts.said(t, evidence.agent_facts[t.id])
            ),
        ),
        incomplete=(*evidence.incomplete, *_missing(plan.trials, cells)),
    )


def checkpoints(min_blocks: int) -> Iterator[int]:
    """Numbers of complete blocks at which the precision is checked."""
    blocks = min_blocks
    while True:
        yield blocks
        blocks = math.ceil(GROWTH * blocks)


def enough(
    observations: Iterable[Observation],
    treatments: Sequence[Treatment],
    precision: float,
    min_blocks: int = 20,
    left_out: Collection[str] = (),
    family: int = 0,
) -> Precision:
    """Whether one trial may stop: every isolation factor's half-width is within `precision`, and is reliable.

    left_out: treatments that get no more blocks; of them it is only told whether they are decided still. family: the
    number of the run's neighbours, if time goes where a decision is near; 0 if it goes where intervals are wide.

    Uses only the observations up to the last checkpoint, so the answer does not depend on how often it is requested.
    """
    baseline = baseline_of(treatments)
    measured = Measured.of(observations, treatments)
    wanted = [t for t in treatments if t.id not in left_out]
    slow = [t for t in wanted if measured.holding(t.id) is measured.long]
    quick = [t for t in wanted if t not in slow]
    results = [_enough(measured.short, quick, precision, min_blocks, family)] if quick else []
    results += [_enough(measured.long, [baseline, *slow], precision, min_blocks, family)] if slow else []
    least = next(
        (result for result in results if not result.reached), max(results, key=lambda result: result.half_width or 0.0)
    )
    # The host's speed is estimated from all blocks, so the intervals of those left out can become wider again.
    bound, pairs = bound_of(precision), measured.pairs(treatments) if left_out else ()
    still = (t.id for t, pair in pairs if t.id in left_out and _is_certain(pair, bound, family))
    least = least.model_copy(
        update={
            "factors": {name: at for result in results for name, at in result.factors.items()},
            "known": frozenset[str]().union(*(result.known for result in results)),
            "decided": frozenset(still).union(*(result.decided for result in results)),
        }
    )
    worths = [result.worth for result in results if result.worth is not None]
    if len(worths) < len(results):
        return least
    total = sum(worths)
    slow_share = worths[1] / total if len(worths) == 2 and total else None
    # Times to a width add up. Of decisions, each kind brings as many a second as its share of the time allows.
    worth = sum(each**2 for each in worths) / total if family and total else total
    return least.model_copy(update={"worth": worth, "slow_share": slow_share})


def _enough(
    series: Series, treatments: Sequence[Treatment], precision: float, min_blocks: int, family: int
) -> Precision:
    """The same for treatments that are measured in blocks of one kind."""
    wanted = [t.id for t in treatments]
    complete = int(series.hold(wanted).sum())
    last, following = 0, 0
    for following in checkpoints(min_blocks):
        if following > complete:
            break
        last = following
    if last == 0:
        return Precision(reached=False, half_width=None, treatment="", blocks=0, next_blocks=following)
    seen = series.first(last, wanted)
    pairs = {treatment.id: pair for treatment, pair in pairs_of(seen, treatments)}
    factors = {name: pair.factor() for name, pair in pairs.items() if pair.comparable}
    if len(factors) < len(pairs):
        stuck = next(name for name in pairs if name not in factors)
        return Precision(reached=False, half_width=None, treatment=stuck, blocks=last, next_blocks=following)
    widest = max(factors, key=lambda name: factors[name].half_width)
    half = factors[widest].half_width
    believed = all(map(_is_worth, factors.values())) and last >= FIRST_LOOK and seen.lasted_ns >= FIRST_LOOK_NS
    reached = believed and half <= precision
    bound = bound_of(precision)
    neighbours = {t.id: pairs[t.id] for t in treatments if t.role == "aggressor" and t.victim_limits is None}
    decided = {name for name, pair in neighbours.items() if _is_certain(pair, bound, family)}
    taken_s = seen.taken_ns(wanted) / 1e9
    worth: float | None = half**2 * taken_s
    if family:
        left = [factors[name] for name in neighbours if name not in decided]
        worth = _decisions_a_second(left, bound, family, taken_s) if last >= FEWEST_WORTH else None
    return Precision(
        reached=reached,
        half_width=half,
        treatment=widest,
        blocks=last,
        next_blocks=following,
        worth=worth,
        factors={name: (factor.value, factor.low, factor.high) for name, factor in factors.items()},
        known=frozenset(name for name in neighbours if factors[name].half_width <= bound),
        decided=frozenset(decided if seen.lasted_ns >= FIRST_LOOK_NS else ()),
    )


def _decisions_a_second(factors: Iterable[Estimate], bound: float, family: int, taken_s: float) -> float:
    """How many of these neighbours are decided for each further second of blocks of their kind, at best.

    taken_s: the time of their blocks so far.
    """
    multiples = sorted(states.time_to_decide(each, bound, family) for each in factors)
    needed_s = ((multiple - 1) * taken_s for multiple in multiples if multiple > 1)
    return max((count / max(needed, LEAST_S) for count, needed in enumerate(needed_s, 1)), default=0.0)


def _is_certain(pair: Pair, bound: float, family: int) -> bool:
    """Whether a neighbour needs no more blocks: more of them would hardly change what the report says of it."""
    return pair.comparable and _is_worth(pair.factor()) and states.is_certain(pair.factor(DECIDING), bound, family)


def _is_worth(factor: Estimate) -> bool:
    return factor.n_effective is None or factor.n_effective >= FEWEST_WORTH


def carry_over(
    observations: Iterable[Observation], treatments: Sequence[Treatment], looks: int = 1
) -> dict[str, CarryOver]:
    """By treatment id: whether the effect still changed inside one trial's slots. Missing if there are too few blocks.

    looks: number of tests while blocks arrive, which share the allowed error.
    """
    return carryover.carry_over(Measured.of(observations, treatments), treatments, looks)


@dataclass(frozen=True)
class Disturbed:
    """Of a trial: slots in which counters were read, how many of them others disturbed, and by what.

    long: whether those are the slots of long blocks.
    """

    watched: int
    slots: int
    names: frozenset[str]
    long: bool

    @staticmethod
    def of(observations: Observations) -> Disturbed:
        long = bool(observations.long.any())
        watched = observations.disturbed[observations.long] if long else observations.disturbed
        names = frozenset(name.split()[0] for disturbances in watched for name in disturbances)
        return Disturbed(len(watched), sum(map(bool, watched)), names, long)


def _with_causes(series: Series, trial: str, cells: Sequence[Cell], evidence: Evidence) -> list[Cell]:
    own = [cell for cell in cells if cell.trial == trial]
    return [cell.model_copy(update={"causes": causes.causes_of(cell, own, series, evidence.counters)}) for cell in own]


def _missing(trials: Sequence[Trial], cells: Sequence[Cell]) -> list[str]:
    have = {(cell.trial, cell.treatment) for cell in cells}
    return [
        f"trial {trial.id}, {treatment.label}: too few blocks, or the victim did no work at all"
        for trial in trials
        for treatment in compared(trial)
        if (trial.id, treatment.id) not in have
    ]


def _warnings(
    trials: Sequence[Trial], cells: Sequence[Cell], bands: Sequence[Band], disturbed: Sequence[Disturbed]
) -> list[str]:
    """Warnings about the whole run. Warnings about a cell are in the cell."""
    said = [
        f"trial {trial.id}: the null treatment was not measured, so there is no A/A band"
        for trial in trials
        if trial.id not in {b.trial for b in bands}
    ]
    for warn, effect in ((Warn.NULL_EFFECT, "an effect"), (Warn.NULL_LATENCY, f"an effect on the {JUDGED} latency")):
        failed = dict.fromkeys(cell.trial for cell in cells if warn in cell.warnings)
        said += [
            f"trial {trial}: an aggressor that loads nothing had {effect}; the A/A check failed" for trial in failed
        ]
    said += dict.fromkeys(text for cell in cells if (text := _outlasting(cell)))
    slots, watched = sum(each.slots for each in disturbed), sum(each.watched for each in disturbed)
    if slots > DISTURBED_SHARE * watched:
        names = ", ".join(sorted({name for each in disturbed for name in each.names}))
        where = "of long blocks " if any(each.long for each in disturbed) else ""
        said.append(
            f"{slots} of {watched} slots {where}were disturbed by other programs ({names}); "
            "they are kept, and noisy moments count less"
        )
    if rough := sum(cell.isolation.n < PROMISED for cell in cells):
        said.append(
            f"{rough} of {len(cells)} cells rest on fewer than {PROMISED} blocks: such intervals are less reliable "
            "(see docs/statistics.md); a larger budget gives more blocks"
        )
    return said


def _outlasting(cell: Cell) -> str:
    late = cell.carry_over.deferred if cell.carry_over else None
    if late is None:
        return ""
    pace = " % ± ".join(units.format_number(100 * x, 2) for x in (abs(late.change.value), late.change.half_width))
    slots = "one slot" if late.lag == 1 else f"{late.lag} slots"
    return (
        f"trial {cell.trial}: baseline and null slots that came {slots} after {cell.aggressor or cell.label} "
        f"were {pace} {'slower' if late.change.value < 0 else 'faster'}: "
        "its effect outlasts its slot, so isolation factors of this trial may understate it; lengthen the slots"
    )
