"""The host's speed at each slot of a trial, estimated from the slots around it, and rates without it.

A host that varies makes all slots of a moment fast or slow, whichever treatment they hold. Its speed at a slot is
estimated from the slots before and after, each relative to its own treatment, with weights that fall with the number of
slots between. How fast they fall, and how much of the estimate is used, is chosen by how well neighbours predict a
slot's own rate. On a steady host little is used, and some 1 % of precision is lost at most.

The slot right after a slot tells nothing of its speed. What a neighbour still does then, when it has been switched off,
would count as a slow host, and would hide as much of its effect.

The mean rate of each treatment and the speed depend on each other, so both are solved for together: a form of
generalised least squares, in which a slot's own rate enters unclipped, so that a stall counts by its cost. The mean of
the speed over all slots is zero. Ratios do not depend on it, and few slots cannot tell it from the level of all
treatments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import signal

from partywall.model.observation import Flags, Places
from partywall.stats.algebra import one_thread
from partywall.stats.interval import Array

_FAR = 5.0
"""A slot further than this many robust deviations from its treatment's median counts for its neighbours as if there."""

_FINEST = 1e-4
"""Relative spread of rates below which they tell nothing of the host: they stand at a ceiling, or nothing varies."""

_DECAYS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Weights of a slot relative to the next nearer one, of which the best is chosen."""

_USED_MOST = 0.99
"""The largest share of the estimate that is used."""

_FAR_APART = 8.0
"""Slots further apart than this many median distances are from different turns, and tell nothing of each other."""


@dataclass(frozen=True)
class Rates:
    """Rates of a trial's treatments at the host's usual speed, and what each slot adds to their errors.

    treatments: in the order of all arrays by treatment. mean: by treatment. count: slots by treatment. place: of each
    slot, that of its treatment. own: of each slot, its relative distance from the mean of its treatment, without the
    host's speed. shared: the same, with far slots clipped. passed_on: by treatment, how much of the errors of all
    treatments enters through the speed.
    """

    treatments: Sequence[str]
    mean: Array
    count: Array
    place: Places
    own: Array
    shared: Array
    passed_on: Array

    def ratio(self, treated: str, baselines: Sequence[str], block: Places, blocks: int) -> Array:
        """Block values whose mean is the ratio of a treatment's rate to that of these together.

        Their spread tells the ratio's error, which is linear in each slot. block: of each slot, from 0 to `blocks` − 1.
        ValueError if these did no work.
        """
        top = self.treatments.index(treated)
        under = [self.treatments.index(name) for name in baselines]
        weight = self.count[under] / self.count[under].sum()
        reference = float(weight @ self.mean[under])
        if reference <= 0:
            raise ValueError("the baseline did no work in any block; there is nothing to compare with")
        counts = np.zeros(len(self.treatments))
        counts[top] = 1
        counts[under] -= weight * self.mean[under] / reference
        # The error of each treatment's mean is its own slots' and what others pass on.
        by_own = (counts / self.count)[self.place] * self.own
        by_shared = ((counts / self.count) @ self.passed_on)[self.place] * self.shared
        added = np.bincount(block, by_own + by_shared, blocks)
        return np.asarray(float(self.mean[top]) / reference * (1 + blocks * added), dtype=np.float64)


@one_thread()
def rates_of(rate: Array, place: Places, moment: Array, treatments: Sequence[str]) -> Rates:
    """Of slots in order of time. place: of each slot, that of its treatment. moment: in any unit of time."""
    count = np.bincount(place, minlength=len(treatments)).astype(np.float64)
    usual = np.bincount(place, rate, len(treatments)) / count
    level, trust = _levels(rate, place, len(treatments))
    around = _chosen(level - (np.bincount(place, level, len(treatments)) / count)[place], trust, _turns(moment))
    rates = _solved(rate, place, usual, level, around, treatments)
    if (rates.mean[usual > 0] > 0).all():
        return rates
    # Rates so irregular that the host would have stood still in some treatment's slots tell nothing of it.
    return _solved(rate, place, usual, level, replace(around, used=0.0), treatments)


def _solved(
    rate: Array, place: Places, usual: Array, level: Array, around: _Around, treatments: Sequence[str]
) -> Rates:
    """The rates of treatments and the host's speed, together. usual: by treatment. level: by slot (see `_levels`)."""
    count = np.bincount(place, minlength=len(treatments)).astype(np.float64)
    # How the levels of treatments enter each other's through the speed, summed over slots.
    entering = np.column_stack(
        [
            np.bincount(place, _about_zero(around.speed((place == at).astype(np.float64))), len(treatments))
            for at in range(len(treatments))
        ]
    )
    solved = np.linalg.pinv(np.diag(count) - entering)
    offset = solved @ np.bincount(place, level - _about_zero(around.speed(level)), len(treatments))
    speed = _about_zero(around.speed(level - offset[place]))
    bare = rate - usual[place] * speed
    mean = np.bincount(place, bare, len(treatments)) / count
    own = np.divide(bare, mean[place], out=np.ones_like(bare), where=mean[place] > 0) - 1
    return Rates(treatments, mean, count, place, own, level - offset[place] - speed, entering @ solved)


