"""Power: readings of meters, a model of a node from a load ladder, and each consumer's watts."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partywall import __version__, units
from partywall.core import here
from partywall.core.capability import EXITS, Options, Outline, expect_same, finished, refuse_to_resume
from partywall.core.record import stamped
from partywall.errors import CapabilityError, Exit, Failures, Problem, TrialError, UsageError
from partywall.events import Emit, Started
from partywall.host import Host
from partywall.model.power import MoveEnergy, NodeModel, PowerEvidence, PowerReport, Task
from partywall.power import activity, ladder, measure, meters, profiles
from partywall.power.meters import Meter
from partywall.sandbox import tenants
from partywall.store.migration import MigrationDirectory
from partywall.store.power import PowerDirectory

if TYPE_CHECKING:
    from partywall.core.report.files import Files

LEAST_EVERY_NS = 20_000_000
LAG_NS = measure.AFTER_NS // 2
"""A slot without readings for so long after its end is measured again."""


@dataclass(frozen=True)
class PowerJob:
    """What is read for how long. slot_ns, blocks, seed: of a calibration. consumers, model: of an attribution."""

    task: Task
    meters: tuple[str, ...] = ()
    for_ns: int = 10_000_000_000
    every_ns: int = 100_000_000
    consumers: tuple[str, ...] = ()
    model: NodeModel | None = None
    slot_ns: int = 3_000_000_000
    blocks: int = 4
    seed: int = 1

    @classmethod
    def of(cls, evidence: PowerEvidence) -> PowerJob:
        """The calibration that a record was made for."""
        about = evidence.about
        names = tuple(facts.meter for facts in evidence.meters)
        return cls(
            "calibrate", names, every_ns=about["every_ns"], slot_ns=about["slot_ns"], seed=about["seed"],
            blocks=about["blocks"],
        )  # fmt: skip

    def steps(self, every: Mapping[str, Meter], options: Options) -> list[ladder.Step]:
        """The slots of a calibration with the first of these meters."""
        return ladder.ladder(measure.cores(next(iter(every.values())), options.host), self.blocks, self.seed)


class Powers:
    record = PowerDirectory

    def outline(self, job: PowerJob, options: Options) -> Outline:
        lines = [f"reads {', '.join(job.meters) or 'no meter'} every {units.format_duration(job.every_ns)}"]
        if job.task != "calibrate":
            return Outline(tuple(lines), job.for_ns / 1e9)
        with contextlib.ExitStack() as opened:
            steps = job.steps(self._opened(job, options, opened)[0], options)
        slots = f"{len(steps)} slots of {units.format_duration(job.slot_ns)}"
        lines.append(f"{job.blocks} blocks of {len(steps) // job.blocks} levels of load on all CPUs: {slots}")
        return Outline(tuple(lines), (len(steps) * job.slot_ns + measure.AFTER_NS) / 1e9)

    def check(self, job: PowerJob, options: Options) -> None:
        with contextlib.ExitStack() as opened:
            self._opened(job, options, opened)
        if job.task == "calibrate":
            here.check_folder(options.work_root)

    def measure(self, job: PowerJob, options: Options, emit: Emit) -> PowerDirectory:
        if job.every_ns < LEAST_EVERY_NS:
            remedy = f"give {units.format_duration(LEAST_EVERY_NS)} or more"
            raise UsageError(
                Problem(f"must be at least 20ms, not {units.format_duration(job.every_ns)}", remedy, key="--every")
            )
        name = stamped(f"power-{job.task}")
        with contextlib.ExitStack() as opened:
            every, consumers = self._opened(job, options, opened)
            facts = [meter.facts for meter in every.values()]
            record = PowerDirectory.create(
                options.folder(name), job.task, facts, options.host.facts, _about(job, options.host), job.model
            )
            with record.exclusive():
                emit(Started(record.path))
                if job.task == "calibrate":
                    _climb(record, job, job.steps(every, options), every, options, emit)
                else:
                    reads = {consumer.name: consumer.read for consumer in consumers}
                    measure.read(record, options.host, every, reads, job.for_ns, job.every_ns, emit)
                    record.end()
        return record

    def _opened(
        self, job: PowerJob, options: Options, opened: contextlib.ExitStack
    ) -> tuple[dict[str, Meter], list[activity.Consumer]]:
        """The meters and consumers of a job. Raises everything that is wrong with any of them at once."""
        failures, every, consumers = Failures(), {}, []
        for name in job.meters:
            with failures.kept():
                every[name] = meters.make(name, options.host)
                opened.callback(every[name].close)
        for text in job.consumers:
            with failures.kept():
                consumers.append(activity.consumer(text, options.host))
        with failures.kept():
            tenants.expect_apart([tenants.named(text, options.host) for text in job.consumers], options.host)
        failures.tell()
        _expect_same_part(job.model, every)
        if job.task == "calibrate" and not every:
            raise CapabilityError("a model needs a meter; add --meter, with a name that `partywall power meters` lists")
        return every, consumers

    def continued_by(self, record: PowerDirectory) -> tuple[str, ...]:
        is_ladder = record.evidence().task == "calibrate"
        return ("power", "calibrate", "--resume", str(record.path)) if is_ladder else ()

    def resume(self, record: PowerDirectory, options: Options, emit: Emit) -> None:
        """Measures the levels that a calibration lacks, with the same meters on the same boot of the host."""
        with record.exclusive():
            evidence = record.evidence()
            if evidence.task != "calibrate":
                remedy = f"read again: partywall power {evidence.task}"
                refuse_to_resume(record, "its readings are of one stretch of time", remedy)
            if not evidence.interrupted:
                finished(record, emit)
                return
            if "blocks" not in evidence.about:
                refuse_to_resume(record, "a version that did not keep its number of blocks made it")
            job = PowerJob.of(evidence)
            expect_same(record, evidence.about, {"boot": _boot(options.host)})
            with contextlib.ExitStack() as opened:
                every, _ = self._opened(job, options, opened)
                steps = job.steps(every, options)
                measured = _measured(evidence)
                if unknown := measured - {(step.block, step.level) for step in steps}:
                    level = sorted(unknown)[0][1]
                    refuse_to_resume(record, f"this host has other levels of load than {level}, which was measured")
                emit(Started(record.path))
                left = [step for step in steps if (step.block, step.level) not in measured]
                _climb(record, job, left, every, options, emit)

    def findings(self, record: PowerDirectory) -> PowerReport:
        from partywall.stats.power import findings  # noqa: PLC0415 - slow to import

        evidence = record.evidence()
        return PowerReport(findings=findings(evidence), host=evidence.host, about=evidence.about)

    def outcome(self, findings: PowerReport) -> Exit:
        return EXITS[findings.findings.outcome]

    def files(self) -> Files[PowerReport]:
        from partywall.report.power_view import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES


def move_energy(path: Path, model: str) -> tuple[MoveEnergy, ...]:
    """Joules of the moves of a migration record. model: a model file, or the name of a profile. Raises UsageError."""
    from partywall.stats.migration import findings  # noqa: PLC0415 - slow to import
    from partywall.stats.power_move import energy  # noqa: PLC0415

    chosen = profiles.find(model)
    record = MigrationDirectory.open(path)
    costs = energy(findings(record.evidence(), record.table).moves, chosen)
    if not costs:
        raise TrialError(f"{path}: no completed move with CPU times; move a guest first")
    return costs


def _expect_same_part(model: NodeModel | None, every: Mapping[str, Meter]) -> None:
    """UsageError if the total would be that of another part of the machine than the model's watts."""
    if model is None or not every or model.fits(facts := next(iter(every.values())).facts):
        return
    said = f"meter {facts.meter} covers {facts.covers}, and {model.name} has the watts of {model.covers}"
    remedy = f"fit a model on this meter: partywall power calibrate {facts.meter}; or give another meter"
    raise UsageError(Problem(said, remedy, key="--model"))


