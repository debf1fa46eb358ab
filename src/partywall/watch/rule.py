"""When a disk counts as slow: a rule on single periods, and the sum of the periods in which it holds. Pure.

A disk is slow while it is saturated (busy for 90 % of a period) and its reads or its writes take longer than a stated
limit, or than a bound around their own usual latency. The usual latency is the median of the last 600 periods in which
the disk was not slow; the kernel counts times in whole ms, so short periods are pooled until their requests took at
least 10 ms. The bound is on a logarithmic scale eight times as far from it as the upper quartile: 5.4
standard deviations of log-normal latencies. It is at least twice and at most twenty times the usual latency. A disk
that completes no request (nor a discard or a flush) although some are in flight is slow too.

It begins after three such periods, and at least a second, in a row; it ends after as many others. On simulated
latencies that no neighbour changes (log-normal, heavy-tailed, and correlated (0.9, deviation 0.5)), on a disk that is
saturated all the time, false alarms are rarer than one in a day of periods of a second: tests/watch/test_watch_rule.py.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from partywall.watch.record import WAYS, Disk, Slow, Span, Way, shares

SATURATED = 0.9
WINDOW = 600
FEWEST = 60
"""Periods from which the usual latency is known."""
OPERATIONS = 5
"""Fewer operations say too little about the latency."""
TICK_NS = 1_000_000
"""The kernel's unit of times: a difference of two sums is wrong by less than this."""
POOLED_NS = 10 * TICK_NS
"""Requests of less time in all say too little about the usual latency; their periods are pooled."""
LEAST_TIMES, MOST_TIMES = 2.0, 20.0
FAR = 8.0
ROW = 3
ROW_NS = 1_000_000_000
NEW_USUAL = 3600
"""After so many slow periods in a row the latency counts as usual."""

RANKS = {"stuck": 0, "usual": 1, "limit": 2}
"""What is said of a slow time that exceeds several bounds: the highest."""


