"""What becomes of a cluster that is watched, at times of its own: moves and boots are seen as they happen.

Watts come from a host's meter, or else from its power curve. Response times come from the records of loads that go on.
Decisions do not use any of this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Self

import numpy as np

from partywall.consolidate.document import Cluster
from partywall.consolidate.measure.seams import Hypervisor, Observed
from partywall.consolidate.placement.state import hosts_of
from partywall.consolidate.values import Seen
from partywall.errors import PartywallError
from partywall.host import Host
from partywall.load import recent
from partywall.power.meters import MeterError, Watts, make

LEAST_S = 1.0


class Seeing:
    """Use as a context manager. take: gets what is seen; every_s: between two looks. UsageError for a bad meter.

    The first look is taken at the start and the last one at the end, so that the energy between is that of all the
    time. unknown: hosts that do not answer and may be on, whose watts are not modelled; set by who decides that.
    failed: the first error that is not one of the cluster's; its look, and others like it, are missing.
    """

    def __init__(
        self, cluster: Cluster, hypervisor: Hypervisor, host: Host, take: Callable[[Seen], None], every_s: float
    ) -> None:
        self._cluster, self._hypervisor, self._take = cluster, hypervisor, take
        self._every_s = max(LEAST_S, every_s)
        self._hosts = hosts_of(cluster)
        self._meters = {
            name: Watts(make(spec.meter, host)) for name, spec in cluster.hosts.items() if spec.meter is not None
        }
        self.unknown: Collection[str] = ()
        self.failed: Exception | None = None
        self._before: tuple[float, Mapping[str, float], Mapping[str, str]] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seeing", daemon=True)

    def __enter__(self) -> Self:
        self._begun_s = time.monotonic()
        self._take_look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._take_look()
        for meter in self._meters.values():
            meter.close()

    def at_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._begun_s

    def look(self) -> Seen:
        """The cluster as it is now."""
        at_s, seen = self.at_s(), self._hypervisor.observe()
        places = {guest: next(iter(hosts)) for guest, hosts in seen.places.items() if len(hosts) == 1}
        demand = self._demand(at_s, places)
        return Seen(
            at_s=at_s,
            on=tuple(name for name, up in seen.up.items() if up),
            places=places,
            demand=demand,
            watts=self._watts(seen, places, demand),
            metered=tuple(self._meters),
            p99_s=self._responses(),
        )

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._take_look()

    def _take_look(self) -> None:
        """One that fails leaves a gap. What is not the cluster's fault, such as a full disk, is kept for the end."""
        try:
            self._take(self.look())
        except PartywallError:
            return
        except Exception as error:  # noqa: BLE001 - the manager goes on, and whoever started this is told
            self.failed = self.failed or error

    def _demand(self, at_s: float, places: Mapping[str, str]) -> dict[str, float]:
        """Cores of guests that stayed where they were since the last look."""
        used = self._hypervisor.cpu_s()
        last, self._before = self._before, (at_s, used, places)
        if last is None:
            return {}
        then_s, before, were = last
        return {
            guest: (used[guest] - before[guest]) / (at_s - then_s)
            for guest, host in places.items()
            if were.get(guest) == host and guest in used and used[guest] >= before.get(guest, float("inf"))
        }

    def _watts(self, seen: Observed, places: Mapping[str, str], demand: Mapping[str, float]) -> dict[str, float | None]:
        names = list(self._hosts.names)
        load = np.array([sum(demand.get(guest, 0.0) for guest in places if places[guest] == name) for name in names])
        modelled = np.where([seen.up[name] for name in names], self._hosts.power(load), self._hosts.off_w)
        return {
            name: self._read(name) if name in self._meters else None if name in self.unknown else float(watts)
            for name, watts in zip(names, modelled, strict=True)
        }

    def _read(self, name: str) -> float | None:
        try:
            return self._meters[name].read()
        except MeterError:
            return None

    def _responses(self) -> dict[str, float]:
        now_ns = time.monotonic_ns()
        p99_s = {
            name: recent.p99_s(Path(spec.responses), spec.slo.window / 1e9, now_ns)
            for name, spec in self._cluster.guests.items()
            if spec.responses is not None
        }
        return {name: seconds for name, seconds in p99_s.items() if seconds is not None}
