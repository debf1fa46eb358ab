"""Histograms of latencies, in the buckets of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.integer[Any]]]


_SUB_BITS = 8


def bucket_of(value_ns: int) -> int:
    """The bucket of a number of nanoseconds, as in the agent's `record::histogram::bucket_of`."""
    magnitude = max(value_ns.bit_length() - _SUB_BITS - 1, 0)
    return (magnitude << _SUB_BITS) + (value_ns >> magnitude)


def bucket_bounds(index: int) -> tuple[int, int]:
    """Smallest and largest nanoseconds of a bucket, as in the agent's `record::histogram::bucket_bounds`."""
    magnitude = max((index >> _SUB_BITS) - 1, 0)
    low = (index - (magnitude << _SUB_BITS)) << magnitude
    return low, low + (1 << magnitude) - 1


class Histogram:
    """Latencies in the agent's log-linear buckets. Merges without loss.

    Made of counts by bucket, or of two arrays: buckets, in which one may occur more than once, and counts. Arrays take
    a tenth of the memory, and a long run has millions of buckets.
    """

    __slots__ = ("_arrays", "_counts")

    def __init__(self, counts: Mapping[int, int] | None = None, arrays: tuple[Numbers, Numbers] | None = None) -> None:
        self._counts = dict(counts or {}) if arrays is None else None
        self._arrays = arrays

    @property
    def counts(self) -> dict[int, int]:
        """Index → count."""
        return summed(*self.arrays) if self._counts is None else self._counts

    @property
    def arrays(self) -> tuple[Numbers, Numbers]:
        """Buckets and their counts, in any order."""
        if self._arrays is not None:
            return self._arrays
        counts = self._counts or {}
        return tuple(np.fromiter(part, np.int64, len(counts)) for part in (counts.keys(), counts.values()))  # type: ignore[return-value]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Histogram({self.counts})"


def summed(buckets: Numbers, counts: Numbers) -> dict[int, int]:
    """Counts by bucket, each bucket once."""
    if not len(buckets):
        return {}
    lowest = int(buckets.min())
    # Exact: no run has 2⁵³ operations.
    sums = np.bincount(buckets.astype(np.int64) - lowest, counts)
    places = np.flatnonzero(sums)
    return dict(zip((places + lowest).tolist(), sums[places].astype(np.int64).tolist(), strict=True))
