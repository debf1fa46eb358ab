"""The capability: readings of meters, a model of a node from a load ladder, and each consumer's watts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from partywall import units
from partywall.core.capability import Capability, Options, Outline
from partywall.events import Emit
from partywall.power import actions
from partywall.power.job import AttributeJob, CalibrateJob, PowerJob, ReadJob
from partywall.power.record import PowerRecord
from partywall.power.values import PowerReport

if TYPE_CHECKING:
    from partywall.core.report.files import Document
    from partywall.core.report.value import Report


class Powers(Capability[PowerJob, PowerRecord, PowerReport]):
    """Read power meters, fit a power model of this host, and show who uses the watts.

    \b
      partywall power meters             list the meters of this host
      partywall power calibrate METER    fit a model to a load that Partywall runs
      partywall power attribute --meter METER --model FILE
                                         show the watts of each container

    Without a meter: partywall power attribute --model PROFILE (docs/power.md)
    """  # noqa: D301 - Click keeps the lines after a backspace

    jobs, record = (ReadJob, CalibrateJob, AttributeJob), PowerRecord
    actions = (actions.Meters, actions.Profiles, actions.Moves)
    doing = "reading"

    def outline(self, job: PowerJob, options: Options) -> Outline:
        from partywall.core import here
        from partywall.power import measure

        lines = [f"reads {', '.join(job.meter_names) or 'no meter'} every {units.format_duration(job.every_ns)}"]
        with contextlib.ExitStack() as stack:
            every, _ = measure.opened(job, options, stack)
            if not isinstance(job, CalibrateJob):
                return Outline(tuple(lines), getattr(job, "for_ns", 0) / 1e9)
            here.check_folder(options.work_root)
            steps = measure.steps(job, every, options)
        slots = f"{len(steps)} slots of {units.format_duration(job.slot_ns)}"
        lines.append(f"{job.blocks} blocks of {len(steps) // job.blocks} levels of load on all CPUs: {slots}")
        return Outline(tuple(lines), (len(steps) * job.slot_ns + measure.AFTER_NS) / 1e9)

    def measure(self, record: PowerRecord, options: Options, emit: Emit) -> None:
        from partywall.power import measure

        job = record.job
        with contextlib.ExitStack() as stack:
            every, consumers = measure.opened(job, options, stack)
            if isinstance(job, CalibrateJob):
                measure.climb(record, job, every, options, emit)
                return
            record.found([meter.facts for meter in every.values()], options.host.boot, job.node)
            reads = {consumer.name: consumer.read for consumer in consumers}
            measure.read(record, options.host, every, reads, getattr(job, "for_ns", 0), job.every_ns, emit)

    def findings(self, record: PowerRecord) -> PowerReport:
        from partywall.power.findings.node import findings

        evidence = record.evidence()
        return PowerReport(findings=findings(evidence), host=evidence.host, about=evidence.about)

    def report(self, findings: PowerReport) -> Report:
        from partywall.power import report

        return report.report(findings)

    def documents(self) -> Mapping[str, Document[PowerReport]]:
        from partywall.power import report

        return {"model": ("model.json", report.model_file)}
