"""The findings of a study of policies: points with intervals over blocks, beside the paper's. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from partywall.study import pairing
from partywall.study.paper import Beside, Paper, Place
from partywall.study.policies.model import ALL, PROMISED, Cell, Part, Rate, Study

NAMESPACES = (
    "vifs are the interfaces of network namespaces, not of virtual machines; senders and sinks share this host's CPUs"
)
RULE = "the paper states the rule and shows no measurement of it"
LOSSES = (
    "the paper states this in words, beside a figure of three tenants that each offer one load",
    "the link carries less than the paper's, and loads are multiples of one promise",
    "a sender's socket never fills here, so a sender never waits, and its losses are those of queues and hooks",
    "0 ± 0 % is no datagram lost in any block, which does not show that none ever is",
)
STRAYS = 0.05
"""A sender that offers this much less or more than its load is not at that load."""


def comparisons(study: Study, cells: Sequence[Cell], paper: Paper) -> tuple[Beside, ...]:
    """Every statement of the paper that was measured. The slots of one block are a round."""
    measured = {cell.part for cell in cells}
    return tuple(
        pairing.beside(
            paper,
            paper.table(part.exhibit),
            (_losses if part.loads else _values)(name, part, cells),
            (NAMESPACES, *(LOSSES if part.loads else (RULE,))),
            _strayed(name, part, cells),
        )
        for name, part in study.parts.items()
        if name in measured
    )


def places(part: Part) -> frozenset[Place]:
    """The places that a part measures, with its promises."""
    if part.loads:
        return frozenset(Place(way, load) for way, load in part.turns if load is not None)
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


def _losses(name: str, part: Part, cells: Sequence[Cell]) -> Mapping[Place, dict[int, float]]:
    """What was lost of the stream whose load varies, in %, by way and load."""
    values: dict[Place, dict[int, float]] = {}
    for place, cell, stream in _varied(name, part, cells):
        if (lost := cell.streams[stream].lost) is not None:
            values.setdefault(place, {})[cell.block] = 100 * lost
    return values


def _varied(name: str, part: Part, cells: Sequence[Cell]) -> Iterator[tuple[Place, Cell, str]]:
    """(place, slot, name of the stream whose load varies) of a part with loads."""
    if part.loads is None:
        return
    for cell in cells:
        if cell.part == name and cell.load is not None:
            yield Place(cell.way, cell.load), cell, part.loads.stream


def _strayed(name: str, part: Part, cells: Sequence[Cell]) -> Mapping[Place, str]:
    """Places whose sender did not offer its load."""
    offered: dict[Place, list[float]] = {}
    for place, cell, stream in _varied(name, part, cells):
        handed = cell.streams[stream].handed_pps or 0.0
        offered.setdefault(place, []).append(handed / part.offered(stream, cell.load))
    shares = {place: statistics.fmean(each) for place, each in offered.items()}
    return {
        place: f"{place}: its sender offered {share:.0%} of this load"
        for place, share in shares.items()
        if abs(share - 1) > STRAYS
    }


def _value(part: Part, rate: Rate) -> float:
    return rate.pps / 1e3 if part.value == "kp/s" else rate.bps / 1e6
