"""Judges every effect of a run: there is one, there is none beyond a bound, or it is not known, and why.

The only place that decides this. The headline, the matrix, goals, tables, charts, the live page and comparisons read
`Cell.effect` and `Cell.why`; `judge` is what the live page calls while a run goes on.

* The A/A check is one test of the whole run: null aggressors show an effect only if chance would not show as large
  ones among so many. Where it fails, that band widens the intervals that refer to it.
* An effect is an interval that excludes 1. Of many cells without an effect, chance moves some so far, so effects are
  selected with Holm's rule (Scand. J. Stat. 6, 1979): in at most one of twenty runs, a named effect is chance.
* There is no effect beyond a bound if the interval lies within it, and nothing suggests that there was more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partywall.agent.catalogue import Warn
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import holm, normal_reach, student_reach, student_tail
from partywall.run.findings.latency import JUDGED
from partywall.run.findings.reliability import understated
from partywall.run.values.finding import Band, Cell, Effect

CHANCE = 0.05
"""In at most this share of runs, any effect that is named is chance. The only correction for the number of cells."""

COARSE = 5.0
""""No effect" needs a bound of at most this multiple of the requested precision."""

WIDEST_BOUND = 0.2
"""And of at most this value, whatever the requested precision: a loss of over 20 % is severe."""

LATENCY_BOUND = 0.25
"""The bound of a latency impact. A 99th percentile is several times less precise than a rate.

A comparison uses the same bound for changes of it.
"""

MARGIN = 1.5
"""Factor on the time after which an interval would just decide: of many cells, an effect needs a narrower one."""

DRIFTED = 0.1
"""Variation of an effect over time, as a share of the effect, above which there is a warning."""

_DUST = 1e-9
"""Tolerance for binary fractions: 1 − 0.95 is more than 0.05."""


@dataclass(frozen=True)
class Claim:
    """The evidence for one effect. ratio: treated / baseline. doubts: why there may be more harm than measured.

    too_few: why its interval is not reliable; empty if it is. checked: whether its A/A check held.
    """

    ratio: Estimate
    bound: float
    doubts: tuple[str, ...] = ()
    too_few: str = ""
    checked: bool = True

    @property
    def reach(self) -> float:
        """The largest change that the interval does not exclude."""
        return max(abs(1 - self.ratio.low), abs(1 - self.ratio.high))


@dataclass(frozen=True)
class Judgement:
    """What a claim shows. why: the reason if it is not known; else empty."""

    effect: Effect
    why: str = ""


def judge(claims: Sequence[Claim]) -> list[Judgement]:
    """Judges effects that belong together: those of one run, of one figure."""
    chances = [1.0 if claim.too_few else chance(claim.ratio) for claim in claims]
    kept = set(holm(dict(enumerate(chances)), CHANCE))
    return [_judged(claim, p, at in kept) for at, (claim, p) in enumerate(zip(claims, chances, strict=True))]


def chance(ratio: Estimate) -> float:
    """Probability of a ratio at least this far from 1 without an effect. At most 5 % if a 95 % interval excludes 1."""
    value, near = ratio.value, ratio.high if ratio.value < 1 else ratio.low
    # Errors of ratios are of a factor, as far as they have a logarithm.
    log = math.log if min(value, near) > 0 else lambda x: x - 1
    arm, distance = abs(log(value) - log(near)), abs(log(value))
    if arm == 0:
        return float(distance == 0)
    freedom = max(1.0, (ratio.n_effective or ratio.n) - 1)
    return float(student_tail(np.array(distance / arm * student_reach(ratio.level, freedom)), freedom))


def _judged(claim: Claim, p: float, is_kept: bool) -> Judgement:
    if is_kept:
        return Judgement(Effect.SEEN)
    if claim.reach <= claim.bound + _DUST and not (claim.too_few or claim.doubts):
        return Judgement(Effect.NONE)
    reasons = [
        claim.too_few,
        *claim.doubts,
        "" if claim.checked else "the A/A check failed, so the interval is widened by its band",
        "of so many cells, chance moves some this far" if p <= CHANCE else "",
        f"an effect above ±{100 * claim.bound:.3g} % is not excluded",
    ]
    return Judgement(Effect.NOT_KNOWN, next(filter(None, reasons)))


def bound_of(precision: float) -> float:
    """The change of an isolation factor that a run of this precision must exclude for "no effect"."""
    return min(COARSE * precision, WIDEST_BOUND)


def judged(cells: Iterable[Cell], bands: Sequence[Band], precision: float, min_blocks: int = 0) -> list[Cell]:
    """The cells of a run with the judgements of their effects, once all other warnings are known."""
    failed = failed_checks(bands, min_blocks)
    checked = [_checked(cell, *failed) for cell in cells]
    names = dict.fromkeys(name for cell in checked for name in cell.latency)
    bound = bound_of(precision)
    throughput = _of_figure(checked, [_claim(cell, isolation_of(cell, bands), bound) for cell in checked])
    latency = {
        name: _of_figure(
            checked,
            [
                _claim(cell, latency_ratio_of(cell, bands, name), LATENCY_BOUND) if name in cell.latency else None
                for cell in checked
            ],
        )
        for name in names
    }
    return [
        _with(cell, throughput[at], {name: found for name in names if (found := latency[name][at])}, bound)
        for at, cell in enumerate(checked)
    ]


def isolation_of(cell: Cell, bands: Sequence[Band]) -> Estimate:
    """The isolation factor that decides: if the A/A check failed, widened by the band that the cell refers to.

    A host that shows an effect of nothing may add the same error to any effect.
    """
    band = next((band for band in bands if band.of(cell)), None)
    failed = Warn.NULL_EFFECT in cell.warnings and cell.role != "null"
    return _widened(cell.isolation, (band.low, band.high)) if band and failed else cell.isolation


def latency_ratio_of(cell: Cell, bands: Sequence[Band], name: str = JUDGED) -> Estimate:
    """The latency at a percentile as a multiple of the baseline's, widened in the same way."""
    band = next((band for band in bands if band.of(cell)), None)
    ratio = _as_ratio(cell.latency[name])
    failed = name == JUDGED and Warn.NULL_LATENCY in cell.warnings and cell.role != "null"
    return _widened(ratio, tuple(1 + end for end in band.latency[name])) if band and failed else ratio


