"""Live settings of a domain: pinning and CPU time of its virtual CPUs, its disk and memory, and the original values.

Each libvirt driver has its own parameters: QEMU uses cgroups of each virtual CPU, Xen the credit scheduler's weight and
cap. The arithmetic is pure; a `Tuner` applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from partywall.errors import CapabilityError, TrialError
from partywall.host.quota import PERIOD_US, quota_us
from partywall.sandbox.base import Settings
from partywall.sandbox.libvirt import domain as definitions
from partywall.sandbox.libvirt.library import library, libvirt_errors

USUAL_WEIGHT = 100
XEN = "Xen"
Parameters = Mapping[str, int]


def scheduling(
    kind: str, vcpus: int, cpus: int, limit: float | None, weight: float | None, usual: Parameters
) -> dict[str, int]:
    """Scheduler parameters for a limit (share of the time of all `cpus`) and a weight (100 is the default).

    usual: the domain's own parameters. A weight is proportional to theirs, which is 1024 with cgroups of version 1, 100
    with version 2 and 256 under Xen. No limit means the owner's limit, if any.
    """
    times = 1.0 if weight is None else weight / USUAL_WEIGHT
    own = _settable(usual, kind)
    if kind == XEN:
        cap = own.get("cap", 0) if limit is None else max(1, round(limit * cpus * 100))
        return {"weight": max(1, round(own.get("weight", 256) * times)), "cap": cap}
    shares = max(2, round(own.get("cpu_shares", 1024) * times))
    if limit is None:
        period, quota = own.get("vcpu_period", PERIOD_US), own.get("vcpu_quota", -1)
    else:
        period, quota = PERIOD_US, quota_us(limit * cpus / vcpus)
    return {"cpu_shares": shares, "vcpu_period": period, "vcpu_quota": quota}


def mask(cpus: Sequence[int], count: int) -> tuple[bool, ...]:
    """A set of CPUs in libvirt's form."""
    return tuple(cpu in cpus for cpu in range(count))


@dataclass(frozen=True)
class Before:
    """The original settings of a domain, as plain values for a file.

    scheduler: None if it has no scheduler parameters, see `Tuner.scheduler`. uuid and number: identify the domain and
    its start, because live settings end with it.
    """

    scheduler: dict[str, int] | None
    vcpu_pins: list[list[bool]]
    emulator_pin: list[bool] | None
    disk: str | None
    disk_tune: dict[str, int]
    memory_kib: int
    uuid: str
    number: int

    def is_of(self, other: Before) -> bool:
        """True if both are of the same start of the same domain."""
        return (self.uuid, self.number) == (other.uuid, other.number)


