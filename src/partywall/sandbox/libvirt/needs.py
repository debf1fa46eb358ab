"""What libvirt domains need: a daemon that answers, a guest's kernel, and own domains that can be sandboxes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

from partywall.errors import CapabilityError, Problem
from partywall.host import Host
from partywall.sandbox.document import Sandbox
from partywall.sandbox.libvirt import reachable, unusable
from partywall.sandbox.needs import Sandboxes
from partywall.sandbox.qemu import GuestKernel


def lacking(wanted: Sandboxes, host: Host) -> Iterator[Problem]:
    """What prevents this host's libvirt from providing domains. Other hosts report this themselves."""
    del host
    here = _domains(wanted, "")
    checks: list[Callable[[], object]] = [
        functools.partial(reachable, uri) for uri in dict.fromkeys(box.uri for box in here)
    ]
    if any(box.guest and box.boot is None for box in here):
        checks.append(GuestKernel.prepared)
    for check in checks:
        try:
            check()
        except CapabilityError as error:
            yield from error.problems
    yield from unusable_domains(wanted, "")


def unusable_domains(wanted: Sandboxes, machine: str) -> Iterator[Problem]:
    """Existing domains of the user on a machine that cannot be sandboxes, as far as its daemon answers."""
    requested: dict[tuple[str | None, str, bool], list[str]] = {}
    for box, keys in _domains(wanted, machine).items():
        if box.domain is not None:
            requested.setdefault((box.uri, box.domain, box.host is not None), []).extend(keys)
    for (uri, domain, by_ssh), keys in requested.items():
        # A daemon that does not answer is reported elsewhere.
        with contextlib.suppress(CapabilityError):
            if why := unusable(uri, domain, by_ssh=by_ssh):
                yield Problem(why, key=", ".join(f"{key}.sandbox.domain" for key in dict.fromkeys(keys)))


def _domains(wanted: Sandboxes, machine: str) -> dict[Sandbox, list[str]]:
    """The libvirt sandboxes on a machine, with the keys of their workloads."""
    domains: dict[Sandbox, list[str]] = {}
    for key, each in wanted.items():
        for box in (one.sandbox for one in each):
            if box.backend == "libvirt" and box.machine == machine:
                domains.setdefault(box, []).append(key)
    return domains
