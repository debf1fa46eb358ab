"""Studies of bandwidth guarantees: tenants' traffic natively, with tc and with the guard (`slots`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from partywall import pipeline, units
from partywall.errors import CapabilityError, Problem, TrialError, UsageError
from partywall.events import Emit, Note
from partywall.host import Host
from partywall.model.paper import Place
from partywall.model.study import Outline, StudyReport, StudyRequest
from partywall.sandbox import qemu
from partywall.scenario import papers
from partywall.store.study import StudyDirectory
from partywall.study.kind import OnThisHost, check_lab, in_blocks, refuse_parts
from partywall.study.promises import findings as stats
from partywall.study.promises import slots
from partywall.study.promises.model import Cell, Extent, Study

HOW = (
    "In each block, every way of keeping the guarantees was active for one slot, in a new random order, while the "
    "tenants sent all the time. Delivered traffic was read at the sinks' ports."
)


SENDERS_BYTES, GUEST_BYTES = 128 << 20, 512 << 20
"""Memory that is checked before the first slot: for all senders and sinks, and for each guest."""
GUESTS = "qemu"
"""The backend for tenants in virtual machines."""


class Promises(OnThisHost):
    """Each way of keeping guarantees gets one slot in each block."""

    key = "partywall_guard_study"

    def read(self, content: bytes, file: str) -> Study:
        return slots.load(content, file)

    def outline(self, study: Study, request: StudyRequest, host: Host) -> Outline:
        del host
        if unknown := [name for name in request.backends if name != GUESTS]:
            remedy = f"leave it out for network namespaces, or give {GUESTS} for guests, each behind a tap"
            raise UsageError(Problem(f"{study.name} does not support backend {unknown[0]}", remedy, key="--backend"))
        refuse_parts(study.name, request)
        extent = _extent(study, request)
        virtual = bool(request.backends)
        tenants = "guests, each behind a tap" if virtual else "network namespaces"
        lines = (
            f"{', '.join(study.ways)}: {extent.blocks} blocks of {units.format_duration(extent.slot)} slots, "
            f"in scenarios {', '.join(study.scenarios)}",
            f"periods of {', '.join(units.format_duration(period) for period in study.periods.every)}",
            f"tenants are {tenants}",
        )
        return Outline(lines, slots.duration_s(study, extent, virtual=virtual))

    def check(self, study: Study, request: StudyRequest, host: Host, work_root: Path, *, allow_commands: bool) -> None:
        del work_root, allow_commands
        papers.load(study.name)
        check_lab(host)
        if request.backends and (why := qemu.lacking(host)):
            raise CapabilityError(why)

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        del work_root
        request = directory.request
        done = frozenset(map(slots.slot_of, _cells(directory)))
        accel = None
        if request.backends:
            chosen = qemu.choose("auto", host)
            accel = chosen.name
            if any(cell.emulated != (accel == "tcg") for cell in _cells(directory)):
                said = "was started with another accelerator than guests get now, so its slots cannot be compared"
                raise UsageError(Problem(f"{directory.path} {said}", "begin a new study", key="--resume"))
            if accel == "tcg":
                emit(Note(f"guests are emulated (tcg): {chosen.why}; {_scale(study)}"))
        guests = len(study.tenants) if request.backends else 0
        pipeline.check_free_memory(
            SENDERS_BYTES + guests * GUEST_BYTES, "senders and sinks", emit, request.memory_wait_ns
        )
        slots.carry_out(
            study.scaled(study.emulated_scale) if accel == "tcg" else study,
            _extent(study, request),
            request.seed,
            lambda cell: directory.append(cell.model_dump_json()),
            emit,
            done,
            accel,
        )

    def places(self, study: Study, request: StudyRequest, host: Host) -> Mapping[str, frozenset[Place]]:
        del request, host
        return {paper_table.id: stats.places(study, paper_table.id) for paper_table in papers.load(study.name).exhibits}

    def report(self, study: Study, directory: StudyDirectory) -> StudyReport:
        cells = _cells(directory)
        if not any(cell.block for cell in cells):
            raise TrialError(f"{directory.path}: no way was measured twice, so there is no interval; measure again")
        request = directory.request
        emulated = any(cell.emulated for cell in cells)
        carried_out = study.scaled(study.emulated_scale) if emulated else study
        return StudyReport(
            run=directory.name,
            name=study.name,
            description=study.description,
            length=request.length,
            comparisons=stats.comparisons(carried_out, cells, papers.load(study.name), virtual=bool(request.backends)),
            notes=(_scale(study),) if emulated else (),
            facts=_facts(carried_out, _extent(study, request), len(cells), request.seed),
            how=HOW,
            host=directory.about.get("host", {}),
            rows=tuple(row for cell in cells for row in _rows(cell)),
        )


def _extent(study: Study, request: StudyRequest) -> Extent:
    return in_blocks({"short": study.short, "long": study.long}, request)


def _cells(directory: StudyDirectory) -> list[Cell]:
    return [Cell.model_validate(slot) for slot in directory.observations()]


def _rows(cell: Cell) -> list[dict[str, object]]:
    own = cell.model_dump(exclude={"tenants"})
    return [{**own, "tenant": name, **got.model_dump()} for name, got in cell.tenants.items()]


def _scale(study: Study) -> str:
    return (
        "tenants are guests whose processor is emulated, which send less than the paper's: link, guarantees and "
        "offered rates "
        f"are {study.emulated_scale:g} of the paper's, and CPU time includes the emulator"
    )


def _facts(study: Study, extent: Extent, count: int, seed: int) -> tuple[tuple[str, str], ...]:
    tenants = ", ".join(f"{name} {units.format_bit_rate(t.guarantee)}" for name, t in study.tenants.items())
    return (
        ("slots", f"{count}, of {units.format_duration(extent.slot)}, every way once in each block, in random order"),
        ("promised", tenants),
        ("each offers", units.format_bit_rate(study.offered)),
        ("link", units.format_bit_rate(study.link)),
        ("delay, jitter", "median, and mean difference between consecutive ones, of 8-byte probes every 5 ms"),
        ("lost", "datagrams passed to a sender's kernel that did not reach its sink's port"),
        ("CPU time", "of the whole host, senders and sinks included, over all delivered packets"),
        ("seed", str(seed)),
    )
