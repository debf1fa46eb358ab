"""Derives observations from slices: the result of one treatment in one block. Pure.

A slice counts for a window by the share of its time inside the window. Agents cut slices on the grid on which windows
lie, so the error at an edge is at most one operation of the workload.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partywall.core.stats.histogram import Histogram, Numbers
from partywall.run.document.scenario import SWITCH_AFTER_NS
from partywall.run.values.evidence import VICTIM, Counter
from partywall.run.values.observation import (
    CounterTable,
    Flags,
    Latencies,
    Objects,
    Observations,
    Places,
    Times,
    Values,
)
from partywall.run.values.plan import Slot, Treatment, Trial

# Share of a window that slices must cover for a rate to be known.
COVERED_SHARE = 0.8
# How long before its end a slice is assigned to a window, as a share of the window; less for a short slice.
BEFORE_END = 0.25
# CPU time of other processes, as a share of the victim's CPU time, above which a slot is marked as disturbed.
STEAL_SHARE = 0.05
# Share of a slot that the victim may wait for its CPU if no aggressor is on it.
WAIT_SHARE = 0.05
# Counters that show disturbances.
STEAL = "cpu_steal_ns"
WAITED, THROTTLED = "victim.process_run_queue_wait_ns", "victim.cgroup_cpu_throttled_ns"
SWAPPED = ("swapped_in_pages_count", "swapped_out_pages_count")


def _start(row: Mapping[str, Any]) -> int:
    return int(row["start_ns"])


@dataclass
class Window:
    """A workload's slices in order of their start. Grows as slices arrive; old ones can be dropped."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    _ends: dict[int, int] = field(default_factory=dict)
    _longest_ns: int = 0

    def __post_init__(self) -> None:
        given, self.rows = self.rows, []
        self.extend(given)

    def extend(self, slices: Sequence[dict[str, Any]]) -> None:
        """Adds slices of any threads. Those of one thread are in order; threads follow one after the other."""
        self.rows += slices
        self.rows.sort(key=_start)
        for row in slices:
            self._ends[row["thread"]] = max(self._ends.get(row["thread"], 0), row["end_ns"])
            self._longest_ns = max(self._longest_ns, row["end_ns"] - row["start_ns"])

    def forget_before(self, at_ns: int) -> None:
        """Drops slices that began, and so ended, long before."""
        del self.rows[: bisect_left(self.rows, at_ns - self._longest_ns, key=_start)]

    @property
    def until_ns(self) -> int:
        """The time up to which every thread has reported."""
        return min(self._ends.values(), default=0)

    def touching(self, start_ns: int, end_ns: int) -> Iterator[dict[str, Any]]:
        """Slices that overlap the time from start_ns to end_ns, including those that end at end_ns."""
        for at in range(bisect_left(self.rows, start_ns - self._longest_ns, key=_start), len(self.rows)):
            row = self.rows[at]
            if row["start_ns"] >= end_ns:
                return
            if row["end_ns"] > start_ns:
                yield row


Usage = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Thread:
    """The slices of one thread in order of time, as columns.

    cpu_ns: not a number where it is unknown. latency: where each slice's buckets begin, and at the end the number of
    all; the buckets; and their counts.
    """

    start_ns: Times
    end_ns: Times
    work: Values
    cpu_ns: Values
    latency: tuple[Times, Numbers, Numbers]

    @staticmethod
    def of(rows: Sequence[Mapping[str, Any]]) -> Thread:
        """From slices as agents send them."""
        latencies = [row["latency"] for row in rows]
        pairs = np.array([pair for latency in latencies for pair in latency], dtype=np.int64).reshape(-1, 2)
        first = np.concatenate([[0], np.cumsum([len(latency) for latency in latencies], dtype=np.int64)])
        start, end = (np.array([row[name] for row in rows], dtype=np.int64) for name in ("start_ns", "end_ns"))
        work, cpu = (np.array([row[name] for row in rows], dtype=np.float64) for name in ("work", "cpu_ns"))
        return Thread(start, end, work, cpu, (first.astype(np.int64), pairs[:, 0], pairs[:, 1]))

    def first_after(self, at_ns: Times) -> Places:
        """The first slice that ends after each time."""
        return np.searchsorted(self.end_ns, at_ns, "right")

    def last_before(self, at_ns: Times) -> Places:
        """The last slice that starts before each time; −1 if there is none."""
        return np.searchsorted(self.start_ns, at_ns, "left") - 1

    def between(self, start_ns: Times, end_ns: Times, *values: Values | Times) -> list[Values]:
        """The sum of each value of the slices in each window. A slice counts by the share of its time inside."""
        edges = [self._edge(at_ns) for at_ns in (end_ns, start_ns)]
        sums = []
        for each in values:
            whole = np.concatenate([[0], np.cumsum(each)])
            end, start = (whole[place] + each[inside] * share for place, inside, share in edges)
            sums.append(np.asarray(end - start, dtype=np.float64))
        return sums

    def _edge(self, at_ns: Times) -> tuple[Places, Places, Values]:
        """At each time: how many slices have ended, the slice that has not, and the share of it that has passed."""
        place = self.first_after(at_ns)
        inside = np.minimum(place, len(self.start_ns) - 1)
        start_ns = self.start_ns[inside]
        passed = np.where(place < len(self.start_ns), np.maximum(at_ns - start_ns, 0), 0)
        return place, inside, passed / np.maximum(self.end_ns[inside] - start_ns, 1)


