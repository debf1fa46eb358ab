"""Makes idle CPUs poll, so that none sleeps during a measurement.

A CPU that wakes up may be slower for a while: its clock has fallen, or it is virtual and the hypervisor used its core
otherwise. Work with idle phases, for example under a CPU limit, then gets less done in the same CPU time. The kernel
keeps idle CPUs awake while a program holds its bound on CPU latency at zero, until that program ends. Source:
Documentation/power/pm_qos_interface, Linux; cyclictest does the same.
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
    """Why idle CPUs cannot poll on a host; empty if they can."""
    if host.text(DRIVER) in (None, "", "none"):
        return "this kernel has no driver of idle states (cpuidle), which polling needs"
    if not host.exists(DEVICE):
        return f"{DEVICE} does not exist"
    return "" if host.access(host.path(DEVICE), os.W_OK) else f"{DEVICE} is not writable, which needs root"


@contextlib.contextmanager
def polled(device: Path = DEVICE) -> Iterator[None]:
    """Every idle CPU polls while the block runs."""
    # Held by the open file: the kernel releases it when this process ends.
    with device.open("wb", buffering=0) as held:
        held.write((0).to_bytes(4, "little"))
        yield
