"""Guests of libvirt hosts: where they run, and moves by libvirt's own live migration.

Needs libvirt-python on the machine of the manager. A move is peer to peer, so that it goes on if the manager ends.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from partywall.consolidate.document import Cluster
from partywall.consolidate.measure.seams import Observed
from partywall.errors import CapabilityError, Problem, TrialError
from partywall.migrate.document import Method
from partywall.migrate.measure.owned import move_domain

GIVE_UP_NS = 900_000_000_000


class Libvirt:
    """All hosts of a cluster with a libvirt URI each. Domains have the names of guests."""

    def __init__(self, cluster: Cluster) -> None:
        try:
            self._libvirt: Any = importlib.import_module("libvirt")
        except ImportError:
            remedy = "apt-get install libvirt-dev pkg-config gcc python3-dev, then pip install 'partywall[libvirt]'"
            raise CapabilityError(Problem("hosts of libvirt need libvirt-python", remedy)) from None
        self._uris = {name: spec.uri or "" for name, spec in cluster.hosts.items()}
        self._guests = frozenset(cluster.guest_names())

    @contextlib.contextmanager
    def _connected(self, host: str) -> Iterator[Any]:
        try:
            connection = self._libvirt.open(self._uris[host])
        except self._libvirt.libvirtError as error:
            raise TrialError(f"libvirt on {host} does not answer: {error}") from None
        try:
            yield connection
        except self._libvirt.libvirtError as error:
            raise TrialError(f"libvirt on {host}: {error}") from None
        finally:
            connection.close()

    def observe(self) -> Observed:
        places: dict[str, set[str]] = {guest: set() for guest in self._guests}
        up, unknown = {}, {}
        for host in self._uris:
            try:
                with self._connected(host) as connection:
                    active = self._active(connection)
                    if others := frozenset(domain.name() for domain in active) - self._guests:
                        unknown[host] = others
                    for domain in active:
                        if domain.name() in self._guests and self._runs(domain):
                            places[domain.name()].add(host)
                up[host] = True
            except TrialError:
                up[host] = False
        return Observed({guest: frozenset(hosts) for guest, hosts in places.items()}, up, unknown)

    def active(self, host: str) -> frozenset[str]:
        with self._connected(host) as connection:
            return frozenset(domain.name() for domain in self._active(connection))

    def _active(self, connection: Any) -> list[Any]:
        return list(connection.listAllDomains(self._libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE))

    def cpu_s(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for host in self._uris:
            with contextlib.suppress(TrialError), self._connected(host) as connection:
                for domain in self._active(connection):
                    if domain.name() in self._guests and self._runs(domain):
                        seconds[domain.name()] = domain.info()[4] / 1e9
        return seconds

    def _runs(self, domain: Any) -> bool:
        """False on the destination of a move, which prepares for the guest, waits for it, or gives up."""
        module = self._libvirt
        state, reason = domain.state()
        arrives = (module.VIR_DOMAIN_PAUSED_MIGRATION, module.VIR_DOMAIN_PAUSED_STARTING_UP)
        if state == module.VIR_DOMAIN_PAUSED:
            return reason not in arrives
        return state in (module.VIR_DOMAIN_RUNNING, module.VIR_DOMAIN_BLOCKED)

    def is_moving(self, guest: str) -> bool:
        for host in self._uris:
            with contextlib.suppress(TrialError), self._connected(host) as connection:
                for domain in self._active(connection):
                    if domain.name() == guest and domain.jobInfo()[0] != self._libvirt.VIR_DOMAIN_JOB_NONE:
                        return True
        return False

    def move(self, guest: str, source: str, destination: str, limit_ms: int) -> None:
        moved = move_domain(
            guest, self._uris[source], self._uris[destination], Method(downtime=f"{limit_ms}ms"), GIVE_UP_NS
        )
        if moved.outcome != "completed":
            raise TrialError(f"{guest} was not moved from {source} to {destination}: {moved.reason or moved.outcome}")
