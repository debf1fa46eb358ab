"""A cluster as arrays: what a policy knows and what it decides. Pure.

Hosts and guests are numbered. CPU is in cores, memory in bytes, time in seconds, power in watts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from partywall.consolidate.document import Cluster, GuestSpec, HostSpec, LinkSpec, PowerCurve, numbered

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

OFF, BOOTING, ON = 0, 1, 2
GRID = 120
"""Intervals of the common grid of power curves: it holds the points of curves with 1, 2, 3, 4, 5, 6, 8, 10 … steps."""
PEAK_Z = 2.326
"""A guest's peak is its 99th percentile."""


@dataclass(frozen=True)
class Hosts:
    """Static facts of hosts. watts: (hosts, GRID + 1) at evenly spaced loads."""

    names: tuple[str, ...]
    cpus: Floats
    memory: Floats
    watts: Floats
    off_w: Floats
    boot_s: Floats
    boot_j: Floats
    shutdown_s: Floats
    shutdown_j: Floats
    error: Floats

    def __len__(self) -> int:
        return len(self.names)

    def power(self, load: Floats, index: Ints | None = None) -> Floats:
        """Watts of hosts that are on, at these loads in cores. index: which hosts `load` belongs to; default: all."""
        rows = np.arange(len(self)) if index is None else index
        place = np.clip(load / self.cpus[rows], 0.0, 1.0) * GRID
        below = np.minimum(place.astype(np.int64), GRID - 1)
        part = place - below
        return np.asarray(self.watts[rows, below] * (1 - part) + self.watts[rows, below + 1] * part)

    @cached_property
    def idle_w(self) -> Floats:
        return self.watts[:, 0]

    @cached_property
    def full_w_per_core(self) -> Floats:
        """Watts for each core when all are busy: the lower, the more efficient."""
        return np.asarray(self.watts[:, -1] / self.cpus)

    @cached_property
    def break_even_s(self) -> Floats:
        """See `PowerCurve.break_even_s`."""
        cycle_s = self.boot_s + self.shutdown_s
        saved_w = self.idle_w - self.off_w
        with np.errstate(divide="ignore", invalid="ignore"):
            even = (self.boot_j + self.shutdown_j - self.off_w * cycle_s) / saved_w
        return np.where(saved_w > 0, np.maximum(cycle_s, even), math.inf)

    @cached_property
    def cycle_j(self) -> Floats:
        """What switching off and on again costs beyond being off."""
        cycle_s = self.boot_s + self.shutdown_s
        return np.asarray(self.boot_j + self.shutdown_j - self.off_w * cycle_s)


@dataclass(frozen=True)
class Guests:
    """Static facts of guests.

    group: (guests, groups) of guests that never share a host. loss, use: (guests, resources), see
    `interference.factors`. tolerance: the loss that each guest's goal allows; inf without a goal. move_s, move_j: of
    one move. pinned: guests that must not move, also because the move would break a goal.
    """

    names: tuple[str, ...]
    cpus: Floats
    memory: Floats
    promise: Floats
    pinned: Bools
    group: Bools
    loss: Floats
    use: Floats
    tolerance: Floats
    move_s: Floats
    move_j: Floats

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Forecast:
    """Each guest's CPU demand until the next decision takes effect: mean and variance, in cores."""

    mean: Floats
    variance: Floats


@dataclass(frozen=True)
class State:
    """Where guests are, and which hosts are on.

    at: host of each guest. status: of each host, OFF, BOOTING or ON; status_s: for how long. moved_s: since each
    guest's last move; origin: the host that it left then, −1 if it never moved.
    """

    hosts: Hosts
    guests: Guests
    at: Ints
    status: Ints
    status_s: Floats
    moved_s: Floats
    origin: Ints

    def sums(self, values: Floats, at: Ints | None = None) -> Floats:
        """The sum of a guest's figure on each host."""
        sums = np.bincount(self.at if at is None else at, weights=values, minlength=len(self.hosts))
        return np.asarray(sums, float)

    def watts(self, demand: Floats) -> float:
        """Power of the whole cluster at this demand."""
        on = self.hosts.power(self.sums(demand))
        return float(np.where(self.status == OFF, self.hosts.off_w, on).sum())

    def placed(self, at: Ints) -> State:
        """The same with guests elsewhere, where hosts without guests are off."""
        used = np.bincount(at, minlength=len(self.hosts)) > 0
        return replace(self, at=at, status=np.where(used, ON, OFF))


