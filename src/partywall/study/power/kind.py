"""Studies of power: a load ladder, a guest with one worker, and guests that move, while a meter is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from partywall import units
from partywall.agent.catalogue import shipped
from partywall.core import here
from partywall.core.capability import Outline
from partywall.core.document.decode import decode
from partywall.core.document.explain import Mistake
from partywall.core.document.form import checked
from partywall.errors import CapabilityError, TrialError
from partywall.events import Doing, Emit
from partywall.host import Host
from partywall.migrate import check as plans
from partywall.migrate.document import GuestSpec
from partywall.migrate.job import MigrationJob
from partywall.migrate.measure import series
from partywall.migrate.record import MigrationDirectory
from partywall.power import ladder, measure, meters, profiles
from partywall.power.findings import fitting
from partywall.power.findings.fitting import Observation
from partywall.power.findings.node import meter_finding, origin_of
from partywall.power.job import CalibrateJob, ReadJob
from partywall.power.record import PowerRecord
from partywall.power.sampling import Sampler
from partywall.power.values import MeterFinding, NodeModel, PowerEvidence
from partywall.sandbox import Settings, qemu
from partywall.study import papers
from partywall.study.document import Section, StudyReport, StudyRequest
from partywall.study.kind import (
    BOTH_ENDS,
    OnThisHost,
    guests_bytes,
    heading,
    in_blocks,
    memory_checks,
    refuse_backends,
    refuse_parts,
)
from partywall.study.paper import Place
from partywall.study.power import findings
from partywall.study.power.model import Extent, Study
from partywall.study.power.sides import Sides
from partywall.study.record import StudyDirectory

LADDER, GUEST, SIDES, MOVES = "ladder", "guest", "sides", "moves"
EVERY_NS = 100_000_000
MOVE_S = 25.0
HOW = (
    "In each block, each level of load ran once, in a new random order, while the meter was read. The meter's refresh "
    "and lag come from the same readings. Watts by busy cores are fitted for each block, from measured CPU time. "
    "Watts of a guest at work are scaled to one busy core."
)


class PowerStudy(OnThisHost):
    """A load ladder, a guest with one worker, and moves of guests."""

    key = "partywall_power_study"

    def read(self, content: bytes, file: str) -> Study:
        def check(study: Study) -> Iterator[Mistake]:
            if study.moves is not None:
                yield from plans.check_at("moves", study.moves, shipped())

        return checked(Study, decode(content, file), file, check)

    def outline(self, study: Study, request: StudyRequest, host: Host) -> Outline:
        refuse_backends(study.name, request)
        refuse_parts(study.name, request)
        extent = in_blocks(study, request)
        slots = len(_steps(study, extent, host, request.seed))
        moves = 0 if study.moves is None else len(study.moves.cells) * extent.moves
        lines = (
            f"meter: {study.meter}",
            f"{extent.blocks} blocks, {units.counted(slots, 'slot')} of {units.format_duration(study.slot)}",
            f"{units.counted(moves, 'move')} of a guest",
        )
        return Outline(lines, slots * study.slot / 1e9 + moves * MOVE_S + (15.0 if study.guest else 0.0))

    def check(self, study: Study, request: StudyRequest, host: Host, work_root: Path, *, allow_commands: bool) -> None:
        del request, work_root, allow_commands
        papers.load(study.name)
        profiles.find(study.states)
        meters.make(study.meter, host).close()
        if study.moves is not None:
            series.check(host)
        if study.guest is not None and (why := qemu.lacking(host)):
            raise CapabilityError(why)

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        extent, seed = in_blocks(study, directory.request), directory.request.seed
        if needed := _guests_bytes(study):
            here.check_free_memory(needed, "the study's guests", memory_checks(directory, emit))
        runs = directory.path / "runs"
        meter = meters.make(study.meter, host)
        workers = measure.workers(meter, host)
        meter.close()
        steps = ladder.ladder(measure.cores(meter, host), extent.blocks, seed)
        _under_load(study, runs / LADDER, directory.name, host, workers, steps, work_root, emit)
        if study.guest is not None:
            guest = ladder.Worker("guest", (), guest=_guest(study.guest, host))
            _under_load(study, runs / GUEST, directory.name, host, [guest], _guest_steps(extent), work_root, emit)
        if study.moves is not None:
            _move(study, extent, seed, runs, directory.name, host, work_root, emit)

    def places(self, study: Study, request: StudyRequest, host: Host) -> Mapping[str, frozenset[Place]]:
        del request
        meter = meters.make(study.meter, host)
        meter.close()
        cpus = len(measure.cores(meter, host))
        return findings.places(cpus, profiles.find(study.states), with_guest=study.guest is not None)

    def report(self, study: Study, directory: StudyDirectory) -> StudyReport:
        runs = directory.path / "runs"
        if not PowerRecord.is_one(runs / LADDER):
            raise TrialError(f"{directory.path}: nothing was read yet; measure again")
        evidence = PowerRecord(runs / LADDER).evidence()
        observations = _observations(evidence)
        guest = _observations(PowerRecord(runs / GUEST).evidence(), evidence) if (runs / GUEST).exists() else []
        paper, origin = papers.load(study.name), origin_of(evidence)
        fit = fitting.fit(evidence.meters[0], observations, study.name)
        states = profiles.find(study.states)
        meter = meter_finding(evidence.meters[0], evidence)
        return StudyReport(
            **heading(study, directory),
            comparisons=findings.comparisons(
                observations,
                guest,
                states,
                paper,
                _differs(evidence, states),
                simulated=evidence.meters[0].origin == "simulated",
            ),
            notes=tuple(_notes(evidence, fit.model, observations)),
            facts=(
                ("meter", f"{study.meter} ({origin})"),
                ("blocks", str(len({each.slot.block for each in observations}))),
                ("refresh, lag", _timing(meter)),
                ("left-out levels are predicted within", f"{fit.left_out_error:.1%}"),
            ),
            how=HOW,
            rows=tuple(
                {"block": each.slot.block, "level": each.slot.level, "busy": each.busy, "watts": each.watts}
                for each in [*observations, *guest]
            ),
            sections=_moving(runs, fit.model),
            figures={"model": fit.model.model_dump(mode="json", exclude={"draws"})},
        )


def _steps(study: Study, extent: Extent, host: Host, seed: int) -> list[ladder.Step]:
    meter = meters.make(study.meter, host)
    meter.close()
    steps = ladder.ladder(measure.cores(meter, host), extent.blocks, seed)
    return [*steps, *(_guest_steps(extent) if study.guest else [])]


def _guest_steps(extent: Extent) -> list[ladder.Step]:
    """The guest idle and at work, in alternating order."""
    pair = [(findings.GUEST_IDLE, 0.0), (findings.GUEST_WORKS, 1.0)]
    return [
        ladder.Step(block, level, {"guest": intensity} if intensity else {})
        for block in range(extent.blocks)
        for level, intensity in (pair if block % 2 == 0 else pair[::-1])
    ]


def _guests_bytes(study: Study) -> int:
    """Bytes of the host that the study's guests need at most at a time."""
    alone = guests_bytes(study.guest.memory, 1) if study.guest is not None else 0
    moving = guests_bytes(study.moves.guest.memory, BOTH_ENDS) if study.moves is not None else 0
    return max(alone, moving)


