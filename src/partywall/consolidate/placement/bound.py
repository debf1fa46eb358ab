"""The least energy that any placement could take, with the whole day known. Pure.

For each sample, guests are a fluid: demand and memory can be divided among hosts at will, nothing is moved, booted or
kept free, and a host needs its power in proportion to its load, from its idle power on. So a bound is lower than what
is possible, and a saving measured against it is understated.
"""

from __future__ import annotations

import numpy as np

from partywall.consolidate.placement.state import Floats, Guests, Hosts


def least_energy_j(hosts: Hosts, guests: Guests, demand: Floats, interval_s: float) -> float:
    """demand: (guests, samples) in cores."""
    # Any load ℓ of a host that is on costs at least its chord's ratio: watts beyond off per core at the best load.
    loads = np.linspace(0, 1, hosts.watts.shape[1])[1:]
    beyond = hosts.watts[:, 1:] - hosts.off_w[:, None]
    best = (beyond / (loads * hosts.cpus[:, None])).min(axis=1)
    order = np.argsort(best, kind="stable")
    capacity = np.cumsum(hosts.cpus[order])
    cost = np.concatenate([[0.0], np.cumsum(best[order] * hosts.cpus[order])])
    served = np.minimum(demand.sum(axis=0), capacity[-1])
    by_cpu = np.interp(served, np.concatenate([[0.0], capacity]), cost)
    # Memory alone needs some hosts too, each at its idle power or more.
    by_memory = _memory_w(hosts, float(guests.memory.sum()))
    return float((np.maximum(by_cpu, by_memory) + hosts.off_w.sum()).sum() * interval_s)


def _memory_w(hosts: Hosts, memory: float) -> float:
    """Watts beyond off that hosts for this memory need when idle."""
    idle = hosts.idle_w - hosts.off_w
    order = np.argsort(idle / hosts.memory, kind="stable")
    room = np.concatenate([[0.0], np.cumsum(hosts.memory[order])])
    return float(np.interp(memory, room, np.concatenate([[0.0], np.cumsum(idle[order])])))
