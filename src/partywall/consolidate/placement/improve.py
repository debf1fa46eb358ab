"""A better placement than emptying hosts one by one: keep a set of hosts, and pack the guests of all others onto it.

Sets are prefixes of three orders of hosts: by power for each core, by present demand, and by both. Guests of kept hosts
stay. The others are placed in the order of their size, each on the fullest host with room. Afterwards guests move one
by one while that saves energy. First fit is tried too. Every placement is judged by its energy over the horizon,
moves and switching included.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partywall.consolidate.placement.exact import objective_j
from partywall.consolidate.placement.policy import Rules
from partywall.consolidate.placement.room import Room
from partywall.consolidate.placement.state import Bools, Forecast, Ints, State, z_of

ROUNDS_MAX = 3
"""Passes over all guests that move one by one."""
SETS_MAX = 12
"""Numbers of hosts that are tried in each order, beside those of a bisection."""
SWAPPED_MAX = 40
"""Hosts up to which the last host of a set is varied."""
POLISHED_MAX = 300
"""Guests up to which single moves and the third order are tried."""


def improved(state: State, forecast: Forecast, rules: Rules, start: Ints) -> Ints:
    """The best placement that is known. start: one to compare with, and to begin from."""
    most = len(np.unique(start))
    placements = [start, _first_fit(state, forecast, rules), *_packed(state, forecast, rules, most)]

    def worth(at: Ints) -> tuple[int, float]:
        overloaded = Room(replace(state, at=at), forecast, z_of(rules.overload_risk)).broken().sum()
        return int(overloaded), objective_j(state, forecast, rules, at)

    best = min(placements, key=worth)
    return _polished(state, forecast, rules, best) if len(state.guests) <= POLISHED_MAX else best


def _first_fit(state: State, forecast: Forecast, rules: Rules) -> Ints:
    """Each guest in turn on the first host with room, if that comes before its own."""
    room = Room(state, forecast, z_of(rules.overload_risk))
    for guest in np.flatnonzero(~state.guests.pinned):
        before = np.arange(room.at[guest])
        fitting = before[room.fits(int(guest), before)] if len(before) else before
        if len(fitting):
            room.move(int(guest), int(fitting[0]))
    return room.at


def _orders(state: State, forecast: Forecast) -> list[Ints]:
    efficiency = state.hosts.full_w_per_core
    load = state.sums(forecast.mean) / state.hosts.cpus
    both = efficiency / efficiency.mean() * (1.5 - load)
    return [np.lexsort((-load, efficiency)), np.argsort(-load, kind="stable"), np.argsort(both, kind="stable")]


def _packed(state: State, forecast: Forecast, rules: Rules, most: int) -> list[Ints]:
    """most: hosts that are known to be enough, if they are the right ones."""
    packings = []
    must = np.zeros(len(state.hosts), bool)
    must[state.at[state.guests.pinned]] = True
    for order in _orders(state, forecast)[: 3 if len(state.guests) <= POLISHED_MAX else 2]:
        order = np.concatenate([order[must[order]], order[~must[order]]])  # noqa: PLW2901 - pinned guests come first
        enough = np.cumsum(state.hosts.cpus[order]) >= forecast.mean.sum()
        enough &= np.cumsum(state.hosts.memory[order]) >= state.guests.memory.sum()
        least = int(np.argmax(enough)) + 1 if enough.any() else len(order)
        low = max(least, rules.keep_on, int(must.sum()))
        high = max(low, len(order) if len(order) <= SETS_MAX else min(len(order), 2 * most))
        # The fewest hosts that are enough, and then some more.
        while low < high:
            middle = (low + high) // 2
            if _pack(state, forecast, rules, order[:middle]) is None:
                low = middle + 1
            else:
                high = middle
        last = min(len(order), low + (SETS_MAX if len(order) <= SETS_MAX else 1))
        packed = [_pack(state, forecast, rules, order[:count]) for count in range(low, last + 1)]
        packings += [at for at in packed if at is not None]
        if len(order) <= SWAPPED_MAX:
            packings += _swapped(state, forecast, rules, order, low)
    return packings


def _swapped(state: State, forecast: Forecast, rules: Rules, order: Ints, enough: int) -> list[Ints]:
    """Sets of fewer hosts, or of as many, whose last host is another than in the order."""
    sets = [
        np.append(order[: count - 1], other) for count in (enough - 1, enough) if count >= 1 for other in order[count:]
    ]
    packed = [_pack(state, forecast, rules, kept) for kept in sets]
    return [at for at in packed if at is not None]


def _pack(state: State, forecast: Forecast, rules: Rules, kept: Ints) -> Ints | None:
    """All guests on these hosts; None if they have no room."""
    room = Room(state, forecast, z_of(rules.overload_risk))
    keep: Bools = np.zeros(len(state.hosts), bool)
    keep[kept] = True
    cpus = state.hosts.cpus
    for host in kept:
        # A host that is overloaded loses guests, the smallest first.
        own = np.flatnonzero((room.at == host) & ~state.guests.pinned)
        for guest in own[np.argsort(forecast.mean[own], kind="stable")]:
            if room.need()[host] <= cpus[host]:
                break
            if (place := _fullest(room, int(guest), kept[kept != host], cpus)) is None:
                return None
            room.move(int(guest), place)
    away = np.flatnonzero(~keep[room.at])
    if state.guests.pinned[away].any():
        return None
    size = forecast.mean[away] + room.z * np.sqrt(forecast.variance[away])
    for guest in away[np.argsort(-size, kind="stable")]:
        if (place := _fullest(room, int(guest), kept, cpus)) is None:
            return None
        room.move(int(guest), place)
    return None if room.broken()[kept].any() else room.at


def _fullest(room: Room, guest: int, hosts: Ints, cpus: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int | None:
    fitting = hosts[room.fits(guest, hosts)] if len(hosts) else hosts
    if not len(fitting):
        return None
    return int(fitting[np.argmin(cpus[fitting] - room.need_with(guest, fitting))])


def _polished(state: State, forecast: Forecast, rules: Rules, start: Ints) -> Ints:
    """Moves single guests while that saves energy."""
    room = Room(replace(state, at=start), forecast, z_of(rules.overload_risk))
    best = objective_j(state, forecast, rules, room.at)
    for _ in range(ROUNDS_MAX):
        before = best
        for guest in np.flatnonzero(~state.guests.pinned):
            best = _best_place(state, forecast, rules, room, int(guest), best)
        if best >= before:
            break
    return room.at


def _best_place(state: State, forecast: Forecast, rules: Rules, room: Room, guest: int, best: float) -> float:
    """Moves a guest to the host where all together take the least energy."""
    old = int(room.at[guest])
    hosts = np.unique(np.append(room.at, state.at[guest]))
    hosts = hosts[hosts != old]
    for host in hosts[room.fits(guest, hosts)] if len(hosts) else hosts:
        here = int(room.at[guest])
        room.move(guest, int(host))
        energy = objective_j(state, forecast, rules, room.at)
        if energy < best - 1e-6:
            best = energy
        else:
            room.move(guest, here)
    return best
