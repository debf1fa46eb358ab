"""Studies of policies: what each of several policies gives the streams of some vifs (`slots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from partywall import units
from partywall.core import here
from partywall.core.capability import Outline
from partywall.errors import TrialError
from partywall.events import Emit
from partywall.host import Host
from partywall.study import papers
from partywall.study.document import StudyReport, StudyRequest
from partywall.study.kind import InLab, heading, in_blocks, memory_checks, no_such_part, refuse_backends, requested
from partywall.study.paper import Place
from partywall.study.policies import findings as stats
from partywall.study.policies import slots
from partywall.study.policies.model import Cell, Extent, Part, Study
from partywall.study.record import StudyDirectory

SENDERS_BYTES = 128 << 20
"""Memory that is checked before the first slot: for all senders and sinks."""
HOW = (
    "In each block of a part, every way had one slot at each load, in a new random order: the guard was started with "
    "its policy, then its senders. Delivered traffic was read at the sinks' ports. Losses are the datagrams that a "
    "sender passed to its kernel, from its first one on, and that had not arrived when all queues were empty."
)


class PolicyStudy(InLab):
    """Each way of each part gets one slot in each block."""

    key = "partywall_policy_study"

    def read(self, content: bytes, file: str) -> Study:
        return slots.load(content, file)

    def outline(self, study: Study, request: StudyRequest, host: Host) -> Outline:
        del host
        refuse_backends(study.name, request)
        wanted, extent = _wanted(study, request), in_blocks(study, request)
        each = f"{extent.blocks} blocks of {units.format_duration(extent.slot)} slots"
        lines = [f"{name}: {', '.join(part.ways)}{_loads(part)}: {each}" for name, part in wanted.parts.items()]
        return Outline(tuple(lines), slots.duration_s(wanted, extent))

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        del host, work_root
        request = directory.request
        here.check_free_memory(SENDERS_BYTES, "senders and sinks", memory_checks(directory, emit))
        slots.carry_out(
            _wanted(study, request),
            in_blocks(study, request),
            request.seed,
            lambda cell: directory.append(cell.model_dump_json()),
            emit,
            frozenset(map(slots.slot_of, _cells(directory))),
        )

    def places(self, study: Study, request: StudyRequest, host: Host) -> Mapping[str, frozenset[Place]]:
        del host
        return {part.exhibit: stats.places(part) for part in _wanted(study, request).parts.values()}

    def report(self, study: Study, directory: StudyDirectory) -> StudyReport:
        cells = _cells(directory)
        if not any(cell.block for cell in cells):
            raise TrialError(f"{directory.path}: no way was measured twice, so there is no interval; measure again")
        request = directory.request
        return StudyReport(
            **heading(study, directory),
            comparisons=stats.comparisons(study, cells, papers.load(study.name)),
            notes=(),
            facts=_facts(study, in_blocks(study, request), cells, request.seed),
            how=HOW,
            rows=tuple(row for cell in cells for row in _rows(cell)),
        )


def _wanted(study: Study, request: StudyRequest) -> Study:
    """The study with the requested parts only. UsageError if there are none."""
    parts = {name: part for name, part in study.parts.items() if requested(request, name)}
    if not parts:
        raise no_such_part(request, study.parts)
    return study.model_copy(update={"parts": parts})


def _loads(part: Part) -> str:
    if part.loads is None:
        return ""
    return f", with {part.loads.stream} at {', '.join(f'{load:g}' for load in part.loads.times)} times its rate"


def _cells(directory: StudyDirectory) -> list[Cell]:
    return [Cell.model_validate(slot) for slot in directory.observations()]


def _rows(cell: Cell) -> list[dict[str, object]]:
    own = cell.model_dump(exclude={"streams"})
    return [{**own, "stream": name, **got.model_dump()} for name, got in cell.streams.items()]


def _facts(study: Study, extent: Extent, cells: Sequence[Cell], seed: int) -> tuple[tuple[str, str], ...]:
    measured = {cell.part for cell in cells}
    links = ", ".join(
        f"{' '.join(filter(None, (name, link)))} {units.format_bit_rate(bps)}"
        for name, part in study.parts.items()
        if name in measured
        for link, bps in part.by_link.items()
    )
    count = f"{len(cells)}, of {units.format_duration(extent.slot)}, every way once in each block, in random order"
    return (("slots", count), ("links", links), ("seed", str(seed)))
