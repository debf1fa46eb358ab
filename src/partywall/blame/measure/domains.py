"""Groups of libvirt's domains: their limits are live settings of the domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from partywall.blame.measure.files import Files
from partywall.blame.measure.owners import PERIOD_US, Kind, Refused, lack
from partywall.errors import PartywallError
from partywall.host.quota import quota_us
from partywall.host.settings.ledger import Command, Undo
from partywall.sandbox.libvirt.library import URI, connect, libvirt_errors
from partywall.sandbox.libvirt.tuning import Tuner


class Tunes(Protocol):
    """What a domain's tuner does here."""

    def schedule(self, parameters: Mapping[str, int]) -> None: ...

    def throttle(self, limits: Mapping[str, int]) -> None: ...


@dataclass(frozen=True)
class Domain:
    """A domain. before: its settings. vcpus: how many virtual CPUs share a CPU limit. disk: its name in the domain."""

    uuid: str
    files: Files
    tuner: Tunes
    before: Mapping[str, int]
    vcpus: int = 1
    disk: str = ""
    name = "libvirt"

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def writes(self) -> str:
        return f"{' and '.join(self.before)} of domain {self.uuid} (libvirt, live)"

    def hold(self, limit: float) -> None:
        if self.files.kind is Kind.DISK:
            ways = {"read_bytes_sec": int(limit), "write_bytes_sec": int(limit)}
            return self._do(self.tuner.throttle, {**self.before, **ways})
        quota = quota_us(limit / self.vcpus, PERIOD_US)
        return self._do(self.tuner.schedule, {"vcpu_period": PERIOD_US, "vcpu_quota": quota})

    def release(self) -> None:
        self._do(self.tuner.throttle if self.files.kind is Kind.DISK else self.tuner.schedule, self.before)

    @staticmethod
    def _do(call: Callable[[Mapping[str, int]], None], values: Mapping[str, int]) -> None:
        try:
            call(values)
        except PartywallError as error:
            raise Refused(f"libvirt refuses: {error}") from None

    @property
    def undo(self) -> Undo:
        if self.files.kind is Kind.DISK:
            words = [word for key, value in self.before.items() for word in (f"--{key.replace('_', '-')}", str(value))]
            argv = ["virsh", "-c", URI, "blkdeviotune", self.uuid, self.disk, "--live", *words]
        else:
            words = [f"{key}={value}" for key, value in self.before.items()]
            argv = ["virsh", "-c", URI, "schedinfo", self.uuid, "--live", *words]
        return Undo((Command(tuple(argv), str(self.folder)),))


def domain_of(number: int, files: Files) -> Domain:
    """A domain of this host by its number. CapabilityError if libvirt does not answer, or has no such limits."""
    name = f"/{files.folder.name}"
    if files.kind is Kind.FREEZE:
        raise lack(name, "libvirt stops its domains itself", "use --lever cpu, or virsh suspend")
    if files.kind is Kind.CPUSET:
        raise lack(name, "libvirt pins its virtual CPUs itself", "use --lever cpu, or virsh vcpupin")
    connection = connect(URI)
    with libvirt_errors(f"{name}: domain {number} cannot be found"):
        domain = connection.lookupByID(number)
        uuid = domain.UUIDString()
    tuner = Tuner(connection, domain, uuid)
    now = tuner.before()
    if files.kind is Kind.DISK:
        if not now.disk:
            raise lack(name, "the domain has no disk", "use --lever cpu")
        return Domain(uuid, files, tuner, now.disk_tune, disk=now.disk)
    keys = ("vcpu_period", "vcpu_quota")
    before = {key: value for key, value in (tuner.settable() or {}).items() if key in keys}
    if len(before) < len(keys):
        raise lack(name, "its virtual CPUs have no quota", "use the system's libvirt daemon, with cgroups")
    return Domain(uuid, files, tuner, before, vcpus=max(1, len(now.vcpu_pins)))
