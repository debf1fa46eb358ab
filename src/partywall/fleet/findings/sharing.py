"""What outliers have in common: facts that they share more often than chance explains. This shows no cause.

The test permutes which hosts are the outliers. Its statistic is the largest over all facts, so that many facts are no
more likely to raise a false alarm than one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

EXACT = 20_000
"""With at most as many ways to choose the outliers, all are tried."""
RANDOM = 5_000
"""Else as many random ones. A random test of this kind is exact too, on average over its seed."""
ALPHA = 0.05


@dataclass(frozen=True)
class Shared:
    """A fact that outliers share. among, outliers: how many of them have it; others, rest: the same of other hosts.

    chance: how likely such a fact, or a more telling one, is by chance. is_exact: whether every way to choose the
    outliers was tried.
    """

    fact: str
    value: str
    among: int
    outliers: int
    others: int
    rest: int
    chance: float
    is_exact: bool


def shared(facts: Sequence[Mapping[str, str]], is_outlier: Sequence[bool], seed: int = 1) -> list[Shared]:
    """The facts that outliers share, the most telling first. facts: of each host; one that lacks a fact has none.

    Empty if no fact distinguishes them, or if there are too few hosts to tell.
    """
    flags = np.array(is_outlier, bool)
    count, hosts = int(flags.sum()), len(flags)
    pairs = _pairs(facts)
    if not 0 < count < hosts or not pairs:
        return []
    has = np.array([[host.get(fact) == value for host in facts] for fact, value in pairs], bool)
    telling = _surprises(has, count)
    chosen, is_exact = _choices(hosts, count, seed)
    largest = np.zeros(len(chosen))
    for row, surprise in zip(has, telling, strict=True):
        np.maximum(largest, surprise[row[chosen].sum(axis=1)], out=largest)
    own = telling[np.arange(len(pairs)), has[:, flags].sum(axis=1)]
    result = []
    for place, (fact, value) in enumerate(pairs):
        beyond = int((largest >= own[place] - 1e-9).sum())
        chance = beyond / len(chosen) if is_exact else (beyond + 1) / (len(chosen) + 1)
        among, all_ = int(has[place, flags].sum()), int(has[place].sum())
        if chance <= ALPHA:
            result.append(Shared(fact, value, among, count, all_ - among, hosts - count, chance, is_exact))
    return sorted(result, key=lambda each: (each.chance, each.fact, each.value))


def _pairs(facts: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Facts with values that some hosts have and others do not."""
    counts = Counter(pair for host in facts for pair in host.items())
    return sorted(pair for pair, count in counts.items() if count < len(facts))


def _surprises(has: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.float64]:
    """How surprising each number of outliers with a fact is. Shape: (facts, count + 1).

    The logarithm of one over the probability of as many or more, by the hypergeometric distribution.
    """
    from scipy import stats  # noqa: PLC0415 - slow to import

    numbers = np.arange(count + 1)
    return np.array([-stats.hypergeom.logsf(numbers - 1, has.shape[1], int(row.sum()), count) for row in has])


def _choices(hosts: int, count: int, seed: int) -> tuple[npt.NDArray[np.int64], bool]:
    """Which hosts may be the outliers: all ways if there are few, else random ones. Shape: (ways, count)."""
    if math.comb(hosts, count) <= EXACT:
        return np.array(list(itertools.combinations(range(hosts), count))), True
    drawn = np.random.default_rng(seed).random((RANDOM, hosts))
    return np.argpartition(drawn, count - 1, axis=1)[:, :count], False
