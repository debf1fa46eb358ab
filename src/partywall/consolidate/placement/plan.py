"""From the state of a cluster to a plan: which guests move where in which order, which hosts are switched. Pure.

Clusters of up to 40 hosts and 200 guests are given to the exact solver, others to the heuristic. In each batch at most
as many guests move as allowed, and each destination has room for a guest before it arrives, while those that leave in
the same batch are still there. So any step may fail or be the last, and every host still has room for its guests.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from partywall.consolidate.document import Cluster, GuestSpec
from partywall.consolidate.placement import costs, exact, interference
from partywall.consolidate.placement.improve import improved
from partywall.consolidate.placement.policy import Decisions, Rules, decide
from partywall.consolidate.placement.room import Room
from partywall.consolidate.placement.state import (
    OFF,
    Bools,
    Floats,
    Forecast,
    Ints,
    State,
    forecast_of,
    guests_of,
    hosts_of,
    initial,
    z_of,
)
from partywall.consolidate.values import Alternative, Choice, ConsolidationPlan, Solver, Step
from partywall.core.stats.estimate import Span

CHOICES_MAX = 5
"""Other places of a guest that a plan keeps."""


@dataclass(frozen=True)
class Known:
    """A cluster file, and what is derived from it."""

    cluster: Cluster
    state: State
    forecast: Forecast
    rules: Rules


def known(cluster: Cluster, *, may_empty: bool = True) -> Known:
    """What a plan starts from."""
    return Known(cluster, initial(cluster, hosts_of(cluster), guests_of(cluster)), forecast_of(cluster),
                 rules_of(cluster, may_empty=may_empty))  # fmt: skip


def rules_of(cluster: Cluster, *, may_empty: bool = True) -> Rules:
    limits = cluster.limits
    return Rules(
        overload_risk=limits.overload_risk,
        relief_risk=max(limits.relief_risk, limits.overload_risk),
        hold_s=limits.hold / 1e9,
        horizon_s=limits.horizon / 1e9,
        keep_on=limits.keep_on,
        may_empty=may_empty,
    )


def digest(cluster: Cluster, state: State) -> str:
    """Identifies the cluster file and its state: a plan holds only for these."""
    content = {
        "cluster": cluster.model_dump(mode="json"),
        "at": [state.hosts.names[host] for host in state.at],
        "on": [int(status != OFF) for status in state.status],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def make(what: Known, *, solver: str = "auto", seed: int = 0) -> ConsolidationPlan:
    """solver: auto, exact, heuristic, or policy: what the policy of the simulation decides, not improved."""
    heuristic = decide(what.state, what.forecast, what.rules)
    target = _target(what.state, heuristic)
    if what.rules.may_empty and solver != "policy":
        target = improved(what.state, what.forecast, what.rules, target)
    used = Solver(name="policy" if solver == "policy" else "heuristic", objective_j=_objective(what, target))
    alternatives = {"leave everything as it is": what.state.at, used.name: target}
    # A host that could not be relieved leaves the exact solver nothing to solve.
    if solver == "exact" or (solver == "auto" and exact.is_small(what.state) and what.rules.may_empty):
        limit_s = what.cluster.limits.solver / 1e9
        solution = exact.solve(what.state, what.forecast, what.rules, limit_s, target, seed)
        if solution is not None:
            objective = _objective(what, solution.at)
            better = objective < used.objective_j and _batches(what, solution.at) is not None
            alternatives["exact solver"] = solution.at
            target = solution.at if better else target
            used = Solver(
                name="exact",
                objective_j=min(objective, used.objective_j),
                bound_j=solution.bound_j,
                seconds=solution.seconds,
            )
    batches = _batches(what, target)
    if batches is None:
        target = what.state.at
        batches = []
    made = _plan(what, target, batches, heuristic, used, alternatives)
    if batches and made.net_j.value < 0 and not _relieves(heuristic):
        # Its moves take so long that nothing is left to save within the horizon.
        return _plan(what, what.state.at, [], Decisions(), used, alternatives)
    return made


def _relieves(decisions: Decisions) -> bool:
    """Whether some of it is done to keep promises, and not to save energy."""
    return bool(decisions.wake or decisions.overloaded) or any(
        not move.reason.startswith("empties") for move in decisions.moves
    )


def _objective(what: Known, at: Ints) -> float:
    return exact.objective_j(what.state, what.forecast, what.rules, at)


def _target(state: State, decisions: Decisions) -> Ints:
    at = state.at.copy()
    for move in decisions.moves:
        at[move.guest] = move.destination
    return at


def _batches(what: Known, target: Ints) -> list[list[int]] | None:
    """Moves in an order in which each destination has room. None if there is no such order."""
    room = Room(what.state, what.forecast, z_of(what.rules.overload_risk))
    pending = [int(guest) for guest in np.flatnonzero(target != what.state.at)]
    # The order of leaving: guests of hosts that empty first, so that hosts are switched off early.
    pending.sort(key=lambda guest: (int(what.state.at[guest]), -float(what.state.guests.memory[guest])))
    batches = []
    while pending:
        batch = _batch(what, room, pending, target)
        if not batch:
            return None
        batches.append(batch)
        pending = [guest for guest in pending if guest not in batch]
    return batches


def _batch(what: Known, room: Room, pending: list[int], target: Ints) -> list[int]:
    """Moves that can run at the same time. Their guests need room on both sides until the batch has ended."""
    batch: list[int] = []
    held: list[tuple[int, int]] = []
    for guest in pending:
        if len(batch) >= what.cluster.limits.moves_at_once:
            break
        host = int(target[guest])
        if not room.fits(guest, np.array([host]))[0]:
            continue
        if any(source == host for _, source in held) and not _fits_beside(room, guest, host, held):
            continue
        held.append((guest, int(room.at[guest])))
        room.move(guest, host)
        batch.append(guest)
    return batch


def _fits_beside(room: Room, guest: int, host: int, held: list[tuple[int, int]]) -> bool:
    """Whether there is room even while guests of this batch have not left the host yet."""
    leaving = [other for other, source in held if source == host]
    back = [(other, int(room.at[other])) for other in leaving]
    for other in leaving:
        room.move(other, host)
    fits = bool(room.fits(guest, np.array([host]))[0])
    for other, place in back:
        room.move(other, place)
    return fits


def _plan(
    what: Known,
    target: Ints,
    batches: list[list[int]],
    decisions: Decisions,
    solver: Solver,
    alternatives: dict[str, Ints],
) -> ConsolidationPlan:
    state, hosts, cluster = what.state, what.state.hosts, what.cluster
    on_before = state.status != OFF
    on_after = _on_after(what, target)
    moves = costs.moves(cluster)
    steps = _steps(what, target, batches, on_after, moves, decisions)
    spent = costs.total([moves[guest].energy_j for batch in batches for guest in batch])
    switching = float(hosts.cycle_j[on_before & ~on_after].sum() + hosts.boot_j[on_after & ~on_before].sum())
    before_w = _watts(state.at, what, on_before)
    after_w = _watts(target, what, on_after)
    saved_w = float((before_w - after_w).sum())
    horizon_s = what.rules.horizon_s
    saved_j = (before_w - after_w) * np.maximum(0.0, horizon_s - _changed_s(steps, hosts.names))
    saved = _with_error(float(saved_j.sum()), saved_j, hosts.error)
    switched = _with_error(switching, np.array([switching]), hosts.error.max(keepdims=True))
    net = Span(
        value=saved.value - spent.value - switched.value,
        low=saved.low - spent.high - switched.high,
        high=saved.high - spent.low - switched.low,
    )
    cost = spent.value + switched.value
    return ConsolidationPlan(
        digest=digest(cluster, state),
        horizon_s=horizon_s,
        steps=steps,
        before_w=_with_error(float(before_w.sum()), before_w, hosts.error),
        after_w=_with_error(float(after_w.sum()), after_w, hosts.error),
        hosts_on_before=int(on_before.sum()),
        hosts_on_after=int(on_after.sum()),
        saved_j=saved,
        moves_j=spent,
        switching_j=switched,
        net_j=net,
        pays_after_s=cost / saved_w if saved_w > 0 else None,
        solver=solver,
        alternatives=_alternatives(what, alternatives),
        notes=tuple(_notes(what, decisions, moves)),
    )


def _on_after(what: Known, target: Ints) -> Bools:
    on_before = what.state.status != OFF
    used = np.bincount(target, minlength=len(what.state.hosts)) > 0
    if not what.rules.may_empty:
        return np.asarray(used | on_before)
    spare = max(0, what.rules.keep_on - int(used.sum()))
    kept = np.flatnonzero(on_before & ~used)[:spare]
    used[kept] = True
    return used


def _changed_s(steps: tuple[Step, ...], names: tuple[str, ...]) -> Floats:
    """When each host's power has changed: as its last guest leaves or arrives. Steps of one batch run together."""
    takes: dict[int, float] = {}
    for step in steps:
        takes[step.batch] = max(takes.get(step.batch, 0.0), step.time_s.value if step.time_s else 0.0)
    ends = {batch: sum(seconds for other, seconds in takes.items() if other <= batch) for batch in takes}
    at = dict.fromkeys(names, 0.0)
    for step in steps:
        for host in (step.host, step.source):
            if host is not None:
                at[host] = max(at[host], ends[step.batch])
    return np.array(list(at.values()))


