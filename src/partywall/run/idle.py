"""Idle CPUs that poll, so that none sleeps while something is measured.

A CPU that comes back from sleep may be slower for a while: its clock has fallen, or it is a virtual one whose core the
hypervisor has used otherwise. What is often idle, as work under a CPU limit is, then gets less done for the same CPU
time. The kernel keeps idle CPUs awake while a program holds its bound on the latency of CPUs at zero, and no longer
than that program lives. Source: Documentation/power/pm_qos_interface, Linux; what cyclictest does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from partywall.host import Host

DEVICE = Path("/dev/cpu_dma_latency")
DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")


def why_not(host: Host) -> str:
    """Why idle CPUs cannot be made to poll on a host; empty if they can."""
    if host.text(DRIVER) in (None, "", "none"):
        return "this kernel has no driver of idle states (cpuidle), which would heed it"
    if not host.exists(DEVICE):
        return f"{DEVICE} is not there"
    return "" if host.access(host.path(DEVICE), os.W_OK) else f"{DEVICE} may not be written, which needs root"


@contextlib.contextmanager
def polled(device: Path = DEVICE) -> Iterator[None]:
    """Every idle CPU polls while the block runs."""
    # Held by the open file: the kernel lets go of it when this process ends, however it does.
    with device.open("wb", buffering=0) as held:
        held.write((0).to_bytes(4, "little"))
        yield
