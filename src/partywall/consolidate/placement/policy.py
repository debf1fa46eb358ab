"""The policy: from a state, a forecast and limits to decisions. One pure function, for the simulation and for real.

In this order it relieves hosts whose demand may exceed their CPUs, waking hosts if the others have no room, and empties
hosts whose guests fit elsewhere if that saves energy within the horizon. Two thresholds give hysteresis: a host is
filled up to one chance of overload, and relieved above another. A guest that moved, and a host that was switched, stay
as they are for the hold time, except to keep a promise. No host is switched off or woken before its break-even time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from partywall.consolidate.placement.room import Room
from partywall.consolidate.placement.state import OFF, ON, Forecast, Ints, State, z_of

TRIES_MAX = 400
"""Hosts that are tried to be emptied in one decision."""
FAILURES_MAX = 24
"""Hosts in a row that could not be emptied, after which no more are tried."""


@dataclass(frozen=True)
class Rules:
    """Limits of a decision. moves_max: in one decision; may_empty: whether hosts may be emptied now."""

    overload_risk: float = 0.005
    relief_risk: float = 0.05
    hold_s: float = 1800.0
    horizon_s: float = 3600.0
    moves_max: int = 10_000
    keep_on: int = 1
    may_empty: bool = True


@dataclass(frozen=True)
class MoveTo:
    """A guest's move, and why."""

    guest: int
    source: int
    destination: int
    reason: str


@dataclass(frozen=True)
class Decisions:
    """What to do now. wake: hosts to switch on first; sleep: hosts that are empty afterwards, to switch off."""

    moves: tuple[MoveTo, ...] = ()
    wake: tuple[int, ...] = ()
    sleep: tuple[int, ...] = ()
    overloaded: tuple[int, ...] = field(default=())
    """Hosts that could not be relieved."""