Track = Sequence[Thread]
"""A workload's threads."""


def track(rows: Iterable[Mapping[str, Any]]) -> Track:
    """The threads of a workload's slices."""
    threads: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        threads.setdefault(row["thread"], []).append(row)
    return [Thread.of(own) for own in threads.values()]


def rates(threads: Track, start_ns: Times, end_ns: Times, least: int = 1) -> Values:
    """Work per second of all threads in each window.

    Not a number if the slices of fewer threads than `least` cover enough of it: unknown time does not mean that no work
    was done.
    """
    total, known = np.zeros(len(start_ns)), np.zeros(len(start_ns), dtype=int)
    for thread in threads:
        covered, work = thread.between(start_ns, end_ns, thread.end_ns - thread.start_ns, thread.work)
        enough = (covered >= COVERED_SHARE * (end_ns - start_ns)) & (covered > 0)
        total += np.where(enough, work * 1e9 / np.where(enough, covered, 1), 0)
        known += enough
    return np.where(known >= least, total, np.nan)


def rate(window: Window, start_ns: int, end_ns: int, threads: int = 1) -> float | None:
    """Work per second of all threads between two times; None if it is unknown."""
    rate = float(rates(track(window.touching(start_ns, end_ns)), np.array([start_ns]), np.array([end_ns]), threads)[0])
    return None if np.isnan(rate) else rate


def _straddles(threads: Track, columns: Columns) -> Values:
    """Share of each window's work done under other treatments, if each slice's work is spread evenly over its time.

    Only the first and the last slice of a window can reach so far.
    """
    inside, foreign = (np.zeros(len(columns.start_ns)) for _ in range(2))
    for thread in threads:
        first, last = thread.first_after(columns.measure_ns), thread.last_before(columns.end_ns)
        some = first <= last
        inside += thread.between(columns.measure_ns, columns.end_ns, thread.end_ns - thread.start_ns)[0]
        for place, once in ((first, some), (last, some & (last != first))):
            at = np.clip(place, 0, len(thread.start_ns) - 1)
            start_ns, end_ns = thread.start_ns[at], thread.end_ns[at]
            overlap = np.minimum(end_ns, columns.end_ns) - np.maximum(start_ns, columns.measure_ns)
            beyond = np.maximum(columns.start_ns - start_ns, 0)
            beyond += np.maximum(end_ns - columns.end_ns - SWITCH_AFTER_NS, 0)
            foreign += np.where(once, overlap / np.maximum(end_ns - start_ns, 1) * beyond, 0)
    return np.divide(foreign, inside, out=np.zeros_like(foreign), where=inside > 0)


def _cpu_shares(threads: Track, columns: Columns) -> Values:
    wall, used = (np.zeros(len(columns.start_ns)) for _ in range(2))
    for thread in threads:
        unknown = np.isnan(thread.cpu_ns)
        sums = (thread.end_ns - thread.start_ns, np.where(unknown, 0, thread.cpu_ns), unknown.astype(float))
        lasted, took, gaps = thread.between(columns.measure_ns, columns.end_ns, *sums)
        wall += lasted
        used += took
        used[gaps > 0] = np.nan
    return np.divide(used, wall, out=np.full_like(used, np.nan), where=wall > 0)


