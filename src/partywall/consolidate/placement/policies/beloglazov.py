"""Published policies, re-implemented from their description.

Beloglazov and Buyya, "Optimal online deterministic
algorithms and adaptive heuristics for energy and performance efficient dynamic consolidation of virtual machines in
Cloud data centers", Concurrency and Computation: Practice and Experience 24 (2012) 1397 to 1420.

A host is overloaded if its demand exceeds a threshold from the median absolute deviation (MAD, s = 2.5) or the
interquartile range (IQR, s = 1.5) of its recent demand, or if local regression (LR, s = 1.2) predicts that its demand
exceeds its CPUs. Guests leave an overloaded host by minimum migration time (MMT): the one with the least memory first.
They are placed by power-aware best fit decreasing: in the order of their demand, each on the host whose power grows
least. Then the host with the least demand is emptied if all its guests fit elsewhere, and so on with the next.

Where the description leaves a choice: a host that is off costs its idle power too, so that it is not preferred.
Thresholds are those of a host's guests at the beginning of a decision. With fewer samples than a detector needs, the
threshold is 70 %.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from partywall.consolidate.placement.policy import Decisions, MoveTo
from partywall.consolidate.placement.state import OFF, Floats, Ints, State

SAMPLES = 30
FEWEST = 12
SAFE_SHARE = 0.7
MAD_SAFETY, IQR_SAFETY, LR_SAFETY = 2.5, 1.5, 1.2
LR_SAMPLES = 10


class Load(NamedTuple):
    """What a detector compares. own: of each guest, adds up on a host; limit: of each host."""

    own: Floats
    limit: Floats


Detector = Callable[[State, Floats], Load]


def mad(state: State, history: Floats) -> Load:
    def spread(series: Floats) -> Floats:
        middle = np.median(series, axis=1, keepdims=True)
        return np.asarray(np.median(np.abs(series - middle), axis=1))

    return _adaptive(state, history, spread, MAD_SAFETY)


def iqr(state: State, history: Floats) -> Load:
    def spread(series: Floats) -> Floats:
        low, high = np.quantile(series, (0.25, 0.75), axis=1)
        return np.asarray(high - low)

    return _adaptive(state, history, spread, IQR_SAFETY)


def _adaptive(state: State, history: Floats, spread: Callable[[Floats], Floats], safety: float) -> Load:
    cpus, recent = state.hosts.cpus, history[:, -SAMPLES:]
    if recent.shape[1] < FEWEST:
        return Load(recent[:, -1], SAFE_SHARE * cpus)
    series = np.zeros((len(cpus), recent.shape[1]))
    np.add.at(series, state.at, recent)
    share = 1.0 - safety * spread(series / cpus[:, None])
    return Load(recent[:, -1], np.maximum(share, 0.0) * cpus)


def local_regression(state: State, history: Floats) -> Load:
    cpus, recent = state.hosts.cpus, history[:, -LR_SAMPLES:]
    if recent.shape[1] < LR_SAMPLES:
        return Load(history[:, -1], SAFE_SHARE * cpus)
    # Local regression is linear in the samples, so predictions of guests add up to that of their host.
    return Load(LR_SAFETY * recent @ _regression(LR_SAMPLES), cpus)


def _regression(samples: int) -> Floats:
    """Weights of samples in the prediction of the next: a line through them by tricube weights (Loess)."""
    at = np.arange(samples, dtype=float)
    weight = (1 - ((samples - 1 - at) / samples) ** 3) ** 3
    design = np.column_stack([np.ones(samples), at])
    line = np.linalg.solve(design.T @ (weight[:, None] * design), design.T * weight)
    return np.asarray(np.array([1.0, samples]) @ line)


class Published:
    """One of them: a detector with minimum migration time and power-aware best fit decreasing."""

    def __init__(self, name: str, detector: Detector) -> None:
        self.name = name
        self._detector = detector

    def decide(self, state: State, history: Floats) -> Decisions:
        return _Deciding(state, history[:, -1], self._detector(state, history)).decisions()


class _Deciding:
    def __init__(self, state: State, demand: Floats, load: Load) -> None:
        self.state, self.demand, self.load = state, demand, load
        self.at = state.at.copy()
        self.mean = state.sums(demand)
        self.metric = state.sums(load.own)
        self.memory = state.sums(state.guests.memory)
        self.off = state.status == OFF

    def decisions(self) -> Decisions:
        used_before = np.bincount(self.state.at, minlength=len(self.mean)) > 0
        overloaded = self._over() & used_before
        chosen: list[int] = []
        for host in np.flatnonzero(overloaded):
            chosen += self._selected(int(host))
        self._place(chosen, np.flatnonzero(~overloaded))
        self._empty(overloaded)
        moved = np.flatnonzero(self.at != self.state.at)
        moves = [MoveTo(int(g), int(self.state.at[g]), int(self.at[g]), "") for g in moved]
        used = np.bincount(self.at, minlength=len(self.mean)) > 0
        return Decisions(
            tuple(moves),
            tuple(int(h) for h in np.flatnonzero(used & self.off)),
            tuple(int(h) for h in np.flatnonzero(~used & ~self.off)),
        )

    def _over(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.asarray((self.metric > self.load.limit) | (self.mean > self.state.hosts.cpus))

    def _selected(self, host: int) -> list[int]:
        """By minimum migration time, until the host is no longer overloaded."""
        guests = np.flatnonzero(self.at == host)
        chosen: list[int] = []
        for guest in guests[np.argsort(self.state.guests.memory[guests], kind="stable")]:
            if self.metric[host] <= self.load.limit[host] and self.mean[host] <= self.state.hosts.cpus[host]:
                break
            self._shift(int(guest), host, -1)
            chosen.append(int(guest))
        return chosen

    def _shift(self, guest: int, host: int, sign: int) -> None:
        self.mean[host] += sign * self.demand[guest]
        self.metric[host] += sign * self.load.own[guest]
        self.memory[host] += sign * self.state.guests.memory[guest]

    def _place(self, guests: list[int], hosts: Ints) -> None:
        """Power-aware best fit decreasing. A guest that fits nowhere goes back."""
        for guest in sorted(guests, key=lambda each: -self.demand[each]):
            host = self._best(guest, hosts)
            host = int(self.state.at[guest]) if host is None else host
            self._shift(guest, host, 1)
            self.at[guest] = host

    def _best(self, guest: int, hosts: Ints) -> int | None:
        every, demand = self.state.hosts, self.demand[guest]
        fit = self.metric[hosts] + self.load.own[guest] <= self.load.limit[hosts]
        fit &= self.mean[hosts] + demand <= every.cpus[hosts]
        fit &= self.memory[hosts] + self.state.guests.memory[guest] <= every.memory[hosts]
        hosts = hosts[fit]
        if not len(hosts):
            return None
        now = np.where(self.memory[hosts] > 0, every.power(self.mean[hosts], hosts), every.off_w[hosts])
        return int(hosts[np.argmin(every.power(self.mean[hosts] + demand, hosts) - now)])

    def _empty(self, overloaded: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """Empties hosts from the least loaded on. Hosts that took guests from an emptied one are not emptied."""
        receivers = np.zeros(len(self.mean), bool)
        receivers[self.at[self.at != self.state.at]] = True
        emptied = np.zeros(len(self.mean), bool)
        used = np.bincount(self.at, minlength=len(self.mean)) > 0
        share = self.mean / self.state.hosts.cpus
        for host in np.argsort(share, kind="stable"):
            if not used[host] or overloaded[host] or receivers[host]:
                continue
            others = np.flatnonzero(used & ~emptied & ~overloaded)
            if (taken := self._moved_away(int(host), others[others != host])) is not None:
                emptied[host] = True
                receivers[taken] = True

    def _moved_away(self, host: int, others: Ints) -> list[int] | None:
        guests = np.flatnonzero(self.at == host)
        taken: list[int] = []
        for guest in guests[np.argsort(-self.demand[guests], kind="stable")]:
            place = self._best(int(guest), others)
            if place is None:
                for other, at in zip(guests[np.argsort(-self.demand[guests], kind="stable")], taken, strict=False):
                    self._shift(int(other), at, -1)
                    self._shift(int(other), host, 1)
                    self.at[other] = host
                return None
            self._shift(int(guest), host, -1)
            self._shift(int(guest), place, 1)
            self.at[guest] = place
            taken.append(place)
        return taken
