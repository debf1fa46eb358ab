"""The capability: sleeps what is left to sleep."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from partywall import units
from partywall.core.capability import Capability, Options, Outline
from partywall.core.report.value import Report
from partywall.events import Emit, Seen
from partywall_nap import report as reports
from partywall_nap.job import NapJob
from partywall_nap.record import Nap, NapRecord


class Naps(Capability[NapJob, NapRecord, reports.NapFindings]):
    jobs, record, rows, doing = (NapJob,), NapRecord, "naps", "napping"

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep

    def outline(self, job: NapJob, options: Options) -> Outline:
        lines = tuple(f"{job.count} sleeps of {units.format_duration(length)}" for length in job.lengths)
        return Outline(lines, job.count * sum(job.lengths) / 1e9)

    def measure(self, record: NapRecord, options: Options, emit: Emit) -> None:
        job, done = record.job, Counter(nap.wanted_ns for nap in record.stream)
        naps: list[Nap] = []
        for length in job.lengths:
            for _ in range(job.count - done[length]):
                begun = time.monotonic_ns()
                self._sleep(length / 1e9)
                naps.append(Nap(wanted_ns=length, late_ns=time.monotonic_ns() - begun - length))
                record.stream.append(naps[-1])
                emit(Seen(tuple(naps)))

    def findings(self, record: NapRecord) -> reports.NapFindings:
        return reports.findings(record)

    def report(self, findings: reports.NapFindings) -> Report:
        return reports.report(findings)

    def live(self, seen: Any) -> Report:
        return Report(f"{len(seen)} sleeps", sections=(reports.table(seen),))
