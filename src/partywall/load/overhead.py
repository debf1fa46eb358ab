"""The overhead model: predicts the bare host's results from those of a generator in a sandbox. Pure.

For N users that think for Z on average and then wait for one bottleneck with service demand D, mean value analysis
(Reiser and Lavenberg, 1980; Reiser, 1979, for services that are not exponential) gives the response time R(N, Z, D) and
the throughput N/(R+Z). Its inverse gives D for a response time.

A sandbox provides two quantities that correlate with D on the bare host, each in a different case. If the generator is
the bottleneck and a limit slowed the sandbox, its response times reflect the limit, but the CPU time C of an iteration
is the same as outside. If it waited for something else, the service or a disk, C says nothing, but the D of its
response times is relevant. Therefore ln D on the bare host is fitted as a + w·ln C + (1-w)·ln D in the sandbox, with w
between 0 and 1. The prediction is R and N/(R+Z) for the resulting D. Its interval comes from the errors of the same
model on a level that it was fitted without.

Published work calls for such a model without giving one (Netto et al., section VI).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from partywall.core.stats.quantile import student_reach

LEVEL = 0.9
# Additional starting points of the search, because the root may be at an end.
_EXTRA_POINTS = 1e-6
LEVELS_LEAST = 3
RESIDUALS = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0)
"""Remaining service when the next user arrives, in services: 1 if exponential, 1/2 if constant.