def _climb(
    record: PowerDirectory,
    job: PowerJob,
    steps: Sequence[ladder.Step],
    every: Mapping[str, Meter],
    options: Options,
    emit: Emit,
) -> None:
    """Measures these levels of load, which ends the record."""
    with measure.labelled(stamped("power-calibrate"), options.work_root) as label:
        workers = measure.workers(next(iter(every.values())), options.host)
        measure.under_load(record, options.host, every, workers, steps, job.slot_ns, job.every_ns, label, emit)
    record.end()


def _measured(evidence: PowerEvidence) -> set[tuple[int, str]]:
    """Block and level of each slot that has readings for as long after its end as meters may lag."""
    last_ns = max((reading.time_ns for reading in evidence.readings), default=0)
    return {(slot.block, slot.level) for slot in evidence.slots if slot.end_ns + LAG_NS <= last_ns}


def _boot(host: Host) -> str:
    """Changes when a host restarts, after which its clock and its counters begin again."""
    return (host.text("/proc/sys/kernel/random/boot_id") or "").strip()


def _about(job: PowerJob, host: Host) -> dict[str, Any]:
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {
        "partywall": __version__,
        "started_at": started,
        "every_ns": job.every_ns,
        "seed": job.seed,
        "slot_ns": job.slot_ns if job.task == "calibrate" else None,
        "blocks": job.blocks if job.task == "calibrate" else None,
        "boot": _boot(host),
    }
