"""Studies of a path: a target's datagrams beside a neighbour's of every size, and a trace of where they wait."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from partywall import units
from partywall.core import here
from partywall.core.capability import Outline
from partywall.errors import TrialError
from partywall.events import Doing, Emit, Left
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
from partywall.study.path import findings as stats
from partywall.study.path import slots
from partywall.study.path.model import Cell, Extent, Study, Traced
from partywall.study.record import StudyDirectory
from partywall.trace.findings import findings
from partywall.trace.measure.follow import follow
from partywall.trace.measure.tracing import Tracing
from partywall.trace.record import Start, TraceDirectory, TraceFindings

RUNS = "runs"
SENDERS_BYTES = 256 << 20
"""Memory that is checked before the first slot: for senders, sinks and the tracer's rings."""
PACKETS = 2000
"""Packets a second of a trace that are stored for its pcapng file."""
HOW = (
    "In each block, every size of the neighbour's datagrams and a quiet neighbour had one slot, in a new random "
    "order, while the target sent {}. Delivered traffic was read at its sink's port, and divided by that "
    "beside the quiet neighbour in the same block. Afterwards, the target's path was traced beside some "
    "of the sizes. Bandwidth under a trace is not in the figure."
)
TENANTS = 2


class PathStudy(InLab):
    """Each size of the neighbour's datagrams gets one slot in each block."""

    key = "partywall_path_study"

    def read(self, content: bytes, file: str) -> Study:
        return slots.load(content, file)

    def outline(self, study: Study, request: StudyRequest, host: Host) -> Outline:
        del host
        refuse_other_backends(study.name, request)
        refuse_parts(study.name, request)
        extent = in_blocks(study, request)
        sizes = ", ".join(map(str, study.neighbour_bytes))
        beside = ", ".join(map(stats.size_text, study.traced))
        lines = (
            f"{study.target_bytes} bytes, {stats.target_text(study)}, beside datagrams of {sizes} bytes: "
            f"{extent.blocks} blocks of {units.format_duration(extent.slot)} slots",
            f"then a trace of {units.format_duration(extent.traced)} beside each of: {beside}",
            f"tenants are {tenants_text(request)}",
        )
        return Outline(lines, _left_s(study, request, [], []))

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        del work_root
        request = directory.request
        extent = in_blocks(study, request)
        cells, traces = _cells(directory), _traced(directory)
        order = slots.plan(study, extent, request.seed, cells)
        untraced = [size for size in study.traced if size not in {traced.bytes for traced in traces}]
        if not order and not untraced:
            return
        chosen = accelerator(directory, host, (cell.emulated for cell in cells), _scale(study), emit)
        virtual = chosen is not None
        left_s = _left_s(study, request, cells, traces)
        memory = TenantsMemory(SENDERS_BYTES, "senders, sinks and traces", memory_checks(directory, emit))
        memory.require(TENANTS if virtual else 0)
        emit(Doing("making tenants, bridge and uplink"))
        emit(Left(left_s))
        left_s -= slots.start_s(virtual=virtual)
        carried_out = study.scaled(study.emulated_scale) if chosen and chosen.emulates else study
        with slots.bench(carried_out, chosen.name if chosen else None, memory.inspect) as ready:
            for block, size in slots.measure(ready, order, extent, lambda cell: _keep(directory, cell)):
                emit(Doing(f"beside {stats.size_text(size)}, block {block + 1} of {extent.blocks}"))
                emit(Left(left_s))
                left_s -= slots.slot_s(extent, virtual=virtual)
            for size in untraced:
                emit(Doing(f"tracing beside {stats.size_text(size)}"))
                emit(Left(left_s))
                _keep(directory, self._trace(ready, size, extent, directory))
                left_s -= slots.trace_s(extent)

    def _trace(self, ready: slots.Bench, size: int | None, extent: Extent, directory: StudyDirectory) -> Traced:
        run = "quiet" if size is None else f"{size}-bytes"
        folder = directory.path / RUNS / run
        # An interrupted trace is not continued, because its packets before and after would take different paths.
        shutil.rmtree(folder, ignore_errors=True)

        def happens(session: Tracing) -> None:
            # The guest's records are passed on and its clock is read meanwhile.
            ready.slot(size, extent.traced, session.pump_until)

        before = ready.gone()
        start = Start.now(ready.trace_request(PACKETS))
        record = TraceDirectory.begun(folder, start, here.host_facts())
        follow(record, happens, present=ready.present)
        record.end()
        return Traced(bytes=size, run=run, missing=ready.gone() - before)

    def places(self, study: Study, request: StudyRequest, host: Host) -> Mapping[str, frozenset[Place]]:
        del host
        return stats.places(study, papers.load(study.name), virtual=bool(request.backends))

    def report(self, study: Study, directory: StudyDirectory) -> StudyReport:
        cells, request = _cells(directory), directory.request
        if not any(block for block, _ in stats.shares(cells)):
            raise TrialError(f"{directory.path}: no size was measured twice, so there is no interval; measure again")
        traces = list(_findings(directory))
        virtual, emulated = bool(request.backends), any(cell.emulated for cell in cells)
        places = tuple(name for *_, name in slots.PLACES)
        paper = papers.load(study.name)
        carried_out = study.scaled(study.emulated_scale) if emulated else study
        return StudyReport(
            **heading(study, directory),
            comparisons=stats.comparisons(carried_out, cells, paper, virtual=virtual),
            notes=(
                *((emulation_note(_scale(study)),) if emulated else ()),
                *_cpu_notes(carried_out, cells),
                *_notes(traces),
            ),
            facts=_facts(carried_out, in_blocks(study, request), request, stats.tracer_text(traces)),
            how=HOW.format(stats.target_text(study)),
            rows=tuple(_rows(cells)),
            sections=(stats.hops(traces, places),) if traces else (),
            figures=stats.figures(traces),
        )