def _latencies(threads: Track, columns: Columns) -> Latencies:
    """Latency of the operations that ended in each window, whenever they began, so that the longest ones are included.

    A slice ends with the first operation beyond its place on the grid. Therefore the slice before the window ends
    slightly inside it, and the window's last slice slightly outside. A time somewhat before its end assigns a slice to
    a window.
    """
    parts: list[Latencies] = []
    before_ns = ((columns.end_ns - columns.measure_ns) * BEFORE_END).astype(np.int64)
    for thread in threads:
        first, last = thread.first_after(columns.measure_ns), thread.last_before(columns.end_ns)
        some = first <= last

        def moment(place: Places, thread: Thread = thread) -> Times:
            at = np.clip(place, 0, len(thread.start_ns) - 1)
            lasted = thread.end_ns[at] - thread.start_ns[at]
            return np.asarray(thread.end_ns[at] - np.minimum(lasted // 2, before_ns), dtype=np.int64)

        begin = first + (moment(first) < columns.measure_ns)
        end = last + 1 - (moment(last) >= columns.end_ns)
        offsets, buckets, counts = thread.latency
        low = offsets[np.where(some, begin, 0)]
        high = np.maximum(offsets[np.where(some, np.maximum(begin, end), 0)], low)
        parts.append(Latencies(low, high, buckets, counts))
    return parts[0].packed if len(parts) == 1 else _side_by_side(parts, len(columns.start_ns))


def _side_by_side(parts: Sequence[Latencies], count: int) -> Latencies:
    """Several threads' buckets of each window, one after the other."""
    if not parts:
        return Latencies.of([Histogram()] * count)
    window, buckets, counts = (np.concatenate(each) for each in zip(*(part.entries for part in parts), strict=True))
    order = np.argsort(window, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(window, minlength=count))]).astype(np.int64)
    return Latencies(first[:-1], first[1:], buckets[order], counts[order])


@dataclass(frozen=True)
class Block:
    """The times of a block's slots."""

    trial: str
    number: int
    slots: tuple[Slot, ...]
    long: bool = False


@dataclass(frozen=True)
class Columns:
    """The slots of many blocks as columns, in order. first: where each block begins, and at the end the number of all.

    number, long: of each block. start_ns: a slot's switch; measure_ns, end_ns: its window.
    """

    number: Times
    long: Flags
    first: Times
    treatment: Objects
    start_ns: Times
    measure_ns: Times
    end_ns: Times

    @staticmethod
    def of(blocks: Sequence[Block]) -> Columns:
        slots = [slot for block in blocks for slot in block.slots]
        counts = np.array([len(block.slots) for block in blocks], dtype=np.int64)
        return Columns(
            np.array([block.number for block in blocks], dtype=np.int64),
            np.array([block.long for block in blocks], dtype=bool),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.array([slot.treatment for slot in slots], dtype=object),
            *(
                np.array([getattr(s, name) for s in slots], dtype=np.int64)
                for name in ("start_ns", "measure_ns", "end_ns")
            ),
        )

    @property
    def block(self) -> Places:
        """The place of each slot's block."""
        return np.repeat(np.arange(len(self.number)), np.diff(self.first))

    def kept(self, blocks: Flags) -> Columns:
        """These blocks only."""
        slots = np.repeat(blocks, np.diff(self.first))
        first = np.concatenate([[0], np.cumsum(np.diff(self.first)[blocks])]).astype(np.int64)
        times = (column[slots] for column in (self.start_ns, self.measure_ns, self.end_ns))
        return Columns(self.number[blocks], self.long[blocks], first, self.treatment[slots], *times)


