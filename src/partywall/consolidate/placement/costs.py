"""What a move costs before it is made: time, blackout and energy, each with an interval. Pure.

The course of a move comes from the model of pre-copy that live migrations were compared with
(`migrate.findings.prediction`). Its interval spans the courses at the slowest and the fastest link, and at the highest
and the lowest dirty rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from partywall.consolidate.document import Cluster, GuestSpec, LinkSpec
from partywall.consolidate.placement.state import bytes_per_s
from partywall.core.stats.estimate import Span
from partywall.migrate.document import Method
from partywall.migrate.findings.prediction import NOTHING, Curve, Facts, replayed

SOURCE_CORES, DESTINATION_CORES = 1.0, 0.5
"""CPU that a move uses on each side while it goes on, where the cluster file does not say; less on a smaller host."""
CORES_SPREAD = 0.5
"""Relative error of these, either way. Measured ones have the error of the link."""
GIVE_UP_S = 600.0
DOWNTIME_LIMITS_MS = (300, 100, 30)
"""QEMU's downtime limits that are considered, the one with the shortest move first."""


@dataclass(frozen=True)
class MoveCost:
    """One move of a guest by QEMU's pre-copy with a downtime limit.

    converges: whether it is expected to end. reaches: whether its blackout is predicted to keep the guest's goal.
    """

    limit_ms: int
    converges: bool
    reaches: bool
    total_s: Span
    blackout_s: Span
    energy_j: Span


def moves(cluster: Cluster) -> list[MoveCost]:
    """The cost of one move of each guest."""
    watts = _move_watts(cluster)
    return [
        cost
        for spec in cluster.guests.values()
        for cost in [_move(spec, cluster.link, watts)]
        for _ in range(spec.count)
    ]


class _Filling(Curve):
    """A working set that fills at a constant rate. The same as the two windows of its base, and faster."""

    def __init__(self, dirty: float, working_set: float) -> None:
        full_s = working_set / dirty
        super().__init__((full_s, 2 * full_s), np.array([[working_set, working_set]]))
        object.__setattr__(self, "_line", (dirty, working_set))

    def at(self, seconds: float) -> float:
        dirty, working_set = self._line  # type: ignore[attr-defined]
        return min(float(working_set), float(dirty) * seconds)

    @property
    def widest(self) -> float:
        return float(self._line[1])  # type: ignore[attr-defined]


@cache
def _course(
    content: float, memory: float, rate: float, dirty: float, working_set: float, limit_ms: int
) -> tuple[bool, float, float]:
    facts = Facts(memory=memory, content=content, rate=rate, curve=_Filling(dirty, working_set) if dirty else NOTHING)
    course = replayed(facts, Method(bandwidth="100Gbit/s", downtime=f"{limit_ms}ms"), GIVE_UP_S)
    return course.converges, course.total_s, course.downtime_s


def _move(spec: GuestSpec, link: LinkSpec, watts: Span) -> MoveCost:
    """With the first downtime limit that keeps the guest's goal; with the last if none does."""
    for limit_ms in DOWNTIME_LIMITS_MS:
        cost = _by_limit(spec, link, watts, limit_ms)
        if cost.reaches:
            break
    return cost


def _by_limit(spec: GuestSpec, link: LinkSpec, watts: Span, limit_ms: int) -> MoveCost:
    content = float(min(spec.memory, spec.content if spec.content is not None else spec.memory))
    working_set = float(min(content, spec.working_set if spec.working_set is not None else content))
    rate, dirty = bytes_per_s(link), float(spec.dirty_rate or 0)
    ends = [
        _course(
            content,
            float(spec.memory),
            rate * (1 + link.spread * way),
            dirty * (1 - link.spread * way),
            working_set,
            limit_ms,
        )
        for way in (1, 0, -1)
    ]
    setup_s, extra_s = link.setup / 1e9, link.blackout / 1e9
    total = [setup_s + total_s + extra_s for _, total_s, _ in ends]
    blackout = [downtime_s + extra_s for _, _, downtime_s in ends]
    converges = all(does for does, _, _ in ends)
    goal = spec.slo.downtime
    return MoveCost(
        limit_ms=limit_ms,
        converges=converges,
        reaches=converges and (goal is None or max(blackout) <= goal / 1e9),
        total_s=Span(value=total[1], low=min(total), high=max(total)),
        blackout_s=Span(value=blackout[1], low=min(blackout), high=max(blackout)),
        energy_j=Span(
            value=total[1] * watts.value,
            low=min(total) * watts.low,
            high=max(total) * watts.high,
        ),
    )


def _move_watts(cluster: Cluster) -> Span:
    """Watts that a move adds on both sides, over all hosts and loads."""
    slopes = [
        (step * (len(curve.watts) - 1) / spec.cpus, spec.cpus)
        for spec in cluster.hosts.values()
        for curve in [cluster.curve(spec.power)]
        for step in np.diff(curve.watts)
    ]
    sides = []
    for measured, assumed in (
        (cluster.link.source_cores, SOURCE_CORES),
        (cluster.link.destination_cores, DESTINATION_CORES),
    ):
        cores, spread = (assumed, CORES_SPREAD) if measured is None else (measured, cluster.link.spread)
        side = [watts * min(cores, cpus) for watts, cpus in slopes]
        least, most = max(0.0, min(side)), max(0.0, *side)
        sides.append(Span(value=(least + most) / 2, low=least * (1 - spread), high=most * (1 + spread)))
    return total(sides)


def p99_s(spec: GuestSpec, blackout_s: float, loss: float) -> float | None:
    """The predicted p99 response time over the window of its SLO that contains a move; None if its p99 is unknown.

    Requests due during a blackout D wait between 0 and D, so in a window W the p99 is D − W/100 if that is more than
    usual. Beside neighbours, a guest that loses a share of its throughput takes that much longer.
    """
    if spec.p99 is None:
        return None
    beside = spec.p99 / 1e9 / max(1e-9, 1.0 - loss) if loss < 1 else math.inf
    return max(beside, blackout_s - spec.slo.window / 1e11)


def total(spans: list[Span]) -> Span:
    """The sum of figures whose errors may all go the same way."""
    return Span(
        value=sum(each.value for each in spans),
        low=sum(each.low for each in spans),
        high=sum(each.high for each in spans),
    )
