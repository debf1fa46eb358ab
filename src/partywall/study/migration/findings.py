"""The paper's figures on migration, from moves. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from partywall.migrate.document import MoveFinding
from partywall.study import pairing
from partywall.study.document import Section
from partywall.study.migration.model import Bare, Study
from partywall.study.paper import Beside, Paper, Place
from partywall.units import format_bytes, format_duration

PHASES = ("before", "during", "after")
GFLOPS = "fig 5"
HOST = Place("GFLOPS", "host")
SLOW = 0.9
"""Of the seconds of a phase, the quantile of their median response times that stands for the slow ones."""
DIFFERS = (
    "two network namespaces of one host, joined by a link of the paper's rate, instead of two servers",
    "users are virtual, with corrected response times, instead of Apache Benchmark; the server is nginx",
    "a kernel changes memory beside the web server, at the paper's shares of the link's rate, because a server that "
    "answers one page hardly changes any",
)
Values = dict[Place, dict[int, float]]


def comparisons(
    study: Study, moves: Sequence[MoveFinding], bare: Sequence[Bare], paper: Paper, *, emulated: bool
) -> tuple[Beside, ...]:
    """Every figure that the paper has of it. emulated: whether the guest's processor is."""
    ended = [finding for finding in moves if finding.move.outcome == "completed"]
    values = {figure: _phases(_of(workload, ended)) for workload, figure in study.users.items()}
    values |= {name: _by_workload(study, ended, quantities) for name, quantities in BY_LOAD.items()}
    if study.computing is not None:
        values[GFLOPS] = {HOST: {each.block: each.rate / 1e9 for each in bare}} | _gflops(_of(study.computing, ended))
    finding = [
        pairing.beside(paper, paper.table(name), there, DIFFERS[:1] if name == GFLOPS else DIFFERS)
        for name, there in values.items()
    ]
    if not emulated:
        return tuple(finding)
    return tuple(pairing.marked(beside, "victim", beside.points.keys() - {HOST}) for beside in finding)


def _phases(moves: Sequence[MoveFinding]) -> Values:
    """Mean response times before, during and after a move, and those of the slow seconds, in ms."""
    values: Values = {}
    for finding in moves:
        for phase in PHASES:
            mean_ns = finding.users[phase].mean_ns if phase in finding.users else None
            for series, value in (("response", mean_ns), ("slow seconds", _slow_ns(finding, phase))):
                if value is not None:
                    values.setdefault(Place(series, phase), {})[finding.move.round] = value / 1e6
    return values


def _slow_ns(finding: MoveFinding, phase: str) -> float | None:
    """The median response time of a slow second of a phase."""
    length_s = (finding.move.end_ns - finding.move.begin_ns) / 1e9
    low, high = {"before": (-math.inf, 0.0), "during": (0.0, length_s), "after": (length_s, math.inf)}[phase]
    seconds = sorted(each.median_ns for each in finding.users_timeline if low <= each.at_s < high)
    return seconds[min(int(SLOW * len(seconds)), len(seconds) - 1)] if seconds else None


Quantity = Callable[[Study, MoveFinding], float | None]


def _wire_s(study: Study, finding: MoveFinding) -> float | None:
    """The time that the guest's memory takes on the link, once."""
    memory, rate = _memory_bytes(finding), study.plan.link.rate
    return None if memory is None or rate is None else memory * 8 / rate


def _memory_bytes(finding: MoveFinding) -> float | None:
    """What the first pass sends: the memory that the guest uses."""
    return float(finding.passes[0].sent) if finding.passes and finding.passes[0].sent else None


def _beyond_s(study: Study, finding: MoveFinding) -> float | None:
    """What a move takes beyond the time on the wire."""
    wire_s, total_s = _wire_s(study, finding), finding.values.get("total_s")
    return None if wire_s is None or total_s is None else max(total_s - wire_s, 0.0)


def _dirtied(study: Study, finding: MoveFinding) -> float | None:
    """Memory that changes during a move, as a share of what the link carries."""
    known = [each for each in finding.passes if each.dirty_rate is not None]
    seconds, rate = sum(each.seconds for each in known), study.plan.link.rate
    if not seconds or rate is None:
        return None
    return sum((each.dirty_rate or 0.0) * each.seconds for each in known) / seconds * 8 / rate


def _mean_ms(_study: Study, finding: MoveFinding) -> float | None:
    before = finding.users.get("before")
    return before.mean_ns / 1e6 if before and before.mean_ns is not None else None


def _per_s(phase: str) -> Quantity:
    return lambda _study, finding: finding.users[phase].rate if phase in finding.users else None


def _mb(_study: Study, finding: MoveFinding) -> float | None:
    memory = _memory_bytes(finding)
    return None if memory is None else memory / 1e6


BY_LOAD: Mapping[str, Mapping[str, Quantity]] = {
    "section IV.C": {"seconds": lambda _study, finding: finding.values.get("total_s"), "MB": _mb},
    "section IV.C (beyond the link)": {"wire": _wire_s, "beyond": _beyond_s},
    "section IV.C (users)": {"response": _mean_ms},
    "section IV.B (requests)": {"before": _per_s("before"), "during": _per_s("during")},
    "section IV.C (dirtying)": {"dirtied": _dirtied},
}
"""Figures with a place for each workload of users: their series."""


def _by_workload(study: Study, moves: Sequence[MoveFinding], quantities: Mapping[str, Quantity]) -> Values:
    values: Values = {}
    for workload in study.users:
        for finding in _of(workload, moves):
            for series, quantity in quantities.items():
                if (value := quantity(study, finding)) is not None:
                    values.setdefault(Place(series, workload), {})[finding.move.round] = value
    return values


WORK = {"guest": "before", "moving guest": "during", "hand-over": "hand-over"}


def _gflops(moves: Sequence[MoveFinding]) -> Values:
    """The product of a matrix with a vector in a guest, in one that moves, and in the second of its hand-over."""
    return {
        Place("GFLOPS", place): {
            finding.move.round: finding.work[phase] / 1e9 for finding in moves if phase in finding.work
        }
        for place, phase in WORK.items()
    }


def places(study: Study) -> dict[str, frozenset[Place]]:
    """The places of every figure that are measured."""
    phases = frozenset(Place(series, phase) for series in ("response", "slow seconds") for phase in PHASES)
    finding = dict.fromkeys(study.users.values(), phases)
    for name, quantities in BY_LOAD.items():
        finding[name] = frozenset(Place(series, workload) for series in quantities for workload in study.users)
    if study.computing is not None:
        finding[GFLOPS] = frozenset({HOST, *(Place("GFLOPS", place) for place in WORK)})
    return finding


def table(moves: Sequence[MoveFinding]) -> Section:
    """A table with one row for each move."""
    return Section(
        id="moves",
        title="All moves",
        lead="Clients waited: the longest time without an answer at the hand-over. The moves are a record of "
        "their own, one for each block: partywall report runs/moves-000 in this folder.",
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
    return [finding for finding in moves if finding.move.workload == workload]


def _row(finding: MoveFinding) -> tuple[str, ...]:
    move, values = finding.move, finding.values
    times = [
        format_duration(values[name] * 1e9) if name in values else "–"
        for name in ("total_s", "downtime_s", "clients_s")
    ]
    sent = format_bytes(values["sent_bytes"]) if "sent_bytes" in values else "–"
    return (str(move.round + 1), move.workload, move.outcome, times[0], sent, *times[1:])
