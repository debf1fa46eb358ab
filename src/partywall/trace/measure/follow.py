"""Carries out a trace during another activity, and stores its reports."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from partywall import __version__, events
from partywall.core.record import stamped
from partywall.errors import TrialError
from partywall.events import Emit, silent
from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import reaper
from partywall.trace.measure.tracing import Present, Tracing
from partywall.trace.record import ClockBound, Report, Start, TraceDirectory, TraceEvidence, TraceRequest, merged


def trace_while(
    request: TraceRequest,
    out: Path | None,
    host: Mapping[str, Any],
    happens: Callable[[Tracing], None],
    emit: Emit = silent,
    present: Mapping[str, Present] | None = None,
) -> TraceDirectory:
    """Traces while `happens` runs, and stores the reports. Removes all hooks, even after an error.

    out: the record; None for runs/trace-TIME-CHANCE. host: facts of the host. present: agents that run already.
    """
    label = Label.create(stamped("trace"), WORK_ROOT)
    start = Start(
        asked=request,
        started=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        wall_ns=time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC),
        version=__version__,
    )
    log = _Log(start, emit)
    try:
        with Tracing(request, label, log.report, log.clock, present=present) as tracing:
            # Created late, so that a trace that cannot start leaves no folder.
            log.open(TraceDirectory.create(out or Path("runs") / label.run, start, dict(host)), tracing)
            happens(tracing)
            tracing.finish()
            return log.end()
    finally:
        reaper.clean(label)


class _Log:
    """Stores reports, and keeps their sum for display. The sum does not grow with time."""

    def __init__(self, start: Start, emit: Emit) -> None:
        self._start = start
        self._emit = emit
        self._whole: Report | None = None
        self._directory: TraceDirectory | None = None
        self._clocks: list[ClockBound] = []

    def open(self, directory: TraceDirectory, tracing: Tracing) -> None:
        self._directory = directory
        costs = {"record_ns": tracing.record_ns, "relays_record_ns": tracing.relays_record_ns}
        directory.append("hooked", costs)
        for bound in self._clocks:
            directory.append("clock", bound)
        self._emit(events.Started(directory.path))

    def clock(self, bound: ClockBound) -> None:
        self._clocks.append(bound)
        del self._clocks[:-64]
        if self._directory:
            self._directory.append("clock", bound)

    def report(self, report: Report) -> None:
        if self._directory:
            self._directory.append("report", report)
        ways = tuple(way.model_copy(update={"packets": ()}) for way in report.ways)
        bare = report.model_copy(update={"ways": ways})
        whole = merged([self._whole, bare]) if self._whole else bare
        kept = {packet.flow for way in whole.ways for packet in way.slowest}
        flows = {flow.flow: flow for flow in whole.flows if flow.flow in kept}
        self._whole = whole.model_copy(update={"flows": tuple(flows.values())})
        clocks = tuple(self._clocks)
        run = self._directory.name if self._directory else ""
        evidence = TraceEvidence(
            run=run,
            start=self._start,
            host={},
            reports=(self._whole,),
            clocks=clocks,
            record_ns=None,
            interrupted=False,
        )
        self._emit(events.Report(report, evidence))

    def end(self) -> TraceDirectory:
        if self._directory is None:
            raise TrialError("the trace ended before its first event `start`")
        self._directory.append("ended", {})
        return self._directory
