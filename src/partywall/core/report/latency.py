"""Percentiles and curves from the agent's log-linear latency buckets, for charts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from partywall.core.stats.histogram import Histogram, bucket_bounds


def quantiles(histogram: Histogram, shares: Iterable[float]) -> list[float]:
    """Latencies in ns that the given shares do not exceed: the middle of the bucket. Empty for an empty histogram."""
    total = sum(histogram.counts.values())
    if not total:
        return []
    indices = sorted(histogram.counts)
    reached_counts = list(itertools.accumulate(histogram.counts[index] for index in indices))
    values: list[float] = []
    for share in shares:
        index = next(
            (index for index, reached in zip(indices, reached_counts, strict=True) if reached >= share * total),
            indices[-1],
        )
        values.append(sum(bucket_bounds(index)) / 2)
    return values


def known_quantiles(counts: Mapping[int, int], shares: Iterable[float]) -> list[float | None]:
    """Like `quantiles`, but None where too few operations lie beyond: the value would only show the longest one."""
    total = sum(counts.values())
    wanted = list(shares)
    known = [share for share in wanted if share <= 0.5 or round(total * (1 - share), 6) >= 1]
    values = dict(zip(known, quantiles(Histogram(dict(counts)), known), strict=False))
    return [values.get(share) for share in wanted]


def tail_shares(histogram: Histogram, per_decade: int = 16) -> list[float]:
    """Shares from 0 up to the last one with ten operations beyond it, evenly spaced in log(1 − share)."""
    total = sum(histogram.counts.values())
    shares, step = [0.0], 1
    while (beyond := 10 ** (-step / per_decade)) * total >= 10 and step <= 6 * per_decade:
        shares.append(1 - beyond)
        step += 1
    return shares