class Tuner:
    """One domain's settings, read and changed while it runs."""

    def __init__(self, connection: Any, domain: Any, name: str) -> None:
        self._domain = domain
        self._name = name
        self._kind: str = connection.getType()
        self._cpus: int = connection.getInfo()[2]
        # Xen's driver has no flags here.
        self._live = 0 if self._kind == XEN else library().VIR_DOMAIN_AFFECT_LIVE

    @property
    def is_xen(self) -> bool:
        return self._kind == XEN

    def before(self) -> Before:
        """Its current settings."""
        with libvirt_errors(self._what("cannot be read")):
            disk = definitions.first_disk(self._domain.XMLDesc(0))
            return Before(
                scheduler=self.scheduler(),
                vcpu_pins=[] if self.is_xen else [list(pin) for pin in self._domain.vcpuPinInfo(self._live)],
                emulator_pin=None if self.is_xen else list(self._domain.emulatorPinInfo(self._live)),
                disk=disk,
                disk_tune=self._disk_tune(disk),
                memory_kib=self._domain.info()[2],
                uuid=self._domain.UUIDString(),
                number=self._domain.ID(),
            )

    def scheduler(self) -> dict[str, int] | None:
        """Its scheduler parameters; None if domains have none, as under a daemon without root (session mode)."""
        module = library()
        with libvirt_errors(self._what("its scheduler parameters cannot be read")):
            try:
                parameters = (
                    self._domain.schedulerParametersFlags(self._live)
                    if self._live
                    else self._domain.schedulerParameters()
                )
            except module.libvirtError as error:
                if error.get_error_code() == module.VIR_ERR_CONFIG_UNSUPPORTED:
                    return None
                raise
        return {key: value for key, value in parameters.items() if isinstance(value, int)}

    def pin(self, settings: Settings) -> None:
        """Pins virtual CPU k to the k-th CPU, cyclically, and the emulator's own threads to host_cpus.

        Does nothing without CPUs, and nothing under Xen: libvirt-python cannot pin there, because it requests a map of
        CPUs that Xen's driver lacks.
        """
        if self.is_xen or not settings.cpus:
            return
        count = self._domain.info()[3]
        with libvirt_errors(self._what("cannot be pinned")):
            for number in range(count):
                cpu = settings.cpus[number % len(settings.cpus)]
                self._domain.pinVcpuFlags(number, mask((cpu,), self._cpus), self._live)
            if settings.host_cpus:
                self._domain.pinEmulator(mask(settings.host_cpus, self._cpus), self._live)

    def hold(self, settings: Settings, limit: float | None, weight: float | None, usual: Parameters | None) -> None:
        """Sets limit and weight.

        A domain that could not be pinned is limited as if it had as many CPUs as virtual CPUs.
        """
        if usual is None:
            raise CapabilityError(
                f"{self._name}: its CPU limit or weight cannot be set: a libvirt daemon without root has none; "
                "use qemu:///system, or leave them out"
            )
        vcpus = self._domain.info()[3]
        cpus = vcpus if self.is_xen and settings.domain is not None else len(settings.cpus)
        wanted = scheduling(self._kind, vcpus, cpus, limit, weight, usual)
        with libvirt_errors(self._what("its CPU limit or weight cannot be set")):
            self._set(wanted)

    def settable(self) -> dict[str, int] | None:
        """Its scheduler parameters that can be set; None if it has none."""
        scheduler = self.scheduler()
        return None if scheduler is None else _settable(scheduler, self._kind)

    def schedule(self, parameters: Parameters) -> None:
        """Sets scheduler parameters as they are."""
        with libvirt_errors(self._what("its CPU limit cannot be set")):
            self._set(parameters)

    def _set(self, wanted: Parameters) -> None:
        if self._live:
            self._domain.setSchedulerParametersFlags(dict(wanted), self._live)
        else:
            self._domain.setSchedulerParameters(dict(wanted))

    def throttle(self, limits: Parameters) -> None:
        """Sets limits of its first disk."""
        disk = None if self.is_xen else self._first_disk()
        if disk is None:
            why = "Xen cannot throttle a disk" if self.is_xen else "it has no disk"
            raise CapabilityError(f"{self._name}: disk limits cannot be set: {why}; leave sandbox.disk out")
        with libvirt_errors(self._what("its disk cannot be limited")):
            self._domain.setBlockIoTune(disk, dict(limits), self._live)

    def _first_disk(self) -> str | None:
        with libvirt_errors(self._what("its disks cannot be read")):
            return definitions.first_disk(self._domain.XMLDesc(0))

    def give_memory(self, size_kib: int) -> None:
        """Lets the guest's balloon take or return memory."""
        with libvirt_errors(self._what("its memory cannot be changed")):
            self._domain.setMemoryFlags(size_kib, library().VIR_DOMAIN_AFFECT_LIVE)

    def memory(self) -> int:
        """Bytes of memory that its balloon leaves to it now."""
        with libvirt_errors(self._what("its memory cannot be read")):
            return int(self._domain.info()[2]) * 1024

    def restore(self, before: Before) -> bool:
        """Restores all original settings.

        Returns whether there were any. TrialError names all that could not be restored.

        Only live settings were changed. A domain that was shut down meanwhile has started as its owner defined it.
        """
        with libvirt_errors(self._what("cannot be restored")):
            same = (self._domain.UUIDString(), self._domain.ID()) == (before.uuid, before.number)
            if not (self._domain.isActive() and same):
                return False
            parts = self._parts(before)
        failed = []
        for what, put_back in parts.items():
            try:
                with libvirt_errors(what):
                    put_back()
            except TrialError as error:
                failed.append(str(error))
        if failed:
            raise TrialError(self._what(f"cannot be restored: {'; '.join(failed)}"))
        return True

    def _parts(self, before: Before) -> dict[str, Callable[[], object]]:
        """The settings to restore, and how. They do not depend on each other."""
        domain, live = self._domain, self._live
        _, _, memory_kib, count, _ = domain.info()
        parts: dict[str, Callable[[], object]] = {}
        if before.scheduler is not None:
            parts["CPU limit and weight"] = partial(self._set, _settable(before.scheduler, self._kind))
        # A virtual CPU that was unplugged meanwhile cannot be pinned.
        for number, pin in enumerate(before.vcpu_pins[:count]):
            parts[f"pin of virtual CPU {number}"] = partial(domain.pinVcpuFlags, number, tuple(pin), live)
        if before.emulator_pin is not None:
            parts["pin of the emulator"] = partial(domain.pinEmulator, tuple(before.emulator_pin), live)
        if before.disk is not None and before.disk_tune:
            parts[f"limits of disk {before.disk}"] = partial(domain.setBlockIoTune, before.disk, before.disk_tune, live)
        if memory_kib != before.memory_kib:
            parts["memory"] = partial(domain.setMemoryFlags, before.memory_kib, library().VIR_DOMAIN_AFFECT_LIVE)
        return parts

    def _disk_tune(self, disk: str | None) -> dict[str, int]:
        if self.is_xen or disk is None:
            return {}
        known = definitions.THROTTLES.values()
        return {key: value for key, value in self._domain.blockIoTune(disk, self._live).items() if key in known}

    def _what(self, what: str) -> str:
        return f"{self._name}: {what}"


def _settable(scheduler: Parameters, kind: str) -> dict[str, int]:
    """The parameters that we change. An unset quota is reported as a large number."""
    keys = ("weight", "cap") if kind == XEN else ("cpu_shares", "vcpu_period", "vcpu_quota")
    settable = {key: scheduler[key] for key in keys if key in scheduler}
    if settable.get("vcpu_quota", -1) > 1_000_000_000:
        settable["vcpu_quota"] = -1
    return settable