def _about_zero(values: Array) -> Array:
    return values - float(values.mean())


@dataclass(frozen=True)
class _Around:
    """Takes the host's speed at each slot from the slots around it."""

    trust: Array
    turns: Sequence[slice]
    decay: float
    used: float = 1.0

    @cached_property
    def _weight(self) -> Array:
        return self._sums(self.trust)

    def speed(self, level: Array) -> Array:
        """From each slot's level."""
        sums = self._sums(self.trust * level)
        return self.used * np.divide(sums, self._weight, out=np.zeros_like(sums), where=self._weight > 0)

    def _sums(self, values: Array) -> Array:
        """Of the slots before and after each slot, without its own and the next."""
        sums = np.zeros_like(values)
        for turn in self.turns:
            own, sum_of = values[turn], sums[turn]
            sum_of[1:] += signal.lfilter([1.0], [1.0, -self.decay], own)[:-1]
            sum_of[::-1][2:] += self.decay * signal.lfilter([1.0], [1.0, -self.decay], own[::-1])[:-2]
        return sums


def _chosen(level: Array, trust: Array, turns: Sequence[slice]) -> _Around:
    """Whatever predicts slots best. level: with a mean of 0 for each treatment."""
    best, least = _Around(trust, turns, 0.0, 0.0), math.inf
    for decay in _DECAYS:
        speed = _Around(trust, turns, decay).speed(level)
        weight = float((trust * speed) @ speed)
        used = float((trust * level) @ speed) / weight if weight > 0 else 0.0
        used = min(max(used, 0.0), _USED_MOST)
        rest = float(trust @ np.square(level - used * speed))
        if rest < least:
            best, least = _Around(trust, turns, decay, used), rest
    return best


def _levels(rate: Array, place: Places, treatments: int) -> tuple[Array, Array]:
    """Of each slot: its relative distance from its treatment's median, clipped if far, and its weight.

    The weight is the inverse variance of the steps from one slot of a treatment to its next, which hardly contain the
    host's slow drift. An irregular neighbour therefore tells little of the host. One at a standstill or at a ceiling
    tells nothing.
    """
    level, trust = np.zeros(len(rate)), np.zeros(len(rate))
    for at in range(treatments):
        own = place == at
        median = float(np.median(rate[own]))
        if median <= 0:
            continue
        away = rate[own] / median - 1
        reach = _FAR * max(_deviation(away), _FINEST)
        step = _deviation(np.diff(away)) if len(away) > 1 else 1.0
        level[own] = np.clip(away, -reach, reach)
        trust[own] = 1 / step**2 if step > _FINEST else 0.0
    return level, trust


def _deviation(values: Array) -> float:
    """Standard deviation of the bulk of the values."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _turns(moment: Array) -> Sequence[slice]:
    """Slots between which no long time passes."""
    gaps = np.diff(moment)
    far: Flags = gaps > _FAR_APART * np.median(gaps) if len(gaps) else np.zeros(0, dtype=bool)
    edges = [0, *(np.flatnonzero(far) + 1).tolist(), len(moment)]
    return [slice(begin, end) for begin, end in itertools.pairwise(edges)]
