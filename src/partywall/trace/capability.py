"""The capability: a path is traced, and what was seen of it is derived and reported."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partywall.core.capability import Capability, Options, Outline
from partywall.events import Emit, Left
from partywall.trace.job import TraceJob
from partywall.trace.record import TraceDirectory, TraceEvidence, TraceFindings

if TYPE_CHECKING:
    from partywall.core.report.files import Document
    from partywall.core.report.value import Report
    from partywall.trace.measure.tracing import Tracing

Derived = tuple[TraceFindings, TraceEvidence]


class Traces(Capability[TraceJob, TraceDirectory, Derived]):
    """Traces of packets from hop to hop."""

    jobs, record = (TraceJob,), TraceDirectory
    rows, doing, keeps = "steps", "tracing", "the trace goes on"
    cannot_resume = "packets that passed meanwhile are lost"

    def outline(self, job: TraceJob, options: Options) -> Outline:
        del options
        return Outline((f"trace of {' → '.join(job.hops)}",), (job.for_ns or 0) / 1e9)

    def check(self, job: TraceJob, options: Options) -> None:
        from partywall.core import here

        del options
        if any(hop.agent is None for hop in job.request.hops):
            here.check_hooks("a trace")

    def measure(self, record: TraceDirectory, options: Options, emit: Emit) -> None:
        """Traces until the time is up or Ctrl-C, the normal end of a trace without a duration."""
        from partywall.trace.measure.follow import follow

        del options
        for_ns = record.start.for_ns

        def pump(tracing: Tracing) -> None:
            begun_ns = time.monotonic_ns()
            with contextlib.suppress(KeyboardInterrupt):
                while (spent_ns := time.monotonic_ns() - begun_ns) < (for_ns or spent_ns + 1):
                    if for_ns is not None:
                        emit(Left((for_ns - spent_ns) / 1e9))
                    tracing.pump(0.25)

        follow(record, pump, emit)

    def findings(self, record: TraceDirectory) -> Derived:
        from partywall.trace.findings import findings

        evidence = record.evidence()
        return findings(evidence), evidence

    def report(self, findings: Derived) -> Report:
        from partywall.trace import report

        return report.report(*findings)

    def live(self, seen: Any) -> Report:
        from partywall.trace import report

        return report.live(seen)

    def documents(self) -> Mapping[str, Document[Derived]]:
        from partywall.trace import report

        return {"pcapng": ("packets.pcapng", lambda trace: report.packets(trace[1]))}
