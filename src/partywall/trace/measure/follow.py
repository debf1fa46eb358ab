"""Carries out a trace during another activity, and stores its reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partywall.core.record import stamped
from partywall.events import Emit, Seen, silent
from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import reaper
from partywall.trace.measure.tracing import Present, Tracing
from partywall.trace.record import ClockBound, Report, TraceDirectory, TraceEvidence, merged


def follow(
    record: TraceDirectory,
    happens: Callable[[Tracing], None],
    emit: Emit = silent,
    present: Mapping[str, Present] | None = None,
) -> None:
    """Traces while `happens` runs, and stores the reports. Removes all hooks, even after an error.

    present: agents that run already.
    """
    label, log = Label.create(stamped("trace"), WORK_ROOT), Log(record, emit)
    try:
        with Tracing(record.start.asked, label, log.report, log.clock, present=present) as tracing:
            log.hooked(tracing)
            happens(tracing)
            tracing.finish()
    finally:
        reaper.clean(label)


class Log:
    """Stores reports, and keeps their sum for display. The sum does not grow with time."""

    def __init__(self, record: TraceDirectory, emit: Emit) -> None:
        self._record, self._emit = record, emit
        self._start = record.start
        self._whole: Report | None = None
        self._clocks: list[ClockBound] = []
        self._is_hooked = False

    def hooked(self, tracing: Tracing) -> None:
        """Writes that the hooks are there. Nothing is written before, so that a trace that cannot start leaves none."""
        costs = {"record_ns": tracing.record_ns, "relays_record_ns": tracing.relays_record_ns}
        self._record.append("hooked", costs)
        for bound in self._clocks:
            self._record.append("clock", bound)
        self._is_hooked = True

    def clock(self, bound: ClockBound) -> None:
        self._clocks.append(bound)
        del self._clocks[:-64]
        if self._is_hooked:
            self._record.append("clock", bound)

    def report(self, report: Report) -> None:
        if self._is_hooked:
            self._record.append("report", report)
        ways = tuple(way.model_copy(update={"packets": ()}) for way in report.ways)
        bare = report.model_copy(update={"ways": ways})
        whole = merged([self._whole, bare]) if self._whole else bare
        kept = {packet.flow for way in whole.ways for packet in way.slowest}
        flows = {flow.flow: flow for flow in whole.flows if flow.flow in kept}
        self._whole = whole.model_copy(update={"flows": tuple(flows.values())})
        evidence = TraceEvidence(
            run=self._record.name, start=self._start, host={}, reports=(self._whole,), clocks=tuple(self._clocks),
            record_ns=None, interrupted=False,
        )  # fmt: skip
        self._emit(Seen(evidence))
