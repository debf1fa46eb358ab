"""Studies of live migration: a guest that moves under virtual users and while it computes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from partywall import units
from partywall.agent import binary
from partywall.agent.catalogue import shipped
from partywall.core import here
from partywall.core.capability import Outline
from partywall.core.document.decode import decode
from partywall.core.document.explain import Mistake
from partywall.core.document.form import checked
from partywall.errors import TrialError
from partywall.events import Doing, Emit
from partywall.host import Host
from partywall.migrate import check as plans
from partywall.migrate.document import MigrationPlan, MoveFinding, rate_text
from partywall.migrate.findings.cost import findings
from partywall.migrate.job import MigrationJob
from partywall.migrate.measure import series
from partywall.migrate.measure.bare import rate_of
from partywall.migrate.record import MigrationDirectory
from partywall.study import papers
from partywall.study.document import StudyReport, StudyRequest
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
from partywall.study.migration import findings as tables
from partywall.study.migration.model import Bare, Extent, Study
from partywall.study.paper import Place
from partywall.study.record import StudyDirectory

RUNS = "runs"
MOVES = "moves"
USERS_S = 60.0
"""What a move over the paper's link takes, about: the mean of its loads."""
HOW = (
    "In each block, each workload was moved once, in a new random order. Virtual users worked before, during and after "
    "the move; a second belongs to the phase in which it ends, and the one after a move to the move. Response times "
    "count from the moment at which a request was due. Values are compared within blocks."
)


class MigrationStudy(OnThisHost):
    """Each workload is moved once in each block."""

    key = "partywall_migration_study"

    def read(self, content: bytes, file: str) -> Study:
        def check(study: Study) -> Iterator[Mistake]:
            return plans.check_at("plan", study.plan, shipped())

        return checked(Study, decode(content, file), file, check)

    def outline(self, study: Study, request: StudyRequest, host: Host) -> Outline:
        del host
        refuse_backends(study.name, request)
        refuse_parts(study.name, request)
        plan = _plan(study, request)
        link = rate_text(plan)
        lines = (
            f"a guest of {plan.guest.memory >> 20} MiB moves over a link, {link}",
            f"{plan.moves} blocks of {', '.join(plan.workloads)}",
        )
        return Outline(lines, len(plan.cells) * plan.moves * ((plan.before + plan.after) / 1e9 + USERS_S))

    def check(self, study: Study, request: StudyRequest, host: Host, work_root: Path, *, allow_commands: bool) -> None:
        del request, work_root, allow_commands
        papers.load(study.name)
        series.check(host)

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        plan = _plan(study, directory.request)
        if _folders(directory) == [directory.path / RUNS / MOVES]:
            return
        needed = guests_bytes(plan.guest.memory, BOTH_ENDS)
        here.check_free_memory(needed, "the guest at both ends of a move", memory_checks(directory, emit))
        series.prepare(plan, host, emit)
        computed = {Bare.model_validate(row).block for row in directory.observations()}
        for block in range(plan.moves):
            emit(Doing(f"block {block + 1} of {plan.moves}"))
            if study.computing is not None and block not in computed:
                rate = rate_of(plan.workloads[study.computing], study.bare, [str(binary.find())], work_root)
                directory.append(Bare(block=block, rate=rate).model_dump_json())
            _move(plan, block, directory, host, work_root, emit)

    def places(self, study: Study, request: StudyRequest, host: Host) -> Mapping[str, frozenset[Place]]:
        del request, host
        return tables.places(study)

    def report(self, study: Study, directory: StudyDirectory) -> StudyReport:
        blocks = _folders(directory)
        if not blocks:
            raise TrialError(f"{directory.path}: no guest was moved yet; measure again")
        records = [MigrationDirectory(folder) for folder in blocks]
        evidence = records[0].evidence()
        moves = [
            _in_block(finding, int(record.path.name.removeprefix(f"{MOVES}-")) if record.path.name != MOVES else None)
            for record in records
            for finding in findings(record.evidence(), record.table).moves
        ]
        bare = [Bare.model_validate(row) for row in directory.observations()]
        return StudyReport(
            **heading(study, directory),
            comparisons=tables.comparisons(
                study, moves, bare, papers.load(study.name), emulated=bool(evidence.about.get("emulated"))
            ),
            notes=(*_emulated(evidence.about), *tables.notes(moves)),
            facts=_facts(_plan(study, directory.request), evidence.about),
            how=HOW,
            rows=tuple(_rows(moves)),
            sections=(tables.table(moves),),
            figures={"moves": [finding.values for finding in moves]},
        )


def _folders(directory: StudyDirectory) -> list[Path]:
    """The records of the blocks so far, in order. Those of earlier versions have all blocks in one."""
    runs = directory.path / RUNS
    every = [runs / MOVES, *sorted(runs.glob(f"{MOVES}-*"))]
    return [folder for folder in every if MigrationDirectory.is_one(folder)]


def _move(plan: MigrationPlan, block: int, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
    """Moves each workload once, in a record of the block's own: a block that was cut off is carried out again."""
    folder = directory.path / RUNS / f"{MOVES}-{block:03}"
    if folder.exists() and not MigrationDirectory(folder).evidence().interrupted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    own = plan.model_copy(update={"moves": 1, "seed": plan.seed + block})
    with series.Series(own, host, f"{directory.name}-{block}", work_root) as moves:
        record = MigrationDirectory.create(folder, MigrationJob(plan=own), host.facts)
        record.learn(**moves.about())
        moves.carry_out(emit, lambda seen: record.append(seen.move, seen.tables))
        record.end()


def _in_block(finding: MoveFinding, block: int | None) -> MoveFinding:
    """A move with the number of its block; None if its record has all blocks."""
    if block is None:
        return finding
    return finding.model_copy(update={"move": finding.move.model_copy(update={"round": block})})


def _plan(study: Study, request: StudyRequest) -> MigrationPlan:
    extent: Extent = in_blocks(study, request)
    return study.plan.model_copy(update={"moves": extent.blocks, "seed": request.seed, "calibration": 0})


def _emulated(about: dict[str, Any]) -> Sequence[str]:
    if not about.get("emulated"):
        return ()
    return ("The guest was emulated: it computes and answers more slowly than one under KVM.",)


def _rows(moves: Sequence[MoveFinding]) -> Sequence[dict[str, Any]]:
    return [
        {
            "block": finding.move.round,
            "workload": finding.move.workload,
            "outcome": finding.move.outcome,
            **finding.values,
        }
        for finding in moves
    ]


def _facts(plan: MigrationPlan, about: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return (
        ("blocks", f"{plan.moves}, each workload moved once in each"),
        ("guest", f"{plan.guest.memory >> 20} MiB, {units.counted(plan.guest.vcpus, 'virtual CPU')}"),
        ("QEMU", str(about.get("qemu", "unknown"))),
        ("link", rate_text(plan)),
        ("seed", str(plan.seed)),
    )
