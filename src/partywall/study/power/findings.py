"""The paper's table and figures on power, from slots and moves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from partywall.core.stats.rounds import student
from partywall.errors import TrialError
from partywall.migrate.document import Move
from partywall.power.findings import fitting
from partywall.power.findings.fitting import Observation
from partywall.power.findings.meter import cpu_rows
from partywall.power.values import Activity, Array, NodeModel
from partywall.study import pairing
from partywall.study.document import Section
from partywall.study.paper import Beside, Paper, Place

ORDINALS = ("first", "second", "third", "fourth")
GUEST_IDLE, GUEST_WORKS = "guest idle", "guest works"
PHASES = ("before", "during", "after")
LOADS = 4
"""One-core loads of the paper's comparison."""
LEAST_BUSY = 0.1
"""Busy share of a core below which a guest's slot says nothing about a busy core."""

Rounds = Mapping[Place, Mapping[int, float]]


def comparisons(
    ladder: Sequence[Observation],
    guest: Sequence[Observation],
    states: NodeModel,
    paper: Paper,
    differs: Sequence[str],
    *,
    simulated: bool,
) -> tuple[Beside, ...]:
    """Every table and figure of the paper's file.

    ladder, guest: slots on the host, and with a guest. simulated: True if the meter is, so that points confirm nothing.
    """
    points = block_points(ladder)
    values = {
        "table I": table(points),
        "increments": increments(points),
        "fig 7": virtualized(points, guest),
        "consolidation": consolidation(points, states),
    }
    shown = (pairing.beside(paper, paper.table(name), there, differs) for name, there in values.items())
    return tuple(
        each.model_copy(
            update={"measured": tuple(point.model_copy(update={"simulated": simulated}) for point in each.measured)}
        )
        for each in shown
    )


def places(cpus: int, states: NodeModel, *, with_guest: bool) -> Mapping[str, frozenset[Place]]:
    """The points of each table and figure that a node with so many CPUs has."""
    points = {0: np.arange(cpus + 1.0)}
    listed = {
        "table I": table(points),
        "increments": increments(points),
        "fig 7": virtualized(points, ()),
        "consolidation": consolidation(points, states),
    }
    measured = {name: {place for place, values in rows.items() if values} for name, rows in listed.items()}
    if with_guest:
        measured["fig 7"] |= set(listed["fig 7"])
    return {name: frozenset(own) for name, own in measured.items()}


def block_points(ladder: Sequence[Observation]) -> dict[int, Array]:
    """Watts with 0, 1, 2, … busy cores, fitted for each block on its own. TrialError if there is no slot."""
    if not ladder:
        raise TrialError("the meter gave no value in any of the slots; measure again with a longer `slot`")
    points = {}
    for block in dict.fromkeys(each.slot.block for each in ladder):
        own = [each for each in ladder if each.slot.block == block]
        points[block] = fitting.fitted(
            np.array([each.features for each in own]), np.array([each.watts for each in own])
        )
    return points


def table(points: Mapping[int, Array]) -> Rounds:
    """Watts by the number of busy cores."""
    names = ["idle", *(f"{number} core{'s' if number > 1 else ''}" for number in range(1, LOADS + 1))]
    return {
        Place("node", name): {block: float(each[number]) for block, each in points.items() if number < len(each)}
        for number, name in enumerate(names)
    }


def increments(points: Mapping[int, Array]) -> Rounds:
    """What each further core adds."""
    return {
        Place("node", name): {
            block: float(each[number + 1] - each[number]) for block, each in points.items() if number + 1 < len(each)
        }
        for number, name in enumerate(ORDINALS)
    }


def virtualized(points: Mapping[int, Array], guest: Sequence[Observation]) -> Rounds:
    """Watts idle and with one busy core, on the host and with a guest.

    A guest that did not get a whole core is scaled to one: within a core, watts follow its busy share.
    """
    by_place: dict[Place, dict[int, float]] = {
        Place("host", "idle"): {block: float(each[0]) for block, each in points.items()},
        Place("host", "1 core"): {block: float(each[1]) for block, each in points.items()},
        Place("guest", "idle"): {},
        Place("guest", "1 core"): {},
    }
    slots = {(each.slot.level, each.slot.block): each for each in guest}
    for block in {each.slot.block for each in guest}:
        idle, works = slots.get((GUEST_IDLE, block)), slots.get((GUEST_WORKS, block))
        if idle is not None and works is not None and works.busy > idle.busy + LEAST_BUSY:
            by_place[Place("guest", "idle")][block] = idle.watts
            per_core = (works.watts - idle.watts) / (works.busy - idle.busy)
            by_place[Place("guest", "1 core")][block] = idle.watts + per_core
    return by_place


def consolidation(points: Mapping[int, Array], states: NodeModel) -> Rounds:
    """Four one-core loads on four nodes, or on one. Cores that this node does not have cost as much as its last."""
    by_place: dict[Place, dict[int, float]] = {}
    for block, each in points.items():
        node = states.model_copy(update={"points": tuple(enumerate(map(float, each))), "per": "core", "draws": ()})
        full = node.at(LOADS)
        values = {
            "one load each": LOADS * node.at(1),
            "all on one, three off": full + (LOADS - 1) * (states.off_watts or 0.0),
            "all on one, three idle": full + (LOADS - 1) * node.idle_watts,
        }
        for x, watts in values.items():
            by_place.setdefault(Place("four nodes", x), {})[block] = watts
    return by_place


def moving(moves: Sequence[Move], activity: Sequence[Activity], model: NodeModel) -> Section:
    """Figures 8 and 9: power of the two nodes before, during and after a move."""
    watts: dict[tuple[str, str], dict[str, list[float]]] = {}
    for move in moves:
        if move.outcome == "completed":
            for node, phase, value in _phases(move, activity, model):
                watts.setdefault((move.workload, node), {}).setdefault(phase, []).append(value)
    rows = [
        (workload, node, *(_text(measured.get(phase, ())) for phase in PHASES))
        for (workload, node), measured in watts.items()
    ]
    return Section(
        id="moving",
        title="Power while a guest moves (figures 8 and 9)",
        lead="The figures print no numbers. Watts are modelled from the CPU time of each node's QEMU and the model of "
        "the load ladder; a node runs nothing else. Mean over moves, with 95 % intervals.",
        columns=("workload", "node", *PHASES),
        rows=tuple(rows),
        short=True,
    )


def _phases(move: Move, activity: Sequence[Activity], model: NodeModel) -> Iterator[tuple[str, str, float]]:
    """(node, phase, mean watts) of a move."""
    times = np.array([each.time_ns for each in activity], dtype=np.float64)
    busy = cpu_rows(activity)
    margin_ns = 2e9
    spans = {
        "before": (move.begin_ns - margin_ns, move.begin_ns),
        "during": (move.begin_ns, move.end_ns),
        "after": (move.end_ns, move.end_ns + margin_ns),
    }
    for node, column in (("source", 0 if move.source == "a" else 1), ("destination", 1 if move.source == "a" else 0)):
        for phase, (begin_ns, end_ns) in spans.items():
            used_s = np.diff(np.interp([begin_ns, end_ns], times, busy[:, column]))[0]
            yield node, phase, model.at(float(used_s) / (end_ns - begin_ns) * 1e9)


def _text(values: Sequence[float]) -> str:
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.1f} W"
    interval = student(values)
    return f"{interval.value:.1f} ± {interval.half_width:.1f} W"
