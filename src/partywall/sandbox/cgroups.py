"""The cgroup hierarchies of a host, the files of a group, and their contents for limits.

The OCI runtime creates the groups of containers with their initial limits. Changes at run time are written here: runc
cannot change disk limits then, and starting a runtime takes a hundred times as long as writing a file. Kernel
documentation: cgroup-v1/cgroups.rst, blkio-controller.rst, cgroup-v2.rst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from partywall.errors import CapabilityError
from partywall.host import mounts

if TYPE_CHECKING:
    from partywall.host.block import Throttle

Files = Mapping[str, str]
Device = tuple[int, int]

# Its name in version 1.
_V1 = {"io": "blkio"}
# setting → file of version 1, key of version 2's io.max
_THROTTLES = {
    "read_bps": ("blkio.throttle.read_bps_device", "rbps"),
    "write_bps": ("blkio.throttle.write_bps_device", "wbps"),
    "read_iops": ("blkio.throttle.read_iops_device", "riops"),
    "write_iops": ("blkio.throttle.write_iops_device", "wiops"),
}


@dataclass(frozen=True)
class Cgroups:
    """Mount points: by controller for version 1, and of version 2's single hierarchy with its controllers.

    read_only: those in which no group can be created, as inside most containers.
    """

    v1: dict[str, Path] = field(default_factory=dict)
    unified: Path | None = None
    unified_controllers: frozenset[str] = frozenset()
    read_only: frozenset[Path] = frozenset()

    @property
    def is_v2(self) -> bool:
        """True if limits are set through version 2."""
        return "cpu" in self.unified_controllers

    def folder(self, controller: str, cgroup: str) -> Path:
        """The folder of a controller's files for a cgroup. CapabilityError if this host has no such controller."""
        if self.is_v2 and self.unified is not None and controller in self.unified_controllers:
            return self.unified / cgroup.lstrip("/")
        name = _V1.get(controller, controller)
        if not self.is_v2 and name in self.v1:
            return self.v1[name] / cgroup.lstrip("/")
        raise CapabilityError(
            f"this host has no cgroup {controller} controller, so its limits cannot be set; mount cgroup version 2"
        )

    def why_not(self) -> str:
        """Why no group with a CPU limit can be created; empty if one can."""
        top = self.unified if self.is_v2 else self.v1.get("cpu")
        if top is None:
            return "no cpu controller"
        return "only a cgroup file system that is mounted read-only" if top in self.read_only else ""

    def paths(self, cgroup: str) -> list[Path]:
        """The folders of `cgroup` in every hierarchy, whether they exist or not."""
        roots = [*dict.fromkeys(self.v1.values()), *([self.unified] if self.unified else [])]
        return [root / cgroup.lstrip("/") for root in roots]


def read(root: Path = Path("/")) -> Cgroups:
    """Reads the mount table. root: the folder of /proc and the mount points.

    The first of several mounts of one hierarchy counts: later ones belong to containers and other roots.
    """
    v1: dict[str, Path] = {}
    unified = None
    read_only = set()
    for mount in mounts(root):
        folder = root / str(mount.point).lstrip("/")
        if mount.kind == "cgroup":
            v1 = dict.fromkeys(mount.options, folder) | v1
        elif mount.kind == "cgroup2":
            unified = unified or folder
        if mount.read_only:
            read_only.add(folder)
    return Cgroups(v1, unified, _controllers(unified), frozenset(read_only))


def _controllers(unified: Path | None) -> frozenset[str]:
    try:
        return (
            frozenset((unified / "cgroup.controllers").read_text(errors="replace").split()) if unified else frozenset()
        )
    except OSError:
        return frozenset()


def cpu_files(cpus: Sequence[int], limit: float | None, weight: float | None, *, v2: bool) -> Files:
    """Names and contents of the cpu controller's files, with the same arithmetic as for a container's start. Pure."""
    from partywall.sandbox import oci  # noqa: PLC0415 - of those who change limits alone

    resources = oci.cpu(cpus, limit, weight, v2=v2)
    quota, period = resources["cpu"]["quota"], resources["cpu"]["period"]
    if v2:
        return {"cpu.max": f"{quota} {period}", **resources["unified"]}
    shares = resources["cpu"]["shares"]
    return {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(quota), "cpu.shares": str(shares)}


def disk_files(device: Device, throttle: Throttle, *, v2: bool) -> Files:
    """Names and contents of the io or blkio controller's files. None removes a limit. Pure."""
    rates = {key: getattr(throttle, key) for key in _THROTTLES}
    name = f"{device[0]}:{device[1]}"
    if v2:
        limits = (f"{_THROTTLES[key][1]}={'max' if rate is None else rate}" for key, rate in rates.items())
        return {"io.max": " ".join((name, *limits))}
    return {_THROTTLES[key][0]: f"{name} {rate or 0}" for key, rate in rates.items()}


def write(folder: Path, files: Files) -> None:
    """Writes the files. OSError with the file's name if the kernel refuses."""
    for name, content in files.items():
        (folder / name).write_text(content)
