"""The manager as a loop: it looks at the cluster, decides as the simulation does, and carries its decisions out.

Demand is CPU time between two looks. The times since hosts were switched and guests moved are those that this loop has
seen; before its first change they count as long.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from partywall.consolidate.apply import as_observed
from partywall.consolidate.connect import may_empty
from partywall.consolidate.seams import Hypervisor
from partywall.model.cluster import Cluster, GuestSpec
from partywall.model.consolidation import ConsolidationPlan
from partywall.placement import plan
from partywall.placement.forecast import forecast
from partywall.placement.state import Floats

HISTORY = 40
"""Samples that are kept."""


@dataclass(frozen=True)
class Look:
    """One look at the cluster. demand: cores of each guest. plan: None without anything to do."""

    cluster: Cluster
    demand: Mapping[str, float]
    plan: ConsolidationPlan | None


class Watching:
    """Decisions over time. clock: monotonic seconds."""

    def __init__(self, cluster: Cluster, hypervisor: Hypervisor, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._hypervisor, self._clock = cluster, hypervisor, clock
        self._history: list[Floats] = []
        self._last: tuple[float, Mapping[str, float], Cluster] | None = None
        self._switched = dict.fromkeys(cluster.hosts, -math.inf)
        self._moved: dict[str, tuple[float, str]] = {}

    def look(self) -> Look:
        """Looks and decides. UsageError if a guest does not run on exactly one host."""
        cluster = as_observed(self._cluster, self._hypervisor.observe())
        demand = self._demand(cluster)
        if demand is None:
            return Look(cluster, {}, None)
        self._history = [*self._history[1 - HISTORY :], np.array([demand[name] for name in cluster.guests])]
        made = plan.make(self._known(cluster), solver="policy")
        return Look(cluster, demand, made if made.steps else None)

    def done(self, look: Look) -> None:
        """The plan of a look was carried out."""
        now = self._clock()
        for step in look.plan.steps if look.plan else ():
            if step.guest is not None and step.source is not None:
                self._moved[step.guest] = (now, step.source)
            else:
                self._switched[step.host] = now

    def _demand(self, cluster: Cluster) -> dict[str, float] | None:
        """Cores in use since the last look; None at the first. A guest that was not seen counts as fully busy.

        A guest that moved counts as before: its new host counts its CPU time from its arrival, and the move itself
        takes CPU time on the old one.
        """
        now, used = self._clock(), self._hypervisor.cpu_s()
        last, self._last = self._last, (now, used, cluster)
        if last is None or now <= last[0]:
            return None
        before_s, before, then = last
        usual = dict(zip(cluster.guests, self._history[-1], strict=True)) if self._history else {}

        def cores(name: str, spec: GuestSpec) -> float:
            if name in used and spec.host != then.guests[name].host:
                return float(usual.get(name, spec.cpus))
            if name in used and used[name] >= before.get(name, math.inf):
                return (used[name] - before[name]) / (now - before_s)
            return spec.cpus

        return {name: cores(name, spec) for name, spec in cluster.guests.items()}

    def _known(self, cluster: Cluster) -> plan.Known:
        empty = may_empty(cluster.limits.hours, datetime.datetime.now().astimezone().time())
        what = plan.known(cluster, may_empty=empty)
        now, hosts = self._clock(), list(cluster.hosts)
        moved = [self._moved.get(name) for name in cluster.guests]
        state = replace(
            what.state,
            status_s=np.array([now - self._switched[name] for name in hosts]),
            moved_s=np.array([math.inf if each is None else now - each[0] for each in moved]),
            origin=np.array([-1 if each is None else hosts.index(each[1]) for each in moved], np.int64),
        )
        return replace(what, state=state, forecast=forecast(np.array(self._history).T, state.guests.cpus))
