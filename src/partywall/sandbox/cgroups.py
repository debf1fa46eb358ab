"""Which cgroup hierarchies this host has, and where. Reads only; the OCI runtime writes.

Kernel documentation: cgroup-v1/cgroups.rst, cgroup-v2.rst.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Cgroups:
    """Mount points: by controller for version 1, and of version 2's single hierarchy with the controllers it offers."""

    v1: dict[str, Path] = field(default_factory=dict)
    unified: Path | None = None
    unified_controllers: frozenset[str] = frozenset()

    @property
    def is_v2(self) -> bool:
        """Whether limits go through version 2."""
        return "cpu" in self.unified_controllers

    def paths(self, cgroup: str) -> list[Path]:
        """The folders of `cgroup` in every hierarchy, whether they exist or not."""
        roots = [*dict.fromkeys(self.v1.values()), *([self.unified] if self.unified else [])]
        return [root / cgroup.lstrip("/") for root in roots]


def read(mounts: Path = Path("/proc/self/mounts")) -> Cgroups:
    """Reads the mount table."""
    v1: dict[str, Path] = {}
    unified = None
    for line in mounts.read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup":
            v1 |= {option: Path(point) for option in options.split(",")}
        elif kind == "cgroup2":
            unified = Path(point)
    return Cgroups(v1, unified, _controllers(unified))


_V1_MEMORY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2_MEMORY = ("memory.max", "memory.current", "inactive_file")


def memory_left(mounted: Cgroups, membership: str) -> int | None:
    """Bytes that the tightest memory limit on the way up leaves a process; None if nothing limits it.

    membership: its /proc/PID/cgroup. What the kernel can drop at once counts as left.
    """
    lines = (line.split(":", 2) for line in membership.splitlines())
    paths = {name: path for _, names, path in lines for name in names.split(",")}
    v1 = mounted.v1.get("memory")
    top, files = (v1, _V1_MEMORY) if v1 else (mounted.unified, _V2_MEMORY)
    own = paths.get("memory" if v1 else "")
    if top is None or own is None:
        return None
    folder = top / own.lstrip("/")
    above = [path for path in (folder, *folder.parents) if path.is_relative_to(top)]
    return min((left for path in above if (left := _left(path, files)) is not None), default=None)


def _left(folder: Path, files: tuple[str, str, str]) -> int | None:
    limit, usage, droppable = files
    try:
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        # Version 2 says "max", which is no number; version 1 the largest one there is.
        most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
    except (OSError, ValueError):
        return None
    return max(0, most - used + int(stat.get(droppable, 0)))


def _controllers(unified: Path | None) -> frozenset[str]:
    try:
        return frozenset((unified / "cgroup.controllers").read_text().split()) if unified else frozenset()
    except OSError:
        return frozenset()