class Usual:
    """The usual latency of one way, from a sliding window of the logarithms of mean latencies."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._count = self._total_ns = 0

    def add(self, count: int, total_ns: int) -> None:
        """Requests of a period, and the sum of their times."""
        self._count, self._total_ns = self._count + count, self._total_ns + total_ns
        if self._count < OPERATIONS or self._total_ns < POOLED_NS:
            return
        value = math.log(self._total_ns / self._count)
        self._count = self._total_ns = 0
        self._recent.append(value)
        bisect.insort(self._sorted, value)
        if len(self._recent) > WINDOW:
            del self._sorted[bisect.bisect_left(self._sorted, self._recent.popleft())]

    def known(self) -> tuple[float, float] | None:
        """The usual latency and the bound around it; None if too few periods are known."""
        if (count := len(self._sorted)) < FEWEST:
            return None
        median, high = self._sorted[count // 2], self._sorted[(3 * count) // 4]
        times = min(MOST_TIMES, max(LEAST_TIMES, math.exp(min(FAR * (high - median), 100.0))))
        return math.exp(median), times * math.exp(median)


@dataclass(frozen=True)
class Excess:
    """What a disk exceeds in one period: see `Slow`."""

    way: Way
    by: Literal["limit", "usual", "stuck"]
    bound_ns: int
    usual_ns: int | None
    latency_ns: float


class Rule:
    """The rule for one disk. limit_ns: the stated limit, if any. every_ns: the length of a period."""

    def __init__(self, limit_ns: int | None, every_ns: int) -> None:
        self._limit_ns = limit_ns
        self._row = max(ROW, math.ceil(ROW_NS / every_ns))
        self._usual: dict[Way, Usual] = {way: Usual() for way in WAYS}
        self._so_far: _Sum | None = None
        self._is_slow, self._others = False, 0

    def judged(self, disk: Disk, length_ns: int) -> Disk:
        """The disk with how long it was saturated, and how much of that nothing can be said about yet.

        Called before `take`. Without a limit, and while the usual latency is unknown, only a stuck disk is noticed.
        """
        if disk.busy_ns < SATURATED * length_ns:
            return disk
        ways = [way for way in WAYS if disk.work(way)[0]]
        is_known = self._limit_ns is not None or not ways or any(self._usual[way].known() for way in ways)
        return disk.model_copy(update={"saturated_ns": length_ns, "unjudged_ns": 0 if is_known else length_ns})

    @property
    def now(self) -> Slow | None:
        """The slow time that goes on; None if the disk is not slow."""
        return self._so_far.slow(ended=False) if self._is_slow and self._so_far else None

    def take(self, disk: Disk, span: Span) -> Slow | None:
        """One period. Returns the slow time that begins or ends with it; None if none does."""
        excess = self._excess(disk, span.length_ns)
        if excess is None:
            return self._calm(disk, span)
        self._others = 0
        if self._so_far is None:
            self._so_far = _Sum(disk, span, excess)
        else:
            self._so_far.add(disk, span, excess)
        if not self._is_slow and self._so_far.periods >= self._row:
            self._is_slow = True
            return self.now
        if self._so_far.periods >= NEW_USUAL and self._so_far.excess.by == "usual":
            self._usual[self._so_far.excess.way] = Usual()
            return self._end(self._so_far)
        return None

    def _calm(self, disk: Disk, span: Span) -> Slow | None:
        for way in WAYS:
            self._usual[way].add(*disk.work(way))
        if not self._is_slow or self._so_far is None:
            self._so_far = None
            return None
        self._others += 1
        if self._others >= self._row:
            return self._end(self._so_far)
        self._so_far.pause(disk, span)
        return None

    def _end(self, so_far: _Sum) -> Slow:
        self._so_far, self._is_slow, self._others = None, False, 0
        return so_far.slow(ended=True)

    def _excess(self, disk: Disk, length_ns: int) -> Excess | None:
        if disk.busy_ns < SATURATED * length_ns:
            return None
        if disk.operations == 0:
            is_stuck = disk.in_flight and not disk.others
            return Excess("writes", "stuck", length_ns, None, length_ns) if is_stuck else None
        every = [each for way in WAYS for each in self._exceeded(disk, way)]
        return max(every, key=lambda each: (RANKS[each.by], each.latency_ns / each.bound_ns), default=None)

    def _exceeded(self, disk: Disk, way: Way) -> list[Excess]:
        latency_ns = disk.latency_ns(way)
        if latency_ns is None:
            return []
        known = self._usual[way].known()
        usual_ns = round(known[0]) if known else None
        every = []
        if self._limit_ns is not None and latency_ns > self._limit_ns:
            every.append(Excess(way, "limit", self._limit_ns, usual_ns, latency_ns))
        count, total_ns = disk.work(way)
        # By more than the times may be wrong.
        if known and count >= OPERATIONS and total_ns - TICK_NS > count * known[1]:
            every.append(Excess(way, "usual", round(known[1]), usual_ns, latency_ns))
        return every


class _Sum:
    """The periods of a slow time. Short pauses count once it goes on after them."""

    def __init__(self, disk: Disk, span: Span, excess: Excess) -> None:
        self.excess, self.periods, self._begin_ns = excess, 1, span.at_ns - span.length_ns
        self._disk, self._span, self._worst_ns = disk, span, excess.latency_ns
        self._pauses: list[tuple[Disk, Span]] = []

    def pause(self, disk: Disk, span: Span) -> None:
        self._pauses.append((disk, span))

    def add(self, disk: Disk, span: Span, excess: Excess) -> None:
        for each, of in (*self._pauses, (disk, span)):
            self._disk, self._span = self._disk + each, self._span + of
        self._pauses.clear()
        self.periods += 1
        if RANKS[excess.by] > RANKS[self.excess.by]:
            self.excess, self._worst_ns = excess, 0.0
        if excess.way == self.excess.way or excess.by == "stuck":
            self._worst_ns = max(self._worst_ns, excess.latency_ns)

    def slow(self, *, ended: bool) -> Slow:
        """The figures so far."""
        disk, span, excess = self._disk, self._span, self.excess
        latency_ns = disk.latency_ns(excess.way)
        return Slow(
            disk=disk.disk,
            way=excess.way,
            by=excess.by,
            begin_ns=self._begin_ns,
            end_ns=span.at_ns if ended else None,
            length_ns=span.length_ns,
            bound_ns=excess.bound_ns,
            usual_ns=excess.usual_ns,
            latency_ns=None if latency_ns is None else round(latency_ns),
            worst_ns=round(self._worst_ns),
            busy=min(1.0, disk.busy_ns / span.length_ns),
            queued=disk.queued(span.length_ns),
            operations=disk.operations,
            bytes=disk.bytes,
            unread=disk.disk in span.unread,
            shares=tuple(share for share in shares(span, disk) if max(share.operations or 0, share.bytes) >= LEAST),
        )


LEAST = 0.005
"""A smaller share of a disk's work is not listed."""
