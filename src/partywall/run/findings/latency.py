"""Latency impact at percentiles: histograms merged over blocks, with an interval by a paired block bootstrap.

The bootstrap's blocks are short, so it underestimates slow drift. Its spread is therefore scaled by its error on a
linear statistic of the same tail, whose interval is reliable (`core.stats.interval`). A percentile with fewer than
FEWEST_ABOVE operations beyond it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from partywall.core.stats.algebra import one_thread
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.histogram import Numbers, bucket_bounds
from partywall.core.stats.interval import FEWEST, MOST, Array, error_of_mean
from partywall.core.stats.quantile import normal_reach
from partywall.run.values.observation import Entries, Observations

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
JUDGED = "p99"
"""The percentile for goals, the A/A check, the headline and comparisons. The others are only shown."""

FEWEST_ABOVE = 20
METHOD = "merged histograms; paired stationary block bootstrap, scaled to the long-run variance of the tail count"

_LEAST = 1e-6 - 1
"""Substitute for an impact of −1, a latency of zero, which has no logarithm."""

_RESAMPLES = 400
_PARTS = 8
_SEED = 0x9A11


@dataclass(frozen=True)
class Latencies:
    """By percentile: impacts, (treated − baseline) / baseline; treated, the percentile itself in ns."""

    impacts: Mapping[str, Estimate] = field(default_factory=dict)
    treated: Mapping[str, Estimate] = field(default_factory=dict)


@one_thread()
def latencies(treated: Observations, baseline: Observations, level: float = 0.95) -> Latencies:
    """At each percentile with enough operations beyond it in both treatments."""
    entries = [side.latency.entries for side in (treated, baseline)]
    buckets = np.unique(np.concatenate([own for _, own, _ in entries]))
    if len(treated) < FEWEST or not len(buckets):
        return Latencies()
    first, second = (_matrix(own, len(treated), buckets) for own in entries)
    fewest = min(first.sum(), second.sum())
    wanted = {name: share for name, share in PERCENTILES.items() if fewest * (1 - share) >= FEWEST_ABOVE}
    if not wanted:
        return Latencies()
    weights, edges = _resampled(len(first)), _edges(buckets.tolist())
    drawn = tuple(_resampled_percentiles(weights, counts, edges, tuple(wanted.values())) for counts in (first, second))
    impacts, own = {}, {}
    for at, (name, share) in enumerate(wanted.items()):
        merged = np.stack([first.sum(axis=0), second.sum(axis=0)])
        whole = np.maximum(_percentiles(merged, edges, share), 1.0)
        tails = [_beyond(counts, edges, value, share) for counts, value in zip((first, second), whole, strict=True)]
        draws = np.log(drawn[0][at]), np.log(drawn[1][at])
        alone = _reach(draws[0], tails[0], weights, level)
        both = _reach(draws[0] - draws[1], tails[0] - tails[1], weights, level)
        centre = float(np.log(whole[0] / whole[1]))
        impacts[name] = _estimate(np.expm1([centre, centre - both, centre + both]), level, len(treated))
        own[name] = _estimate(whole[0] * np.exp([0.0, -alone, alone]), level, len(treated))
    return Latencies(impacts, own)


def _reach(drawn: Array, tail: Array, weights: Array, level: float) -> float:
    """Half the interval of a logarithm. drawn: its resamples; tail: the linear statistic of the same tail, by block."""
    normal = normal_reach(level)
    honest = float(error_of_mean(tail).half_width(level))
    resampled = normal * float(np.std(weights @ tail / len(tail), ddof=1))
    return normal * float(np.std(drawn, ddof=1)) * (max(1.0, honest / resampled) if resampled > 0 else 1.0)


def _estimate(ends: Array, level: float, blocks: int) -> Estimate:
    """ends: the value, and the low and high end of its interval."""
    value, low, high = ends.tolist()
    return Estimate(value=value, low=low, high=high, level=level, n=blocks, method=METHOD)


def band(impact: Estimate) -> tuple[float, float]:
    """The A/A band of a null aggressor's impact: its interval, mirrored around no impact at its widest."""
    reach = max(abs(math.log1p(bound)) for bound in (max(impact.low, _LEAST), impact.high))
    return math.expm1(-reach), math.expm1(reach)


def _matrix(entries: Entries, slots: int, buckets: Numbers) -> Array:
    """Counts by block and bucket. Of very many blocks, adjacent ones are added up, as `interval` averages them."""
    per_batch = -(-slots // MOST)
    slot, indexes, counts = entries
    shape = -(-slots // per_batch), len(buckets)
    place = slot // per_batch * shape[1] + np.searchsorted(buckets, indexes)
    sums = np.bincount(place, counts.astype(np.float64), shape[0] * shape[1])
    return np.asarray(sums.reshape(shape), dtype=np.float64)


def _resampled_percentiles(
    weights: Array, counts: Array, edges: tuple[Array, Array], shares: Sequence[float]
) -> list[Array]:
    """Each percentile in every resample; with a part of the resamples at a time, to bound memory."""
    parts = [
        [_percentiles(drawn, edges, share) for share in shares]
        for rows in np.array_split(weights, _PARTS)
        for drawn in [rows @ counts]
    ]
    return [np.maximum(np.concatenate(each), 1.0) for each in zip(*parts, strict=True)]


def _edges(buckets: Sequence[int]) -> tuple[Array, Array]:
    bounds = np.array([bucket_bounds(b) for b in buckets], dtype=np.float64)
    return bounds[:, 0], bounds[:, 1] + 1


def _percentiles(counts: Array, edges: tuple[Array, Array], share: float) -> Array:
    """One percentile of each row of counts, shape (rows, buckets)."""
    low, high = edges
    upto = counts.cumsum(axis=1)
    rank = share * upto[:, -1]
    bucket = np.minimum((upto < rank[:, None]).sum(axis=1), counts.shape[1] - 1)
    row = np.arange(len(counts))
    inside = np.maximum(counts[row, bucket], 1)
    within = np.clip((rank - (upto[row, bucket] - counts[row, bucket])) / inside, 0, 1)
    return np.asarray(low[bucket] + within * (high - low)[bucket], dtype=np.float64)


@lru_cache(maxsize=4)
def _resampled(n: int) -> Array:
    """How often each block is drawn, shape (resamples, blocks): stationary bootstrap (Politis & Romano 1994)."""
    random = np.random.default_rng(_SEED)
    start = random.integers(0, n, size=(_RESAMPLES, n))
    jump = random.random((_RESAMPLES, n)) < 1 / max(1.0, 1.5 * n ** (1 / 3))
    jump[:, 0] = True
    steps = np.arange(n)
    since = steps - np.maximum.accumulate(np.where(jump, steps, 0), axis=1)
    origin = np.take_along_axis(start, steps - since, axis=1)
    drawn = (origin + since) % n
    place = np.arange(_RESAMPLES)[:, None] * n + drawn
    return np.bincount(place.ravel(), minlength=_RESAMPLES * n).reshape(_RESAMPLES, n).astype(np.float64)


def _beyond(counts: Array, edges: tuple[Array, Array], value: float, share: float) -> Array:
    """Operations of each block beyond `value` minus the expected ones, per expected operation of a block."""
    low, high = edges
    part = np.clip((high - value) / (high - low), 0, 1)
    return np.asarray((counts @ part - (1 - share) * counts.sum(axis=1)) * len(counts) / counts.sum(), dtype=np.float64)
