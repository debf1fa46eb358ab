"""Owners of groups: who writes a group's limits, and how a limit is changed through them.

- **systemd** writes the limits of its units again at each reload. They are changed by runtime properties of the unit.
- **libvirt** has the limits of its domains. They are changed as `virsh schedinfo --live` does.
- Nobody else writes by itself: an OCI runtime writes a group's limits only when it is told to. So files are written,
  which takes a thousandth of the time of starting a runtime.
- A group's network is its own (`interfaces`): tools that give containers a network make it once, before they start.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from partywall.errors import CapabilityError, Problem
from partywall.host.settings.ledger import Undo

PERIOD_US = 10_000
"""The period of quotas: a pulse of 100 ms has ten of them."""
UNIT = re.compile(r"/([^/]+\.(?:service|scope|slice))$")
ANOTHER = re.compile(r"/user@\d+\.service/")
DOMAIN = re.compile(r"/(?:machine-)?qemu(?:-|\\x2d)(\d+)(?:-|\\x2d)[^/]*(?:\.scope|\.libvirt-qemu)(?:/|$)")


class Kind(StrEnum):
    """What a lever acts on."""

    CPU = "cpu"
    DISK = "disk"
    NETWORK = "network"
    CPUSET = "cpuset"
    FREEZE = "freeze"


class Refused(Exception):  # noqa: N818 - becomes an error where it is known whose group it is
    """An owner or the kernel refuses a limit. The text says why."""


class Owner(Protocol):
    """Changes the limit of one group and one kind.

    name: empty if nobody owns the group. folder: the group, which is gone when it has ended. writes: what it changes,
    for people. undo: makes everything as it was before, byte for byte, even in another process.
    """

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    @property
    def writes(self) -> str: ...

    @property
    def undo(self) -> Undo: ...

    def hold(self, limit: float) -> None:
        """Sets a limit: CPUs, or bytes a second; anything if there is no depth. `Refused` if that fails."""
        ...

    def release(self) -> None:
        """Sets the limit of before. `Refused` if that fails."""
        ...


def lack(name: str, why: str, remedy: str) -> CapabilityError:
    """The error for a group that cannot be held."""
    return CapabilityError(Problem(f"{name} cannot be held: {why}", remedy))


def owner_of(cgroup: str, *, has_systemd: bool) -> tuple[str, str]:
    """Who owns a group's limits, and as what it knows the group. Pure.

    ("libvirt", number of the domain), ("systemd", unit), ("another systemd", unit), or ("", "").
    """
    path = f"/{cgroup.strip('/')}"
    if domain := DOMAIN.search(path):
        return "libvirt", domain[1]
    unit = UNIT.search(path) if has_systemd else None
    if unit is None:
        # A group in a unit is not systemd's: whoever made it writes its limits.
        return "", ""
    return ("another systemd" if ANOTHER.search(path) else "systemd"), unit[1]
