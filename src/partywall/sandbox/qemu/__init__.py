"""Sandboxes that are virtual machines: QEMU boots a stock kernel with the agent in an initramfs made here.

Existing machines are handled elsewhere (libvirt, ssh).
"""

from partywall.errors import CapabilityError
from partywall.host import Host
from partywall.sandbox.qemu import disk, root
from partywall.sandbox.qemu.accelerator import Accelerator, choose, untried, verdict
from partywall.sandbox.qemu.accelerator import qemu_version as version
from partywall.sandbox.qemu.backend import Qemu
from partywall.sandbox.qemu.kernel import GuestKernel, prepare
from partywall.sandbox.qemu.machine import MEMORY, kernel_bytes, memory_for

__all__ = [
    "MEMORY",
    "Accelerator",
    "GuestKernel",
    "Qemu",
    "choose",
    "disk",
    "kernel_bytes",
    "lacking",
    "memory_for",
    "prepare",
    "root",
    "untried",
    "verdict",
    "version",
]


def lacking(host: Host) -> str:
    """What prevents guests from starting on a host, with a remedy; empty if nothing does."""
    try:
        version(host)
        GuestKernel.prepared()
    except CapabilityError as error:
        return str(error)
    return ""
