"""A policy over load traces. Pure: the same seed and traces give the same result.

Assumptions, the same for every policy:

* Load is constant between samples. At the beginning of an interval a policy knows the samples up to the one before.
* All moves of a decision begin when its hosts have booted. Guests count where they came from until all of them ended,
  and where they went for the rest of the interval.
* A move sends the guest's memory over the link, at the rate of the cluster file. Any number go on at once. Meanwhile
  the guest loses 10 % of its CPU, as in the literature. The move itself uses CPU on both sides, whose energy counts.
* CPU of a host is divisible. Demand beyond it is not served, and not made up for later.
* Switching a host takes the time and energy of its curve. An empty host that a policy keeps on takes idle power.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from partywall.consolidate.placement.policy import Decisions, Policy, after
from partywall.consolidate.placement.state import OFF, Floats, Ints, State
from partywall.consolidate.values import PolicyResult, Sample

DEGRADED = 0.1
"""Share of its CPU that a guest loses while it moves."""
HISTORY = 40
"""Samples that a policy sees."""
PING_PONG_S = 3600.0
"""A guest that returns to the host that it left within this time is a ping-pong."""

Watch = Callable[[int, int], None]


@dataclass
class _Totals:
    """What adds up over a simulation."""

    energy_j: float = 0.0
    boots_j: float = 0.0
    moves_j: float = 0.0
    moves: int = 0
    boots: int = 0
    ping_pongs: int = 0
    short_cycles: int = 0
    unserved: float = 0.0
    demanded: float = 0.0
    samples: list[Sample] = field(default_factory=list)


def simulate(
    policy: Policy, state: State, demand: Floats, interval_s: float, watch: Watch = lambda _done, _of: None
) -> PolicyResult:
    """demand: (guests, samples) in cores."""
    run = _Run(state, demand, interval_s)
    for place in range(demand.shape[1]):
        seen = demand[:, max(0, place - HISTORY) : max(1, place)]
        run.step(policy.decide(run.state, seen) if place else Decisions(), place)
        watch(place + 1, demand.shape[1])
    return run.result(policy.name)


class _Run:
    def __init__(self, state: State, demand: Floats, interval_s: float) -> None:
        self.state, self.demand, self.interval_s = state, demand, interval_s
        self.sums = _Totals()
        hosts, guests = len(state.hosts), len(state.guests)
        self.on_s, self.over_s = np.zeros(hosts), np.zeros(hosts)
        self.requested, self.degraded = np.zeros(guests), np.zeros(guests)
        self.last_off_s = np.full(hosts, -np.inf)

    def step(self, decisions: Decisions, place: int) -> None:
        """One interval."""
        before, load = self.state, self.demand[:, place]
        now_s = place * self.interval_s
        self._count(decisions, now_s)
        self.state = after(before, decisions)
        moved = np.array([move.guest for move in decisions.moves], np.int64)
        boot_s = float(before.hosts.boot_s[list(decisions.wake)].max(initial=0.0))
        moving_s = float(before.guests.move_s[moved].max(initial=0.0))
        first_s = min(self.interval_s, boot_s + moving_s)
        energy = self._phase(before, load, first_s)
        energy += self._phase(self.state, load, self.interval_s - first_s)
        energy += self._switching(decisions, first_s)
        moves_j = float(before.guests.move_j[moved].sum())
        self.degraded[moved] += DEGRADED * load[moved] * np.minimum(before.guests.move_s[moved], self.interval_s)
        self.requested += load * self.interval_s
        self.sums.energy_j += energy + moves_j
        self.sums.moves_j += moves_j
        self._age()
        on = int((self.state.status != OFF).sum())
        unserved = float(np.maximum(0.0, self.state.sums(load) - self.state.hosts.cpus).sum())
        self.sums.samples.append(
            Sample(
                at_s=now_s,
                hosts_on=on,
                moves=len(moved),
                boots=len(decisions.wake),
                demand=float(load.sum()),
                unserved=unserved,
                watts=(energy + moves_j) / self.interval_s,
            )
        )

    def _phase(self, state: State, load: Floats, seconds: float) -> float:
        """Joules of a part of an interval, and what hosts and guests saw in it."""
        if seconds <= 0:
            return 0.0
        on = state.status != OFF
        sums = state.sums(load)
        over = on & (sums >= state.hosts.cpus)
        self.on_s += on * seconds
        self.over_s += over * seconds
        self.sums.unserved += float(np.maximum(0.0, sums - state.hosts.cpus).sum()) * seconds
        self.sums.demanded += float(load.sum()) * seconds
        watts = np.where(on, state.hosts.power(sums), state.hosts.off_w)
        return float(watts.sum()) * seconds

    def _switching(self, decisions: Decisions, first_s: float) -> float:
        """Joules of boots and shutdowns beyond the power of the states that were counted for that time."""
        hosts = self.state.hosts
        wake, sleep = np.array(decisions.wake, np.int64), np.array(decisions.sleep, np.int64)
        # Woken hosts were counted as off until `first_s`: they boot, then wait idle for the moves.
        extra = hosts.boot_j[wake] - hosts.off_w[wake] * hosts.boot_s[wake]
        waiting_s = np.maximum(0.0, first_s - hosts.boot_s[wake])
        idle = (hosts.idle_w[wake] - hosts.off_w[wake]) * waiting_s
        # Hosts that sleep were counted as off from `first_s` on: they shut down first.
        ends = hosts.shutdown_j[sleep] - hosts.off_w[sleep] * hosts.shutdown_s[sleep]
        self.sums.boots_j += float(extra.sum() + ends.sum())
        return float(extra.sum() + idle.sum() + ends.sum())

    def _count(self, decisions: Decisions, now_s: float) -> None:
        sums, state = self.sums, self.state
        sums.moves += len(decisions.moves)
        sums.boots += len(decisions.wake)
        sums.ping_pongs += sum(
            state.origin[move.guest] == move.destination and state.moved_s[move.guest] < PING_PONG_S
            for move in decisions.moves
        )
        wake = list(decisions.wake)
        sums.short_cycles += int((now_s - self.last_off_s[wake] < state.hosts.break_even_s[wake]).sum())
        self.last_off_s[list(decisions.sleep)] = now_s

    def _age(self) -> None:
        self.state = replace(
            self.state, status_s=self.state.status_s + self.interval_s, moved_s=self.state.moved_s + self.interval_s
        )

    def result(self, name: str) -> PolicyResult:
        sums = self.sums
        used = self.on_s > 0
        slatah = float((self.over_s[used] / self.on_s[used]).mean()) if used.any() else 0.0
        demanding = self.requested > 0
        pdm = float((self.degraded[demanding] / self.requested[demanding]).mean()) if demanding.any() else 0.0
        return PolicyResult(
            policy=name,
            energy_kwh=sums.energy_j / 3.6e6,
            boots_kwh=sums.boots_j / 3.6e6,
            moves_kwh=sums.moves_j / 3.6e6,
            moves=sums.moves,
            boots=sums.boots,
            slatah=slatah,
            pdm=pdm,
            unserved=sums.unserved / max(1e-12, sums.demanded),
            ping_pongs=int(sums.ping_pongs),
            short_cycles=sums.short_cycles,
            hosts_on=float(np.mean([each.hosts_on for each in sums.samples])),
            samples=tuple(sums.samples),
        )


def first_placement(state: State, order: Ints | None = None) -> State:
    """Guests by their full CPUs and memory: each on the host whose power grows least, and unused hosts off.

    So does the literature begin. Guests that fit nowhere go to the host with the most free memory.
    """
    hosts, guests = state.hosts, state.guests
    at = np.zeros(len(guests), np.int64)
    cpus, memory = np.zeros(len(hosts)), np.zeros(len(hosts))
    every = np.arange(len(hosts))
    for guest in np.argsort(-guests.cpus, kind="stable") if order is None else order:
        fit = (cpus + guests.cpus[guest] <= hosts.cpus) & (memory + guests.memory[guest] <= hosts.memory)
        place = every[fit]
        if len(place):
            now = np.where(cpus[place] > 0, hosts.power(cpus[place], place), hosts.off_w[place])
            host = int(place[np.argmin(hosts.power(cpus[place] + guests.cpus[guest], place) - now)])
        else:
            host = int(np.argmax(hosts.memory - memory))
        at[guest] = host
        cpus[host] += guests.cpus[guest]
        memory[host] += guests.memory[guest]
    return state.placed(at)
