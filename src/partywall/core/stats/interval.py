"""The interval of the mean of a correlated, possibly heavy-tailed series: one value for each block, in order of time.

Method: the series' low-frequency cosine transforms (Müller & Watson 2008, Lazarus et al. 2018) are nearly independent,
and their variances show how much the mean varies. The model is an autoregression plus white noise. Its two parameters
are not estimated but integrated out over a grid. This gives a mixture of t distributions, which widens the interval as
far as the data leave the persistence open. Bounds are symmetric around the mean. Its coverage is measured by
`benches/honesty_simulation.py` and documented in docs/statistics.md.

The definition of a block is elsewhere, and slices are never used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from partywall.core.stats.algebra import one_thread
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import student_reach

Array = NDArray[np.float64]

FEWEST = 4
"""Fewest blocks for an interval."""

MOST = 1000
"""Beyond this many blocks, adjacent ones are averaged, because the work grows faster than their number."""

METHOD = "mean of block values; low-frequency cosine transforms, persistence integrated out"
RATIO_METHOD = "ratio of mean rates, delta method; low-frequency cosine transforms, persistence integrated out"

PROMISED = 150
"""From this many blocks on, 95 % intervals contained the truth in 93 to 97 of 100 cases (docs/statistics.md)."""

# Finer where the mean's error depends strongly on it.
_PERSISTENCE = np.concatenate([np.linspace(-0.4, 0.9, 16), [0.93, 0.95, 0.97]])
_WHITE_SHARE = np.array([0.0, 0.3, 0.6, 0.8])
_PRIOR_POWER = 0.2
_BISECTIONS = 24
_DUST = 1e-12


@dataclass(frozen=True)
class Mixture:
    """Distribution of the mean's error: a weighted mixture of t distributions, for each series of a batch.

    scales, weights: shape (series…, persistence). dof: degrees of freedom. All symmetric around zero.
    """

    scales: Array
    weights: Array
    dof: int

    def tail(self, distance: Array) -> Array:
        """Probability that the absolute error exceeds `distance`."""
        certain = np.where(distance > 0, np.inf, 0.0)[..., None] * np.ones_like(self.scales)
        standard = np.divide(
            distance[..., None] * np.ones_like(self.scales), self.scales, out=certain, where=self.scales > 0
        )
        return np.asarray(2 * (self.weights * special.stdtr(self.dof, -standard)).sum(axis=-1), dtype=np.float64)

    def half_width(self, level: float) -> Array:
        """The distance exceeded with probability 1 − level; by bisection, because a mixture has no closed quantile."""
        low = np.zeros(self.scales.shape[:-1])
        high = self.scales.max(axis=-1) * student_reach(level, self.dof)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            narrow = self.tail(middle) > 1 - level
            low, high = np.where(narrow, middle, low), np.where(narrow, high, middle)
        return np.asarray((low + high) / 2, dtype=np.float64)


def _batched(series: Array) -> Array:
    """Means of adjacent blocks if there are very many. They contain all low-frequency information.

    Up to MOST − 1 of the last blocks are in no batch; the mean itself uses all.
    """
    per_batch = -(-series.shape[-1] // MOST)
    if per_batch == 1:
        return series
    batches = series.shape[-1] // per_batch
    return np.asarray(series[..., : batches * per_batch].reshape(*series.shape[:-1], batches, per_batch).mean(axis=-1))


def transforms_used(n: int) -> int:
    """Number of cosine transforms used: all for a short series, ever lower frequencies for a long one."""
    return min(n - 1, int(2.5 * n ** (2 / 3)))


@lru_cache(maxsize=256)
@one_thread()
def _shapes(n: int) -> tuple[Array, Array, Array]:
    """Variances of the cosine transforms 1…m and of the zeroth (the mean's), and log prior, for each spectrum.

    A spectrum is a first-order autoregression plus a share of white noise: a drifting effect observed with the noise of
    a slot. Variances are exact: the double sum over cov(i, k) = ρ^|i−k| reduces to a sum over the distance, in closed
    form for cosines.
    """
    frequency = np.pi * np.arange(1, transforms_used(n) + 1) / n
    distance = np.arange(1, n)
    overlap = (n - distance)[:, None] * np.cos(np.outer(distance, frequency))
    overlap -= np.sin(np.outer(distance, frequency)) / np.sin(frequency)
    powers = _PERSISTENCE[:, None] ** distance
    cosine = 1 + 2 * powers @ overlap / n
    mean = 1 + 2 * powers @ (n - distance) / n
    white = _WHITE_SHARE[:, None]
    trust = np.where(_WHITE_SHARE > 0, _trust_in_mixtures(n) / (len(_WHITE_SHARE) - 1), 1 - _trust_in_mixtures(n))
    prior = np.log(trust)[:, None] + _PRIOR_POWER * np.log(1 - np.abs(_PERSISTENCE))
    mixed = (1 - white[..., None]) * cosine + white[..., None]
    return mixed.reshape(-1, cosine.shape[1]), ((1 - white) * mean + white).ravel(), prior.ravel()


def _trust_in_mixtures(n: int) -> float:
    """Prior weight of spectra with white noise.

    Short series cannot distinguish them, and would only get wider intervals.
    """
    return float(np.clip((n - 20) / 100, 0.001, 2 / 3))


@one_thread()
def error_of_mean(series: Array) -> Mixture:
    """Distribution of the error of the mean of each series. series: shape (series…, blocks), at least FEWEST blocks."""
    if series.shape[-1] < FEWEST:
        raise ValueError(f"{series.shape[-1]} blocks are too few for an interval; at least {FEWEST} are needed")
    series = _batched(series)
    n = series.shape[-1]
    used = transforms_used(n)
    cosine, mean, prior = _shapes(n)
    spread = series.std(axis=-1, keepdims=True)
    unit = np.divide(series - series.mean(axis=-1, keepdims=True), spread, out=np.zeros_like(series), where=spread > 0)
    power = np.square(fft.dct(unit, norm="ortho", axis=-1)[..., 1 : used + 1])
    fit = np.maximum(power @ (1 / cosine).T, np.finfo(float).tiny)
    log_weight = prior - np.log(cosine).sum(axis=1) / 2 - used / 2 * np.log(fit)
    weights = special.softmax(log_weight, axis=-1)
    scales = spread * np.sqrt(mean * fit / used / n)
    return Mixture(np.asarray(scales, dtype=np.float64), np.asarray(weights, dtype=np.float64), used)


def linearised_ratio(treated: Array, baseline: Array) -> Array:
    """Block values whose mean is mean(treated) / mean(baseline), and whose spread gives that ratio's error.

    R + (T − R·B) / mean(B), the delta method. Linear in the treated rates, so that a stall counts by its cost. Shapes
    (series…, blocks).
    """
    reference = baseline.mean(axis=-1, keepdims=True)
    if (reference <= 0).any():
        raise ValueError("the baseline did no work in any block; there is nothing to compare with")
    ratio = treated.mean(axis=-1, keepdims=True) / reference
    return np.asarray(ratio + (treated - ratio * baseline) / reference, dtype=np.float64)


def blocks_worth(series: Array, half: Array, level: float = 0.95) -> Array:
    """The number of independent blocks with the same half-width; half must be positive."""
    n = series.shape[-1]
    factor = student_reach(level, n - 1)
    return np.asarray((factor * series.std(axis=-1, ddof=1) / half) ** 2, dtype=np.float64)


def mean_interval(series: Array, level: float = 0.95) -> Estimate:
    """The mean of one series with its interval."""
    values = _checked(series)
    centre, half = float(values.mean()), float(error_of_mean(values).half_width(level))
    return _estimate(centre, centre - half, centre + half, values, half, level, METHOD)


def ratio_of_means(treated: Array, baseline: Array, level: float = 0.95) -> Estimate:
    """Mean treated rate / mean baseline rate, with its interval: the ratio of the work done."""
    treated = _checked(treated)
    return ratio_interval(linearised_ratio(treated, _checked(baseline)), level, stalled=not treated.any())


def ratio_interval(values: Array, level: float = 0.95, *, stalled: bool = False) -> Estimate:
    """The mean of block values of a ratio, with its interval.

    stalled: whether every treated slot did no work. The upper bound is then the largest share of progressing blocks
    that is compatible with n stalls in a row.
    """
    values = _checked(values)
    value = float(values.mean())
    half = float(error_of_mean(values).half_width(level))
    high = value + half if not stalled else 1 - (1 - level) ** (1 / len(values))
    return _estimate(value, max(0.0, value - half), high, values, half, level, RATIO_METHOD)


def p_values(series: Array, value: float = 0.0) -> Array:
    """Of each series: the probability of a mean at least this far from `value` if `value` is the truth."""
    tails = error_of_mean(series).tail(np.abs(series.mean(axis=-1) - value))
    return np.asarray(np.minimum(1.0, tails), dtype=np.float64)


def correlation_interval(first: Array, second: Array, level: float = 0.95) -> Estimate | None:
    """Correlation with an autocorrelation-robust interval on Fisher's scale; None if one series is constant."""
    x, y = _checked(first), _checked(second)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    value = float(np.clip((x * y).mean(), -0.999999, 0.999999))
    influence = (x * y - value * (x * x + y * y) / 2) / (1 - value * value)
    half = float(error_of_mean(influence).half_width(level))
    centre = math.atanh(value)
    return _estimate(
        value,
        math.tanh(centre - half),
        math.tanh(centre + half),
        influence,
        half,
        level,
        "correlation, Fisher's scale, delta method",
    )


def _checked(series: Array) -> Array:
    values = np.asarray(series, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(
            f"a series of finite block values is needed, "
            f"got shape {values.shape} with {int((~np.isfinite(values)).sum())} not finite"
        )
    return values


def _estimate(value: float, low: float, high: float, series: Array, half: float, level: float, method: str) -> Estimate:
    n = len(series)
    # Equal values differ by errors of binary fractions.
    has_noise = half > _DUST * abs(value)
    worth = {"n_effective": float(blocks_worth(series, np.asarray(half), level))} if has_noise else {}
    return Estimate(value=value, low=low, high=high, level=level, n=n, method=method, **worth)
