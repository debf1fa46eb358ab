"""Statistics of one figure on many hosts: the fleet's mean, the spread between hosts, and a host that nobody measured.

Values are logarithms of factors, so that ratios add. Each has the standard error of its own blocks. Two models answer
two questions. The mean is a random-effects mean: the spread by Paule and Mandel, the interval by Hartung and Knapp.
What depends on the spread itself (a new host, each host shrunk towards the fleet) integrates over a posterior of the
spread on a grid, because a single estimate of it makes such intervals too narrow in small fleets. The mean's prior is
flat. The spread's is half a Cauchy distribution whose scale is 10 %: wide, but enough to judge three hosts.

Sources: Paule and Mandel 1982; Knapp and Hartung 2003; Higgins, Thompson and Spiegelhalter 2009; Gelman 2006 for the
prior; Smyth 2004 for the standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import student_reach

Floats = npt.NDArray[np.float64]
GRID = 160
"""Points of the spread's posterior."""
REACH = 12.0
"""The largest spread of the grid, as a multiple of how far the values scatter."""
PRIOR_SCALE = 0.1
"""Half of all fleets have a spread below it, as far as the prior goes (Gelman 2006)."""
STEPS = 60
"""Halvings, more than a double has digits."""


def moderated(errors: Floats, blocks: Floats) -> Floats:
    """Standard errors that borrow from each other, because one of a few blocks is itself uncertain.

    The variance of a block is drawn towards the fleet's, by as much as the variances scatter no more than chance
    explains (Smyth's moderated variance). errors, blocks: shape (hosts,). A host whose noise is truly different keeps
    its own.
    """
    from scipy import special  # noqa: PLC0415 - slow to import

    if len(errors) < 3:
        return errors
    variances = np.maximum(errors**2 * blocks, np.finfo(float).tiny)
    freedom = blocks - 1
    half = freedom / 2
    logs = np.log(variances) - special.digamma(half) + np.log(half)
    excess = logs.var(ddof=1) - special.polygamma(1, half).mean()
    if excess <= 0:
        own, centre = 0.0, float(np.average(variances, weights=freedom))
    else:
        own = 2 * _inverse_trigamma(float(excess))
        centre = float(np.exp(logs.mean() + special.digamma(own / 2) - np.log(own / 2)))
    drawn = centre if own == 0.0 else (own * centre + freedom * variances) / (own + freedom)
    pooled: Floats = np.sqrt(drawn / blocks)
    return pooled


def _inverse_trigamma(value: float) -> float:
    """The argument at which the trigamma function has a value over 0."""
    from scipy import special  # noqa: PLC0415 - slow to import

    low, high = -20.0, 20.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if special.polygamma(1, np.exp(middle)) > value else (low, middle)
    return float(np.exp((low + high) / 2))


@dataclass(frozen=True)
class Fit:
    """Means of groups, by weighted least squares. spread: the standard deviation between hosts of a group."""

    means: Floats
    covariance: Floats
    freedom: int
    spread: float

    def contrast(self, of: Floats, level: float = 0.95) -> Estimate:
        """A combination of the means with Hartung and Knapp's interval."""
        value, error = float(of @ self.means), float(np.sqrt(of @ self.covariance @ of))
        half = student_reach(level, self.freedom) * error
        method = "random effects, Paule-Mandel, Hartung-Knapp"
        return Estimate(
            value=value,
            low=value - half,
            high=value + half,
            level=level,
            n=self.freedom + len(self.means),
            method=method,
        )


def fitted(values: Floats, errors: Floats, groups: Floats | None = None) -> Fit:
    """The means of a fleet, or of groups with one spread. groups: shape (hosts, groups), 1 where a host belongs.

    ValueError if no host is left to estimate a spread from.
    """
    design = np.ones((len(values), 1)) if groups is None else groups
    freedom = len(values) - design.shape[1]
    if freedom < 1:
        raise ValueError("a fleet needs more hosts than groups")
    between = _paule_mandel(values, errors**2, design, freedom)
    means, inverse, left = _least_squares(values, 1 / (errors**2 + between), design)
    return Fit(means, inverse * left / freedom, freedom, float(np.sqrt(between)))


def _least_squares(values: Floats, weights: Floats, design: Floats) -> tuple[Floats, Floats, float]:
    """Means, the inverse of their information, and the weighted sum of squares that is left."""
    inverse: Floats = np.asarray(np.linalg.inv(design.T @ (weights[:, None] * design)), np.float64)
    means: Floats = inverse @ (design.T @ (weights * values))
    return means, inverse, float(weights @ (values - design @ means) ** 2)


