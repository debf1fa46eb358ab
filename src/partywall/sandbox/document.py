"""A sandbox as documents describe it: backend, CPUs, limits, disk and files. The backends create it."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from partywall.host.block import Throttle
from partywall.sandbox.backends import Name as BackendName
from partywall.values import Bytes, Cpus, Frozen, HostPath, Nodes, Package, Share


class Disk(Throttle):
    """Limits on the block device with the sandbox's files. The other keys apply to a guest's own disk."""

    cache: Literal["none", "directsync", "writethrough", "writeback", "unsafe"] | None = Field(
        None, description="qemu: how the host caches the guest's disk; default none: it bypasses the host's page cache"
    )
    size: Bytes | None = Field(None, description="qemu: size of the guest's disk; default 1GiB")
    device: HostPath | None = Field(
        None,
        description="qemu: a block device of the host as the guest's disk, e.g. /dev/sdb, in place of a file. A file "
        "system is created on it; refused if it is in use or not empty",
    )
    overwrite: bool = Field(False, description="qemu: with device: its content may be lost")

    @property
    def throttle(self) -> Throttle | None:
        """Only its limits; None if it has none."""
        limits = Throttle(**{key: getattr(self, key) for key in Throttle.model_fields})
        return None if limits == Throttle() else limits


class Sandbox(Frozen):
    """Where a workload runs, with its limits and reservations."""

    backend: BackendName = Field(
        "process",
        description="process needs no root; container needs crun or runc, and root or a delegated scope; qemu is a "
        "virtual machine, see 'partywall vm'; ssh is a process on a machine that exists already; libvirt is a domain, "
        "made for the run or your own",
    )
    # The words are listed beside `str` so that editors offer them.
    cpus: Annotated[Literal["auto", "same", "next"] | str, Cpus] = Field(  # noqa: PYI051
        "auto",
        description="auto: the victim's core, or for an aggressor the nearest other core; same: the victim's core(s); "
        "next: the nearest core that is not the victim's; or CPUs such as 0, [0, 2] or 0,2-3",
    )
    cpu_limit: Share | None = Field(None, description="ceiling: share of the time of the CPUs it is pinned to")
    cpu_reservation: Share | None = Field(
        None, description="share of its CPUs that it gets even if all neighbours need them"
    )
    cpu_weight: int | None = Field(
        None, ge=1, le=10_000, description="share relative to neighbours under contention; the default is 100"
    )
    memory: Bytes | None = Field(
        None, description="ceiling in bytes; beyond it the sandbox is killed; qemu: the guest's memory, default 512MiB"
    )
    memory_nodes: Annotated[str | None, Nodes] = Field(
        None,
        description="the host's NUMA nodes that all of its memory comes from, e.g. 0, [0, 1] or 0-1; default: any, "
        "the nearest first",
    )
    disk: Disk | None = None
    vcpus: int | None = Field(None, ge=1, le=255, description="qemu: virtual CPUs; default: as many as cpus names")
    host_cpus: Annotated[str | None, Cpus] = Field(
        None,
        description="qemu: CPUs for the emulator's own threads, e.g. 0, [0, 2] or 0,2-3; default: those of the "
        "controller",
    )
    accel: Literal["auto", "kvm", "tcg"] | None = Field(
        None,
        description="qemu: kvm, tcg (emulated), or auto, the default: kvm if it works on this host, else tcg",
    )
    root: tuple[Package, ...] | None = Field(
        None,
        description="qemu: distribution packages in the guest's root image, e.g. [fio, stress-ng], for its command; "
        "built once, see 'partywall vm prepare --help'. Processes and containers use the host's own programs",
    )
    network: Literal["user", "bridge"] | None = Field(
        None,
        description="qemu: the guest's network interface. bridge: a tap on the run's own bridge (needs root); "
        "user: through QEMU itself, the host is 10.0.2.2 (no root). None if not given",
    )
    host: str | None = Field(
        None,
        description="ssh: the machine: a Host of ~/.ssh/config, user@name or ssh://user@name:port; "
        "libvirt: the same, for your own domain",
    )
    uri: str | None = Field(
        None, description="libvirt: the daemon, e.g. qemu:///system (the default) or xen+tcp://name/system"
    )
    domain: str | None = Field(None, description="libvirt: your own running domain; default: one is made for the run")
    boot: HostPath | None = Field(
        None,
        description="libvirt on another host: the folder there with kernel and initramfs, see 'partywall vm export'",
    )

    @property
    def guest(self) -> bool:
        """True if a virtual machine is made for it, on this host or another."""
        return self.backend == "qemu" or (self.backend == "libvirt" and self.domain is None)

    @property
    def virtual(self) -> bool:
        """True if it is a virtual machine, made for it or the user's own domain."""
        return self.backend in ("qemu", "libvirt")

    @property
    def limited(self) -> bool:
        """True if a CPU limit below all of its CPUs' time applies permanently."""
        return self.cpu_limit is not None and self.cpu_limit < 1

    @property
    def throttle(self) -> Throttle | None:
        """The permanent limits of its disk."""
        return self.disk.throttle if self.disk else None

    @property
    def machine(self) -> str:
        """The machine whose CPUs `cpus` lists: another machine's name, or empty for this host."""
        if self.backend == "libvirt":
            return self.uri if self.uri and urlsplit(self.uri).netloc else ""
        return self.host or "" if self.backend == "ssh" else ""


def path_or_file(value: Any) -> Any:
    """Accepts a plain text: `files: [./bench.py]`."""
    return {"from": value} if isinstance(value, str) else value


class File(Frozen):
    """A file of the user's that is copied into a sandbox. A plain text is its path."""

    source: str = Field(alias="from", description="its path, relative to the scenario")
    to: str | None = Field(None, description="its name in the command's working directory; default: the same name")
    executable: bool | None = Field(None, description="whether it may be executed; default: as the original")
    # Read when the run is planned, so that each copy can be compared with it.
    path: SkipJsonSchema[str | None] = None
    size: SkipJsonSchema[int | None] = None
    sha256: SkipJsonSchema[str | None] = None

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    @property
    def name(self) -> str:
        """Its name in the sandbox."""
        return PurePath(self.source).name if self.to is None else self.to

    @property
    def origin(self) -> str:
        """Where it is read: as it was planned, or as the scenario says if nothing has been planned."""
        return self.path or self.source


FILES_BYTES_MAX = 256 << 20
"""All files of a workload together."""


class Limits(Frozen):
    """Settings that can be switched by slot. None keeps the sandbox's own setting."""

    cpu_limit: float | None = None
    cpu_weight: float | None = None
    memory: int | None = None
    disk: Throttle | None = None

    def over(self, made: Limits) -> Limits:
        """The settings in force: these, and otherwise those that the sandbox was made with."""
        below, disk = made.disk or Throttle(), self.disk or Throttle()
        return Limits(**_said(made) | _said(self) | {"disk": Throttle(**_said(below) | _said(disk))})


def _said(values: Limits | Throttle) -> dict[str, Any]:
    return {key: value for key, value in values if value is not None}
