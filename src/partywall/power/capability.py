"""The capability: readings of meters, a model of a node from a load ladder, and each consumer's watts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from partywall import units
from partywall.core import here
from partywall.core.capability import Capability, Options, Outline, expect_same, refuse_to_resume
from partywall.core.record import stamped
from partywall.errors import CapabilityError, Failures, Problem, UsageError
from partywall.events import Emit
from partywall.host import Host
from partywall.power import actions, activity, ladder, measure, meters
from partywall.power.job import AttributeJob, CalibrateJob, PowerJob, ReadJob
from partywall.power.meters import Meter
from partywall.power.record import PowerRecord
from partywall.power.values import NodeModel, PowerEvidence, PowerReport
from partywall.sandbox import tenants

if TYPE_CHECKING:
    from partywall.core.report.files import Document
    from partywall.core.report.value import Report

LAG_NS = measure.AFTER_NS // 2
"""A slot without readings for so long after its end is measured again."""

Opened = tuple[dict[str, Meter], list[activity.Consumer]]


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
        lines = [f"reads {', '.join(job.meter_names) or 'no meter'} every {units.format_duration(job.every_ns)}"]
        with contextlib.ExitStack() as opened:
            every, _ = _opened(job, options, opened)
            if not isinstance(job, CalibrateJob):
                return Outline(tuple(lines), getattr(job, "for_ns", 0) / 1e9)
            here.check_folder(options.work_root)
            steps = _steps(job, every, options)
        slots = f"{len(steps)} slots of {units.format_duration(job.slot_ns)}"
        lines.append(f"{job.blocks} blocks of {len(steps) // job.blocks} levels of load on all CPUs: {slots}")
        return Outline(tuple(lines), (len(steps) * job.slot_ns + measure.AFTER_NS) / 1e9)

    def measure(self, record: PowerRecord, options: Options, emit: Emit) -> None:
        job = record.job
        with contextlib.ExitStack() as opened:
            every, consumers = _opened(job, options, opened)
            if isinstance(job, CalibrateJob):
                _climb(record, job, every, options, emit)
                return
            record.found([meter.facts for meter in every.values()], _boot(options.host), job.node)
            reads = {consumer.name: consumer.read for consumer in consumers}
            measure.read(record, options.host, every, reads, getattr(job, "for_ns", 0), job.every_ns, emit)

    def findings(self, record: PowerRecord) -> PowerReport:
        from partywall.power.findings.node import findings  # noqa: PLC0415 - slow to import

        evidence = record.evidence()
        return PowerReport(findings=findings(evidence), host=evidence.host, about=evidence.about)

    def report(self, findings: PowerReport) -> Report:
        from partywall.power import report  # noqa: PLC0415 - of those who look alone

        return report.report(findings)

    def documents(self) -> Mapping[str, Document[PowerReport]]:
        from partywall.power import report  # noqa: PLC0415 - of those who look alone

        return {"model": ("model.json", report.model_file)}


def _opened(job: PowerJob, options: Options, opened: contextlib.ExitStack) -> Opened:
    """The meters and consumers of a job. Raises everything that is wrong with any of them at once."""
    failures, every, consumers, texts = Failures(), {}, [], job.consumer_names
    if isinstance(job, AttributeJob) and not texts:
        texts = tuple(f"{each.name}=cgroup:{each.name}" for each in activity.containers(options.host))
    for name in job.meter_names:
        with failures.kept():
            every[name] = meters.make(name, options.host)
            opened.callback(every[name].close)
    for text in texts:
        with failures.kept():
            consumers.append(activity.consumer(text, options.host))
    with failures.kept():
        tenants.expect_apart([tenants.named(text, options.host) for text in texts], options.host)
    failures.tell()
    _expect_same_part(job.node, every)
    if isinstance(job, CalibrateJob) and not every:
        raise CapabilityError("a model needs a meter; 'partywall power meters' lists those of this host")
    return every, consumers


def _expect_same_part(model: NodeModel | None, every: Mapping[str, Meter]) -> None:
    """UsageError if the total would be that of another part of the machine than the model's watts."""
    if model is None or not every or model.fits(facts := next(iter(every.values())).facts):
        return
    said = f"meter {facts.meter} covers {facts.covers}, and {model.name} has the watts of {model.covers}"
    remedy = f"fit a model on this meter: partywall power calibrate {facts.meter}; or give another meter"
    raise UsageError(Problem(said, remedy, key="--model"))


def _steps(job: CalibrateJob, every: Mapping[str, Meter], options: Options) -> list[ladder.Step]:
    """The slots of a calibration with the first of these meters."""
    return ladder.ladder(measure.cores(next(iter(every.values())), options.host), job.blocks, job.seed)


def _climb(record: PowerRecord, job: CalibrateJob, every: Mapping[str, Meter], options: Options, emit: Emit) -> None:
    """Measures the levels of load that a record lacks, with the same meters on the same boot of the host."""
    steps, measured = _steps(job, every, options), _measured(record)
    if unknown := measured - {(step.block, step.level) for step in steps}:
        level = sorted(unknown)[0][1]
        refuse_to_resume(record, f"this host has other levels of load than {level}, which was measured")
    expect_same(record, record.about, {"boot": _boot(options.host)})
    record.found([meter.facts for meter in every.values()], _boot(options.host))
    left = [step for step in steps if (step.block, step.level) not in measured]
    with measure.labelled(stamped("power-calibrate"), options.work_root) as label:
        workers = measure.workers(next(iter(every.values())), options.host)
        measure.under_load(record, options.host, every, workers, left, job.slot_ns, job.every_ns, label, emit)


def _measured(record: PowerRecord) -> set[tuple[int, str]]:
    """Block and level of each slot that has readings for as long after its end as meters may lag."""
    evidence: PowerEvidence = record.evidence()
    if evidence.slots and "blocks" not in evidence.about:
        refuse_to_resume(record, "a version that did not keep its number of blocks made it")
    last_ns = max((reading.time_ns for reading in evidence.readings), default=0)
    return {(slot.block, slot.level) for slot in evidence.slots if slot.end_ns + LAG_NS <= last_ns}


def _boot(host: Host) -> str:
    """Changes when a host restarts, after which its clock and its counters begin again."""
    return (host.text("/proc/sys/kernel/random/boot_id") or "").strip()
