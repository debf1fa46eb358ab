"""Groups that nobody owns: their limits are files."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from partywall.blame.measure.owners import PERIOD_US, Kind, Refused, lack
from partywall.files import kernel_text
from partywall.host.quota import quota_us
from partywall.host.settings.ledger import Undo
from partywall.sandbox import tenants
from partywall.sandbox.cgroups import Cgroups
from partywall.units import parse_cpus


@dataclass(frozen=True)
class Files:
    """A group that nobody owns. before: the contents of its files, in the order in which they are written back.

    device: the number of the disk. cpus: those that are left beside the victim's; empty while the victim's are unknown.
    """

    kind: Kind
    folder: Path
    before: Mapping[Path, str]
    is_v2: bool = False
    device: str = ""
    cpus: tuple[int, ...] = ()
    name = ""

    @property
    def writes(self) -> str:
        return ", ".join(str(path) for path in self.before)

    @property
    def undo(self) -> Undo:
        return Undo(files=self.before)

    def hold(self, limit: float) -> None:
        self._write(self.during(limit))

    def release(self) -> None:
        self._write(self.before)

    def during(self, limit: float) -> Mapping[Path, str]:
        """The contents with a limit, in the order in which they are written."""
        if self.kind is Kind.FREEZE:
            return dict.fromkeys(self.before, "1" if self.is_v2 else "FROZEN")
        if self.kind is Kind.DISK:
            rate = f"rbps={int(limit)} wbps={int(limit)}" if self.is_v2 else f"{int(limit)}"
            return dict.fromkeys(self.before, f"{self.device} {rate}")
        if self.kind is Kind.CPUSET:
            return dict.fromkeys(self.before, ",".join(map(str, self.cpus)))
        quota = quota_us(limit, PERIOD_US)
        if self.is_v2:
            return {self.folder / "cpu.max": f"{quota} {PERIOD_US}"}
        # Lower the quota first and the period then: no moment allows more than before or after, which a parent refuses.
        return {self.folder / "cpu.cfs_quota_us": str(quota), self.folder / "cpu.cfs_period_us": str(PERIOD_US)}

    @staticmethod
    def _write(files: Mapping[Path, str]) -> None:
        for path, text in files.items():
            try:
                path.write_text(text)
            except OSError as error:
                raise Refused(f"{path}: the kernel refuses {text.strip()}: {error.strerror}") from None


def files_of(
    kind: Kind, cgroup: str, groups: Cgroups, device: str = "", victims: Collection[int] = frozenset()
) -> Files:
    """The files of a group for a kind of lever, with what they contain. CapabilityError if it has none.

    victims: the victim's CPUs, with other threads of the same cores, as far as they are known.
    """
    name = f"/{cgroup.strip('/')}"
    if kind is Kind.CPU:
        return _cpu_files(name, groups)
    if kind is Kind.CPUSET:
        return _cpuset(name, groups, victims)
    return _disk_files(name, groups, device) if kind is Kind.DISK else _freezer(name, groups)


def _cpu_files(name: str, groups: Cgroups) -> Files:
    folder = groups.folder("cpu", name)
    names = ["cpu.max"] if groups.is_v2 else ["cpu.cfs_period_us", "cpu.cfs_quota_us"]
    return Files(Kind.CPU, folder, {folder / each: _content(folder / each) for each in names}, is_v2=groups.is_v2)


def _disk_files(name: str, groups: Cgroups, device: str) -> Files:
    folder = groups.folder("io", name)
    if groups.is_v2:
        lines = _content(folder / "io.max").split("\n")
        was = next((line for line in lines if line.startswith(f"{device} ")), "")
        none = f"{device} rbps=max wbps=max riops=max wiops=max"
        return Files(Kind.DISK, folder, {folder / "io.max": was or none}, is_v2=True, device=device)
    before = {}
    for way in ("read", "write"):
        file = folder / f"blkio.throttle.{way}_bps_device"
        was = next((line for line in _content(file).split("\n") if line.startswith(f"{device} ")), "")
        before[file] = was or f"{device} 0"
    return Files(Kind.DISK, folder, before, device=device)


def _cpuset(name: str, groups: Cgroups, victims: Collection[int]) -> Files:
    folder = groups.folder("cpuset", name)
    file = folder / "cpuset.cpus"
    if not (before := _content(file)).strip():
        why = "it has no CPUs of its own, and the kernel does not make a group forget them again"
        raise lack(name, why, "give it some, such as docker update --cpuset-cpus, or use --lever cpu")
    own = parse_cpus(before.strip())
    if not groups.is_v2 and next(folder.glob("*/cpuset.cpus"), None) is not None:
        raise lack(name, "groups below it have CPUs of their own", "name one of these")
    if _forgets_affinity() and any(cpus != set(own) for cpus in map(affinity, tenants.all_processes(folder))):
        why = "its programs are pinned, which this kernel would forget"
        raise lack(name, why, "use --lever cpu, or Linux 6.2 or newer")
    left = tuple(cpu for cpu in own if cpu not in victims) if victims else ()
    if victims and not left:
        raise lack(name, "the victim may run on every CPU that it has", "pin the victim, or use --lever cpu")
    if len(left) == len(own):
        raise lack(name, "it may not run on the victim's CPUs", "name another suspect")
    return Files(Kind.CPUSET, folder, {file: before}, is_v2=groups.is_v2, cpus=left)


def _forgets_affinity() -> bool:
    """True for a kernel that forgets which CPUs threads have chosen whenever those of their group change."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    return release is None or (int(release[1]), int(release[2])) < (6, 2)


def affinity(pid: int) -> set[int]:
    """The CPUs on which some thread of a process may run; empty if it has ended."""
    cpus = set[int]()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            cpus |= os.sched_getaffinity(int(task.name))
    return cpus


def _freezer(name: str, groups: Cgroups) -> Files:
    folder = groups.folder("freezer", name) if not groups.is_v2 else (groups.unified or Path()) / name.strip("/")
    file = folder / ("cgroup.freeze" if groups.is_v2 else "freezer.state")
    if _content(file).strip() not in ("0", "THAWED"):
        raise lack(name, "it is frozen already", "name another suspect")
    return Files(Kind.FREEZE, folder, {file: "0" if groups.is_v2 else "THAWED"}, is_v2=groups.is_v2)


def _content(path: Path) -> str:
    text = kernel_text(str(path))
    if text is None:
        raise lack(f"/{path.parent.name}", f"there is no {path}", "the group has ended, or lacks this controller")
    return text
