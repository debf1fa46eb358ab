"""Carry-over tests: whether an effect still changes inside the slots, outlasts them, or differs in longer slots.

In each case, the slots are too short for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.interval import Array, mean_interval, ratio_of_means
from partywall.run.findings.deferred import deferred_of
from partywall.run.findings.series import Measured, Pair, pairs_of
from partywall.run.values.finding import CarryOver, Deferred
from partywall.run.values.observation import Observations
from partywall.run.values.plan import Treatment

NEGLIGIBLE = 0.005
"""A drift below half a percent of the rate does not matter for any displayed figure."""

NEGLIGIBLE_SHARE = 0.1
"""Nor does one below a tenth of the effect: halves that differ by d bias the slot's mean by about d/2."""


ALPHA = 0.05
"""Error level for all treatments of a trial together, shared by the tests.

A positive test lengthens every slot of the trial, so false positives among many tests are expensive.
"""

_TESTS = 3


def carry_over_of(
    pair: Pair, planned_ns: int, level: float = 0.95, deferred: Deferred | None = None, long: Pair | None = None
) -> CarryOver:
    """Late half against early half of the treated slots, minus the same of the baseline's; and the other two tests.

    deferred: effects on later slots. long: the same treatments in long blocks.
    """
    slot_ns = int(np.median(pair.treated.end_ns - pair.treated.start_ns))
    times = 1 if pair.long else round(slot_ns / planned_ns)
    drift = mean_interval(_half_difference(pair.treated) - _half_difference(pair.baseline), level)
    loss = abs(1 - pair.factor().value)
    tolerance = max(NEGLIGIBLE, NEGLIGIBLE_SHARE * loss)
    longer = _longer(pair, long, level) if long is not None and long.comparable else None
    moving = any(_excludes_zero(effect) and abs(effect.value) > tolerance for effect in (drift, longer) if effect)
    if deferred is not None and abs(deferred.change.value) <= tolerance:
        deferred = None
    return CarryOver(
        drift=drift,
        present=moving or deferred is not None,
        slot_ns=slot_ns,
        lengthened=times if times > 1 else 0,
        deferred=deferred,
        longer=longer,
    )


def carry_over(measured: Measured, treatments: Sequence[Treatment], looks: int = 1) -> dict[str, CarryOver]:
    """Tests by treatment id, if there are enough blocks. looks: number of repetitions, each with its part of ALPHA."""
    pairs = list(measured.pairs(treatments))
    beside = {treatment.id: pair for treatment, pair in pairs_of(measured.long, treatments)}
    alpha = ALPHA / looks / _TESTS
    level = 1 - alpha / max(1, len(pairs))
    late = {
        id_: deferred
        for series in (measured.long, measured.short)
        for id_, deferred in deferred_of(series, treatments, alpha / 2).items()
    }
    return {
        t.id: carry_over_of(pair, t.slot_ns, level, late.get(t.id), None if pair.long else beside.get(t.id))
        for t, pair in pairs
        if pair.comparable
    }


def _longer(pair: Pair, long: Pair, level: float) -> Estimate:
    """The factor in the late halves of long slots minus that of the others.

    A block is either long or not, so the squares of their errors add up.
    """
    late = ratio_of_means(long.treated.late_rate, long.baseline.late_rate, level)
    usual = pair.factor(level)
    value, half = late.value - usual.value, math.hypot(late.half_width, usual.half_width)
    method = "difference of two independent ratios"
    return Estimate(value=value, low=value - half, high=value + half, level=level, n=late.n, method=method)


def _half_difference(seen: Observations) -> Array:
    """(late − early) / mean rate of each block. Linear, so that a stalled half counts; a full stall has no effect."""
    mean = float(np.mean(seen.rate))
    moved = seen.late_rate - seen.early_rate
    return moved / mean if mean > 0 else np.zeros_like(moved)


def _excludes_zero(estimate: Estimate) -> bool:
    return estimate.low > 0 or estimate.high < 0
