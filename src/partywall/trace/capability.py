"""Traces: where between the hops of a path packets are delayed or lost."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partywall.core import here
from partywall.core.capability import NeverContinued, Options, Outline
from partywall.errors import Exit
from partywall.events import Emit, Left
from partywall.trace.measure.follow import trace_while
from partywall.trace.measure.tracing import Tracing
from partywall.trace.record import TraceDirectory, TraceEvidence, TraceFindings, TraceRequest

if TYPE_CHECKING:
    from partywall.core.report.files import Files

Derived = tuple[TraceFindings, TraceEvidence]


@dataclass(frozen=True)
class TraceJob:
    """A path to be traced. duration_ns: the duration; None until Ctrl-C."""

    request: TraceRequest
    duration_ns: int | None = None


class Traces(NeverContinued):
    record = TraceDirectory
    why_not = "packets that passed meanwhile are lost"

    def outline(self, job: TraceJob, options: Options) -> Outline:
        del options
        hops = " → ".join(hop.name for hop in job.request.hops)
        return Outline((f"trace of {hops}",), (job.duration_ns or 0) / 1e9)

    def check(self, job: TraceJob, options: Options) -> None:
        del options
        if any(hop.agent is None for hop in job.request.hops):
            here.check_hooks("a trace")

    def measure(self, job: TraceJob, options: Options, emit: Emit) -> TraceDirectory:
        """Traces until the time is up or Ctrl-C, the normal end of a trace without a duration."""
        self.check(job, options)

        def watch(tracing: Tracing) -> None:
            begun_ns = time.monotonic_ns()
            with contextlib.suppress(KeyboardInterrupt):
                while (spent_ns := time.monotonic_ns() - begun_ns) < (job.duration_ns or spent_ns + 1):
                    if job.duration_ns is not None:
                        emit(Left((job.duration_ns - spent_ns) / 1e9))
                    tracing.pump(0.25)

        return trace_while(job.request, options.out, options.host.facts, watch, emit)

    def findings(self, record: TraceDirectory) -> Derived:
        from partywall.trace.findings import findings  # noqa: PLC0415 - slow to import

        evidence = record.evidence()
        return findings(evidence), evidence

    def outcome(self, findings: Derived) -> Exit:
        seen = any(way.sent for way in findings[0].ways)
        return Exit.HOLDS if seen and not findings[0].order else Exit.INCONCLUSIVE

    def files(self) -> Files[Derived]:
        from partywall.trace.report import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES
