"""libvirt's library: imported late, its errors as ours, and what a daemon tells of its host.

Deliberately not here: domains.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any

from partywall.errors import CapabilityError, PartywallError, TrialError
from partywall.host import Host, install

URI = "qemu:///system"
LIBRARY = (
    "the Python package libvirt-python is missing, so backend: libvirt cannot run; pip install libvirt-python "
    "(building it takes: {})"
)
# A part of what libvirt says → what it means and what helps. {said}: its own words.
_CONNECTING = (
    ("Failed to connect socket", "no libvirt daemon answers ({said}); is libvirtd running there, and the URI right?"),
    ("unable to connect to server", "no libvirt daemon answers ({said}); is it running and listening there?"),
    ("Unable to resolve address", "the host's name is not known ({said})"),
    ("authentication unavailable", "you may not use this daemon ({said}); run as root, or join the group libvirt"),
    ("access denied", "you may not use this daemon ({said}); run as root, or join the group libvirt"),
    ("Permission denied", "you may not use this daemon ({said}); run as root, or join the group libvirt"),
    ("no connection driver available", "libvirt knows no such URI; write for example qemu:///system or xen:///system"),
    ("URI scheme", "libvirt knows no such URI ({said}); write for example qemu:///system or xen:///system"),
)


@functools.cache
def library() -> Any:
    """The module `libvirt`; CapabilityError if it, or the library it stands on, is not installed."""
    try:
        module = importlib.import_module("libvirt")
    except ModuleNotFoundError:
        remedy = install(Host.here(), "libvirt-dev", "pkg-config", "gcc", "python3-dev")
        raise CapabilityError(LIBRARY.format(remedy)) from None
    except ImportError as error:
        said = f"the Python package libvirt-python cannot be loaded ({error}), so backend: libvirt cannot run"
        raise CapabilityError(f"{said}; {install(Host.here(), 'libvirt0')}") from None
    # It prints every error by itself, and each is told by us.
    module.registerErrorHandler(lambda _context, _error: None, None)
    return module


def version() -> str:
    """The library's version; CapabilityError if it is not installed."""
    return _dotted(library().getVersion())


def connect(uri: str) -> Any:
    """A connection; CapabilityError, in one sentence, if there is none to be had."""
    module = library()
    try:
        return module.open(uri)
    except module.libvirtError as error:
        raise CapabilityError(f"libvirt {uri}: {explained(str(error))}") from error


def reachable(uri: str | None) -> None:
    """CapabilityError if the daemon does not answer."""
    connect(uri or URI).close()


def explained(said: str) -> str:
    """Why a connection failed, with a remedy where one is known. Pure."""
    said = said.strip().splitlines()[0] if said.strip() else "it said nothing"
    for part, meaning in _CONNECTING:
        if part.lower() in said.lower():
            return meaning.format(said=said)
    return said


@contextlib.contextmanager
def told(what: str, error_type: type[PartywallError] = TrialError) -> Iterator[None]:
    """Turns libvirt's error into ours: what was wanted, and what libvirt says of it."""
    module = library()
    try:
        yield
    except module.libvirtError as error:
        raise error_type(f"{what}: {str(error).strip().splitlines()[0]}") from error


def survey(uri: str) -> dict[str, Any]:
    """Facts about a daemon's host in the form of an agent's, as far as libvirt knows them; no agent runs there."""
    connection = connect(uri)
    try:
        with told(f"libvirt {uri}", CapabilityError):
            model, memory_mib, cpus, *_ = connection.getInfo()
            kind, release = connection.getType(), _dotted(connection.getVersion())
    finally:
        connection.close()
    return {
        "cpus_allowed": list(range(cpus)),
        "cpu": {"model": model},
        "kernel": {"release": f"unknown, {kind} {release}"},
        "memory": {"total_bytes": memory_mib << 20},
        "agent": False,
    }


def _dotted(number: int) -> str:
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