def _guest(spec: GuestSpec, host: Host) -> Settings:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return Settings(
        name="guest", backend="qemu", cpus=cpus, host_cpus=cpus, vcpus=spec.vcpus, memory=spec.memory, files=False,
        accel=qemu.choose(spec.accel, host).name,
    )  # fmt: skip


def _under_load(
    study: Study,
    folder: Path,
    name: str,
    host: Host,
    workers: list[ladder.Worker],
    steps: list[ladder.Step],
    work_root: Path,
    emit: Emit,
) -> None:
    """Reads the meter while workers are switched, unless that was done already."""
    if folder.exists() and not PowerRecord(folder).evidence().interrupted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    meter = meters.make(study.meter, host)
    record = PowerRecord.create(folder, CalibrateJob(meter_names=(study.meter,), slot_ns=study.slot), host.facts)
    record.found([meter.facts])
    with measure.labelled(f"{name}-{folder.name}", work_root) as label:
        measure.under_load(record, host, {study.meter: meter}, workers, steps, study.slot, EVERY_NS, label, emit)
    record.end()


def _move(
    study: Study, extent: Extent, seed: int, runs: Path, name: str, host: Host, work_root: Path, emit: Emit
) -> None:
    """Moves guests while the CPU time of both QEMUs is read, unless that was done already."""
    plan = study.moves
    if plan is None or ((runs / MOVES).exists() and not MigrationDirectory(runs / MOVES).evidence().interrupted):
        return
    for folder in (runs / MOVES, runs / SIDES):
        shutil.rmtree(folder, ignore_errors=True)
    plan = plan.model_copy(update={"moves": extent.moves, "seed": seed, "calibration": 0})
    emit(Doing("starting the guest"))
    series.prepare(plan, host, emit)
    with series.Series(plan, host, f"{name}-{MOVES}", work_root) as moves:
        sides = Sides(moves)
        record = MigrationDirectory.create(runs / MOVES, MigrationJob(plan=plan), host.facts)
        record.learn(**moves.about())
        read = PowerRecord.create(runs / SIDES, ReadJob(meter_names=()), host.facts)
        with Sampler({}, EVERY_NS / 1e9, read.stream.append, sides.read):
            moves.carry_out(emit, lambda seen: record.append(seen.move, seen.tables))
        read.end()
        record.end()


def _observations(evidence: PowerEvidence, timing_of: PowerEvidence | None = None) -> list[Observation]:
    """Slots with watts and activity. timing_of: the record that the meter's refresh and lag are taken from."""
    meter = meter_finding(evidence.meters[0], timing_of or evidence)
    return fitting.observations(
        evidence.slots, evidence.readings, evidence.activity, meter.timing, sends=meter.facts.sends
    )


def _differs(evidence: PowerEvidence, states: NodeModel) -> tuple[str, ...]:
    differences = [f"the power of a node that is off is that of {states.name}"]
    if evidence.meters[0].origin == "simulated":
        differences.insert(
            0, "the meter is simulated: a stated model of this node, driven by CPU time that is really used"
        )
    return tuple(differences)


def _notes(evidence: PowerEvidence, model: NodeModel, observations: list[Observation]) -> list[str]:
    notes = []
    if evidence.meters[0].origin == "simulated":
        notes.append(
            "Simulated meter: its model has the paper's watts. Agreement only shows that they are recovered from late "
            "and noisy readings."
        )
    most = max(each.busy for each in observations)
    if most < 0.9 * model.cpus:
        notes.append(f"At most {most:.1f} of {model.cpus} cores were busy in any slot; watts beyond are extrapolated.")
    return notes


def _timing(meter: MeterFinding) -> str:
    known = [each for each in (meter.timing.refresh_ms, meter.timing.lag_ms) if each]
    return ", ".join(f"{each.value:.0f} ± {each.half_width:.0f} ms" for each in known) or meter.timing.why


def _moving(runs: Path, model: NodeModel) -> tuple[Section, ...]:
    if not MigrationDirectory.is_one(runs / MOVES):
        return ()
    moves = MigrationDirectory(runs / MOVES).evidence().moves
    return (findings.moving(moves, PowerRecord(runs / SIDES).evidence().activity, model),)
