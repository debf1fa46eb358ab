"""The host's speed at each slot of a trial, estimated from the slots around it, and rates without it.

A host that varies makes all slots of a moment fast or slow, whichever treatment they hold. Its speed at a slot is
estimated from the slots before and after, each relative to its own treatment, with weights that fall with the number of
slots between. How fast they fall, and how much of the estimate is used, is chosen by how well neighbours predict a
slot's own rate. On a steady host little is used, and some 1 % of precision is lost at most.

The slot right after a slot tells nothing of its speed. What a neighbour still does then, when it has been switched off,
would count as a slow host, and would hide as much of its effect.

An after-effect also slows the slots that a neighbour is compared with, the more often the fewer treatments there are.
It is estimated from all slots that come after the neighbour, and removed.

The mean rate of each treatment, after-effects and the speed depend on each other, so all are solved for together: a
form of generalised least squares, in which a slot's own rate enters unclipped, so that a stall counts by its cost. The
mean of the speed over all slots is zero. Ratios do not depend on it, and few slots cannot tell it from the level of all
treatments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from partywall.core.stats.algebra import one_thread
from partywall.core.stats.interval import Array
from partywall.run.values.observation import Flags, Places

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

LAGS = 3
"""In how many slots after a neighbour's an after-effect is looked for."""

_NOTHING = 1e-17
"""A weight that changes no sum."""

_CLEAR = 2.0
"""How many of its own standard errors an after-effect must have for a look at the slot after it.

In the first slot it is always removed. Whether it is large enough would be decided by chance, and intervals would not
know of that. In later slots, where it is small if it exists, that costs too much precision with few treatments.
"""

_FEWEST_SLOTS = 100
"""Least number of a neighbour's slots for an estimate of its after-effects.

Intervals of fewer blocks are so wide that what is not reported as carry-over hardly matters.
"""

Term = tuple[int, int]
"""What a slot's level contains: of a treatment, its own level (lag 0), or what remains of it so many slots later."""


@dataclass(frozen=True)
class Before:
    """Which treatment each slot holds, and which ones the slots before it held.

    place: shape (LAGS + 1, slots), by lag; `treatments` where there is none, or the same as in the slot itself. heed:
    weight of each slot in its treatment's mean. weight: of each slot among those that tell an after-effect.
    """

    place: Places
    treatments: int
    heed: Array
    weight: Array

    @staticmethod
    def of(place: Places, treatments: int, heed: Array, weight: Array, turns: Sequence[Places]) -> Before:
        """place: of each slot, in order of time."""
        before = np.full((LAGS + 1, len(place)), treatments)
        before[0] = place
        for rows, lag in itertools.product(turns, range(1, LAGS + 1)):
            before[lag, rows[:, lag:]] = place[rows[:, :-lag]]
        before[1:][before[1:] == place] = treatments
        return Before(before, treatments, heed, weight)

    def holding(self, term: Term) -> Array:
        """1 in slots with this term, otherwise 0."""
        treatment, lag = term
        return np.asarray(self.place[lag] == treatment, dtype=np.float64)

    def sums(self, values: Array) -> Array:
        """Of each slot's value, by lag and treatment: over all slots with that term."""
        return np.stack(
            [
                np.bincount(place, (self.weight if lag else self.heed) * values, self.treatments + 1)[:-1]
                for lag, place in enumerate(self.place)
            ]
        )

    def spread(self, sizes: Array, *, weighed: bool = False) -> Array:
        """Of each slot, the sum over its terms. sizes: by lag and treatment."""
        padded = np.column_stack([sizes, np.zeros(len(sizes))])
        total = padded[0][self.place[0]] * (self.heed if weighed else 1.0)
        for lag in range(1, len(sizes)):
            if sizes[lag].any():
                later = padded[lag][self.place[lag]]
                total += self.weight * later if weighed else later
        return np.asarray(total, dtype=np.float64)


