"""The libvirt library: imported late, with its errors converted to ours; facts about a daemon's host.

Domains are handled elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import xml.etree.ElementTree as ET  # what is read comes from the user's own libvirt daemon
from collections.abc import Iterator
from typing import Any

from partywall.errors import CapabilityError, PartywallError, TrialError
from partywall.host import Host, install

URI = "qemu:///system"
LIBRARY = (
    "the Python package libvirt-python is missing, so backend: libvirt cannot run; pip install libvirt-python "
    "(building it takes: {})"
)
# A part of libvirt's message → its meaning and a remedy. {said}: the message.
_CONNECTING = (
    ("Failed to connect socket", "no libvirt daemon answers ({said}); is libvirtd running there, and the URI right?"),
    ("unable to connect to server", "no libvirt daemon answers ({said}); is it running and listening there?"),
    ("Unable to resolve address", "the host's name cannot be resolved ({said}); check the name"),
    ("authentication unavailable", "you may not use this daemon ({said}); run as root, or join the group libvirt"),
    ("access denied", "you may not use this daemon ({said}); run as root, or join the group libvirt"),
    ("Permission denied", "you may not use this daemon ({said}); run as root, or join the group libvirt"),
    ("no connection driver available", "libvirt knows no such URI; write for example qemu:///system or xen:///system"),
    ("URI scheme", "libvirt knows no such URI ({said}); write for example qemu:///system or xen:///system"),
)


@functools.cache
def library() -> Any:
    """The module `libvirt`. CapabilityError if it, or the C library that it needs, is not installed."""
    try:
        module = importlib.import_module("libvirt")
    except ModuleNotFoundError:
        remedy = install(Host.here(), "libvirt-dev", "pkg-config", "gcc", "python3-dev")
        raise CapabilityError(LIBRARY.format(remedy)) from None
    except ImportError as error:
        said = f"the Python package libvirt-python cannot be loaded ({error}), so backend: libvirt cannot run"
        raise CapabilityError(f"{said}; {install(Host.here(), 'libvirt0')}") from None
    # Otherwise it prints every error itself, and we report each of them.
    module.registerErrorHandler(lambda _context, _error: None, None)
    return module


def version() -> str:
    """The library's version. CapabilityError if it is not installed."""
    return dotted(library().getVersion())


def connect(uri: str) -> Any:
    """A connection. CapabilityError with one sentence if it fails."""
    module = library()
    try:
        return module.open(uri)
    except module.libvirtError as error:
        raise CapabilityError(f"libvirt {uri}: {explained(str(error))}") from error


def reachable(uri: str | None) -> None:
    """CapabilityError if the daemon does not answer."""
    connect(uri or URI).close()


def explained(said: str) -> str:
    """Why a connection failed, with a remedy if one is known. Pure."""
    said = said.strip().splitlines()[0] if said.strip() else "it gave no reason"
    for part, meaning in _CONNECTING:
        if part.lower() in said.lower():
            return meaning.format(said=said)
    return said


@contextlib.contextmanager
def libvirt_errors(what: str, error_type: type[PartywallError] = TrialError) -> Iterator[None]:
    """Converts libvirt's error to ours: what was attempted, and libvirt's message."""
    module = library()
    try:
        yield
    except module.libvirtError as error:
        raise error_type(f"{what}: {str(error).strip().splitlines()[0]}") from error


def survey(uri: str) -> dict[str, Any]:
    """Facts about a daemon's host in the form of an agent's facts, as far as libvirt knows them.

    No agent runs there.
    """
    connection = connect(uri)
    try:
        with libvirt_errors(f"libvirt {uri}", CapabilityError):
            model, memory_mib, cpus, *_ = connection.getInfo()
            kind, release = connection.getType(), dotted(connection.getVersion())
            nodes = nodes_in(connection.getCapabilities())
    finally:
        connection.close()
    return {
        "cpus_allowed": list(range(cpus)),
        "cpu": {"model": model},
        "kernel": {"release": f"unknown, {kind} {release}"},
        "memory": {"total_bytes": memory_mib << 20, "nodes": nodes},
        "agent": False,
    }


def nodes_in(capabilities: str) -> list[dict[str, Any]]:
    """The NUMA nodes of a daemon's host, in the form of an agent's facts, from its capabilities. Pure."""
    cells = ET.fromstring(capabilities).findall("host/topology/cells/cell")  # noqa: S314 - written by the user's own daemon
    return [
        {
            "node": int(cell.get("id", "0")),
            "cpus": [int(cpu.get("id", "0")) for cpu in cell.findall("cpus/cpu")],
            "total_bytes": None if (size := cell.findtext("memory")) is None else int(size) << 10,
        }
        for cell in cells
    ]


def dotted(number: int) -> str:
    """A version of libvirt, or of a hypervisor as libvirt tells it, such as 9.0.0."""
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