def z_of(risk: float) -> float:
    """The number of standard deviations that a normal variable exceeds with this chance."""
    from scipy.special import ndtri  # noqa: PLC0415 - slow to import

    return float(-ndtri(risk))


def hosts_of(cluster: Cluster) -> Hosts:
    """The hosts of a cluster file."""
    specs = [(each, spec) for name, spec in cluster.hosts.items() for each in numbered(name, spec.count)]
    curves = [cluster.curve(spec.power) for _, spec in specs]
    return _hosts([name for name, _ in specs], [spec for _, spec in specs], curves)


def _hosts(names: list[str], specs: list[HostSpec], curves: list[PowerCurve]) -> Hosts:
    grid = np.linspace(0, 1, GRID + 1)
    return Hosts(
        names=tuple(names),
        cpus=np.array([spec.cpus for spec in specs], float),
        memory=np.array([spec.memory for spec in specs], float),
        watts=np.array([np.interp(grid, np.linspace(0, 1, len(each.watts)), each.watts) for each in curves]),
        off_w=np.array([each.off for each in curves], float),
        boot_s=np.array([each.boot.seconds for each in curves]),
        boot_j=np.array([each.boot.energy for each in curves]),
        shutdown_s=np.array([each.shutdown.seconds for each in curves]),
        shutdown_j=np.array([each.shutdown.energy for each in curves]),
        error=np.array([each.error for each in curves]),
    )


def guests_of(cluster: Cluster) -> Guests:
    """The guests of a cluster file."""
    from partywall.consolidate.placement import costs, interference  # noqa: PLC0415 - they need this module's types

    specs = [(each, spec) for name, spec in cluster.guests.items() for each in numbered(name, spec.count)]
    names = tuple(name for name, _ in specs)
    only = [spec for _, spec in specs]
    place = {name: number for number, name in enumerate(names)}
    group = np.zeros((len(names), len(cluster.apart)), bool)
    for number, members in enumerate(cluster.apart):
        group[[place[each] for each in members], number] = True
    moves = costs.moves(cluster)
    loss, use = interference.factors(only)
    return Guests(
        names=names,
        cpus=np.array([spec.cpus for spec in only], float),
        memory=np.array([spec.memory for spec in only], float),
        promise=np.array([spec.promise for spec in only], float),
        pinned=np.array([spec.pinned or not cost.reaches for spec, cost in zip(only, moves, strict=True)], bool),
        group=group,
        loss=loss,
        use=use,
        tolerance=interference.tolerance(only),
        move_s=np.array([each.total_s.value for each in moves]),
        move_j=np.array([each.energy_j.value for each in moves]),
    )


def forecast_of(cluster: Cluster) -> Forecast:
    """Demand as a cluster file states it."""
    specs = [spec for spec in cluster.guests.values() for _ in range(spec.count)]
    mean = np.array([demand_of(spec) for spec in specs], float)
    peak = np.array([spec.cpus if spec.peak is None else spec.peak for spec in specs], float)
    return Forecast(mean, (np.maximum(0.0, peak - mean) / PEAK_Z) ** 2)


def demand_of(spec: GuestSpec) -> float:
    """Its mean demand. One whose demand is not known may use all of its CPUs."""
    return spec.cpus if spec.demand is None else spec.demand


def initial(cluster: Cluster, hosts: Hosts, guests: Guests) -> State:
    """The state as a cluster file records it: every guest's host, and whether hosts are on."""
    place = {name: number for number, name in enumerate(hosts.names)}
    named = [spec.host for spec in cluster.guests.values() for _ in range(spec.count)]
    status = [ON if spec.state == "on" else OFF for spec in cluster.hosts.values() for _ in range(spec.count)]
    return State(
        hosts=hosts,
        guests=guests,
        at=np.array([place[name] for name in named if name is not None], np.int64),
        status=np.array(status, np.int64),
        status_s=np.full(len(hosts), math.inf),
        moved_s=np.full(len(guests), math.inf),
        origin=np.full(len(guests), -1, np.int64),
    )


def bytes_per_s(link: LinkSpec) -> float:
    """What the link of moves carries."""
    return link.rate / 8