It is effectively less if users who were served in sequence also return in sequence.
"""


@dataclass(frozen=True)
class Pair:
    """One round of one level. used: share of its CPUs that the sandbox used, positive.

    physical_*: None if it is to be predicted. emulated: whether the sandbox's processor was.
    """

    users: int
    think_s: float
    sandbox_s: float
    used: float
    physical_s: float | None = None
    physical_rate: float | None = None
    emulated: bool = False

    @property
    def work_s(self) -> float:
        """CPU time of an iteration, as a share of all its CPUs: the used share divided by the throughput."""
        return self.used * (self.sandbox_s + self.think_s) / self.users


@dataclass(frozen=True)
class Forecast:
    """(value, low, high) on the bare host."""

    response_s: tuple[float, float, float]
    rate: tuple[float, float, float]


@dataclass(frozen=True)
class Line:
    """ln D on the bare host = a + weight · ln C + (1 - weight) · ln D in the sandbox; residual: see RESIDUALS."""

    a: float
    weight: float
    residual: float

    def log_demand(self, pair: Pair) -> float:
        log_demand = _log_demand(pair.users, pair.think_s, pair.sandbox_s, self.residual)
        return self.a + self.weight * math.log(pair.work_s) + (1 - self.weight) * log_demand

    def gap(self, pair: Pair) -> float:
        """Its error for a pair that was measured physically."""
        return _own(pair, self.residual) - self.log_demand(pair)


@dataclass(frozen=True)
class Model:
    """A line and its error: scale with its degrees of freedom."""

    line: Line
    scale: float
    freedom: int

    def forecast(self, pair: Pair) -> Forecast:
        centre = self.line.log_demand(pair)
        reach = student_reach(LEVEL, self.freedom) * self.scale
        demands = [math.exp(centre + step) for step in (0.0, -reach, reach)]
        times = [response(pair.users, pair.think_s, demand_s, self.line.residual) for demand_s in demands]
        rates = [pair.users / (time + pair.think_s) for time in times]
        return Forecast((times[0], times[1], times[2]), (rates[0], rates[2], rates[1]))


@dataclass(frozen=True)
class HeldOut:
    """Predictions for a level by a model fitted without it.

    Errors are of the level's mean; covered: number of rounds.
    """

    users: int
    physical_s: float
    forecast_s: float
    physical_rate: float
    forecast_rate: float
    covered: int
    rounds: int

    @property
    def errors(self) -> tuple[float, float]:
        """Relative errors of response time and throughput."""
        return (
            abs(self.forecast_s / self.physical_s - 1),
            abs(self.forecast_rate / self.physical_rate - 1),
        )


def response(users: int, think_s: float, demand_s: float, residual: float = 1.0) -> float:
    """R(N, Z, D): mean value analysis of one queue with thinking times."""
    queue = busy = time = 0.0
    for number in range(1, users + 1):
        time = demand_s * (1 + queue - (1 - residual) * busy)
        rate = number / (time + think_s)
        queue, busy = rate * time, min(1.0, rate * demand_s)
    return time


def demand(users: int, think_s: float, response_s: float, residual: float = 1.0) -> float:
    """D for a given R(N, Z, D). R increases with D; D is between R/N (or R/2N for a residual of 2) and R."""
    low, high = math.log(response_s / users / max(residual, 1.0)), math.log(response_s)
    if users == 1:
        return response_s

    def over(log_s: float) -> float:
        return math.log(response(users, think_s, math.exp(log_s), residual) / response_s)

    return math.exp(optimize.brentq(over, low - _EXTRA_POINTS, high + _EXTRA_POINTS, xtol=1e-9))


# Cached, because every fit without a level needs those of the others.
@functools.lru_cache(maxsize=100_000)
def _log_demand(users: int, think_s: float, response_s: float, residual: float) -> float:
    return math.log(demand(users, think_s, response_s, residual))


def _own(pair: Pair, residual: float) -> float:
    if pair.physical_s is None:
        raise ValueError("this level was not measured physically")
    return _log_demand(pair.users, pair.think_s, pair.physical_s, residual)


def fit(pairs: Sequence[Pair]) -> Model:
    """Fits a model to levels measured both ways.

    ValueError with fewer than three levels, or none measured physically.
    """
    known = [pair for pair in pairs if pair.physical_s is not None]
    levels = sorted({pair.users for pair in known})
    if len(levels) < LEVELS_LEAST:
        raise ValueError(
            f"a model needs {LEVELS_LEAST} numbers of users measured both ways, and there are {len(levels)}"
        )
    # A level's own points are closer to the line than those of a level it was fitted without.
    missed = [
        [line.gap(pair) for pair in known if pair.users == level]
        for level in levels
        for line in [_line([pair for pair in known if pair.users != level])]
    ]
    scale = math.sqrt(statistics.fmean(gap * gap for gaps in missed for gap in gaps))
    return Model(_line(known), scale, _freedom(missed))


def _freedom(missed: Sequence[Sequence[float]]) -> int:
    """Degrees of freedom of the errors by level; the line takes two of them.

    Rounds of a level share its peculiarities, so their effective number is smaller: n / (1 + (m - 1) r) with m rounds a
    level and correlation r (Kish, 1965, the design effect), but at least one for each level.
    """
    count, rounds = sum(map(len, missed)), sum(map(len, missed)) / len(missed)
    within = statistics.fmean(statistics.pvariance(gaps) for gaps in missed) * rounds / max(rounds - 1, 1)
    between = max(statistics.variance(map(statistics.fmean, missed)) - within / rounds, 0.0)
    correlation = between / (between + within) if between + within > 0 else 1.0
    return max(round(count / (1 + (rounds - 1) * correlation)) - 2, len(missed) - 2, 1)


def _line(pairs: Sequence[Pair]) -> Line:
    """Least squares, with the residual that has the smallest error."""
    lines = [_line_of(pairs, residual) for residual in RESIDUALS]
    return min(lines, key=lambda line: statistics.fmean(line.gap(pair) ** 2 for pair in pairs))


def _line_of(pairs: Sequence[Pair], residual: float) -> Line:
    """With ln D in the sandbox subtracted from both sides, the fit is a straight line whose slope is the weight."""
    log_demand = np.array([_log_demand(pair.users, pair.think_s, pair.sandbox_s, residual) for pair in pairs])
    work = np.array([math.log(pair.work_s) for pair in pairs]) - log_demand
    own = np.array([_own(pair, residual) for pair in pairs]) - log_demand
    spread = float(((work - work.mean()) ** 2).sum())
    slope = float(((work - work.mean()) * (own - own.mean())).sum()) / spread if spread > 1e-9 else 0.0
    weight = min(max(slope, 0.0), 1.0)
    return Line(float(own.mean() - weight * work.mean()), weight, residual)


def held_out(pairs: Sequence[Pair]) -> list[HeldOut]:
    """Predicts every level in turn from its sandboxed rounds, by a model fitted without it."""
    errors = []
    for level in sorted({pair.users for pair in pairs}):
        rest = [pair for pair in pairs if pair.users != level]
        own = [pair for pair in pairs if pair.users == level and pair.physical_s and pair.physical_rate]
        if own:
            errors.append(_judged(level, own, fit(rest)))
    return errors


def _judged(level: int, own: Sequence[Pair], model: Model) -> HeldOut:
    forecasts = [model.forecast(pair) for pair in own]
    inside = [
        f.response_s[1] <= (pair.physical_s or 0) <= f.response_s[2] for pair, f in zip(own, forecasts, strict=True)
    ]
    return HeldOut(
        users=level,
        physical_s=statistics.fmean(pair.physical_s or 0 for pair in own),
        forecast_s=statistics.fmean(f.response_s[0] for f in forecasts),
        physical_rate=statistics.fmean(pair.physical_rate or 0 for pair in own),
        forecast_rate=statistics.fmean(f.rate[0] for f in forecasts),
        covered=sum(inside),
        rounds=len(own),
    )


def mean_pair(pairs: Sequence[Pair]) -> Pair:
    """The mean of the rounds of one level, as measured by the sandbox."""
    return Pair(
        users=pairs[0].users,
        think_s=pairs[0].think_s,
        sandbox_s=statistics.fmean(pair.sandbox_s for pair in pairs),
        used=statistics.fmean(pair.used for pair in pairs),
        emulated=any(pair.emulated for pair in pairs),
    )


def mean_errors(levels: Sequence[HeldOut]) -> tuple[float, float]:
    """Mean errors of response times and of throughputs over all levels.

    They are kept separate: if users mostly think, throughput hardly depends on response time, and its small error would
    hide the other's.
    """
    times, rates = zip(*(level.errors for level in levels), strict=True)
    return statistics.fmean(times), statistics.fmean(rates)


def coverage(levels: Sequence[HeldOut]) -> float:
    """Share of rounds whose physical response time was inside its interval."""
    return sum(level.covered for level in levels) / sum(level.rounds for level in levels)
