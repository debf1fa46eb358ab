"""The manager as a loop: it looks at the cluster, decides as the simulation does, and carries its decisions out.

Demand is CPU time between two looks. The times since hosts were switched and guests moved are those that this loop has
seen; before its first change they count as long.

A host that does not answer, and that neither this loop nor its power control says is off, is unknown. Such a host and
the guests that are seen nowhere are left out of decisions until it answers: it is not switched, nothing moves to it,
and nothing that may be on it moves.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from partywall.consolidate.document import Cluster, GuestSpec
from partywall.consolidate.measure.apply import as_observed
from partywall.consolidate.measure.connect import may_empty
from partywall.consolidate.measure.seams import Hypervisor, Observed
from partywall.consolidate.placement import plan
from partywall.consolidate.placement.forecast import forecast
from partywall.consolidate.placement.state import Floats
from partywall.consolidate.values import ConsolidationPlan
from partywall.errors import TrialError

HISTORY = 40
"""Samples that are kept."""


@dataclass(frozen=True)
class Look:
    """One look at the cluster without unknown hosts. demand: cores of each guest. plan: None if nothing is to do."""

    cluster: Cluster
    demand: Mapping[str, float]
    plan: ConsolidationPlan | None
    unknown: tuple[str, ...] = ()


class Watching:
    """Decisions over time. clock: monotonic seconds. is_off: whether the power control of a host says that it is."""

    def __init__(
        self,
        cluster: Cluster,
        hypervisor: Hypervisor,
        clock: Callable[[], float] = time.monotonic,
        is_off: Callable[[str], bool] = lambda _host: False,
    ) -> None:
        self._cluster, self._hypervisor, self._clock, self._is_off = cluster, hypervisor, clock, is_off
        self._on: frozenset[str] = frozenset()
        self._history: list[dict[str, float]] = []
        self._last: tuple[float, Mapping[str, float], Cluster] | None = None
        self._switched = dict.fromkeys(cluster.hosts, -math.inf)
        self._moved: dict[str, tuple[float, str]] = {}

    def look(self) -> Look:
        """Looks and decides.

        UsageError if a guest runs on several hosts, or on none while it is known of each whether it is on. TrialError
        if no host answers.
        """
        seen = self._hypervisor.observe()
        unknown = self._unknown(seen)
        if not any(seen.up.values()):
            raise TrialError(f"no host answers: {', '.join(seen.up)}")
        self._on = frozenset({host for host, up in seen.up.items() if up} | unknown)
        cluster = as_observed(*_known_part(self._cluster, seen, unknown))
        demand = self._demand(cluster)
        left_alone = tuple(sorted(unknown))
        if demand is None or not demand:
            return Look(cluster, {}, None, left_alone)
        self._history = [*self._history[1 - HISTORY :], demand]
        made = plan.make(self._known(cluster), solver="policy")
        return Look(cluster, demand, made if made.steps else None, left_alone)

    def _unknown(self, seen: Observed) -> set[str]:
        """Hosts that do not answer and may be on: they were on, or a guest that is seen nowhere may be there."""
        is_guest_lost = not all(seen.places.values())
        silent = (host for host, up in seen.up.items() if not up)
        return {host for host in silent if (is_guest_lost or host in self._on) and not self._is_off(host)}

    def done(self, look: Look, *, whole: bool = True) -> None:
        """The plan of a look was carried out. whole: all of it, so that it is known which hosts it has switched off."""
        now = self._clock()
        for step in look.plan.steps if look.plan else ():
            if step.action == "sleep" and whole:
                self._on -= {step.host}
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
        usual = self._history[-1] if self._history else {}

        def cores(name: str, spec: GuestSpec) -> float:
            if name in used and name in then.guests and spec.host != then.guests[name].host:
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
            origin=np.array(
                [hosts.index(each[1]) if each is not None and each[1] in hosts else -1 for each in moved], np.int64
            ),
        )
        return replace(what, state=state, forecast=forecast(self._past(cluster), state.guests.cpus))

    def _past(self, cluster: Cluster) -> Floats:
        """Demand of each guest over time. While one was not seen, it counts as fully busy."""
        return np.array(
            [[then.get(name, spec.cpus) for then in self._history] for name, spec in cluster.guests.items()]
        )


def _known_part(cluster: Cluster, seen: Observed, unknown: Collection[str]) -> tuple[Cluster, Observed]:
    """A cluster without its unknown hosts, and without the guests that may be there."""
    if not unknown:
        return cluster, seen
    guests = {name: spec for name, spec in cluster.guests.items() if seen.places[name]}
    hosts = {name: spec for name, spec in cluster.hosts.items() if name not in unknown}
    apart = tuple(tuple(name for name in group if name in guests) for group in cluster.apart)
    changes = {"hosts": hosts, "guests": guests, "apart": tuple(group for group in apart if len(group) > 1)}
    known = Observed(
        {name: seen.places[name] for name in guests}, {name: seen.up[name] for name in hosts}, seen.unknown
    )
    return cluster.model_copy(update=changes), known