@dataclass(frozen=True)
class Rates:
    """Rates of a trial's treatments at the host's usual speed, and what each slot adds to their errors.

    treatments: in the order of all arrays by treatment. mean: by treatment. count: slots by treatment, by weight.
    before: the treatments of each slot and of those before. own: of each slot, its relative distance from the mean of
    its treatment, without the host's speed and after-effects. shared: the same, with far slots clipped. passed_on: by
    treatment, how much of the errors of each term enters its mean. after: after-effects, relative to the rate, by lag
    from 1 on and treatment; 0 where none is removed.
    """

    treatments: Sequence[str]
    mean: Array
    count: Array
    before: Before
    own: Array
    shared: Array
    passed_on: Array
    after: Array

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
        by_own = (counts / self.count)[self.before.place[0]] * self.before.heed * self.own
        by_shared = self.before.spread(np.tensordot(counts / self.count, self.passed_on, 1), weighed=True) * self.shared
        added = np.bincount(block, by_own + by_shared, blocks)
        return np.asarray(float(self.mean[top]) / reference * (1 + blocks * added), dtype=np.float64)


@one_thread()
def rates_of(
    rate: Array,
    place: Places,
    moment: Array,
    treatments: Sequence[str],
    pressing: Collection[str] = (),
    heed: Array | None = None,
) -> Rates:
    """Of slots in order of time. place: of each slot, that of its treatment. moment: in any unit of time.

    pressing: the treatments that may have after-effects. heed: weight of each slot, 1 on average; None for equal ones.
    """
    heed = np.ones(len(rate)) if heed is None else heed
    count = np.bincount(place, heed, len(treatments)).astype(np.float64)
    usual = np.bincount(place, heed * rate, len(treatments)) / count
    level, trust = _levels(rate, place, len(treatments))
    trust = trust * heed
    turns = _turns(moment)
    around = _chosen(level - (np.bincount(place, heed * level, len(treatments)) / count)[place], trust, turns)
    most = float(trust.max(initial=0.0))
    before = Before.of(place, len(treatments), heed, trust / (most or 1.0), turns)
    may_last = [at for at, name in enumerate(treatments) if name in pressing and most > 0]
    rates = _rates(rate, usual, _Model(level, before, around, count).fit(may_last), before, treatments)
    if (rates.mean[usual > 0] > 0).all():
        return rates
    # Rates so irregular that the host would have stood still in some treatment's slots tell nothing of it.
    return _rates(rate, usual, _Model(level, before, replace(around, used=0.0), count).fit([]), before, treatments)


def _rates(rate: Array, usual: Array, fit: _Fit, before: Before, treatments: Sequence[str]) -> Rates:
    """Rates without speed and after-effects. usual: by treatment."""
    place = before.place[0]
    count = np.bincount(place, before.heed, len(treatments)).astype(np.float64)
    late = fit.sizes.copy()
    late[0] = 0
    bare = rate - usual[place] * (fit.speed + before.spread(late))
    mean = np.bincount(place, before.heed * bare, len(treatments)) / count
    own = np.divide(bare, mean[place], out=np.ones_like(bare), where=mean[place] > 0) - 1
    return Rates(treatments, mean, count, before, own, fit.rest, fit.passed_on, late[1:])


@dataclass(frozen=True)
class _Fit:
    """Sizes of terms, by lag and treatment, and each slot's speed and remaining level. terms: how many.

    passed_on: of each treatment, by lag and treatment, how much of the terms' errors enters its mean. errors: of the
    sizes.
    """

    sizes: Array
    speed: Array
    rest: Array
    passed_on: Array
    errors: Array
    terms: int

    def clear(self, lag: int, treatments: Sequence[int]) -> list[int]:
        """Those of these treatments whose after-effect is certain enough for a look at the next slot."""
        return [at for at in treatments if abs(self.sizes[lag, at]) > _CLEAR * self.errors[lag, at]]


