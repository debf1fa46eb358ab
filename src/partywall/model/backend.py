"""What each backend is, in one list: the settings it takes, what it can change live, where it is, what makes it.

Everything that must know backends by name asks here. What a backend does is in `partywall.sandbox`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

LIMITS = ("cpu_limit", "cpu_reservation", "cpu_weight", "memory", "disk")
# What only a machine of its own has.
MACHINE = ("vcpus", "host_cpus", "accel", "network")
# What says where a sandbox is that is not on this host.
ELSEWHERE = ("host", "uri", "domain", "boot")
SETTINGS = (*LIMITS, *MACHINE, *ELSEWHERE)
"""What a sandbox may have besides backend and CPUs; every backend can pin."""

LIVE_DISK = tuple(f"disk.{way}_{what}" for what in ("bps", "iops") for way in ("read", "write"))
"""The limits of `scenario.Throttle`."""
LIVE = frozenset(("cpu_limit", "cpu_weight", *LIVE_DISK))
CPU = dict.fromkeys(("cpu_limit", "cpu_reservation", "cpu_weight"), "cpu")

Name = Literal["process", "container", "qemu", "ssh", "libvirt"]


@dataclass(frozen=True)
class Backend:
    """One backend.

    made_by: module and class in `partywall.sandbox`. place: where its commands run; {host} and {domain} are filled in.
    settings: those it takes. live: those that change while a sandbox runs. controllers: the cgroup controller that
    holds a setting. is_machine: whether a sandbox is a virtual machine.
    """

    made_by: str
    place: str
    settings: frozenset[str] = frozenset()
    live: frozenset[str] = frozenset()
    controllers: Mapping[str, str] = field(default_factory=dict)
    is_machine: bool = False


BACKENDS: Mapping[str, Backend] = {
    "process": Backend("process:Process", "on this host"),
    # A lower memory ceiling of a container reclaims pages of files and swap, which come back by being read again, long
    # after the ceiling is lifted; one below what it holds kills it.
    "container": Backend(
        "container:Container",
        "in a container on this host",
        frozenset(LIMITS),
        LIVE,
        CPU | {"memory": "memory", "disk": "io"},
    ),
    # A guest's memory is taken and given back by its balloon. QEMU holds memory and disk by itself.
    "qemu": Backend("qemu:Qemu", "in a guest", frozenset((*LIMITS, *MACHINE)), LIVE | {"memory"}, CPU, is_machine=True),
    "ssh": Backend("ssh:Ssh", "on {host}", frozenset(("host",))),
    "libvirt": Backend(
        "libvirt:Libvirt",
        "in domain {domain}",
        frozenset((*LIMITS, "vcpus", "host_cpus", "accel", *ELSEWHERE)),
        LIVE | {"memory"},
        is_machine=True,
    ),
}
"""In the order in which messages name them. `Name` lists the same; a test compares."""