def _left_s(study: Study, request: StudyRequest, cells: Sequence[Cell], traces: Sequence[Traced]) -> float:
    extent, virtual = in_blocks(study, request), bool(request.backends)
    slots_s = len(slots.plan(study, extent, request.seed, cells)) * slots.slot_s(extent, virtual=virtual)
    traces_s = (len(study.traced) - len(traces)) * slots.trace_s(extent)
    return slots.start_s(virtual=virtual) + slots_s + traces_s


def _scale(study: Study) -> str:
    return f"link and datagrams a second are {study.emulated_scale:g} of the study's"


def _keep(directory: StudyDirectory, measured: Cell | Traced) -> None:
    directory.append(measured.model_dump_json())


def _cells(directory: StudyDirectory) -> list[Cell]:
    return [Cell.model_validate(row) for row in directory.observations() if "block" in row]


def _traced(directory: StudyDirectory) -> list[Traced]:
    return [Traced.model_validate(row) for row in directory.observations() if "run" in row]


def _findings(directory: StudyDirectory) -> Sequence[tuple[Traced, TraceFindings]]:
    """Every trace with its findings."""
    runs = [(traced, TraceDirectory(directory.path / RUNS / traced.run)) for traced in _traced(directory)]
    return [(traced, findings(run.evidence())) for traced, run in runs]


def _cpu_notes(study: Study, cells: Sequence[Cell]) -> Iterator[str]:
    """That the neighbour's CPU limited it, and not only the link."""
    most = stats.short_of_cpu(study, cells)
    if most:
        each = ", ".join(f"{units.format_decimals(pps, 0)} of {size} bytes" for size, pps in most.items())
        yield (
            f"the neighbour's CPU sends at most {each} a second, and not {stats.rate_text(study.neighbour_rate)}: it "
            "takes less of the link, and the target keeps more, than on a faster or less busy host"
        )


def _notes(traces: Sequence[tuple[Traced, TraceFindings]]) -> Sequence[str]:
    """Differences between traces and counters, and the notes of every trace."""
    differ = [
        f"beside {stats.size_text(traced.bytes)}, {units.counted(beyond, 'packet')} are lost according to the "
        "interfaces' counters but not according to the trace, or vice versa"
        for traced, findings in traces
        if (beyond := stats.unexplained(traced, findings))
    ]
    return [
        *differ,
        *(f"trace beside {stats.size_text(of.bytes)}: {note}" for of, findings in traces for note in findings.notes),
    ]


def _rows(cells: Sequence[Cell]) -> Sequence[dict[str, Any]]:
    over = stats.shares(cells)
    return [{**cell.model_dump(), "share": over.get((cell.block, cell.bytes))} for cell in cells]


def _facts(study: Study, extent: Extent, request: StudyRequest, tracer: str) -> tuple[tuple[str, str], ...]:
    return (
        ("slots", f"{units.format_duration(extent.slot)}, every size once in each of {extent.blocks} blocks"),
        ("tenants", tenants_text(request)),
        (
            "target",
            f"datagrams of {study.target_bytes} bytes, {stats.target_text(study)}, each with an identifying marker",
        ),
        ("neighbour", f"{stats.rate_text(study.neighbour_rate)}, at every size"),
        ("link", f"{units.format_bit_rate(study.link)}, MTU {study.mtu}"),
        ("traced", f"{units.format_duration(extent.traced)} beside each of {len(study.traced)} neighbours"),
        *((("tracer's program, for a record", tracer),) if tracer else ()),
        ("seed", str(request.seed)),
    )
