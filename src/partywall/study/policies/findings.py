"""The findings of a study of policies: points with intervals over blocks, beside the paper's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partywall.model.paper import Beside, Paper, Place
from partywall.stats import rounds
from partywall.study.policies.model import ALL, PROMISED, Cell, Part, Rate, Study

DIFFERS = (
    "vifs are the interfaces of network namespaces, not of virtual machines; senders and sinks share this host's CPUs",
    "the paper states the rule and shows no measurement of it",
)


def comparisons(study: Study, cells: Sequence[Cell], paper: Paper) -> tuple[Beside, ...]:
    """Every statement of the paper that was measured. The slots of one block are a round."""
    measured = {cell.part for cell in cells}
    return tuple(
        rounds.beside(paper, paper.table(part.exhibit), _values(name, part, cells), DIFFERS)
        for name, part in study.parts.items()
        if name in measured
    )


def places(part: Part) -> frozenset[Place]:
    """The places that a part measures, with its promises."""
    sent = {Place(way, name) for way in part.ways for name in (*part.ways[way].sends, ALL)}
    return frozenset(sent | {Place(PROMISED, name) for name in part.promised})


def _values(name: str, part: Part, cells: Sequence[Cell]) -> Mapping[Place, dict[int, float]]:
    """A promise has the same value in every block."""
    values: dict[Place, dict[int, float]] = {}
    for cell in cells:
        if cell.part != name:
            continue
        got = {stream: _value(part, rate) for stream, rate in cell.streams.items()}
        for x, value in {**got, ALL: sum(got.values())}.items():
            values.setdefault(Place(cell.way, x), {})[cell.block] = value
        for x, value in part.promised.items():
            values.setdefault(Place(PROMISED, x), {})[cell.block] = value
    return values


def _value(part: Part, rate: Rate) -> float:
    return rate.pps / 1e3 if part.value == "kp/s" else rate.bps / 1e6
