"""Power: readings of meters, a model of a node from a load ladder, and each consumer's watts."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partywall import __version__, preflight, units
from partywall.clock import Monotonic
from partywall.errors import CapabilityError, Exit, Failures, Problem, TrialError, UsageError
from partywall.events import Doing, Emit, Left, Note, Started
from partywall.kinds.kind import EXITS, Options, refuse_to_resume
from partywall.model.power import Activity, MeterFault, MoveEnergy, NodeModel, PowerReport, Reading, Task
from partywall.model.study import Outline
from partywall.power import activity, ladder, meters, profiles
from partywall.power.meters import Meter
from partywall.power.meters.simulated import Simulated
from partywall.power.sampling import Sampler
from partywall.sandbox import Label, reaper
from partywall.store.migration import MigrationDirectory
from partywall.store.power import PowerDirectory
from partywall.store.record import stamped

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.report.files import Files

LEAST_EVERY_NS = 20_000_000
FAULTS_SHOWN = 3
"""Faults of one meter that are shown while it is read; the record has all."""
AFTER_NS = 1_000_000_000
"""Readings go on for so long after the last slot, because meters lag."""


@dataclass(frozen=True)
class PowerJob:
    """What is read for how long. slot_ns, blocks, seed, cpus: of a calibration. consumers, model: of an attribution."""

    task: Task
    meters: tuple[str, ...] = ()
    for_ns: int = 10_000_000_000
    every_ns: int = 100_000_000
    consumers: tuple[str, ...] = ()
    model: NodeModel | None = None
    slot_ns: int = 3_000_000_000
    blocks: int = 4
    seed: int = 1
    cpus: tuple[int, ...] = ()

    def steps(self, options: Options) -> list[ladder.Step]:
        """The slots of a calibration."""
        return ladder.ladder(self.cpus or options.host.cpus, self.blocks, self.seed)

    def length_ns(self, options: Options) -> int:
        """How long it takes."""
        return len(self.steps(options)) * self.slot_ns + AFTER_NS if self.task == "calibrate" else self.for_ns


class Powers:
    record = PowerDirectory
    resumable = False

    def outline(self, job: PowerJob, options: Options) -> Outline:
        lines = [f"reads {', '.join(job.meters) or 'no meter'} every {units.format_duration(job.every_ns)}"]
        if job.task == "calibrate":
            steps = job.steps(options)
            slots = f"{len(steps)} slots of {units.format_duration(job.slot_ns)}"
            lines.append(f"{job.blocks} blocks of {len(steps) // job.blocks} levels of load on all CPUs: {slots}")
        return Outline(tuple(lines), job.length_ns(options) / 1e9)

    def check(self, job: PowerJob, options: Options) -> None:
        with contextlib.ExitStack() as opened:
            self._opened(job, options, opened)
        if job.task == "calibrate":
            preflight.check_folder(options.work_root)

    def measure(self, job: PowerJob, options: Options, emit: Emit) -> PowerDirectory:
        if job.every_ns < LEAST_EVERY_NS:
            remedy = f"give {units.format_duration(LEAST_EVERY_NS)} or more"
            raise UsageError(Problem(f"must be at least 20ms, not {units.format_duration(job.every_ns)}", remedy, key="--every"))
        name = stamped(f"power-{job.task}")
        with contextlib.ExitStack() as opened:
            every, consumers = self._opened(job, options, opened)
            facts = [meter.facts for meter in every.values()]
            record = PowerDirectory.create(
                options.folder(name), job.task, facts, options.host.facts, _about(job), job.model
            )
            with record.exclusive():
                emit(Started(record.path))
                if job.task == "calibrate":
                    _calibrate(job, options, record, every, name, emit)
                else:
                    _read(job, options, record, every, consumers, emit)
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
        names = [consumer.name for consumer in consumers]
        for name in {name for name in names if names.count(name) > 1}:
            with failures.kept():
                raise UsageError(Problem(f"{name} is given twice", "name it differently: NAME=…", key=name))
        failures.tell()
        if job.task == "calibrate" and not every:
            raise CapabilityError("a model needs a meter; partywall power meters lists what this host has")
        return every, consumers

    def resume(self, record: PowerDirectory, options: Options, emit: Emit) -> None:
        del options, emit
        refuse_to_resume(record)

    def findings(self, record: PowerDirectory) -> PowerReport:
        from partywall.stats.power import findings  # noqa: PLC0415 - slow to import

        evidence = record.evidence()
        return PowerReport(findings=findings(evidence), host=evidence.host, about=evidence.about)

    def outcome(self, found: PowerReport) -> Exit:
        return EXITS[found.findings.outcome]

    def rows(self, found: PowerReport) -> list[dict[str, Any]]:
        """A consumer, a level, or a meter each."""
        from partywall.report.power_view import rows  # noqa: PLC0415 - what draws is slow to import

        return rows(found.findings)

    def files(self) -> Files[PowerReport]:
        from partywall.report.power_view import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES

    def show(self, found: PowerReport, console: Console) -> None:
        from partywall.report import power_view  # noqa: PLC0415

        power_view.show(found.findings, console)


def move_energy(path: Path, model: str) -> tuple[MoveEnergy, ...]:
    """Joules of the moves of a migration record. model: a model file, or the name of a profile. Raises UsageError."""
    from partywall.stats.migration import findings  # noqa: PLC0415 - slow to import
    from partywall.stats.power_move import energy  # noqa: PLC0415

    chosen = profiles.find(model)
    record = MigrationDirectory.open(path)
    found = energy(findings(record.evidence(), record.table).moves, chosen)
    if not found:
        raise TrialError(f"{path}: no completed move with CPU times; move a guest first")
    return found


def _read(
    job: PowerJob,
    options: Options,
    record: PowerDirectory,
    every: Mapping[str, Meter],
    consumers: Sequence[activity.Consumer],
    emit: Emit,
) -> None:
    """Reads for the requested time."""
    clock, reads = Monotonic(), {consumer.name: consumer.read for consumer in consumers}
    emit(Doing("reading"))
    with Sampler(every, job.every_ns / 1e9, _Sink(record, emit), _cpus(every, options), reads) as sampler:
        end_ns = clock.now_ns() + job.for_ns
        while (left_ns := end_ns - clock.now_ns()) > 0:
            emit(Left(left_ns / 1e9))
            clock.sleep_until(min(end_ns, clock.now_ns() + 500_000_000))
            sampler.look()


def _calibrate(
    job: PowerJob, options: Options, record: PowerDirectory, every: Mapping[str, Meter], name: str, emit: Emit
) -> None:
    """Reads while the load ladder runs."""
    with _labelled(name, options) as label:
        emit(Doing("starting the load"))
        with ladder.Load(label, ladder.workers(job.cpus or options.host.cpus)) as load:
            for meter in every.values():
                if isinstance(meter, Simulated):
                    meter.follow(activity.Threads(list(load.pids.values())))
            with Sampler(every, job.every_ns / 1e9, _Sink(record, emit), _cpus(every, options)) as sampler:
                for slot in load.carry_out(job.steps(options), job.slot_ns, emit, sampler.look):
                    record.add(slot)
                clock = Monotonic()
                clock.sleep_until(clock.now_ns() + AFTER_NS)


@contextlib.contextmanager
def _labelled(name: str, options: Options) -> Iterator[Label]:
    label = Label.create(name, options.work_root)
    try:
        yield label
    finally:
        reaper.clean(label)


def _cpus(every: Mapping[str, Meter], options: Options) -> Callable[[], tuple[float, ...]]:
    """CPU seconds of the machine that is measured: the host, or a simulated one."""
    own = [meter.cpus for meter in every.values() if isinstance(meter, Simulated) and meter.cpus]
    return own[0] if own else activity.HostCpus(options.host)


class _Sink:
    """Writes what is read, and shows the first faults of each meter."""

    def __init__(self, record: PowerDirectory, emit: Emit) -> None:
        self._record, self._emit = record, emit
        self._faults: dict[str, int] = {}

    def __call__(self, value: Reading | MeterFault | Activity) -> None:
        self._record.add(value)
        if isinstance(value, MeterFault):
            count = self._faults[value.meter] = self._faults.get(value.meter, 0) + 1
            if count <= FAULTS_SHOWN:
                more = "; further faults are only recorded" if count == FAULTS_SHOWN else ""
                self._emit(Note(f"{value.meter}: {value.fault}: {value.text}{more}", is_warning=True))


def _about(job: PowerJob) -> dict[str, Any]:
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {
        "partywall": __version__,
        "started_at": started,
        "every_ns": job.every_ns,
        "seed": job.seed,
        "slot_ns": job.slot_ns if job.task == "calibrate" else None,
    }
