"""Groups of systemd's units: their limits are runtime properties, which systemd keeps when it is reloaded."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from partywall.blame.measure.files import Files
from partywall.blame.measure.owners import PERIOD_US, Kind, Refused, lack
from partywall.host import systemd
from partywall.host.settings.ledger import Command, Undo
from partywall.host.systemd import INFINITY, Property, Systemd, SystemdError

CPU_PROPERTIES = ("CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec")
DISK_PROPERTIES = ("IOReadBandwidthMax", "IOWriteBandwidthMax")
CPUS_PROPERTY = "AllowedCPUs"
PROPERTIES = {Kind.CPU: CPU_PROPERTIES, Kind.DISK: DISK_PROPERTIES, Kind.CPUSET: (CPUS_PROPERTY,), Kind.FREEZE: ()}
LEFT = {
    "CPUQuotaPerSecUSec": "50-CPUQuota.conf",
    "CPUQuotaPeriodUSec": "50-CPUQuotaPeriodSec.conf",
    "IOReadBandwidthMax": "50-IOReadBandwidthMax.conf",
    "IOWriteBandwidthMax": "50-IOWriteBandwidthMax.conf",
    CPUS_PROPERTY: "50-AllowedCPUs.conf",
}
"""The file that a runtime property leaves."""


@dataclass(frozen=True)
class Unit:
    """A group of systemd's. files: the group's own, for what they contained. before: its properties."""

    unit: str
    files: Files
    manager: Systemd
    before: tuple[Property, ...]
    control: Path = Path(systemd.CONTROL)
    name = "systemd"

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def writes(self) -> str:
        return f"{' and '.join(self._names) or 'FreezeUnit'} of {self.unit} (systemd, until the next boot)"

    @property
    def _names(self) -> tuple[str, ...]:
        return PROPERTIES[self.files.kind]

    def hold(self, limit: float) -> None:
        if self.files.kind is Kind.FREEZE:
            return self._do(lambda: self.manager.thaw(self.unit, frozen=True))
        return self._set(*self._during(limit))

    def release(self) -> None:
        if self.files.kind is Kind.FREEZE:
            return self._do(lambda: self.manager.thaw(self.unit, frozen=False))
        self._set(*self.before)
        if self.files.kind is Kind.CPUSET:
            # systemd writes nothing for a unit whose CPUs somebody else has set.
            self.files.release()
        return None

    def _during(self, limit: float) -> tuple[Property, ...]:
        if self.files.kind is Kind.CPU:
            values = (max(1, int(limit * 1e6)), PERIOD_US)
            return tuple((name, ("t", value)) for name, value in zip(CPU_PROPERTIES, values, strict=True))
        if self.files.kind is Kind.CPUSET:
            return ((CPUS_PROPERTY, ("ay", mask(self.files.cpus))),)
        disk = f"/dev/block/{self.files.device}"
        return tuple((name, ("a(st)", [(disk, int(limit))])) for name in DISK_PROPERTIES)

    def _set(self, *properties: Property) -> None:
        self._do(lambda: self.manager.set(self.unit, *properties))

    @staticmethod
    def _do(call: Callable[[], None]) -> None:
        try:
            call()
        except SystemdError as error:
            raise Refused(f"systemd refuses: {error}") from None

    @cached_property
    def undo(self) -> Undo:
        """Sets the properties of before, and removes the files that runtime properties leave.

        A file that was there before is written again by systemd itself. The contents of the group's files come last: a
        limit that somebody wrote behind systemd's back is there again as well.
        """
        if self.files.kind is Kind.FREEZE:
            return Undo((Command(("systemctl", "thaw", self.unit), str(self.folder)),))
        left = [self.control / f"{self.unit}.d" / LEFT[name] for name in self._names]
        made = [str(path) for path in left if not path.exists()]
        script = (sys.executable, "-I", "-S", str(Path(systemd.__file__)), self.unit, json.dumps(self.before), *made)
        return Undo((Command(script, systemd.SOCKET),), self.files.before)


def mask(cpus: Collection[int]) -> list[int]:
    """CPUs as systemd has them: bytes, whose lowest bits are the first ones. Pure."""
    return [sum(1 << bit for bit in range(8) if at + bit in cpus) for at in range(0, max(cpus, default=-1) + 1, 8)]


def cpus_of(bits: Sequence[int]) -> list[int]:
    """The CPUs of such bytes. Pure."""
    return [8 * at + bit for at, each in enumerate(bits) for bit in range(8) if each >> bit & 1]


def unit_of(unit: str, files: Files) -> Unit:
    """A unit of this host's systemd. CapabilityError if it does not answer, or does not know the unit."""
    name = f"/{files.folder.name}"
    try:
        manager = Systemd()
        before = tuple(_property(manager, unit, each, files.device) for each in PROPERTIES[files.kind])
    except SystemdError as error:
        raise lack(name, f"systemd owns its limits, and {error}", "run it as root, on the host") from None
    if files.kind is Kind.FREEZE and not files.is_v2:
        raise lack(name, "systemd freezes units with cgroup version 2 only", "use --lever cpu")
    return Unit(unit, files, manager, before)


def _property(manager: Systemd, unit: str, name: str, device: str) -> Property:
    value = manager.get(unit, name)
    if isinstance(value, int):
        return name, ("t", value)
    if name == CPUS_PROPERTY:
        return name, ("ay", value)
    disk = f"/dev/block/{device}"
    known = [(path, limit) for path, limit in value if _is_device(path, device)]
    return name, ("a(st)", known or [(disk, INFINITY)])


def _is_device(path: str, device: str) -> bool:
    with contextlib.suppress(OSError):
        number = Path(path).stat().st_rdev
        return f"{os.major(number)}:{os.minor(number)}" == device
    return False
