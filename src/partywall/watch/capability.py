"""The capability: what is watched on this host, carried out, derived and reported."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from partywall import units
from partywall.clock import Clock, Monotonic
from partywall.core.capability import Capability, Options, Outline
from partywall.events import Emit, Note
from partywall.watch.job import WatchJob
from partywall.watch.prometheus import Totals
from partywall.watch.record import Began, WatchRecord

if TYPE_CHECKING:
    from partywall.core.report.value import Report
    from partywall.watch.findings import WatchFindings
    from partywall.watch.measure.waits import Waits
    from partywall.watch.record import Stalled


class Watches(Capability[WatchJob, WatchRecord, "WatchFindings"]):
    """Watches of disks.

    reader: makes what reads the counters; None for `Reader`. clock, wall: the times of periods, and of day.
    """

    jobs, record, metrics = (WatchJob,), WatchRecord, Totals
    rows, doing, keeps, disturbs = "uses", "watching", "the watch goes on", False

    def __init__(
        self,
        reader: Callable[..., Any] | None = None,
        clock: Clock | None = None,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._make_reader, self._clock, self._wall = reader, clock or Monotonic(), wall

    def outline(self, job: WatchJob, options: Options) -> Outline:
        reader = self._reader(job, options)
        every = f"reads counters of {', '.join(reader.disks)} every {units.format_duration(job.every_ns)}"
        tenants = ", ".join(reader.tenants) or "none yet; new ones are found while it watches"
        waits = self._waits(options, lambda _: None)
        lacks = (f"missing: {text}" for text in dict.fromkeys((*reader.lacks(), *waits.lacks())))
        waits.close()
        others = "who waits for whom: for CPUs, memory and disks, of all groups"
        return Outline((every, f"tenants: {tenants}", others, *lacks), (job.for_ns or 0) / 1e9)

    def _reader(self, job: WatchJob, options: Options) -> Any:
        from partywall.watch.measure.reading import Reader

        reader = (self._make_reader or Reader)(options.host, job.disks, job.tenants)
        reader.look(0)
        return reader

    def _waits(self, options: Options, tell: Callable[[Stalled], None]) -> Waits:
        from partywall.watch.measure.waits import Waits

        # What stands in for the disks of a host stands in for all of it.
        return Waits(None if self._make_reader else options.host.path("/"), tell, self._wall)

    def measure(self, record: WatchRecord, options: Options, emit: Emit) -> None:
        """Watches what is left of the time, or until Ctrl-C. The usual latency of each disk is learnt anew."""
        from partywall.watch.measure.watching import Course, watch

        job = record.job
        left_ns = None if job.for_ns is None else job.for_ns - record.watched_ns
        if left_ns is not None and left_ns <= 0:
            return
        reader = self._reader(job, options)
        course = Course(record, emit)
        waits = self._waits(options, course.stalled)
        lacks = tuple(dict.fromkeys((*reader.lacks(), *waits.lacks())))
        record.stream.append(Began(lacks=lacks))
        for text in lacks:
            emit(Note(f"missing: {text}", is_warning=True))
        watch(course, record, reader, waits, left_ns, emit, self._clock, self._wall)

    def findings(self, record: WatchRecord) -> WatchFindings:
        from partywall.watch.findings import derive

        return derive(record)

    def report(self, findings: WatchFindings) -> Report:
        from partywall.watch import report

        return report.report(findings)

    def live(self, seen: Any) -> Report | None:
        from partywall.watch import report

        return report.live(seen)
