"""The paper's figures on migration, from moves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partywall.model.migration import MoveFinding
from partywall.model.paper import Beside, Paper, Place
from partywall.model.study import Section
from partywall.stats import rounds
from partywall.study.migration.model import Bare, Study
from partywall.units import format_bytes, format_duration

PHASES = ("before", "during", "after")
GFLOPS, TRANSFER = "fig 5", "section IV.C"
HOST = Place("GFLOPS", "host")
DIFFERS = (
    "two network namespaces of one host, joined by a link of the paper's rate, instead of two servers",
    "users are virtual, with corrected response times, instead of Apache Benchmark; the server is nginx",
)


def comparisons(
    study: Study, moves: Sequence[MoveFinding], bare: Sequence[Bare], paper: Paper, *, emulated: bool
) -> tuple[Beside, ...]:
    """Every figure that the paper has of it. emulated: whether the guest's processor is."""
    finding = [_users(workload, figure, moves, paper) for workload, figure in study.users.items()]
    finding.append(_transfer(study, moves, paper))
    if study.computing is not None:
        finding.append(_gflops(study.computing, moves, bare, paper))
    if not emulated:
        return tuple(finding)
    return tuple(rounds.marked(beside, "victim", beside.points.keys() - {HOST}) for beside in finding)


def _users(workload: str, figure: str, moves: Sequence[MoveFinding], paper: Paper) -> Beside:
    """Mean response times before, during and after a move."""
    values: dict[Place, dict[int, float]] = {Place("response", phase): {} for phase in PHASES}
    for finding in _of(workload, moves):
        for phase in PHASES:
            mean_ns = finding.users[phase].mean_ns if phase in finding.users else None
            if mean_ns is not None:
                values[Place("response", phase)][finding.move.round] = mean_ns / 1e6
    return rounds.beside(paper, paper.table(figure), values, DIFFERS)


def _transfer(study: Study, moves: Sequence[MoveFinding], paper: Paper) -> Beside:
    """How long moves take, and how much they send, by load."""
    values: dict[Place, dict[int, float]] = {}
    for workload in study.users:
        for finding in _of(workload, moves):
            for series, value in (("seconds", finding.values.get("total_s")), ("MB", finding.values.get("sent_bytes"))):
                if value is not None:
                    scaled = value if series == "seconds" else value / 1e6
                    values.setdefault(Place(series, workload), {})[finding.move.round] = scaled
    return rounds.beside(paper, paper.table(TRANSFER), values, DIFFERS)


def _gflops(workload: str, moves: Sequence[MoveFinding], bare: Sequence[Bare], paper: Paper) -> Beside:
    """The product of a matrix with a vector, on the host, in a guest, and in one that moves."""
    values: dict[Place, dict[int, float]] = {
        HOST: {each.block: each.rate / 1e9 for each in bare},
        Place("GFLOPS", "guest"): {},
        Place("GFLOPS", "moving guest"): {},
    }
    for finding in _of(workload, moves):
        for place, phase in (("guest", "before"), ("moving guest", "during")):
            if phase in finding.work:
                values[Place("GFLOPS", place)][finding.move.round] = finding.work[phase] / 1e9
    return rounds.beside(paper, paper.table(GFLOPS), values, DIFFERS[:1])


def places(study: Study) -> dict[str, frozenset[Place]]:
    """The places of every figure that are measured."""
    phases = frozenset(Place("response", phase) for phase in PHASES)
    finding = dict.fromkeys(study.users.values(), phases)
    finding[TRANSFER] = frozenset(Place(series, workload) for series in ("seconds", "MB") for workload in study.users)
    if study.computing is not None:
        finding[GFLOPS] = frozenset(Place("GFLOPS", x) for x in ("host", "guest", "moving guest"))
    return finding


def table(moves: Sequence[MoveFinding]) -> Section:
    """A table with one row for each move."""
    return Section(
        id="moves",
        title="All moves",
        lead="Clients waited: the longest time without an answer at the hand-over. The moves are a record of "
        "their own: partywall report runs/moves in this folder.",
        columns=("block", "workload", "outcome", "time", "sent", "QEMU's downtime", "clients waited"),
        rows=tuple(_row(finding) for finding in moves),
    )


def notes(moves: Sequence[MoveFinding]) -> Iterator[str]:
    """What became of moves that did not end."""
    for finding in moves:
        if finding.move.outcome != "completed":
            move = finding.move
            yield f"{move.workload}, block {move.round + 1}: {move.outcome}: {move.reason}"


def _of(workload: str, moves: Sequence[MoveFinding]) -> list[MoveFinding]:
    return [finding for finding in moves if finding.move.workload == workload and finding.move.outcome == "completed"]


def _row(finding: MoveFinding) -> tuple[str, ...]:
    move, values = finding.move, finding.values
    times = [
        format_duration(values[name] * 1e9) if name in values else "–"
        for name in ("total_s", "downtime_s", "clients_s")
    ]
    sent = format_bytes(values["sent_bytes"]) if "sent_bytes" in values else "–"
    return (str(move.round + 1), move.workload, move.outcome, times[0], sent, *times[1:])