@dataclass(frozen=True)
class Samples:
    """A monitor's readings: times and values, one column for each counter; NaN if a counter could not be read."""

    counters: tuple[Counter, ...]
    at_ns: Times
    values: Values

    def between(self, start_ns: Times, end_ns: Times) -> Values:
        """Rate per second of each total, and last value of each gauge, from the readings nearest to both ends.

        A row for each window; not a number where it is unknown.
        """
        read = np.full((len(start_ns), len(self.counters)), np.nan)
        if len(self.at_ns) < 2:
            return read
        first, last = self._nearest(start_ns), self._nearest(end_ns)
        seconds = (self.at_ns[last] - self.at_ns[first]) / 1e9
        # Readings of other slots say nothing about this one.
        near = (last > first) & (seconds * 1e9 >= (end_ns - start_ns) / 2)
        a, b = self.values[first[near]], self.values[last[near]]
        gauges = np.array([counter.kind == "gauge" for counter in self.counters], dtype=bool)
        read[near] = np.where(gauges, b, (b - a) / seconds[near, None])
        read[~np.isfinite(read)] = np.nan
        return read

    def _nearest(self, at_ns: Times) -> Places:
        """The first of the readings nearest to each time. Readings are in order."""
        after = np.clip(np.searchsorted(self.at_ns, at_ns), 1, len(self.at_ns) - 1)
        before = after - 1
        return np.where(at_ns - self.at_ns[before] <= self.at_ns[after] - at_ns, before, after)


def observe(
    block: Block,
    trial: Trial,
    victim: Window,
    aggressors: Mapping[str, Window],
    maxima: Mapping[str, float],
    samples: Samples | None = None,
    usage: Usage | None = None,
) -> Observations:
    """One observation for each slot of `block`, or none if the victim's rate in any slot is unknown.

    maxima: calibrated work per second of each aggressor. usage: resource use of commands between their switches.
    """
    start_ns, end_ns = block.slots[0].start_ns, block.slots[-1].end_ns
    pressing = {name: track(aggressors[name].touching(start_ns, end_ns)) for name in maxima if name in aggressors}
    tracks = pressing | {VICTIM: track(victim.touching(start_ns, end_ns))}
    return observed(Columns.of([block]), trial, tracks, maxima, samples, usage)


def observed(
    columns: Columns,
    trial: Trial,
    tracks: Mapping[str, Track],
    maxima: Mapping[str, float],
    samples: Samples | None = None,
    usage: Usage | None = None,
) -> Observations:
    """The observations of many blocks of a turn, without blocks in which the victim's rate is unknown in any slot.

    tracks: of the victim and of each aggressor.
    """
    # The threads of a command are not known: its metric is one stream.
    threads = trial.victim.threads if trial.victim.command is None else 1
    victim = tracks.get(VICTIM, ())
    whole = rates(victim, columns.measure_ns, columns.end_ns, threads)
    unknown = np.bincount(columns.block[np.isnan(whole)], minlength=len(columns.number)) > 0
    if unknown.any():
        columns, whole = columns.kept(~unknown), whole[~unknown[columns.block]]
    middle_ns = (columns.measure_ns + columns.end_ns) // 2
    halves = (
        rates(victim, first, last, threads)
        for first, last in ((columns.measure_ns, middle_ns), (middle_ns, columns.end_ns))
    )
    early, late = (np.where(np.isnan(half), whole, half) for half in halves)
    reached = {
        name: rates(tracks[name], columns.measure_ns, columns.end_ns) / maxima[name]
        for name in maxima
        if name in tracks and maxima[name] > 0
    }
    counters = samples.between(columns.measure_ns, columns.end_ns) if samples else np.zeros((len(whole), 0))
    read = np.isfinite(counters).any(axis=1)
    block = columns.block
    used, moved = _usages(usage or {}, columns)
    return Observations(
        trial=np.full(len(whole), trial.id, dtype=object),
        block=columns.number[block],
        position=np.arange(len(whole)) - columns.first[block],
        treatment=columns.treatment,
        start_ns=columns.measure_ns,
        end_ns=columns.end_ns,
        rate=whole,
        early_rate=early,
        late_rate=late,
        cpu_share=_cpu_shares(victim, columns),
        latency=_latencies(victim, columns),
        achieved=reached,
        counters=CounterTable(
            {counter.name: at for at, counter in enumerate(samples.counters)} if samples else {},
            counters[read],
            np.where(read, np.cumsum(read) - 1, -1),
        ),
        disturbed=_disturbed(trial, columns, samples, counters[read], np.flatnonzero(read)),
        straddle=_straddles(victim, columns),
        used=used,
        moved=moved,
        long=columns.long[block],
    )


def _usages(usage: Usage, columns: Columns) -> tuple[dict[str, Values], dict[str, Values]]:
    """CPU time divided by wall time, and disk bytes a second, of each command in each slot."""
    slots = [_usage(usage, columns, at) for at in range(len(columns.start_ns))] if usage else []
    used, moved = (
        {name: np.array([slot[what].get(name, np.nan) for slot in slots], np.float64) for name in usage}
        for what in (0, 1)
    )
    return used, moved


