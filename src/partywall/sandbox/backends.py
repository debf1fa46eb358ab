"""Facts about each backend in one list: accepted settings, live changes, location, and implementing class.

All code that needs backends by name uses this list. The implementations are in `partywall.sandbox`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

LIMITS = ("cpu_limit", "cpu_reservation", "cpu_weight", "memory", "disk")
# Where its memory comes from. All backends pin CPUs; a process gets its memory from any node.
PLACES = ("memory_nodes",)
# Settings of virtual machines only.
MACHINE = ("vcpus", "host_cpus", "accel", "network")
# Settings that say where a sandbox is, if not on this host.
ELSEWHERE = ("host", "uri", "domain", "boot")
SETTINGS = (*LIMITS, *PLACES, *MACHINE, *ELSEWHERE)
"""Settings of a sandbox other than backend and CPUs. Every backend can pin."""

LIVE_DISK = tuple(f"disk.{way}_{what}" for what in ("bps", "iops") for way in ("read", "write"))
"""The limits of `host.block.Throttle`."""
LIVE = frozenset(("cpu_limit", "cpu_weight", *LIVE_DISK))
CPU = dict.fromkeys(("cpu_limit", "cpu_reservation", "cpu_weight"), "cpu")

Name = Literal["process", "container", "qemu", "ssh", "libvirt"]


@dataclass(frozen=True)
class Backend:
    """One backend.

    made_by: module and class in `partywall.sandbox`. place: where its commands run; {host} and {domain} are filled in.
    settings: accepted settings. live: settings that can change while a sandbox runs. controllers: the cgroup controller
    of each setting that needs one. is_machine: true if a sandbox is a virtual machine.
    """

    made_by: str
    place: str
    settings: frozenset[str] = frozenset()
    live: frozenset[str] = frozenset()
    controllers: Mapping[str, str] = field(default_factory=dict)
    is_machine: bool = False


BACKENDS: Mapping[str, Backend] = {
    "process": Backend("process:Process", "on this host"),
    # A lower memory limit makes the kernel reclaim pages of files and swap from a container. They return by being read
    # again, long after the limit is raised. A limit below its use kills it.
    "container": Backend(
        "container:Container",
        "in a container on this host",
        frozenset((*LIMITS, *PLACES)),
        LIVE,
        CPU | {"memory": "memory", "memory_nodes": "cpuset", "disk": "io"},
    ),
    # A balloon changes a guest's memory. QEMU enforces memory and disk limits itself, and binds memory to nodes.
    "qemu": Backend(
        "qemu:Qemu",
        "in a guest",
        frozenset((*LIMITS, *PLACES, *MACHINE)),
        LIVE | {"memory"},
        CPU,
        is_machine=True,
    ),
    "ssh": Backend("ssh:Ssh", "on {host}", frozenset(("host",))),
    "libvirt": Backend(
        "libvirt:Libvirt",
        "in domain {domain}",
        frozenset((*LIMITS, *PLACES, "vcpus", "host_cpus", "accel", *ELSEWHERE)),
        LIVE | {"memory"},
        is_machine=True,
    ),
}
"""In the order of messages. `Name` lists the same names; a test compares."""