@dataclass(frozen=True)
class _Model:
    """Levels of slots as sums of terms and of the host's speed."""

    level: Array
    before: Before
    around: _Around
    count: Array
    _left: dict[Term, Array] = field(default_factory=dict)

    def fit(self, pressing: Sequence[int]) -> _Fit:
        """With after-effects. pressing: which treatments may have some."""
        lasting = [at for at in pressing if self.count[at] >= _FEWEST_SLOTS]
        terms: list[Term] = [*((at, 0) for at in range(len(self.count))), *((at, 1) for at in lasting)]
        fit = self._solved(terms)
        lasting = fit.clear(1, lasting)
        for lag in range(2, LAGS + 1):
            if lasting:
                lasting = self._solved([*terms, *((at, lag) for at in lasting)]).clear(lag, lasting)
                terms += [(at, lag) for at in lasting]
        return self._solved(terms) if len(terms) > fit.terms else fit

    def _solved(self, terms: Sequence[Term]) -> _Fit:
        treatment, lag = (np.array(part) for part in zip(*terms, strict=True))
        left = np.stack([self._left_of(term) for term in terms], axis=-1)
        solved = np.linalg.pinv(left[lag, treatment])

        def placed(values: Array) -> Array:
            """Values by term, along the last axis, by lag and treatment."""
            table = np.zeros((*values.shape[:-1], LAGS + 1, len(self.count)))
            table[..., lag, treatment] = values
            return table

        sums = self.before.sums(self.level - self._speed(self.level))
        sizes = placed(solved @ sums[lag, treatment])
        level = self.level - self.before.spread(sizes)
        speed = self._speed(level)
        rest = level - speed
        # Of the slots of each treatment, how much of each term's size is in what is subtracted from their rates.
        within = np.where(lag == 0, np.diag(self.count)[:, treatment], 0.0) - left[0]
        errors = np.zeros(len(terms))
        for at in np.flatnonzero(lag > 0):
            errors[at] = np.linalg.norm(self.before.spread(placed(solved[at]), weighed=True) * rest)
        return _Fit(sizes, speed, rest, placed(within @ solved), placed(errors), len(terms))

    def _speed(self, level: Array) -> Array:
        """The host's speed at each slot; its mean is zero."""
        speed = self.around.speed(level)
        return speed - float(speed.mean())

    def _left_of(self, term: Term) -> Array:
        """Sums of the rest of a term that the speed does not take away, by lag and treatment."""
        if term not in self._left:
            column = self.before.holding(term)
            self._left[term] = self.before.sums(column - self._speed(column))
        return self._left[term]


@dataclass(frozen=True)
class _Around:
    """Takes the host's speed at each slot from the slots around it."""

    trust: Array
    turns: Sequence[Places]
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
        for turns in self.turns:
            own = values[turns]
            sums_of = np.zeros_like(own)
            sums_of[:, 1:] += _running(own, self.decay)[:, :-1]
            sums_of[:, ::-1][:, 2:] += self.decay * _running(own[:, ::-1], self.decay)[:, :-2]
            sums[turns] = sums_of
        return sums


def _running(rows: Array, decay: float) -> Array:
    """Of each value, the sum of it and those before it in its row, each times `decay` for every place between.

    By doubling the number of places. SciPy's recursive filter does the same, but takes longer to import than a run's
    statistics take.
    """
    sums, places, weight = rows.copy(), 1, decay
    while places < sums.shape[1] and weight > _NOTHING:
        sums[:, places:] += weight * sums[:, :-places]
        places, weight = 2 * places, weight**2
    return sums


def _chosen(level: Array, trust: Array, turns: Sequence[Places]) -> _Around:
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


def _turns(moment: Array) -> Sequence[Places]:
    """Slots between which no long time passes. Turns of the same length are rows of one array, because a run has many.

    The slots of all turns are those of the trial, in order of time within each row.
    """
    gaps = np.diff(moment)
    far: Flags = gaps > _FAR_APART * np.median(gaps) if len(gaps) else np.zeros(0, dtype=bool)
    edges = np.concatenate([[0], np.flatnonzero(far) + 1, [len(moment)]])
    lengths = np.diff(edges)
    return [edges[:-1][lengths == length][:, None] + np.arange(length) for length in np.unique(lengths)]
