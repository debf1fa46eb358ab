"""Watches disks for some time: reads counters each period, applies the rule to each disk, and keeps a record.

Its memory does not grow with time. The first spans of a record are single periods; after each SPANS of them a span is
twice as long. While a disk is slow, single periods are kept, up to DETAILS. Where processes are read, which happens
every two seconds, a span ends with such a reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from partywall.clock import Clock, Monotonic
from partywall.events import Emit, Left, Note, Report
from partywall.watch import sentences
from partywall.watch.measure import reading
from partywall.watch.record import Seen, Slow, Span, WatchDirectory
from partywall.watch.rule import Rule

SPANS = 3600
DETAILS = 20_000
SLOW_MAX = 5000
"""The most slow times that a record keeps. Others are shown and counted."""
USES_KEPT = 50
"""The most tenants in a span of the record."""


class Course:
    """Takes periods: says when a disk begins and ends to be slow, and writes spans into the record."""

    def __init__(self, record: WatchDirectory, every_ns: int, limit_ns: int | None, emit: Emit) -> None:
        self._record, self._every_ns, self._limit_ns, self._emit = record, every_ns, limit_ns, emit
        self._rules: dict[str, Rule] = {}
        self._sum: Span | None = None
        self._open: Span | None = None
        self._periods = self._details = self._slow = self.dropped = 0
        self._written = sum(1 for _ in record.spans())

    def take(self, span: Span) -> Seen:
        """One period. Returns what those who watch see of it."""
        rules = [(self._rules.setdefault(disk.disk, Rule(self._limit_ns, self._every_ns)), disk) for disk in span.disks]
        disks = tuple(rule.judged(disk, span.length_ns) for rule, disk in rules)
        span = span.model_copy(update={"disks": disks}) if any(disk.saturated_ns for disk in disks) else span
        for rule, disk in rules:
            if (slow := rule.take(disk, span)) is not None:
                self._tell(slow)
        now = tuple(slow for rule, _ in rules if (slow := rule.now))
        span = span if self._open is None else self._open + span
        # Bytes of processes are of the time since they were last read, and so must be those of the disks beside them.
        self._open = span if span.unread else None
        self._periods += 1
        if span.unread:
            return Seen(span=span, slow=now)
        self._sum = span if self._sum is None else self._sum + span
        is_detail = bool(now) and self._details < DETAILS
        self._details += is_detail
        kept = is_detail or self._periods >= 2 ** (self._written // SPANS)
        if kept:
            self.flush()
            self._written += not is_detail
        return Seen(span=span, slow=now, kept=kept)

    def flush(self) -> None:
        """Writes the span so far."""
        if self._sum is not None:
            self._record.add(self._sum.trimmed(USES_KEPT))
        self._sum, self._periods = None, 0

    def end(self) -> None:
        """Writes what is not written yet. A disk that is slow stays without an end."""
        if self._open is not None:
            self._sum = self._open if self._sum is None else self._sum + self._open
        self.flush()

    def _tell(self, slow: Slow) -> None:
        has_ended = slow.end_ns is not None
        self._emit(Note(sentences.sentence(slow), is_warning=not has_ended))
        if not self._slow:
            self._emit(Note(sentences.HINT))
        self._slow += not has_ended
        if self._slow > SLOW_MAX:
            self.dropped += has_ended
        else:
            self._record.add(slow)


def watch(
    record: WatchDirectory,
    reader: reading.Reader,
    every_ns: int,
    for_ns: int | None,
    limit_ns: int | None,
    emit: Emit,
    clock: Clock | None = None,
    wall: Callable[[], int] = time.time_ns,
) -> None:
    """Watches for some time, or until it is interrupted. What was seen is in the record even then."""
    clock = clock or Monotonic()
    course = Course(record, every_ns, limit_ns, emit)
    before = reader.read(clock.now_ns())
    due_ns = before.time_ns
    end_ns = None if for_ns is None else due_ns + for_ns
    try:
        while end_ns is None or before.time_ns < end_ns:
            late = max(0, (clock.now_ns() - due_ns) // every_ns)
            due_ns += (1 + late) * every_ns
            clock.sleep_until(due_ns if end_ns is None else min(due_ns, end_ns))
            after = reader.read(clock.now_ns())
            for text in reader.gone():
                emit(Note(text, is_warning=True))
            seen = course.take(reading.span(before, after, wall(), late))
            before = after
            emit(Report(seen))
            if end_ns is not None and seen.kept:
                emit(Left(max(0, end_ns - before.time_ns) / 1e9))
    finally:
        course.end()
        record.say("paused", dropped=course.dropped)
