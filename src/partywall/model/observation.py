"""The input of statistics: a number for each block and treatment, derived from slices by `partywall.store.observe`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_SUB_BITS = 8

STRADDLE_MAX = 0.05
"""The most of a window's work that may be another treatment's, in half of the slots of a treatment. It dilutes the
effect by as much. A busy host makes some slices late too."""


def bucket_of(value_ns: int) -> int:
    """The bucket of a number of nanoseconds, as in the agent's `record::histogram::bucket_of`."""
    magnitude = max(value_ns.bit_length() - _SUB_BITS - 1, 0)
    return (magnitude << _SUB_BITS) + (value_ns >> magnitude)


def bucket_bounds(index: int) -> tuple[int, int]:
    """Smallest and largest nanoseconds of a bucket, as in the agent's `record::histogram::bucket_bounds`."""
    magnitude = max((index >> _SUB_BITS) - 1, 0)
    low = (index - (magnitude << _SUB_BITS)) << magnitude
    return low, low + (1 << magnitude) - 1


@dataclass(frozen=True)
class Histogram:
    """Latencies in the agent's log-linear buckets: index → count. Merges without loss."""

    counts: dict[int, int]

    @classmethod
    def merged(cls, histograms: Iterable[Histogram]) -> Histogram:
        """The sum of several histograms."""
        counts: dict[int, int] = {}
        for histogram in histograms:
            for index, count in histogram.counts.items():
                counts[index] = counts.get(index, 0) + count
        return cls(counts)


@dataclass(frozen=True)
class Observation:
    """One treatment of one block.

    rate: work per second of the victim between start_ns and end_ns (the slot without its guard time), in the unit of
    its kernel. early_rate and late_rate: the same for each half, for the carry-over test. cpu_share: CPU time divided
    by wall time of the victim's threads. achieved: rate of each aggressor in the same window, as a fraction of its
    calibrated maximum. straddle: share of the window's work that belongs to another treatment, because slices extend
    beyond the slot. counters: per second (totals) or last value (gauges). disturbed: named disturbances by others.
    long: of a long block, which is used for counters and carry-over but not for the isolation factor. used and moved:
    for each aggressor that is a command, CPU time divided by wall time, and bytes a second read from and written to
    disks, from the slot's start. Unknown values are left out.
    """

    trial: str
    block: int
    position: int
    treatment: str
    start_ns: int
    end_ns: int
    rate: float
    early_rate: float
    late_rate: float
    cpu_share: float | None
    latency: Histogram
    achieved: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    disturbed: tuple[str, ...] = ()
    straddle: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    long: bool = False
