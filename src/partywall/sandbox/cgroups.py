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


def _controllers(unified: Path | None) -> frozenset[str]:
    try:
        return frozenset((unified / "cgroup.controllers").read_text().split()) if unified else frozenset()
    except OSError:
        return frozenset()
