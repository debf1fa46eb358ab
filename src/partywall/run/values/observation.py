"""The input of statistics: a number for each block and treatment, derived from slices by `run.record.observe`.

Statistics and reports read them as columns (`Observations`), because a long run has a million. An `Observation` is one
row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self, overload

import numpy as np

from partywall.core.stats.histogram import Histogram, Numbers, summed

Times = np.ndarray[Any, np.dtype[np.int64]]
Values = np.ndarray[Any, np.dtype[np.float64]]
Places = np.ndarray[Any, np.dtype[np.intp]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Objects = np.ndarray[Any, np.dtype[np.object_]]


STRADDLE_MAX = 0.05
"""The most of a window's work that may be another treatment's, in half of the slots of a treatment. It dilutes the
effect by as much. A busy host makes some slices late too."""


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
    counters: dict[str, float] = field(default_factory=dict)
    disturbed: tuple[str, ...] = ()
    straddle: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    long: bool = False


Entries = tuple[Places, Numbers, Numbers]
"""The slot, the bucket and the count of each bucket of each slot."""


@dataclass(frozen=True)
class Latencies:
    """The histograms of many slots: where each begins and ends among all buckets."""

    low: Times
    high: Times
    buckets: Numbers
    counts: Numbers

    @staticmethod
    def of(histograms: Sequence[Histogram]) -> Latencies:
        arrays = [histogram.arrays for histogram in histograms] or [Histogram().arrays]
        ends = np.cumsum([len(buckets) for buckets, _ in arrays], dtype=np.int64)[: len(histograms)]
        buckets, counts = (np.concatenate(part) for part in zip(*arrays, strict=True))
        return Latencies(np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)], ends, buckets, counts)

    @staticmethod
    def joined(parts: Sequence[Latencies]) -> Latencies:
        before = np.cumsum([0, *(len(part.buckets) for part in parts[:-1])])
        low, high = (
            np.concatenate([getattr(part, end) + past for part, past in zip(parts, before, strict=True)])
            for end in ("low", "high")
        )
        buckets, counts = (np.concatenate([getattr(part, name) for part in parts]) for name in ("buckets", "counts"))
        return Latencies(low, high, buckets, counts)

    def take(self, places: Places) -> Latencies:
        return Latencies(self.low[places], self.high[places], self.buckets, self.counts)

    @property
    def packed(self) -> Latencies:
        """The same without buckets that belong to no slot."""
        size = len(self.buckets)
        begun = np.bincount(self.low, minlength=size + 1) - np.bincount(self.high, minlength=size + 1)
        used = np.cumsum(begun[:size]) > 0
        place = np.concatenate([[0], np.cumsum(used)])
        return Latencies(place[self.low], place[self.high], self.buckets[used], self.counts[used])

    def __getitem__(self, at: int) -> Histogram:
        own = slice(self.low[at], self.high[at])
        return Histogram(arrays=(self.buckets[own], self.counts[own]))

    @property
    def entries(self) -> Entries:
        """Slot by slot."""
        sizes = self.high - self.low
        slot = np.repeat(np.arange(len(sizes)), sizes)
        place = np.arange(len(slot)) + np.repeat(self.low - np.cumsum(sizes) + sizes, sizes)
        return slot, self.buckets[place], self.counts[place]

    @property
    def merged(self) -> Histogram:
        """The sum of all histograms."""
        _, buckets, counts = self.entries
        return Histogram(summed(buckets, counts))


@dataclass(frozen=True)
class CounterTable:
    """The counters of many slots. names: their columns in `values`; not a number where one is unknown.

    row: of each slot, its row in `values`; −1 if no counter was read.
    """

    names: Mapping[str, int]
    values: Values
    row: Places

    @staticmethod
    def of(rows: Sequence[Mapping[str, float]]) -> CounterTable:
        names = {name: at for at, name in enumerate(dict.fromkeys(name for row in rows for name in row))}
        values = np.array([[row.get(name, np.nan) for name in names] for row in rows], dtype=np.float64)
        return CounterTable(names, values.reshape(len(rows), len(names)), np.arange(len(rows)))

    @staticmethod
    def joined(parts: Sequence[CounterTable]) -> CounterTable:
        names = {name: at for at, name in enumerate(dict.fromkeys(name for part in parts for name in part.names))}
        values = np.full((sum(len(part.values) for part in parts), len(names)), np.nan)
        rows, begin = list[Places](), 0
        for part in parts:
            end = begin + len(part.values)
            values[begin:end, [names[name] for name in part.names]] = part.values[:, list(part.names.values())]
            rows.append(np.where(part.row >= 0, part.row + begin, -1))
            begin = end
        return CounterTable(names, values, np.concatenate(rows))

    def take(self, places: Places) -> CounterTable:
        return CounterTable(self.names, self.values, self.row[places])

    def column(self, name: str) -> Values:
        """A counter in each slot; not a number where it is unknown."""
        if name not in self.names or not len(self.values):
            return np.full(len(self.row), np.nan)
        return np.where(self.row >= 0, self.values[self.row, self.names[name]], np.nan)

    def __getitem__(self, at: int) -> dict[str, float]:
        if self.row[at] < 0:
            return {}
        values = self.values[self.row[at]].tolist()
        return {name: values[column] for name, column in self.names.items() if np.isfinite(values[column])}


Column = Any
"""An array with a value for each slot, or arrays by name, or a table with `take` and `joined`."""


@dataclass(frozen=True, eq=False)
class Observations(Sequence[Observation]):
    """Observations as columns: the attributes of `Observation`, in their order. An unknown number is not a number."""

    trial: Objects
    block: Times
    position: Times
    treatment: Objects
    start_ns: Times
    end_ns: Times
    rate: Values
    early_rate: Values
    late_rate: Values
    cpu_share: Values
    latency: Latencies
    achieved: Mapping[str, Values]
    counters: CounterTable
    disturbed: Objects
    straddle: Values
    used: Mapping[str, Values]
    moved: Mapping[str, Values]
    long: Flags

    @classmethod
    def of(cls, rows: Iterable[Observation]) -> Self:
        """From rows; columns are returned as they are."""
        if isinstance(rows, cls):
            return rows
        rows = list(rows)

        def column(name: str, kind: Any) -> np.ndarray[Any, Any]:
            return np.fromiter((getattr(row, name) for row in rows), kind, len(rows))

        def named(name: str) -> dict[str, Values]:
            keys = dict.fromkeys(key for row in rows for key in getattr(row, name))
            return {key: np.array([getattr(row, name).get(key, np.nan) for row in rows], np.float64) for key in keys}

        columns: dict[str, Any] = {
            **{name: column(name, object) for name in ("trial", "treatment", "disturbed")},
            **{name: column(name, np.int64) for name in ("block", "position", "start_ns", "end_ns")},
            **{name: column(name, np.float64) for name in ("rate", "early_rate", "late_rate", "straddle")},
            **{name: named(name) for name in ("achieved", "used", "moved")},
            "cpu_share": np.array([np.nan if row.cpu_share is None else row.cpu_share for row in rows], np.float64),
            "latency": Latencies.of([row.latency for row in rows]),
            "counters": CounterTable.of([row.counters for row in rows]),
            "long": column("long", bool),
        }
        return cls(**columns)

    @classmethod
    def joined(cls, parts: Sequence[Observations]) -> Self:
        """Several, one after the other."""
        parts = parts or [cls.of(())]
        columns = {each.name: [getattr(part, each.name) for part in parts] for each in fields(cls)}
        sizes = [len(part) for part in parts]
        return cls(**{name: _joined(own, sizes) for name, own in columns.items()})

    def take(self, places: Places) -> Self:
        """Some of them, in this order."""
        return type(self)(**{each.name: _taken(getattr(self, each.name), places) for each in fields(self)})

    @property
    def in_time(self) -> Self:
        """The same in order of time."""
        is_ordered = (np.diff(self.start_ns) >= 0).all()
        return self if is_ordered else self.take(np.argsort(self.start_ns, kind="stable"))

    @property
    def measured_ns(self) -> int:
        """The time in slots, without guards."""
        return int((self.end_ns - self.start_ns).sum())

    @property
    def disturbances(self) -> Iterator[tuple[str, int, str]]:
        """(trial, block, text) of each disturbance."""
        for at in np.flatnonzero(self.disturbed.astype(bool)):
            for text in self.disturbed[at]:
                yield self.trial[at], int(self.block[at]), f"{self.treatment[at]}: {text}"

    def __len__(self) -> int:
        return len(self.trial)

    def __iter__(self) -> Iterator[Observation]:
        return map(Observation, *(_values(getattr(self, each.name), len(self)) for each in fields(self)))

    @overload
    def __getitem__(self, at: int) -> Observation: ...
    @overload
    def __getitem__(self, at: slice) -> Self: ...
    def __getitem__(self, at: int | slice) -> Observation | Self:
        if isinstance(at, slice):
            return self.take(np.arange(len(self))[at])
        return next(iter(self.take(np.arange(len(self))[[at]])))


def by_trial(rows: Iterable[Observation]) -> dict[str, Observations]:
    """Observations of several trials, those of each in order of time."""
    seen = Observations.of(rows)
    names = dict.fromkeys(seen.trial.tolist())
    return {name: seen.take(np.flatnonzero(seen.trial == name)).in_time for name in names}


def _joined(own: Sequence[Column], sizes: Sequence[int]) -> Column:
    if isinstance(own[0], Mapping):
        names = dict.fromkeys(name for part in own for name in part)
        missing = [np.full(size, np.nan) for size in sizes]
        return {
            name: np.concatenate([part.get(name, gap) for part, gap in zip(own, missing, strict=True)])
            for name in names
        }
    return np.concatenate(own) if isinstance(own[0], np.ndarray) else own[0].joined(own)


def _taken(column: Column, places: Places) -> Column:
    if isinstance(column, Mapping):
        return {name: values[places] for name, values in column.items()}
    return column[places] if isinstance(column, np.ndarray) else column.take(places)


def _values(column: Column, count: int) -> list[Any]:
    """A plain value for each slot: None if it is not a number, and mappings without those that are not."""
    if isinstance(column, Mapping):
        named = {name: _values(values, count) for name, values in column.items()}
        return [{name: own[at] for name, own in named.items() if own[at] is not None} for at in range(count)]
    if not isinstance(column, np.ndarray):
        return [column[at] for at in range(count)]
    values = column.tolist()
    return [None if math.isnan(value) else value for value in values] if column.dtype.kind == "f" else values