def _paule_mandel(values: Floats, variances: Floats, design: Floats, freedom: int) -> float:
    """The variance between hosts at which the values scatter as much as it and their own variances explain."""

    def left(between: float) -> float:
        return _least_squares(values, 1 / (variances + between), design)[2]

    if left(0.0) <= freedom:
        return 0.0
    low, high = 0.0, float(values.var() + variances.max())
    while left(high) > freedom:
        high *= 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) > freedom else (low, middle)
    return (low + high) / 2


class Posterior:
    """What hosts say about the distribution that hosts come from. Shapes: (grid,) or (hosts, grid)."""

    def __init__(self, values: Floats, errors: Floats) -> None:
        self.values, self.errors = values, errors
        widest = max(REACH * float(np.std(values)), REACH * float(np.median(errors)), REACH / 2 * PRIOR_SCALE)
        self.spreads = widest * np.linspace(0, 1, GRID) ** 2
        self._weights = 1 / (errors[:, None] ** 2 + self.spreads**2)
        self._centre = float(np.median(values))
        self._derive(self._sums(slice(None)).sum(axis=1))

    def leave_out(self, place: int) -> None:
        """Takes a host out, and keeps the grid. It costs as much as one host, however many there are."""
        left = self._total - self._sums(slice(place, place + 1))[:, 0]
        self.values, self.errors = np.delete(self.values, place), np.delete(self.errors, place)
        self._weights = np.delete(self._weights, place, axis=0)
        self.__dict__.pop("shrunk", None)
        self._derive(left)

    def _sums(self, places: slice) -> Floats:
        """What hosts add to the sums that a posterior is made of. Shape (4, hosts, grid)."""
        weights, away = self._weights[places], (self.values[places] - self._centre)[:, None]
        return np.stack([weights, weights * away, weights * away**2, np.log(weights)])

    def _derive(self, total: Floats) -> None:
        self._total = total
        weights, away, squares, logs = total
        self.means = self._centre + away / weights
        self.mean_variances = 1 / weights
        logs = 0.5 * (logs - np.log(weights) - (squares - away**2 / weights))
        logs = logs - np.log1p((self.spreads / PRIOR_SCALE) ** 2)
        density = np.exp(logs - logs.max()) * np.gradient(self.spreads)
        self.chances = density / density.sum()

    def chance_below(self, value: Any, error: Any = 0.0) -> Floats:
        """The probability that a new host is below a value. error: the standard error of its own measurement."""
        from scipy import special  # noqa: PLC0415 - slow to import

        value, error = np.asarray(value, float), np.asarray(error, float)
        deviations = np.sqrt(self.spreads**2 + self.mean_variances + error[..., None] ** 2)
        below: Floats = special.ndtr((value[..., None] - self.means) / deviations) @ self.chances
        return below

    def predicted(self, level: float = 0.95, error: float = 0.0) -> tuple[float, float]:
        """The interval for a host that nobody measured. error: as for `chance_below`; 0: of its true value."""
        return self.quantile((1 - level) / 2, error), self.quantile((1 + level) / 2, error)

    def quantile(self, chance: float, error: float = 0.0) -> float:
        """The value below which a new host is with a probability."""
        from scipy import optimize  # noqa: PLC0415 - slow to import

        widest = float(np.sqrt(self.spreads[-1] ** 2 + self.mean_variances[-1] + error**2))
        low, high = float(self.means.min()) - 9 * widest, float(self.means.max()) + 9 * widest
        return float(optimize.brentq(lambda value: float(self.chance_below(value, error)) - chance, low, high))

    @cached_property
    def shrunk(self) -> tuple[Floats, Floats]:
        """Each host drawn towards the fleet, and the standard deviation that is left. Shapes: (hosts,)."""
        kept = self.spreads**2 * self._weights
        each = kept * self.values[:, None] + (1 - kept) * self.means
        variances = kept * self.errors[:, None] ** 2 + (1 - kept) ** 2 * self.mean_variances
        centre = each @ self.chances
        scatter = ((each - centre[:, None]) ** 2 + variances) @ self.chances
        return centre, np.sqrt(scatter)

    def chance_beyond(self, values: Floats, errors: Floats, left_out: Floats | None = None) -> Floats:
        """How likely a host is to be this far from the others, on either side: a p-value. Shape (hosts,).

        left_out: shape (hosts,), 1 for a host that this posterior was made of, in its order; its own value is then
        taken out of the mean that it is compared with.
        """
        from scipy import special  # noqa: PLC0415 - slow to import

        own = np.zeros((len(values), len(self.spreads)))
        if left_out is not None:
            own[left_out.astype(bool)] = self._weights
        total = 1 / self.mean_variances - own
        means = (self.means / self.mean_variances - own * values[:, None]) / total
        deviations = np.sqrt(self.spreads**2 + 1 / total + errors[:, None] ** 2)
        beyond: Floats = 2 * special.ndtr(-np.abs(values[:, None] - means) / deviations) @ self.chances
        return beyond
