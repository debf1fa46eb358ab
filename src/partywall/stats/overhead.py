"""What the bare host would have measured, from what a sandboxed generator measured: the overhead model. Pure.

So many users N that think for Z on average and then wait for one bottleneck with a service demand of D see, by mean
value analysis (Reiser and Lavenberg, 1980), the response time R(N, Z, D), and the throughput N/(R+Z). Read backwards, a
response time tells D. A sandbox makes D larger: the logarithm of D on the bare host over D in the sandbox is fitted as
a + b·u, where u is how much of its CPUs the sandbox used (a host counter). The prediction is R and N/(R+Z) of the D
that follows; its interval comes from how far the same model, fitted without a level, missed that level.

Published work asked for such a model without giving one (Netto et al., section VI).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

LEVEL = 0.9
_STEPS = 60
LEVELS_LEAST = 3


@dataclass(frozen=True)
class Pair:
    """One round of one level. used: share of its CPUs that the sandbox used. physical_*: None where it is asked for."""

    users: int
    think_s: float
    sandbox_s: float
    used: float
    physical_s: float | None = None
    physical_rate: float | None = None


@dataclass(frozen=True)
class Forecast:
    """(value, low, high) on the bare host."""

    response_s: tuple[float, float, float]
    rate: tuple[float, float, float]


@dataclass(frozen=True)
class Model:
    """ln(D physical / D sandbox) = a + b·u, and how far off it is: scale with its degrees of freedom."""

    a: float
    b: float
    scale: float
    freedom: int
    used_middle: float

    def forecast(self, pair: Pair) -> Forecast:
        centre = math.log(demand(pair.users, pair.think_s, pair.sandbox_s)) + self._shift(pair.used)
        reach = float(scipy.stats.t.ppf((1 + LEVEL) / 2, self.freedom)) * self.scale
        times = [response(pair.users, pair.think_s, math.exp(centre + step)) for step in (0.0, -reach, reach)]
        rates = [pair.users / (time + pair.think_s) for time in times]
        return Forecast((times[0], times[1], times[2]), (rates[0], rates[2], rates[1]))

    def _shift(self, used: float) -> float:
        return self.a + self.b * (used - self.used_middle)


@dataclass(frozen=True)
class HeldOut:
    """What a model fitted without a level said of it. Errors are of the level's mean; covered: of how many rounds."""

    users: int
    physical_s: float
    forecast_s: float
    physical_rate: float
    forecast_rate: float
    covered: int
    rounds: int

    @property
    def errors(self) -> tuple[float, float]:
        """Of response time and throughput, as shares."""
        return (
            abs(self.forecast_s / self.physical_s - 1),
            abs(self.forecast_rate / self.physical_rate - 1),
        )


def response(users: int, think_s: float, demand_s: float) -> float:
    """R(N, Z, D): mean value analysis of one queue and thinking."""
    queue = time = 0.0
    for number in range(1, users + 1):
        time = demand_s * (1 + queue)
        queue = number * time / (time + think_s)
    return time


def demand(users: int, think_s: float, response_s: float) -> float:
    """D at which R(N, Z, D) is the given one; R grows with D, and lies between D and N·D."""
    low, high = math.log(response_s / users), math.log(response_s)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if response(users, think_s, math.exp(middle)) < response_s:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def fit(pairs: Sequence[Pair]) -> Model:
    """A model from levels measured both ways. ValueError with fewer than three levels, or none measured physically."""
    known = [pair for pair in pairs if pair.physical_s is not None]
    levels = sorted({pair.users for pair in known})
    if len(levels) < LEVELS_LEAST:
        raise ValueError(
            f"a model needs {LEVELS_LEAST} numbers of users measured both ways, and there are {len(levels)}"
        )
    a, b, middle = _line(known)
    # A level's own points lie closer to the line than those of a level it has not seen.
    missed = [
        _gaps([p for p in known if p.users == level], *_line([p for p in known if p.users != level]))
        for level in levels
    ]
    scale = math.sqrt(statistics.fmean(gap * gap for gaps in missed for gap in gaps))
    return Model(a, b, scale, _freedom(missed), middle)


def _freedom(missed: Sequence[Sequence[float]]) -> int:
    """Degrees of freedom of the gaps by level, two of which the line takes.

    Rounds of a level share what is special about it, so that they are worth fewer than they are: n / (1 + (m - 1) r)
    with m rounds a level and r their correlation (Kish, 1965, the design effect), at least one a level.
    """
    count, rounds = sum(map(len, missed)), sum(map(len, missed)) / len(missed)
    within = statistics.fmean(statistics.pvariance(gaps) for gaps in missed) * rounds / max(rounds - 1, 1)
    between = max(statistics.variance(map(statistics.fmean, missed)) - within / rounds, 0.0)
    correlation = between / (between + within) if between + within > 0 else 1.0
    return max(round(count / (1 + (rounds - 1) * correlation)) - 2, len(missed) - 2, 1)


def _line(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """(a, b, middle of u) by least squares; flat where u does not vary."""
    used = np.array([pair.used for pair in pairs])
    middle = float(used.mean())
    ratios = np.array([_log_ratio(pair) for pair in pairs])
    spread = float(((used - middle) ** 2).sum())
    slope = float(((used - middle) * (ratios - ratios.mean())).sum()) / spread if spread > 1e-9 else 0.0
    return float(ratios.mean()), slope, middle


def _gaps(pairs: Iterable[Pair], a: float, b: float, middle: float) -> list[float]:
    return [_log_ratio(pair) - a - b * (pair.used - middle) for pair in pairs]


def _log_ratio(pair: Pair) -> float:
    if pair.physical_s is None:
        raise ValueError("this level was not measured physically")
    own = demand(pair.users, pair.think_s, pair.physical_s)
    return math.log(own / demand(pair.users, pair.think_s, pair.sandbox_s))


def held_out(pairs: Sequence[Pair]) -> list[HeldOut]:
    """Every level in turn: predicted from its sandboxed rounds by a model that has not seen it."""
    found = []
    for level in sorted({pair.users for pair in pairs}):
        rest = [pair for pair in pairs if pair.users != level]
        own = [pair for pair in pairs if pair.users == level and pair.physical_s and pair.physical_rate]
        if own:
            found.append(_judged(level, own, fit(rest)))
    return found


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
    """Rounds of one level as one: means of what the sandbox measured."""
    return Pair(
        users=pairs[0].users,
        think_s=pairs[0].think_s,
        sandbox_s=statistics.fmean(pair.sandbox_s for pair in pairs),
        used=statistics.fmean(pair.used for pair in pairs),
    )


def mean_errors(levels: Sequence[HeldOut]) -> tuple[float, float]:
    """Of response times and of throughputs, over all levels.

    Not one mean of both: where users mostly think, a throughput hardly depends on the response time, and its small
    error would hide the other's.
    """
    times, rates = zip(*(level.errors for level in levels), strict=True)
    return statistics.fmean(times), statistics.fmean(rates)


def coverage(levels: Sequence[HeldOut]) -> float:
    """Share of rounds whose physical response time lay in its interval."""
    return sum(level.covered for level in levels) / sum(level.rounds for level in levels)
