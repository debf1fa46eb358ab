"""Energy of a migration: what the source, the destination and the stretched service cost. Pure.

The CPU time of the two QEMUs during a move is measured; a node's power model turns it into energy. The guest would have
used CPU time anyway, so its own work during the move is taken off the source. If that is not known, as for a guest with
virtual users, the source's figure is an upper bound and includes it. The parts:

* source, destination: CPU seconds of the move on each side, at the watts of a further busy core;
* stretch: work that the guest did not do during the move is done later, at the watts of its activity.

A further core costs the more the fewer cores are busy. What else runs on the hosts is not known: the value is for hosts
that run the guest alone, and the interval reaches from the cheapest to the dearest core of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.rounds import student
from partywall.migrate.document import MoveFinding
from partywall.power.values import MoveEnergy, NodeModel

PARTS = ("source", "destination", "stretch")


def core_seconds(finding: MoveFinding, busy: float) -> dict[str, float]:
    """CPU seconds of one move by part. busy: cores that the guest uses when it does not move."""
    length_s = (finding.move.end_ns - finding.move.begin_ns) / 1e9
    done = min(1.0, finding.values.get("work_ratio", 1.0))
    source_s, destination_s = (finding.values.get(f"{side}_cpu_s", 0.0) for side in PARTS[:2])
    return {
        "source": max(0.0, source_s - busy * done * length_s),
        "destination": destination_s,
        "stretch": busy * (1 - done) * length_s,
    }


def energy(moves: Sequence[MoveFinding], model: NodeModel) -> tuple[MoveEnergy, ...]:
    """Energy of the completed moves of each combination."""
    cells: dict[tuple[str, str], list[MoveFinding]] = {}
    for finding in moves:
        if finding.move.outcome == "completed" and "source_cpu_s" in finding.values:
            cells.setdefault(finding.move.cell, []).append(finding)
    return tuple(_cell(cell, own, model) for cell, own in cells.items())


def _cell(cell: tuple[str, str], own: Sequence[MoveFinding], model: NodeModel) -> MoveEnergy:
    # A workload of one thread keeps one core busy; an idle guest keeps none.
    busy = 1.0 if any(finding.work for finding in own) else 0.0
    each = [core_seconds(finding, busy) for finding in own]
    beside = model.at(busy + 1) - model.at(busy)
    first = model.at(1) - model.idle_watts
    watts = {"source": beside, "destination": first, "stretch": first}
    parts = {part: _estimate([seconds_by_part[part] for seconds_by_part in each], watts[part], model) for part in PARTS}
    own_known = busy > 0 or not any(finding.users for finding in own)
    if not own_known:
        parts["source"] = parts["source"].model_copy(update={"low": 0.0})
    sums = {name: sum(getattr(part, name) for part in parts.values()) for name in ("value", "low", "high")}
    seconds = [(finding.move.end_ns - finding.move.begin_ns) / 1e9 for finding in own]
    return MoveEnergy(
        workload=cell[0],
        method=cell[1],
        moves=len(own),
        busy=busy,
        own_known=own_known,
        seconds=sum(seconds) / len(seconds),
        parts=parts,
        total=parts["source"].model_copy(update=sums),
        model=model.name,
        origin=model.states,
    )


def _estimate(core_s: Sequence[float], watts: float, model: NodeModel) -> Estimate:
    """Mean joules: the spread over moves, from the cheapest to the dearest core."""
    mean = sum(core_s) / len(core_s)
    spread = student(core_s).half_width if len(core_s) > 1 else 0.0
    steps = [model.at(core + 1) - model.at(core) for core in range(model.cpus)]
    return Estimate(
        value=watts * mean,
        low=max(0.0, mean - spread) * min(steps),
        high=(mean + spread) * max(steps),
        n=len(core_s),
        method="Student over moves, from the cheapest to the dearest core",
    )