def _usage(usage: Usage, columns: Columns, at: int) -> tuple[dict[str, float], dict[str, float]]:
    """The same in one slot."""
    start_ns, end_ns = int(columns.start_ns[at]), int(columns.end_ns[at])
    near = {name: _overlapping(rows, start_ns, end_ns) for name, rows in usage.items()}
    used, moved = (
        {name: pace for name, rows in near.items() if (pace := _per_second(rows, start_ns, end_ns, key)) is not None}
        for key in ("cpu_ns", "disk_bytes")
    )
    return {name: share / 1e9 for name, share in used.items()}, moved


def _overlapping(rows: Sequence[Mapping[str, Any]], start_ns: int, end_ns: int) -> Sequence[Mapping[str, Any]]:
    """Intervals in order of time that overlap a slot."""
    low = bisect_right(rows, start_ns, key=lambda row: int(row["end_ns"]))
    return rows[low : bisect_left(rows, end_ns, lo=low, key=lambda row: int(row["start_ns"]))]


def _disturbed(trial: Trial, columns: Columns, samples: Samples | None, counters: Values, places: Places) -> Objects:
    """Of each slot: disturbances of the victim by others, as the counters show them."""
    disturbed = np.fromiter((() for _ in columns.treatment), object, len(columns.treatment))
    if samples is None or not len(places):
        return disturbed
    names = {counter.name: at for at, counter in enumerate(samples.counters)}
    telling = [*(f"cpu{cpu}.{STEAL}" for cpu in trial.victim_cpus), WAITED, THROTTLED, *SWAPPED]
    wanted = {name: names[name] for name in telling if name in names}
    for at, row in zip(places.tolist(), counters[:, list(wanted.values())].tolist(), strict=True):
        known = {name: value for name, value in zip(wanted, row, strict=True) if not math.isnan(value)}
        disturbed[at] = tuple(_disturbances(known, trial, trial.treatment(columns.treatment[at])))
    return disturbed


def _per_second(rows: Sequence[Mapping[str, Any]], start_ns: int, end_ns: int, key: str) -> float | None:
    """Use between switches, from intervals weighted by the share inside the slot.

    None if too little of the slot is covered.
    """
    total, covered = 0.0, 0
    for row in rows:
        overlap = min(row["end_ns"], end_ns) - max(row["start_ns"], start_ns)
        if overlap > 0 and row[key] is not None:
            total += row[key] * overlap / (row["end_ns"] - row["start_ns"])
            covered += overlap
    return total * 1e9 / covered if covered >= COVERED_SHARE * (end_ns - start_ns) else None


def _disturbances(counters: Mapping[str, float], trial: Trial, treatment: Treatment) -> Iterator[str]:
    """Disturbances of the victim by others: time taken by the hypervisor, and time of other processes on its CPU."""
    stolen = [counters[name] for cpu in trial.victim_cpus if (name := f"cpu{cpu}.{STEAL}") in counters]
    steal = sum(stolen) / len(stolen) / 1e9 if stolen else 0.0
    if steal > STEAL_SHARE:
        yield f"steal {steal:.0%}"
    waited = counters.get(WAITED, 0.0) / 1e9
    ceiling = _limited(trial, treatment)
    # Beside an aggressor, waiting may be the aggressor's effect (interrupts, kernel threads), so only quiet slots
    # count.
    quiet = treatment.role in ("baseline", "null") and not ceiling
    if quiet and waited > WAIT_SHARE * len(trial.victim_cpus):
        yield f"foreign load: the victim waited {waited:.0%} of the slot for its CPU"
    throttled = counters.get(THROTTLED, 0.0) / 1e9
    if throttled > WAIT_SHARE and not ceiling:
        yield f"throttled {throttled:.0%} of the slot by the victim's own ceiling"
    if swapped := sum(counters.get(name, 0.0) for name in SWAPPED):
        yield f"swap: {swapped:.3g} pages a second"


def _limited(trial: Trial, treatment: Treatment) -> bool:
    """True if the victim has an intended limit that makes it wait, permanently or in this slot."""
    switched = treatment.victim_limits is not None and treatment.victim_limits.cpu_limit is not None
    return switched or trial.victim.sandbox.limited
