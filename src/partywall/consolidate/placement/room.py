"""Which hosts have room for a guest: CPU with a stated risk, memory, promises, anti-affinity and interference. Pure.

A host's demand is the sum of its guests' demands. Its mean and variance are the sums of theirs, and it is taken as
normal. A guest fits if the demand exceeds the host's CPUs with no more than the stated chance.
"""

from __future__ import annotations

import numpy as np

from partywall.consolidate.placement.state import Bools, Floats, Forecast, Ints, State


class Room:
    """What is in use on each host, as guests are moved one by one. z: standard deviations that must stay free."""

    def __init__(self, state: State, forecast: Forecast, z: float) -> None:
        self._guests, self._hosts, self.forecast, self.z = state.guests, state.hosts, forecast, z
        self.at = state.at.copy()
        self.mean = state.sums(forecast.mean)
        self.variance = state.sums(forecast.variance)
        self.memory = state.sums(state.guests.memory)
        self.promise = state.sums(state.guests.promise)
        groups = state.guests.group
        self.groups = np.zeros((len(state.hosts), groups.shape[1]), np.int64)
        guest, group = np.nonzero(groups)
        np.add.at(self.groups, (self.at[guest], group), 1)
        self.used = np.zeros((len(state.hosts), state.guests.use.shape[1]))
        np.add.at(self.used, self.at, state.guests.use)
        self._goals = np.flatnonzero(np.isfinite(state.guests.tolerance) & state.guests.loss.any(axis=1))

    def need(self, z: float | None = None) -> Floats:
        """Cores that each host should have for its guests."""
        return np.asarray(self.mean + (self.z if z is None else z) * np.sqrt(np.maximum(self.variance, 0.0)))

    def need_with(self, guest: int, index: Ints) -> Floats:
        """Cores that hosts should have with one more guest."""
        variance = np.maximum(self.variance[index] + self.forecast.variance[guest], 0.0)
        return np.asarray(self.mean[index] + self.forecast.mean[guest] + self.z * np.sqrt(variance))

    def fits(self, guest: int, index: Ints) -> Bools:
        """For each host in `index`, whether it has room for the guest, which is elsewhere now."""
        guests, hosts = self._guests, self._hosts
        fit: Bools = self.need_with(guest, index) <= hosts.cpus[index]
        fit &= self.memory[index] + guests.memory[guest] <= hosts.memory[index]
        fit &= self.promise[index] + guests.promise[guest] <= hosts.cpus[index]
        if (own := guests.group[guest]).any():
            fit &= ~(self.groups[index][:, own] > 0).any(axis=1)
        if len(self._goals) and fit.any():
            fit &= self._harmless(guest, index)
        return fit

    def _harmless(self, guest: int, index: Ints) -> Bools:
        """Whether neither the guest nor those with goals on a host would lose more than their goals allow."""
        guests, goals = self._guests, self._goals
        fit: Bools = self.used[index] @ guests.loss[guest] <= guests.tolerance[guest]
        hurt = self._lost(goals) + guests.loss[goals] @ guests.use[guest] > guests.tolerance[goals]
        closed = np.zeros(len(self.mean), bool)
        closed[self.at[goals[hurt & (goals != guest)]]] = True
        return np.asarray(fit & ~closed[index])

    def _lost(self, guests: Ints) -> Floats:
        """What guests lose to their neighbours."""
        loss, use = self._guests.loss[guests], self._guests.use[guests]
        return np.asarray((loss * (self.used[self.at[guests]] - use)).sum(axis=1))

    def move(self, guest: int, host: int) -> None:
        """Places the guest on another host."""
        guests, old = self._guests, int(self.at[guest])
        for place, sign in ((old, -1), (host, 1)):
            self.mean[place] += sign * self.forecast.mean[guest]
            self.variance[place] += sign * self.forecast.variance[guest]
            self.memory[place] += sign * guests.memory[guest]
            self.promise[place] += sign * guests.promise[guest]
            self.groups[place] += sign * guests.group[guest]
            self.used[place] += sign * guests.use[guest]
        self.at[guest] = host

    def broken(self) -> Bools:
        """Hosts that hold more than they have, or guests that must not meet or that lose more than they may."""
        wrong: Bools = self.need() > self._hosts.cpus + 1e-9
        wrong |= self.memory > self._hosts.memory
        wrong |= self.promise > self._hosts.cpus + 1e-9
        wrong |= (self.groups > 1).any(axis=1)
        lost = self._lost(self._goals)
        wrong[self.at[self._goals[lost > self._guests.tolerance[self._goals] + 1e-9]]] = True
        return wrong