def _watts(at: Ints, what: Known, on: Bools) -> Floats:
    hosts = what.state.hosts
    return np.where(on, hosts.power(what.state.sums(what.forecast.mean, at)), hosts.off_w)


def _with_error(value: float, parts: Floats, error: Floats) -> Span:
    """The curves' errors may all go the same way."""
    spread = float((np.abs(parts) * error).sum())
    return Span(value=value, low=value - spread, high=value + spread)


def _steps(
    what: Known,
    target: Ints,
    batches: list[list[int]],
    on_after: Bools,
    moves: list[costs.MoveCost],
    decisions: Decisions,
) -> tuple[Step, ...]:
    """Hosts are woken first. A host is switched off in the batch after its last guest has left."""
    state, names = what.state, what.state.hosts.names
    on_before = state.status != OFF
    steps: list[Step] = []

    def add(**values: object) -> None:
        steps.append(Step.model_validate({"number": len(steps), **values}))

    for host in np.flatnonzero(on_after & ~on_before):
        add(batch=0, action="wake", host=names[host], reason="guests need its CPUs")
    at = state.at.copy()
    room = Room(state, what.forecast, z_of(what.rules.overload_risk))
    offs = on_before & ~on_after
    reasons = {move.guest: move.reason for move in decisions.moves}
    specs = [spec for spec in what.cluster.guests.values() for _ in range(spec.count)]
    lost = interference.losses(state.guests.loss, state.guests.use, target)
    number = 1
    for host in np.flatnonzero(offs & (np.bincount(at, minlength=len(names)) == 0)):
        add(batch=number, action="sleep", host=names[host], reason="it has no guests")
        offs[host] = False
    for batch in batches:
        for guest in batch:
            cost = moves[guest]
            reason = f"empties {names[at[guest]]}" if offs[at[guest]] else reasons.get(guest, "needs less power there")
            add(
                batch=number,
                action="move",
                host=names[target[guest]],
                guest=state.guests.names[guest],
                source=names[at[guest]],
                reason=reason,
                time_s=cost.total_s,
                limit_ms=cost.limit_ms,
                blackout_s=cost.blackout_s,
                energy_j=cost.energy_j,
                p99_s=_p99(specs[guest], cost, float(lost[guest])),
                choices=_choices(what, room, guest, int(target[guest])),
            )
        for guest in batch:
            room.move(guest, int(target[guest]))
            at[guest] = target[guest]
        number += 1
        for host in np.flatnonzero(offs & (np.bincount(at, minlength=len(names)) == 0)):
            add(batch=number, action="sleep", host=names[host], reason="its guests have left")
            offs[host] = False
    return tuple(steps)


