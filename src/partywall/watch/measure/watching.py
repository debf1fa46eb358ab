"""Watches disks for some time: reads counters each period, applies the rule to each disk, and keeps a record.

Its memory does not grow with time. The first spans of a record are single periods; after each SPANS of them a span is
twice as long. While a disk is slow, single periods are kept, up to DETAILS. Where processes are read, which happens
every two seconds, a span ends with such a reading.
"""

from __future__ import annotations

from collections.abc import Callable

from partywall.clock import Clock
from partywall.events import Emit, Left, Note, Seen
from partywall.watch import sentences
from partywall.watch.measure import reading
from partywall.watch.measure.waits import Waits
from partywall.watch.record import Paused, Period, Slow, Span, Stalled, WatchRecord
from partywall.watch.rule import Rule

SPANS = 3600
DETAILS = 20_000
SLOW_MAX = 5000
"""The most slow times that a record keeps, and the most waits. Others are shown, and slow times are counted."""
USES_KEPT = 50
"""The most tenants in a span of the record."""


class Course:
    """Takes periods: says when a disk begins and ends to be slow, and writes spans into the record."""

    def __init__(self, record: WatchRecord, emit: Emit) -> None:
        self._record, self._job, self._emit = record, record.job, emit
        self._rules: dict[str, Rule] = {}
        self._sum: Span | None = None
        self._open: Span | None = None
        self._periods = self._details = self._slow = self._stalls = self.dropped = 0
        self._written = sum(1 for _ in record.spans())

    def take(self, span: Span) -> Period:
        """One period. Returns what those who watch see of it."""
        rules = [
            (self._rules.setdefault(disk.disk, Rule(self._job.limit_ns, self._job.every_ns)), disk)
            for disk in span.disks
        ]
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
            return Period(span=span, slow=now)
        self._sum = span if self._sum is None else self._sum + span
        is_detail = bool(now) and self._details < DETAILS
        self._details += is_detail
        kept = is_detail or self._periods >= 2 ** (self._written // SPANS)
        if kept:
            self.flush()
            self._written += not is_detail
        return Period(span=span, slow=now, kept=kept)

    def _rule(self, disk: str) -> Rule:
        return self._rules.setdefault(disk, Rule(self._job.limit_ns, self._job.every_ns))

    def flush(self) -> None:
        """Writes the span so far."""
        if self._sum is not None:
            self._record.stream.append(self._sum.trimmed(USES_KEPT))
        self._sum, self._periods = None, 0

    def end(self) -> None:
        """Writes what is not written yet. A disk that is slow stays without an end."""
        if self._open is not None:
            self._sum = self._open if self._sum is None else self._sum + self._open
        self.flush()

    def stalled(self, stalled: Stalled) -> None:
        """A group begins to wait for others, or ceases to."""
        self._emit(Note(stalled.text, is_warning=not stalled.has_ended))
        self._stalls += 1
        if self._stalls <= SLOW_MAX:
            self._record.stream.append(stalled)

    def _tell(self, slow: Slow) -> None:
        has_ended = slow.end_ns is not None
        self._emit(Note(sentences.sentence(slow), is_warning=not has_ended))
        if not self._slow:
            self._emit(Note(sentences.HINT))
        self._slow += not has_ended
        if self._slow > SLOW_MAX:
            self.dropped += has_ended
        else:
            self._record.stream.append(slow)


def watch(
    course: Course,
    record: WatchRecord,
    reader: reading.Reader,
    waits: Waits,
    for_ns: int | None,
    emit: Emit,
    clock: Clock,
    wall: Callable[[], int],
) -> None:
    """Watches for some time, or until it is interrupted. What was seen is in the record even then."""
    every_ns = record.job.every_ns
    before = reader.read(clock.now_ns())
    waits.take(before.time_ns)
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
            pairs, pairs_ns = waits.take(after.time_ns)
            span = reading.span(before, after, wall(), late)
            seen = course.take(span.model_copy(update={"pairs": pairs, "pairs_ns": pairs_ns}))
            before = after
            emit(Seen(seen, is_kept=seen.kept))
            if end_ns is not None and seen.kept:
                emit(Left(max(0, end_ns - before.time_ns) / 1e9))
    finally:
        waits.close()
        course.end()
        record.stream.append(Paused(dropped=course.dropped))
