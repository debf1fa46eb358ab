"""Intervals of a whole load's rate and response times: a block bootstrap over its seconds. Pure.

They contain what varies within the load. Another load of the same service may differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from partywall.core.stats.histogram import bucket_bounds
from partywall.core.stats.quantile import student_reach
from partywall.load.second import Second, add_pairs

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
LEVEL = 0.95

FEWEST = 8
"""Fewest blocks for an interval."""

DRAWS = 400
BEYOND = 20
"""Fewest responses beyond a percentile: with fewer, it hardly differs from the longest one."""


def intervals(full: Sequence[Second], labels: Sequence[int]) -> Mapping[str, tuple[float, float]]:
    """By name, see SHARES, and "rate" in responses a second. full: whole seconds. labels: numbers of the requests.

    Seconds that follow each other are alike, so blocks of them are drawn. They grow with the length of the load.
    """
    length = max(1, int(len(full) / max(FEWEST, len(full) ** (2 / 3))))
    blocks = [full[at : at + length] for at in range(0, len(full) - length + 1, length)]
    if len(blocks) < FEWEST:
        return {}
    weights = np.random.default_rng(1).multinomial(len(blocks), [1 / len(blocks)] * len(blocks), DRAWS).astype(float)
    seconds = np.array([sum(second.length_s for second in block) for block in blocks])
    responses = np.array([sum(sum(second.statuses.values()) for second in block) for block in blocks], float)
    drawn = {"rate": (weights @ responses) / (weights @ seconds)}
    whole = {"rate": float(responses.sum() / seconds.sum())}
    buckets, counts = _counts(blocks, labels)
    pooled, total = (weights @ counts).cumsum(axis=1), counts.sum(axis=0).cumsum()
    for name, share in SHARES.items():
        if len(buckets) and (1 - share) * total[-1] >= BEYOND:
            drawn[name] = buckets[(pooled >= share * pooled[:, -1:]).argmax(axis=1)]
            whole[name] = float(buckets[(total >= share * total[-1]).argmax()])
    # So few blocks spread less than the loads that they were drawn from.
    reach = student_reach(LEVEL, len(blocks) - 1) * math.sqrt(len(blocks) / (len(blocks) - 1))
    return {name: _around(value, drawn[name], reach) for name, value in whole.items() if value > 0}


def _around(value: float, drawn: np.ndarray, reach: float) -> tuple[float, float]:
    """On the logarithmic scale: times are skewed, and none is below 0."""
    factor = math.exp(reach * float(np.log(np.maximum(drawn, value / 1e6)).std()))
    return value / factor, value * factor


def _counts(blocks: Sequence[Sequence[Second]], labels: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Times in ns in rising order, and the number of responses of each, by block."""
    merged: list[dict[int, int]] = []
    for block in blocks:
        merged.append({})
        for second in block:
            for label in labels:
                add_pairs(merged[-1], second.timings[label].corrected.items() if label in second.timings else ())
    used = sorted({bucket for counts in merged for bucket in counts})
    counts = np.array([[counts.get(bucket, 0) for bucket in used] for counts in merged], float)
    return np.array([sum(bucket_bounds(bucket)) / 2 for bucket in used]), counts
