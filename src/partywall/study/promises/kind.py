"""Studies of bandwidth guarantees: tenants' traffic natively, with tc and with the guard (`slots`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from partywall import units
from partywall.core.capability import Outline
from partywall.errors import TrialError
from partywall.events import Emit
from partywall.host import Host
from partywall.study import papers
from partywall.study.document import StudyReport, StudyRequest
from partywall.study.kind import (
    InLab,
    TenantsMemory,
    accelerator,
    emulation_note,
    heading,
    in_blocks,
    memory_checks,
    refuse_other_backends,
    refuse_parts,
    tenants_text,
)
from partywall.study.paper import Place
from partywall.study.promises import findings as stats
from partywall.study.promises import slots
from partywall.study.promises.model import Cell, Extent, Study
from partywall.study.record import StudyDirectory

HOW = (
    "In each block, every way of keeping the guarantees was active for one slot, in a new random order, while the "
    "tenants sent all the time. Delivered traffic was read at the sinks' ports."
)


SENDERS_BYTES = 128 << 20
"""Memory that is checked before the first slot: for all senders and sinks."""


class Promises(InLab):
    """Each way of keeping guarantees gets one slot in each block."""

    key = "partywall_guard_study"

    def read(self, content: bytes, file: str) -> Study:
        return slots.load(content, file)

    def outline(self, study: Study, request: StudyRequest, host: Host) -> Outline:
        del host
        refuse_other_backends(study.name, request)
        refuse_parts(study.name, request)
        extent = in_blocks(study, request)
        ways = ", ".join(study.ways_of(virtual=bool(request.backends)))
        lines = (
            f"{ways}: {extent.blocks} blocks of {units.format_duration(extent.slot)} slots, "
            f"in scenarios {', '.join(study.scenarios)}",
            f"periods of {', '.join(units.format_duration(period) for period in study.periods.every)}",
            f"tenants are {tenants_text(request)}",
        )
        return Outline(lines, slots.duration_s(study, extent, virtual=bool(request.backends)))

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        del work_root
        request = directory.request
        cells = _cells(directory)
        chosen = accelerator(directory, host, (cell.emulated for cell in cells), _scale(study), emit)
        memory = TenantsMemory(SENDERS_BYTES, "senders and sinks", memory_checks(directory, emit))
        memory.require(len(study.tenants) if chosen else 0)
        slots.carry_out(
            study.scaled(study.emulated_scale) if chosen and chosen.emulates else study,
            in_blocks(study, request),
            request.seed,
            lambda cell: directory.append(cell.model_dump_json()),
            emit,
            frozenset(map(slots.slot_of, cells)),
            chosen.name if chosen else None,
            memory.inspect,
        )

    def places(self, study: Study, request: StudyRequest, host: Host) -> Mapping[str, frozenset[Place]]:
        del host
        ways = study.ways_of(virtual=bool(request.backends))
        tables = papers.load(study.name).exhibits
        return {paper_table.id: stats.places(study, paper_table.id, ways) for paper_table in tables}

    def report(self, study: Study, directory: StudyDirectory) -> StudyReport:
        cells = _cells(directory)
        if not any(cell.block for cell in cells):
            raise TrialError(f"{directory.path}: no way was measured twice, so there is no interval; measure again")
        request = directory.request
        emulated = any(cell.emulated for cell in cells)
        carried_out = study.scaled(study.emulated_scale) if emulated else study
        return StudyReport(
            **heading(study, directory),
            comparisons=stats.comparisons(carried_out, cells, papers.load(study.name), virtual=bool(request.backends)),
            notes=(emulation_note(_scale(study)),) if emulated else (),
            facts=_facts(carried_out, in_blocks(study, request), len(cells), request.seed),
            how=HOW,
            rows=tuple(row for cell in cells for row in _rows(cell)),
        )


def _cells(directory: StudyDirectory) -> list[Cell]:
    return [Cell.model_validate(slot) for slot in directory.observations()]


def _rows(cell: Cell) -> list[dict[str, object]]:
    own = cell.model_dump(exclude={"tenants"})
    return [{**own, "tenant": name, **got.model_dump()} for name, got in cell.tenants.items()]


def _scale(study: Study) -> str:
    return (
        f"link, guarantees and offered rates are {study.emulated_scale:g} of the paper's, and CPU time includes the "
        "emulator"
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
        (
            "CPU time",
            "of the whole host, senders and sinks included: in % of the time of all CPUs, or over all packets that the "
            "tenants offered, whether delivered or lost",
        ),
        ("seed", str(seed)),
    )