def _p99(spec: GuestSpec, cost: costs.MoveCost, loss: float) -> Span | None:
    values = [
        costs.p99_s(spec, blackout, own)
        for blackout, own in ((cost.blackout_s.value, loss), (cost.blackout_s.low, 0.0), (cost.blackout_s.high, loss))
    ]
    value, low, high = values
    return None if value is None or low is None or high is None else Span(value=value, low=low, high=high)


def _choices(what: Known, room: Room, guest: int, chosen: int) -> tuple[Choice, ...]:
    """Other hosts for a guest: possible ones by the power that they would add, then refused ones with the reason."""
    state, hosts = what.state, what.state.hosts
    if len(hosts) > exact.HOSTS_MAX:
        return ()
    others = np.array([host for host in range(len(hosts)) if host not in (chosen, int(room.at[guest]))], np.int64)
    if not len(others):
        return ()
    mean = room.mean[others]
    on = np.where(room.memory[others] > 0, hosts.power(mean, others), hosts.off_w[others])
    added = hosts.power(mean + what.forecast.mean[guest], others) - on
    considered = [
        Choice(host=hosts.names[host], watts=float(added[place]), refused=refusal(state, room, guest, int(host)))
        for place, host in enumerate(others)
    ]
    return tuple(sorted(considered, key=lambda each: (bool(each.refused), each.watts or 0.0))[:CHOICES_MAX])


