"""Derives observations from slices: the result of one treatment in one block. Pure.

A slice counts for a window by the share of its time inside the window. Agents cut slices on the grid on which windows
lie, so the error at an edge is at most one operation of the workload.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partywall.model.evidence import Counter
from partywall.model.observation import Histogram, Observation
from partywall.model.plan import Slot, Treatment, Trial
from partywall.model.scenario import SWITCH_AFTER_NS

# Share of a window that slices must cover for a rate to be known.
COVERED_SHARE = 0.8
# How long before its end a slice is assigned to a window, as a share of the window; less for a short slice.
BEFORE_END = 0.25
# CPU time of other processes, as a share of the victim's CPU time, above which a slot is marked as disturbed.
STEAL_SHARE = 0.05
# Share of a slot that the victim may wait for its CPU if no aggressor is on it.
WAIT_SHARE = 0.05


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

    def within(self, start_ns: int, end_ns: int) -> list[tuple[dict[str, Any], float]]:
        """Overlapping slices, each with the share of it inside."""
        spans = []
        for row in self.touching(start_ns, end_ns):
            overlap = min(row["end_ns"], end_ns) - max(row["start_ns"], start_ns)
            spans.append((row, overlap / (row["end_ns"] - row["start_ns"])))
        return spans


Inside = Sequence[tuple[dict[str, Any], float]]
Usage = Mapping[str, Sequence[Mapping[str, Any]]]


def rate(window: Window, start_ns: int, end_ns: int, threads: int = 1) -> float | None:
    """Work per second of all threads between two times.

    None if the slices cover too little of it: unknown time does not mean that no work was done.
    """
    inside = window.within(start_ns, end_ns)
    work: dict[int, float] = {}
    covered: dict[int, float] = {}
    for row, share in inside:
        thread = row["thread"]
        work[thread] = work.get(thread, 0.0) + row["work"] * share
        covered[thread] = covered.get(thread, 0.0) + (row["end_ns"] - row["start_ns"]) * share
    known = [thread for thread, ns in covered.items() if ns >= COVERED_SHARE * (end_ns - start_ns)]
    if len(known) < threads:
        return None
    return sum(work[thread] * 1e9 / covered[thread] for thread in known)


def _straddle(inside: Inside, slot: Slot) -> float:
    """Share of the window's work done under other treatments, if each slice's work is spread evenly over its time."""
    inside_ns = foreign_ns = 0.0
    for row, share in inside:
        lasted_ns = row["end_ns"] - row["start_ns"]
        before_ns = max(0, slot.start_ns - row["start_ns"])
        after_ns = max(0, row["end_ns"] - slot.end_ns - SWITCH_AFTER_NS)
        inside_ns += lasted_ns * share
        foreign_ns += share * (before_ns + after_ns)
    return foreign_ns / inside_ns if inside_ns else 0.0


def _cpu_share(inside: Inside) -> float | None:
    wall = sum((row["end_ns"] - row["start_ns"]) * share for row, share in inside)
    known = [row["cpu_ns"] * share for row, share in inside if row["cpu_ns"] is not None]
    return sum(known) / wall if wall and len(known) == len(inside) else None


def _latency(window: Window, start_ns: int, end_ns: int) -> Histogram:
    """Latency of the operations that ended in the window, whenever they began, so that the longest ones are included.

    A slice ends with the first operation beyond its place on the grid. Therefore the slice before the window ends
    slightly inside it, and the window's last slice slightly outside. A time somewhat before its end assigns a slice to
    a window.
    """
    before_ns = int((end_ns - start_ns) * BEFORE_END)
    counts: dict[int, int] = {}
    for row in window.touching(start_ns, end_ns):
        if start_ns <= row["end_ns"] - min((row["end_ns"] - row["start_ns"]) // 2, before_ns) < end_ns:
            for bucket, count in row["latency"]:
                counts[bucket] = counts.get(bucket, 0) + count
    return Histogram(counts)


@dataclass(frozen=True)
class Block:
    """The times of a block's slots."""

    trial: str
    number: int
    slots: tuple[Slot, ...]
    long: bool = False


@dataclass(frozen=True)
class Samples:
    """A monitor's readings: times and values, one column for each counter; NaN if a counter could not be read."""

    counters: tuple[Counter, ...]
    at_ns: np.ndarray[Any, np.dtype[np.int64]]
    values: np.ndarray[Any, np.dtype[np.float64]]

    def between(self, start_ns: int, end_ns: int) -> dict[str, float]:
        """Rate per second of each total, and last value of each gauge, from the readings nearest to both ends."""
        if len(self.at_ns) < 2:
            return {}
        first, last = (int(np.abs(self.at_ns - at).argmin()) for at in (start_ns, end_ns))
        seconds = (self.at_ns[last] - self.at_ns[first]) / 1e9
        # Readings of other slots say nothing about this one.
        if last <= first or seconds * 1e9 < (end_ns - start_ns) / 2:
            return {}
        values = {}
        for column, counter in enumerate(self.counters):
            a, b = self.values[first, column], self.values[last, column]
            value = b if counter.kind == "gauge" else (b - a) / seconds
            if np.isfinite(value):
                values[counter.name] = float(value)
        return values


