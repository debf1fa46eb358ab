"""Watches: what each disk of a host and each tenant on it does, and when a disk is slow."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from partywall import __version__, units
from partywall.core.capability import Options, Outline, finished
from partywall.core.record import stamped
from partywall.errors import Exit, Problem, TrialError, UsageError
from partywall.events import Emit, Note, Started
from partywall.watch.measure.reading import Reader
from partywall.watch.measure.watching import watch
from partywall.watch.record import Slow, Span, WatchDirectory, WatchFindings
from partywall.watch.sentences import unjudged

if TYPE_CHECKING:
    from partywall.core.report.files import Files

LEAST_EVERY_NS = 100_000_000
SPANS_SHOWN = 600
"""The most spans that findings keep for charts."""


@dataclass(frozen=True)
class WatchJob:
    """What is watched. for_ns: None until Ctrl-C. limit_ns: the stated latency. disks, tenants: all if empty."""

    for_ns: int | None = None
    every_ns: int = 1_000_000_000
    limit_ns: int | None = None
    disks: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    @classmethod
    def of(cls, about: dict[str, Any]) -> WatchJob:
        """The job of a record."""
        known = {name: about[name] for name in ("for_ns", "every_ns", "limit_ns") if name in about}
        return cls(**known, disks=tuple(about.get("disks", ())), tenants=tuple(about.get("tenants", ())))


class Watches:
    record = WatchDirectory

    def outline(self, job: WatchJob, options: Options) -> Outline:
        reader = self._reader(job, options)
        every = f"reads counters of {', '.join(reader.disks)} every {units.format_duration(job.every_ns)}"
        reader.look(0)
        tenants = ", ".join(reader.tenants) or "none yet; new ones are found while it watches"
        lacks = (f"missing: {text}" for text in reader.lacks())
        return Outline((every, f"tenants: {tenants}", *lacks), (job.for_ns or 0) / 1e9)

    def check(self, job: WatchJob, options: Options) -> None:
        self._reader(job, options)

    def _reader(self, job: WatchJob, options: Options) -> Reader:
        if job.every_ns < LEAST_EVERY_NS:
            said = f"must be at least 100ms, not {units.format_duration(job.every_ns)}"
            raise UsageError(Problem(said, "counters of disks are in ms; give for example 1s", key="--every"))
        return Reader(options.host, job.disks, job.tenants)

    def measure(self, job: WatchJob, options: Options, emit: Emit) -> WatchDirectory:
        """Watches until the time is up, or until Ctrl-C, the normal end of a watch without a duration."""
        reader = self._reader(job, options)
        started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        about = {"partywall": __version__, "started_at": started, **asdict(job)}
        record = WatchDirectory.create(options.folder(stamped("watch")), about, options.host.facts)
        with record.exclusive():
            self._watch(job, job.for_ns, record, reader, emit)
        return record

    def _watch(self, job: WatchJob, for_ns: int | None, record: WatchDirectory, reader: Reader, emit: Emit) -> None:
        emit(Started(record.path))
        reader.look(0)
        lacks = list(reader.lacks())
        record.say("began", lacks=lacks)
        for text in lacks:
            emit(Note(f"missing: {text}", is_warning=True))
        try:
            watch(record, reader, job.every_ns, for_ns, job.limit_ns, emit)
        except KeyboardInterrupt:
            if for_ns is not None:
                raise
        record.say("ended")

    def continued_by(self, record: WatchDirectory) -> tuple[str, ...]:
        return () if record.is_ended else ("watch", "--resume", str(record.path))

    def resume(self, record: WatchDirectory, options: Options, emit: Emit) -> None:
        """Watches the rest of the time. The usual latency of each disk is learnt again."""
        with record.exclusive():
            job = WatchJob.of(record.about)
            left_ns = None if job.for_ns is None else job.for_ns - record.watched_ns
            if record.is_ended or (left_ns is not None and left_ns <= 0):
                if not record.is_ended:
                    record.say("ended")
                finished(record, emit)
                return
            self._watch(job, left_ns, record, self._reader(job, options), emit)

    def findings(self, record: WatchDirectory) -> WatchFindings:
        """One pass over the lines, in bounded memory."""
        sums, slow, lacks, begun, dropped, has_ended = _Sums(), _SlowTimes(), (), 0, 0, False
        for kind, content in record.events():
            match kind, content:
                case _, Span():
                    sums.add(content)
                case _, Slow():
                    slow.add(content)
                case "began", dict():
                    lacks, begun = tuple(content.get("lacks", ())), begun + 1
                case "paused", dict():
                    dropped += content.get("dropped", 0)
                case "ended", _:
                    has_ended = True
        if sums.whole is None:
            raise TrialError(f"{record.path}: it ended before its first period; watch again: partywall watch")
        return WatchFindings(
            name=record.name,
            about=record.about,
            host=record.host,
            lacks=lacks,
            whole=sums.whole,
            spans=tuple(sums.spans),
            slow=tuple(slow.every),
            dropped=dropped,
            gaps=max(0, begun - 1),
            ended=has_ended,
        )

    def outcome(self, findings: WatchFindings) -> Exit:
        if any(slow.by == "limit" for slow in findings.slow):
            return Exit.VIOLATED
        return Exit.INCONCLUSIVE if unjudged(findings) and not findings.slow else Exit.HOLDS

    def files(self) -> Files[WatchFindings]:
        from partywall.watch.report import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES


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
