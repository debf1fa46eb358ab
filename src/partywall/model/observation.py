"""The input of statistics: a number for each block and treatment, derived from slices by `partywall.store.observe`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.integer[Any]]]

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
        return _summed(*self.arrays) if self._counts is None else self._counts

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

    @classmethod
    def merged(cls, histograms: Iterable[Histogram]) -> Histogram:
        """The sum of several histograms."""
        parts = [histogram.arrays for histogram in histograms]
        if not parts:
            return cls()
        return cls(_summed(*(np.concatenate(part) for part in zip(*parts, strict=True))))


def _summed(buckets: Numbers, counts: Numbers) -> dict[int, int]:
    """Counts by bucket, each bucket once."""
    if not len(buckets):
        return {}
    lowest = int(buckets.min())
    # Exact: no run has 2⁵³ operations.
    sums = np.bincount(buckets.astype(np.int64) - lowest, counts)
    places = np.flatnonzero(sums)
    return dict(zip((places + lowest).tolist(), sums[places].astype(np.int64).tolist(), strict=True))


class CounterRow(Mapping[str, float]):
    """A slot's counters, as a row of a table. Unknown ones are left out."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Mapping[str, int], row: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        self._columns = columns
        self._row = row

    def __getitem__(self, name: str) -> float:
        value = float(self._row[self._columns[name]])
        if value != value:  # noqa: PLR0124 - not a number
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name, column in self._columns.items() if np.isfinite(self._row[column]))

    def __len__(self) -> int:
        return int(np.isfinite(self._row).sum())

    @property
    def columns(self) -> Mapping[str, int]:
        return self._columns

    @property
    def row(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return self._row


def table_of(rows: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Counters of many slots, by name; not a number where one is unknown."""
    layouts = {id(row.columns): row.columns for row in rows if isinstance(row, CounterRow)}
    named = [*layouts.values(), *(row for row in rows if not isinstance(row, CounterRow))]
    place = {name: at for at, name in enumerate(dict.fromkeys(name for names in named for name in names))}
    places = {layout: [place[name] for name in columns] for layout, columns in layouts.items()}
    values = np.full((len(rows), len(place)), np.nan)
    for at, row in enumerate(rows):
        if isinstance(row, CounterRow):
            values[at, places[id(row.columns)]] = row.row
        else:
            for name, value in row.items():
                values[at, place[name]] = value
    return {name: values[:, column] for name, column in place.items()}


@dataclass(frozen=True, slots=True)
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
    counters: Mapping[str, float] = field(default_factory=dict)
    disturbed: tuple[str, ...] = ()
    straddle: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    long: bool = False


@dataclass(frozen=True)
class Part:
    """Observations of a turn that are made when they are needed. disturbances: (block, treatment, text)."""

    trial: str
    count: int
    measured_ns: int
    disturbances: tuple[tuple[int, str, str], ...]
    make: Callable[[], list[Observation]]


class Observations(Sequence[Observation]):
    """The observations of a run, of which those of one trial at a time exist as objects."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts: dict[str, list[Part]] = {}
        for part in parts:
            self._parts.setdefault(part.trial, []).append(part)
        self._made: tuple[str, list[Observation]] = ("", [])

    def of(self, trial: str) -> list[Observation]:
        """Those of a trial, in order of time."""
        if self._made[0] != trial:
            # The others are let go first.
            self._made = ("", [])
            made = [observation for part in self._parts.get(trial, ()) for observation in part.make()]
            self._made = (trial, sorted(made, key=lambda o: o.start_ns))
        return self._made[1]

    @property
    def measured_ns(self) -> int:
        """The time in slots, without guards."""
        return sum(part.measured_ns for parts in self._parts.values() for part in parts)

    @property
    def disturbances(self) -> tuple[tuple[str, int, str], ...]:
        """(trial, block, text) of each disturbance."""
        return tuple(
            (part.trial, block, f"{treatment}: {text}")
            for parts in self._parts.values()
            for part in parts
            for block, treatment, text in part.disturbances
        )

    def __len__(self) -> int:
        return sum(part.count for parts in self._parts.values() for part in parts)

    def __iter__(self) -> Iterator[Observation]:
        for trial in self._parts:
            yield from self.of(trial)

    @overload
    def __getitem__(self, at: int) -> Observation: ...
    @overload
    def __getitem__(self, at: slice) -> list[Observation]: ...
    def __getitem__(self, at: int | slice) -> Observation | list[Observation]:
        return list(self)[at]


def of_trial(observations: Iterable[Observation], trial: str) -> list[Observation]:
    """The observations of one trial, in order of time."""
    if isinstance(observations, Observations):
        return observations.of(trial)
    return sorted((o for o in observations if o.trial == trial), key=lambda o: o.start_ns)


def measured_ns(observations: Iterable[Observation]) -> int:
    """The time in slots, without guards."""
    if isinstance(observations, Observations):
        return observations.measured_ns
    return sum(o.end_ns - o.start_ns for o in observations)