class Policy(Protocol):
    """Decides. history: (guests, samples) of demand so far, the latest last, for policies with their own forecast."""

    name: str

    def decide(self, state: State, history: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Decisions: ...


def decide(state: State, forecast: Forecast, rules: Rules) -> Decisions:
    """See the module."""
    deciding = _Deciding(state, forecast, rules)
    deciding.relieve()
    if rules.may_empty:
        deciding.empty()
    deciding.switch_off_unused()
    return deciding.decisions()


class _Deciding:
    """One decision while it is made."""

    def __init__(self, state: State, forecast: Forecast, rules: Rules) -> None:
        self.state, self.rules = state, rules
        self.room = Room(state, forecast, z_of(rules.overload_risk))
        self.on = state.status != OFF
        self.moves: list[MoveTo] = []
        self.wake: list[int] = []
        self.sleep: list[int] = []
        self.overloaded: list[int] = []
        self.steady = (state.moved_s >= rules.hold_s) & ~state.guests.pinned
        self.efficient = np.argsort(state.hosts.full_w_per_core, kind="stable")

    def decisions(self) -> Decisions:
        return Decisions(tuple(self.moves), tuple(self.wake), tuple(self.sleep), tuple(self.overloaded))

    # Relief

    def relieve(self) -> None:
        """Moves guests away from hosts whose demand is likely to exceed their CPUs."""
        z = z_of(self.rules.relief_risk)
        over = np.flatnonzero((self.room.need(z) > self.state.hosts.cpus) & self.on)
        for host in over[np.argsort(-(self.room.need(z)[over] / self.state.hosts.cpus[over]), kind="stable")]:
            self._relieve(int(host), z)

    def _relieve(self, host: int, z: float) -> None:
        cpus = self.state.hosts.cpus[host]
        while self.room.need(z)[host] > cpus and len(self.moves) < self.rules.moves_max:
            if not any(self._relieved_by(guest, host) for guest in self._candidates(host, z)):
                self.overloaded.append(host)
                return

    def _candidates(self, host: int, z: float) -> Ints:
        """Its guests: those first that are enough alone, the quickest to move first; then those that help most."""
        arrived = self.room.at != self.state.at
        guests = np.flatnonzero((self.room.at == host) & ~self.state.guests.pinned & ~arrived)
        forecast, room = self.room.forecast, self.room
        variance = np.maximum(room.variance[host] - forecast.variance[guests], 0.0)
        left = room.mean[host] - forecast.mean[guests] + z * np.sqrt(variance)
        enough = left <= self.state.hosts.cpus[host]
        # A guest that has just moved goes last.
        unsteady = ~self.steady[guests]
        order = np.lexsort((np.where(enough, self.state.guests.move_s[guests], left), ~enough, unsteady))
        return np.asarray(guests[order])

    def _relieved_by(self, guest: int, host: int) -> bool:
        """Moves the guest to a host that is on, or to one that it wakes. False if there is none."""
        others = np.flatnonzero(self.on)
        destination = self._best(guest, others[others != host])
        if destination is None and (destination := self._woken(guest)) is None:
            return False
        self._move(guest, destination, f"demand on {self.state.hosts.names[host]} may exceed its CPUs")
        return True

    def _woken(self, guest: int) -> int | None:
        """Wakes the most efficient host that is off for long enough and has room."""
        off = self.efficient[~self.on[self.efficient]]
        off = off[self.state.status_s[off] >= self.state.hosts.break_even_s[off]]
        off = off[~np.isin(off, [*self.sleep, *self._left_lately(guest)])]
        fitting = off[self.room.fits(guest, off)] if len(off) else off
        if not len(fitting):
            return None
        host = int(fitting[0])
        self.on[host] = True
        self.wake.append(host)
        return host

    # Emptying

    def empty(self) -> None:
        """Empties hosts, the least efficient and least loaded first, while that saves energy."""
        state = self.state
        settled = (state.status == ON) & (state.status_s >= np.maximum(self.rules.hold_s, state.hosts.break_even_s))
        fixed = np.bincount(self.room.at[~self.steady], minlength=len(state.hosts)) > 0
        candidates = np.flatnonzero(settled & self.on & ~fixed & (self.room.mean + self.room.memory > 0))
        order = candidates[np.argsort(self._worth(candidates), kind="stable")]
        failures = 0
        for host in order[:TRIES_MAX]:
            if failures >= FAILURES_MAX or self.on.sum() <= self.rules.keep_on:
                return
            if not (self.room.at[~self.steady] == host).any():
                failures = 0 if self._emptied(int(host)) else failures + 1

    def _worth(self, hosts: Ints) -> Ints:
        """The order in which hosts are emptied: by demand relative to what an efficient host would need for it."""
        efficiency = self.state.hosts.full_w_per_core[hosts]
        return np.asarray(self.room.need()[hosts] / efficiency)

    def _emptied(self, host: int) -> bool:
        """Moves all guests of a host to others, if they have room and it saves energy. All or none."""
        guests = np.flatnonzero(self.room.at == host)
        if len(self.moves) + len(guests) > self.rules.moves_max:
            return False
        others = np.flatnonzero(self.on)
        others = others[others != host]
        before = self.room.mean.copy()
        size = self.room.forecast.mean[guests] + self.room.z * np.sqrt(self.room.forecast.variance[guests])
        done: list[tuple[int, int]] = []
        for guest in guests[np.argsort(-size, kind="stable")]:
            destination = self._best(int(guest), others, full=True)
            if destination is None or self.state.origin[guest] == destination:
                break
            self.room.move(int(guest), destination)
            done.append((int(guest), destination))
        if len(done) < len(guests) or not self._saves(host, guests, before):
            for guest, _ in done:
                self.room.move(guest, host)
            return False
        name = self.state.hosts.names[host]
        self.moves += [MoveTo(guest, host, place, f"empties {name}") for guest, place in done]
        self.steady[guests] = False
        self.on[host] = False
        self.sleep.append(host)
        return True

    def _saves(self, host: int, guests: Ints, before: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
        """Whether emptying a host saves energy within the horizon, counting moves and a later boot."""
        hosts = self.state.hosts
        changed = np.flatnonzero(before != self.room.mean)
        changed = changed[changed != host]
        old = float(hosts.power(before[changed], changed).sum() + hosts.power(before[[host]], np.array([host])).sum())
        new = float(hosts.power(self.room.mean[changed], changed).sum() + hosts.off_w[host])
        spent = float(hosts.cycle_j[host] + self.state.guests.move_j[guests].sum())
        return (old - new) * self.rules.horizon_s > spent

    def switch_off_unused(self) -> None:
        """Switches off hosts that have had no guests for long enough."""
        state = self.state
        used = np.bincount(self.room.at, minlength=len(state.hosts)) > 0
        idle = self.on & ~used & (state.status == ON)
        idle &= state.status_s >= np.maximum(self.rules.hold_s, state.hosts.break_even_s)
        for host in np.flatnonzero(idle)[::-1]:
            if self.on.sum() <= self.rules.keep_on:
                return
            self.on[host] = False
            self.sleep.append(int(host))

    # Both

    def _best(self, guest: int, hosts: Ints, *, full: bool = False) -> int | None:
        """The host with room where the guest takes the least energy; of those alike the fullest.

        full: fill hosts that hold guests already; an empty one is taken only if nothing else has room.
        """
        hosts = hosts[~np.isin(hosts, self._left_lately(guest))]
        fitting = hosts[self.room.fits(guest, hosts)] if len(hosts) else hosts
        if not len(fitting):
            return None
        used = self.room.memory[fitting] > 0
        if full and used.any():
            fitting = fitting[used]
        free = self.state.hosts.cpus[fitting] - self.room.need_with(guest, fitting)
        efficiency = self.state.hosts.full_w_per_core[fitting]
        order = np.lexsort((free, efficiency)) if not full else np.argsort(free, kind="stable")
        return int(fitting[order[0]])

    def _left_lately(self, guest: int) -> list[int]:
        """The host that the guest left not long ago: it does not go back there."""
        return [int(self.state.origin[guest])] if self.state.moved_s[guest] < 2 * self.rules.hold_s else []

    def _move(self, guest: int, destination: int, reason: str) -> None:
        source = int(self.room.at[guest])
        self.room.move(guest, destination)
        self.steady[guest] = False
        self.moves.append(MoveTo(guest, source, destination, reason))


def after(state: State, decisions: Decisions) -> State:
    """The state once decisions are carried out; times start again where something changed."""
    at, status, status_s = state.at.copy(), state.status.copy(), state.status_s.copy()
    moved_s, origin = state.moved_s.copy(), state.origin.copy()
    for move in decisions.moves:
        at[move.guest], moved_s[move.guest], origin[move.guest] = move.destination, 0.0, move.source
    for hosts, new in ((decisions.wake, ON), (decisions.sleep, OFF)):
        status[list(hosts)] = new
        status_s[list(hosts)] = 0.0
    return replace(state, at=at, status=status, status_s=status_s, moved_s=moved_s, origin=origin)
