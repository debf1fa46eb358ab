"""The exact solver: the placement of least energy over the horizon, by OR-tools' CP-SAT. Pure, but takes time.

It solves the problem that the heuristic solves: the same chance of overload, memory, promises, anti-affinity,
interference, moves and switching. It reports the bound that it has proven, so a time limit is no secret. With one
worker and a seed, and if it ends before the limit, the result is the same each time. It counts in parts of a core and
in MiB, so the bound allows for rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from partywall.consolidate.placement import interference
from partywall.consolidate.placement.policy import Rules
from partywall.consolidate.placement.state import GRID, OFF, Forecast, Ints, State, z_of
from partywall.errors import CapabilityError, Problem

MILLI = 1000
UNITS = 1000
"""Parts of a core that the solver counts with; demand is rounded up."""
HOSTS_MAX, GUESTS_MAX = 40, 200
"""Larger clusters are left to the heuristic."""


@dataclass(frozen=True)
class Solution:
    """A placement. objective_j, bound_j: energy over the horizon with moves and switching, and what none is below."""

    at: Ints
    objective_j: float
    bound_j: float
    seconds: float


def is_small(state: State) -> bool:
    return len(state.hosts) <= HOSTS_MAX and len(state.guests) <= GUESTS_MAX


def solve(
    state: State, forecast: Forecast, rules: Rules, limit_s: float, hint: Ints, seed: int = 0, workers: int = 1
) -> Solution | None:
    """hint: a placement to start from, such as the heuristic's. None if no placement keeps all limits.

    CapabilityError if OR-tools is not installed.
    """
    try:
        from ortools.sat.python import cp_model  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        remedy = "pip install 'partywall[consolidate]', or --solver heuristic"
        raise CapabilityError(Problem("the exact solver needs OR-tools", remedy)) from None
    model = cp_model.CpModel()
    built = _Model(model, state, forecast, rules)
    built.build(hint)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    outcome = solver.solve(model)
    if outcome not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    at = np.array(
        [next(host for host in hosts if solver.value(built.x[guest, host])) for guest, hosts in built.places.items()]
    )
    # Demand that was rounded up takes energy that the placement does not.
    steepest_w = float((np.diff(state.hosts.watts, axis=1).max(axis=1) * GRID / state.hosts.cpus).max())
    rounded_j = len(state.guests) / UNITS * steepest_w * rules.horizon_s
    bound_j = solver.best_objective_bound / MILLI - rounded_j
    return Solution(at, solver.objective_value / MILLI, bound_j, solver.wall_time)


class _Model:
    """x: whether a guest is on a host, for pairs that are possible. on: whether a host is on. Energy in mJ."""

    def __init__(self, model: Any, state: State, forecast: Forecast, rules: Rules) -> None:
        self.model, self.state, self.forecast, self.rules = model, state, forecast, rules
        self.x: dict[tuple[int, int], Any] = {}
        self.places: dict[int, list[int]] = {}
        self.on = [model.new_bool_var(f"on{host}") for host in range(len(state.hosts))]
        self.costs: list[Any] = []

    def build(self, hint: Ints) -> None:
        guests = self.state.guests
        for guest in range(len(guests)):
            at = int(self.state.at[guest])
            self.places[guest] = [at] if guests.pinned[guest] else list(range(len(self.state.hosts)))
            for host in self.places[guest]:
                self.x[guest, host] = self.model.new_bool_var(f"x{guest},{host}")
                self.model.add_hint(self.x[guest, host], int(hint[guest] == host))
                self.model.add_implication(self.x[guest, host], self.on[host])
            self.model.add_exactly_one(self.x[guest, host] for host in self.places[guest])
            if not guests.pinned[guest]:
                self.costs.append(round(guests.move_j[guest] * MILLI) * (1 - self.x[guest, at]))
        for host in range(len(self.state.hosts)):
            self._host(host)
        self.model.add(sum(self.on) >= min(self.rules.keep_on, len(self.on)))
        self.model.minimize(sum(self.costs))

    def _own(self, host: int) -> list[tuple[int, Any]]:
        return [(guest, self.x[guest, host]) for guest in range(len(self.state.guests)) if (guest, host) in self.x]

    def _host(self, host: int) -> None:
        model, guests, hosts = self.model, self.state.guests, self.state.hosts
        own = self._own(host)
        cpus = math.floor(hosts.cpus[host] * UNITS)
        load = model.new_int_var(0, cpus, f"load{host}")
        model.add(load == sum(math.ceil(self.forecast.mean[g] * UNITS) * x for g, x in own))
        # Mean + z·√variance ≤ CPUs, squared.
        z = z_of(self.rules.overload_risk)
        spare = model.new_int_var(0, cpus, f"spare{host}")
        square = model.new_int_var(0, cpus * cpus, f"square{host}")
        model.add(spare == cpus - load)
        model.add_multiplication_equality(square, [spare, spare])
        variances = [(math.ceil(z * z * self.forecast.variance[g] * UNITS * UNITS), x) for g, x in own]
        model.add(sum(variance * x for variance, x in variances) <= square)
        mib = 1 << 20
        model.add(sum(math.ceil(guests.memory[g] / mib) * x for g, x in own) <= math.floor(hosts.memory[host] / mib))
        model.add(sum(math.ceil(guests.promise[g] * UNITS) * x for g, x in own) <= cpus)
        for group in range(guests.group.shape[1]):
            model.add_at_most_one(x for g, x in own if guests.group[g, group])
        self._harm(own)
        self._energy(host, load, cpus)

    def _harm(self, own: list[tuple[int, Any]]) -> None:
        """Guests with goals lose no more to their neighbours than the goals allow."""
        tolerance = self.state.guests.tolerance
        harm = interference.between(self.state.guests.loss, self.state.guests.use)
        scale = 1_000_000
        for guest, x in own:
            if np.isfinite(tolerance[guest]):
                lost = sum(math.ceil(harm[guest, other] * scale) * y for other, y in own if other != guest)
                self.model.add(lost <= math.floor(tolerance[guest] * scale)).only_enforce_if(x)

    def _energy(self, host: int, load: Any, cpus: int) -> None:
        """The power curve as segments, exactly one of which applies, and the cost of switching a host."""
        hosts, model = self.state.hosts, self.model
        horizon_s, on = self.rules.horizon_s, self.on[host]
        watts = hosts.watts[host]
        knots = [0, *(np.flatnonzero(np.abs(np.diff(watts, 2)) > 1e-9) + 1), len(watts) - 1]
        segments = []
        loads = []
        for number, (begin, end) in enumerate(pairwise(knots)):
            low, high = (round(knot / (len(watts) - 1) * cpus) for knot in (begin, end))
            chosen = model.new_bool_var(f"segment{host},{number}")
            part = model.new_int_var(0, high, f"part{host},{number}")
            model.add(part >= low * chosen)
            model.add(part <= high * chosen)
            slope = (watts[end] - watts[begin]) / max(1, high - low)
            self.costs.append(round((watts[begin] - slope * low) * horizon_s * MILLI) * chosen)
            self.costs.append(round(slope * horizon_s * MILLI) * part)
            segments.append(chosen)
            loads.append(part)
        model.add(sum(segments) == on)
        model.add(sum(loads) == load)
        self.costs.append(round(hosts.off_w[host] * horizon_s * MILLI) * (1 - on))
        if self.state.status[host] == OFF:
            self.costs.append(round(hosts.boot_j[host] * MILLI) * on)
        else:
            self.costs.append(round(hosts.cycle_j[host] * MILLI) * (1 - on))


def objective_j(state: State, forecast: Forecast, rules: Rules, at: Ints) -> float:
    """The energy of a placement as the solver counts it."""
    hosts = state.hosts
    used = np.bincount(at, minlength=len(hosts)) > 0
    if (short := rules.keep_on - int(used.sum())) > 0:
        used[np.flatnonzero(~used & (state.status != OFF))[:short]] = True
    watts = np.where(used, hosts.power(state.sums(forecast.mean, at)), hosts.off_w).sum()
    was_on = state.status != OFF
    switching = hosts.boot_j[used & ~was_on].sum() + hosts.cycle_j[~used & was_on].sum()
    return float(watts * rules.horizon_s + switching + state.guests.move_j[at != state.at].sum())