def observe(
    block: Block,
    trial: Trial,
    victim: Window,
    aggressors: Mapping[str, Window],
    maxima: Mapping[str, float],
    samples: Samples | None = None,
    usage: Usage | None = None,
) -> tuple[Observation, ...]:
    """One observation for each slot of `block`, or none if the victim's rate in any slot is unknown.

    maxima: calibrated work per second of each aggressor. usage: resource use of commands between their switches.
    """
    observations = [
        _observation(block, position, slot, victim, aggressors, maxima, samples, usage or {}, trial)
        for position, slot in enumerate(block.slots)
    ]
    known = [observation for observation in observations if observation is not None]
    return tuple(known) if len(known) == len(observations) else ()


def _observation(
    block: Block,
    position: int,
    slot: Slot,
    victim: Window,
    aggressors: Mapping[str, Window],
    maxima: Mapping[str, float],
    samples: Samples | None,
    usage: Usage,
    trial: Trial,
) -> Observation | None:
    start_ns, end_ns = slot.measure_ns, slot.end_ns
    middle_ns = (start_ns + end_ns) // 2
    # The threads of a command are not known: its metric is one stream.
    threads = trial.victim.threads if trial.victim.command is None else 1
    whole, early, late = (
        rate(victim, first, last, threads)
        for first, last in ((start_ns, end_ns), (start_ns, middle_ns), (middle_ns, end_ns))
    )
    if whole is None:
        return None
    inside = victim.within(start_ns, end_ns)
    counters = samples.between(start_ns, end_ns) if samples else {}
    reached = {name: rate(aggressors[name], start_ns, end_ns) for name in maxima if name in aggressors}
    return Observation(
        trial=block.trial,
        block=block.number,
        position=position,
        treatment=slot.treatment,
        start_ns=start_ns,
        end_ns=end_ns,
        rate=whole,
        early_rate=whole if early is None else early,
        late_rate=whole if late is None else late,
        cpu_share=_cpu_share(inside),
        latency=_latency(victim, start_ns, end_ns),
        achieved={name: got / maxima[name] for name, got in reached.items() if got is not None and maxima[name] > 0},
        counters=counters,
        disturbed=tuple(_disturbances(counters, trial, trial.treatment(slot.treatment))),
        straddle=_straddle(inside, slot),
        long=block.long,
        used={
            name: share / 1e9
            for name, rows in usage.items()
            if (share := _per_second(rows, slot, "cpu_ns")) is not None
        },
        moved={
            name: pace for name, rows in usage.items() if (pace := _per_second(rows, slot, "disk_bytes")) is not None
        },
    )


def _per_second(rows: Sequence[Mapping[str, Any]], slot: Slot, key: str) -> float | None:
    """Use between switches, from intervals weighted by the share inside the slot.

    None if too little of the slot is covered.
    """
    total, covered = 0.0, 0
    for row in rows:
        overlap = min(row["end_ns"], slot.end_ns) - max(row["start_ns"], slot.start_ns)
        if overlap > 0 and row[key] is not None:
            total += row[key] * overlap / (row["end_ns"] - row["start_ns"])
            covered += overlap
    return total * 1e9 / covered if covered >= COVERED_SHARE * (slot.end_ns - slot.start_ns) else None


def _disturbances(counters: Mapping[str, float], trial: Trial, treatment: Treatment) -> Iterator[str]:
    """Disturbances of the victim by others: time taken by the hypervisor, and time of other processes on its CPU."""
    stolen = [counters[name] for cpu in trial.victim_cpus if (name := f"cpu{cpu}.cpu_steal_ns") in counters]
    steal = sum(stolen) / len(stolen) / 1e9 if stolen else 0.0
    if steal > STEAL_SHARE:
        yield f"steal {steal:.0%}"
    waited = counters.get("victim.process_run_queue_wait_ns", 0.0) / 1e9
    ceiling = _limited(trial, treatment)
    # Beside an aggressor, waiting may be the aggressor's effect (interrupts, kernel threads), so only quiet slots
    # count.
    quiet = treatment.role in ("baseline", "null") and not ceiling
    if quiet and waited > WAIT_SHARE * len(trial.victim_cpus):
        yield f"foreign load: the victim waited {waited:.0%} of the slot for its CPU"
    throttled = counters.get("victim.cgroup_cpu_throttled_ns", 0.0) / 1e9
    if throttled > WAIT_SHARE and not ceiling:
        yield f"throttled {throttled:.0%} of the slot by the victim's own ceiling"
    if swapped := counters.get("swapped_in_pages_count", 0.0) + counters.get("swapped_out_pages_count", 0.0):
        yield f"swap: {swapped:.3g} pages a second"


def _limited(trial: Trial, treatment: Treatment) -> bool:
    """True if the victim has an intended limit that makes it wait, permanently or in this slot."""
    switched = treatment.victim_limits is not None and treatment.victim_limits.cpu_limit is not None
    return switched or trial.victim.sandbox.limited
