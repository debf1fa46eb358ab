"""What is found in a watch: the sum of all spans, spans for charts, and the times at which a disk was slow. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partywall.core.stats.estimate import Outcome
from partywall.errors import TrialError
from partywall.watch.job import WatchJob
from partywall.watch.record import Began, Paused, Slow, Span, Stalled, WatchRecord

SPANS_SHOWN = 600
"""The most spans that findings keep for charts."""


@dataclass(frozen=True)
class WatchFindings:
    """All that a watch found. whole: the sum of all spans; spans: for charts, at most some hundred.

    about: how it was watched. stalls: what was said of groups that waited for others. lacks: what the host does not
    count, each with its remedy. dropped: slow times of which only the number is known. gaps: the number of pauses.
    """

    name: str
    about: dict[str, Any]
    job: WatchJob
    host: dict[str, Any]
    lacks: tuple[str, ...]
    whole: Span
    spans: tuple[Span, ...]
    slow: tuple[Slow, ...]
    stalls: tuple[Stalled, ...]
    dropped: int
    gaps: int
    ended: bool

    def slow_of(self, disk: str) -> tuple[Slow, ...]:
        """The times at which a disk was slow."""
        return tuple(each for each in self.slow if each.disk == disk)

    @property
    def unjudged(self) -> list[str]:
        """The disks of which nothing can be said: whenever they were saturated, no bound was known yet."""
        return [disk.disk for disk in self.whole.disks if 0 < disk.saturated_ns == disk.unjudged_ns]

    @property
    def outcome(self) -> Outcome:
        """Violated if a stated limit was exceeded; inconclusive if a saturated disk could not be judged."""
        if any(slow.by == "limit" for slow in self.slow):
            return Outcome.VIOLATED
        return Outcome.INCONCLUSIVE if self.unjudged and not self.slow else Outcome.HOLDS


def derive(record: WatchRecord) -> WatchFindings:
    """One pass over the lines, in bounded memory. TrialError if there is no span yet."""
    sums, slow, begun, dropped, stalls = _Sums(), _SlowTimes(), 0, 0, list[Stalled]()
    lacks: tuple[str, ...] = ()
    for line in record.stream:
        match line:
            case Span():
                sums.add(line)
            case Slow():
                slow.add(line)
            case Stalled():
                stalls.append(line)
            case Began():
                lacks, begun = line.lacks, begun + 1
            case Paused():
                dropped += line.dropped
    if sums.whole is None:
        raise TrialError(f"{record.path}: it ended before its first period; watch again: partywall watch")
    return WatchFindings(
        record.name, record.about, record.job, record.host, lacks, sums.whole, tuple(sums.spans), tuple(slow.every),
        tuple(stalls), dropped, max(0, begun - 1), record.is_ended,
    )  # fmt: skip


class _Sums:
    """The sum of all spans, and spans for charts: neighbours are added whenever there are too many."""

    def __init__(self) -> None:
        self.whole: Span | None = None
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        self.whole = span if self.whole is None else self.whole + span
        self.spans.append(span)
        if len(self.spans) > 2 * SPANS_SHOWN:
            pairs = zip(self.spans[::2], [*self.spans[1::2], None], strict=False)
            self.spans = [first if second is None else first + second for first, second in pairs]


class _SlowTimes:
    """The slow times in order. One that ended replaces its beginning."""

    def __init__(self) -> None:
        self.every: list[Slow] = []
        self._open: dict[str, int] = {}

    def add(self, slow: Slow) -> None:
        place = self._open.pop(slow.disk, None)
        if slow.end_ns is not None and place is not None:
            self.every[place] = slow
        else:
            if slow.end_ns is None:
                self._open[slow.disk] = len(self.every)
            self.every.append(slow)