def more_time(cell: Cell, bands: Sequence[Band], least: int) -> float | None:
    """The measuring time after which a cell would probably be decided, as a multiple of its time so far.

    None if time does not help. least: blocks below which nothing is decided.
    """
    if understated(cell) or Warn.NULL_EFFECT in cell.warnings:
        return None
    isolation, bound = isolation_of(cell, bands), cell.effect_bound or WIDEST_BOUND
    return max(1.0, least / isolation.n, time_to_decide(isolation, bound))


def time_to_decide(ratio: Estimate, bound: float, family: int = 1) -> float:
    """The measuring time after which an effect would probably be decided, as a multiple of its time so far.

    family: how many effects are judged together. Intervals shrink with the root of time.
    """
    change = abs(1 - ratio.value)
    seen = change * normal_reach(ratio.level) / normal_reach(1 - CHANCE / max(1, family))
    return MARGIN * (ratio.half_width / max(seen, bound - change)) ** 2


def is_certain(ratio: Estimate, bound: float, family: int) -> bool:
    """Whether an effect will be judged as it is now, though it is looked at again and again as blocks arrive.

    ratio: its level allows for all looks. Its interval must lie within the bound, or its p-value be at most half of
    what the level leaves out, divided by `family` (Bonferroni).
    """
    if 1 - bound <= ratio.low <= ratio.high <= 1 + bound:
        return True
    return chance(ratio) <= (1 - ratio.level) / 2 / max(1, family)


def failed_checks(bands: Sequence[Band], min_blocks: int = 0) -> tuple[list[Band], list[Band]]:
    """Bands of which the A/A check failed: those of the rate, and those of the latency.

    min_blocks: a null treatment of fewer fails no check.
    """
    timed = [band for band in bands if JUDGED in band.null_latency]
    rates = judge([_null(band.null, min_blocks) for band in bands])
    latencies = judge([_null(_as_ratio(band.null_latency[JUDGED]), min_blocks) for band in timed])
    return _seen(bands, rates), _seen(timed, latencies)


def _null(ratio: Estimate, min_blocks: int) -> Claim:
    return Claim(ratio, 0.0, too_few=too_few(ratio.n) if ratio.n < min_blocks else "")


def _seen(bands: Sequence[Band], judgements: Sequence[Judgement]) -> list[Band]:
    return [band for band, found in zip(bands, judgements, strict=True) if found.effect is Effect.SEEN]


def _as_ratio(impact: Estimate) -> Estimate:
    return impact.mapped(lambda change: 1 + change)


def _widened(ratio: Estimate, band: tuple[float, ...]) -> Estimate:
    return ratio.model_copy(update={"low": ratio.low * band[0], "high": ratio.high * band[1]})


def _of_figure(cells: Sequence[Cell], claims: Sequence[Claim | None]) -> list[Judgement | None]:
    """Judgements of one figure. Null aggressors, neighbours and limits are families of their own."""
    found: list[Judgement | None] = [None] * len(cells)
    for role in dict.fromkeys(cell.role for cell in cells):
        places = [at for at, cell in enumerate(cells) if cell.role == role and claims[at] is not None]
        judgements = judge([claim for at in places if (claim := claims[at])])
        for at, judgement in zip(places, judgements, strict=True):
            found[at] = judgement
    return found


def _checked(cell: Cell, rates: Sequence[Band], latencies: Sequence[Band]) -> Cell:
    """The cell with warnings about the A/A checks that failed."""
    raised = {
        Warn.NULL_EFFECT: any(band.of(cell) for band in rates),
        Warn.NULL_LATENCY: any(band.of(cell) for band in latencies),
    }
    return cell.model_copy(update={"warnings": cell.warnings + tuple(warn for warn, holds in raised.items() if holds)})


def _claim(cell: Cell, ratio: Estimate, bound: float) -> Claim:
    blocks = ratio.n
    return Claim(
        ratio,
        bound,
        understated(cell),
        too_few(blocks) if Warn.FEW_BLOCKS in cell.warnings else "",
        checked=Warn.NULL_EFFECT not in cell.warnings,
    )


def too_few(blocks: int) -> str:
    """Why an interval of so many blocks decides nothing."""
    return f"only {blocks} blocks; give the run more budget"


def _with(cell: Cell, isolation: Judgement | None, latency: Mapping[str, Judgement], bound: float) -> Cell:
    judgement = isolation or Judgement(Effect.NOT_KNOWN)
    drifts = (cell.variation or 0.0) > DRIFTED * abs(1 - cell.isolation.value)
    drifting = judgement.effect is Effect.SEEN and cell.role != "null" and drifts
    return cell.model_copy(
        update={
            "effect": judgement.effect,
            "why": judgement.why,
            "effect_bound": bound,
            "latency_effect": {name: found.effect for name, found in latency.items()},
            "latency_bound": LATENCY_BOUND,
            "warnings": cell.warnings + ((Warn.DRIFTING_EFFECT,) if drifting else ()),
        }
    )