def refusal(state: State, room: Room, guest: int, host: int) -> str:
    """Why a host cannot take a guest; empty if it can."""
    hosts, guests = state.hosts, state.guests
    place = np.array([host])
    if room.fits(guest, place)[0]:
        return ""
    if room.memory[host] + guests.memory[guest] > hosts.memory[host]:
        return "not enough memory"
    if room.promise[host] + guests.promise[guest] > hosts.cpus[host]:
        return "its CPUs are promised to others"
    if room.need_with(guest, place)[0] > hosts.cpus[host]:
        return "its demand might exceed its CPUs"
    if ((room.groups[host] > 0) & guests.group[guest]).any():
        return "a guest to be kept apart is there"
    return "a goal would be broken by interference"


def _alternatives(what: Known, targets: dict[str, Ints]) -> tuple[Alternative, ...]:
    idle = _objective(what, what.state.at)
    considered = [
        Alternative(
            name=name,
            net_j=0.0 if (at == what.state.at).all() and name.startswith("leave") else idle - _objective(what, at),
            moves=int((at != what.state.at).sum()),
            hosts_on=int((_on_after(what, at) if not name.startswith("leave") else what.state.status != OFF).sum()),
        )
        for name, at in targets.items()
    ]
    return tuple(sorted(considered, key=lambda each: -each.net_j))


def _notes(what: Known, decisions: Decisions, moves: list[costs.MoveCost]) -> list[str]:
    names, notes = what.state.hosts.names, []
    if decisions.overloaded:
        hosts = ", ".join(names[host] for host in decisions.overloaded)
        notes.append(f"no host has room to relieve {hosts}")
    specs = [spec for spec in what.cluster.guests.values() for _ in range(spec.count)]
    for name, spec, cost in zip(what.state.guests.names, specs, moves, strict=True):
        if spec.pinned or cost.reaches:
            continue
        waits = f"its blackout of up to {cost.blackout_s.high:.2g} s breaks its goal"
        notes.append(f"{name} stays: {waits if cost.converges else 'it changes memory faster than the link carries'}")
    return notes
