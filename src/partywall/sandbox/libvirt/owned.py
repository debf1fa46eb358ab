"""The user's own domains: whether one can be a sandbox, checked before and during a run."""

from __future__ import annotations

import contextlib
from typing import Any

from partywall.errors import CapabilityError
from partywall.sandbox.libvirt.domain import has_port
from partywall.sandbox.libvirt.library import URI, connect, library, libvirt_errors


def unusable(uri: str | None, name: str, *, by_ssh: bool) -> str:
    """Why a domain cannot be a sandbox, with a remedy; empty if it can. CapabilityError if no daemon answers.

    by_ssh: whether its agent is reached by ssh instead of a port.
    """
    with contextlib.closing(connect(uri or URI)) as connection, libvirt_errors(f"domain {name}", CapabilityError):
        return lacking(connection, uri or URI, name, by_ssh=by_ssh)


def lacking(connection: Any, uri: str, name: str, *, by_ssh: bool) -> str:
    """Like `unusable`, over a connection. Raises libvirt's own errors."""
    target = f"domain {name} of {uri}"
    domain = _looked_up(connection, name)
    if domain is None:
        names = ", ".join(sorted(known.name() for known in connection.listAllDomains())) or "none"
        return f"{target}: no domain has this name; there are: {names}"
    if not domain.isActive():
        return f"{target} is not running; start it: virsh -c {uri} start {name}"
    if not by_ssh and not has_port(domain.XMLDesc(0)):
        return (
            f"{target} has no virtio port for an agent, and no host: to reach one by ssh; "
            "give host:, or add the port as docs/libvirt.md shows"
        )
    return ""


def _looked_up(connection: Any, name: str) -> Any:
    """The domain with this name, or None."""
    module = library()
    try:
        return connection.lookupByName(name)
    except module.libvirtError as error:
        if error.get_error_code() != module.VIR_ERR_NO_DOMAIN:
            raise
        return None
