"""How much a figure varies between runs of one host, beyond the intervals of the single runs. Pure.

The interval of a run shows how well the run knows its own mean. It does not include what differs from run to run, such
as the placement of memory. The variance of that part is estimated from runs that are alike. With few runs, one cell
alone leaves hardly any degrees of freedom, so all cells of a comparison support each other's estimate: moderated
variances (Smyth, *Stat. Appl. Genet. Mol. Biol.* 3, 2004) of the spread between runs relative to the runs' intervals.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import student_reach, student_tail

Array = NDArray[np.float64]
Name = TypeVar("Name")

FEWEST_FREE = 2
"""Least degrees of freedom for a spread between runs: with one, an interval is thirteen times its standard error."""

SMALLEST = 1e-6
"""Substitute for a stalled victim's factor of 0, which has no logarithm."""

FOUND = 0.9
"""Share of comparisons that find a change of the stated size."""

METHOD = "ratio of means over runs; intervals of the runs and the moderated spread between runs, Student's t"

_LEAST_EXCESS = 1e-4
_STEPS = 50


class Logged(NamedTuple):
    """The logarithm of a figure in one run, and its standard errors towards less and more, with their freedom."""

    value: float
    below: float
    above: float
    freedom: float

    @classmethod
    def of(cls, estimate: Estimate) -> Logged:
        low, value, high = (math.log(max(end, SMALLEST)) for end in (estimate.low, estimate.value, estimate.high))
        freedom = max(1.0, (estimate.n_effective or estimate.n) - 1)
        reach = student_reach(estimate.level, freedom)
        return cls(value, (value - low) / reach, (high - value) / reach, freedom)

    @property
    def variance(self) -> float:
        return ((self.below + self.above) / 2) ** 2


class Spread(NamedTuple):
    """What differs between runs, beyond their intervals. variance: of a figure's logarithm; runs: behind it."""

    variance: float
    freedom: float
    runs: int


class _Raw(NamedTuple):
    """excess: variance between runs over that of their intervals (1 if these explain all); within: the latter."""

    excess: float
    within: float
    freedom: int
    runs: int


def spreads(figures: Mapping[Name, Sequence[Sequence[Logged]]], independent: int) -> dict[Name, Spread]:
    """The spread of each figure that enough runs have.

    figures: groups of runs that differ in nothing but being different runs; the means of groups may differ.
    independent: how many of the figures vary independently of each other. Together they have no more freedom than that.
    """
    raw = {name: one for name, groups in figures.items() if (one := _raw(groups)).freedom >= FEWEST_FREE}
    if not raw:
        return {}
    usual, support = _prior(list(raw.values()))
    return {name: _moderated(one, usual, min(support, one.freedom * (independent - 1))) for name, one in raw.items()}


def _raw(groups: Sequence[Sequence[Logged]]) -> _Raw:
    several = [group for group in groups if len(group) > 1]
    free = sum(len(group) - 1 for group in several)
    if not free:
        return _Raw(1.0, 0.0, 0, 0)
    squares = sum(statistics.variance(one.value for one in group) * (len(group) - 1) for group in several)
    within = statistics.fmean(one.variance for group in several for one in group) or SMALLEST**2
    return _Raw(squares / free / within, within, free, sum(map(len, groups)))


def _moderated(raw: _Raw, usual: float, support: float) -> Spread:
    """Narrower than the intervals themselves, a spread is chance."""
    excess = (support * usual + raw.freedom * raw.excess) / (support + raw.freedom)
    return Spread(max(excess - 1, 0.0) * raw.within, support + raw.freedom, raw.runs)


def _prior(raw: Sequence[_Raw]) -> tuple[float, float]:
    """The usual excess of all figures, and the degrees of freedom that it adds to each: few if figures differ in it."""
    if len(raw) < 2:
        return 1.0, 0.0
    free = np.array([one.freedom for one in raw], dtype=np.float64)
    logs = np.log(np.maximum([one.excess for one in raw], _LEAST_EXCESS))
    logs += np.log(free / 2) - special.digamma(free / 2)
    beyond_chance = float(logs.var(ddof=1) - special.polygamma(1, free / 2).mean())
    if beyond_chance <= 0:
        return float(np.exp(logs.mean())), math.inf
    half = _inverse_trigamma(beyond_chance)
    return float(np.exp(logs.mean() + special.digamma(half)) / half), 2 * half


def _inverse_trigamma(value: float) -> float:
    """By Newton's method on 1 / trigamma, which is almost a straight line."""
    x = 0.5 + 1 / value
    for _ in range(_STEPS):
        there = float(special.polygamma(1, x))
        step = there * (1 - there / value) / float(special.polygamma(2, x))
        x += step
        if -step < 1e-8 * x:
            break
    return x


@dataclass(frozen=True)
class Difference:
    """The difference of a figure's logarithm between two sides, with its standard errors towards less and more.

    n: runs that are compared. runs: runs behind the spread.
    """

    value: float
    below: float
    above: float
    freedom: float
    level: float
    n: int
    runs: int

    @classmethod
    def of(cls, now: Sequence[Estimate], before: Sequence[Estimate], spread: Spread) -> Difference:
        """Of the means of two sides, each with the figure of one run or several."""
        ours, theirs = ([Logged.of(estimate) for estimate in side] for side in (now, before))
        between = spread.variance * (1 / len(ours) + 1 / len(theirs))

        def error(down: Sequence[float], up: Sequence[float]) -> float:
            within = (sum(own * own for own in side) / len(side) ** 2 for side in (down, up))
            return math.sqrt(sum(within) + between)

        return cls(
            value=statistics.fmean(one.value for one in ours) - statistics.fmean(one.value for one in theirs),
            below=error([one.below for one in ours], [one.above for one in theirs]),
            above=error([one.above for one in ours], [one.below for one in theirs]),
            freedom=min(spread.freedom, *(one.freedom for one in (*ours, *theirs))),
            level=now[0].level,
            n=len(ours) + len(theirs),
            runs=spread.runs,
        )

    @property
    def ratio(self) -> Estimate:
        """The ratio of both sides with its interval."""
        reach = student_reach(self.level, self.freedom)
        ends = (self.value - reach * self.below, self.value, self.value + reach * self.above)
        low, value, high = map(math.exp, ends)
        return Estimate(value=value, low=low, high=high, level=self.level, n=self.n, method=METHOD)

    def p_value(self, tolerance: float) -> float:
        """How probable such a ratio is, in either direction, if the true one is within 1 ± tolerance."""
        down, up = math.log(max(1 - tolerance, SMALLEST)) - self.value, self.value - math.log(1 + tolerance)
        beyond, error = max((down, self.above), (up, self.below))
        if beyond <= 0:
            return 1.0
        return float(student_tail(np.array(beyond / error if error else math.inf), self.freedom))

    def found_from(self, tolerance: float, alpha: float) -> float:
        """The smallest loss that a test at `alpha` finds in FOUND of all comparisons as precise as this."""
        reach = student_reach(1 - alpha, self.freedom) + student_reach(2 * FOUND - 1, self.freedom)
        return 1 - (1 - tolerance) * math.exp(-reach * self.above)
