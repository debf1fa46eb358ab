"""What suspects have used so far, CPU time or bytes on a disk, and how long limits have stopped a group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from partywall.blame.measure.owners import Kind
from partywall.files import kernel_text
from partywall.sandbox import tenants
from partywall.sandbox.cgroups import Cgroups
from partywall.sandbox.group_counts import disk_work, field, throttled_ns


def reader(kind: Kind, cgroup: str, groups: Cgroups, device: str) -> Callable[[], float]:
    """A function that reads what a group has used so far: CPU seconds, or bytes on a disk."""
    if kind is Kind.DISK:
        return _bytes(groups, cgroup, device)
    if groups.is_v2:
        file = groups.folder("cpu", cgroup) / "cpu.stat"
        return lambda: (field(_bytes_of(file), b"usage_usec ") or 0) / 1e6
    if (usage := groups.v1.get("cpuacct", Path("/nowhere")) / cgroup.strip("/") / "cpuacct.usage").exists():
        return lambda: float(kernel_text(str(usage)) or 0) / 1e9
    folder = groups.folder("cpu", cgroup)
    return lambda: sum(_ran_ns(pid) for pid in tenants.all_processes(folder)) / 1e9


def _ran_ns(pid: int) -> int:
    text = kernel_text(f"/proc/{pid}/schedstat")
    return int(text.split()[0]) if text else 0


def _bytes_of(file: Path) -> bytes:
    return (kernel_text(str(file)) or "").encode()


def _bytes(groups: Cgroups, cgroup: str, device: str) -> Callable[[], float]:
    folder = str(groups.folder("io", cgroup))

    def read() -> float:
        _, read_bytes, write_bytes = (disk_work(folder, is_v2=groups.is_v2) or {}).get(device, (0, 0, 0))
        return float(read_bytes + write_bytes)

    return read


def throttled(groups: Cgroups, cgroup: str) -> Callable[[], float] | None:
    """A function that reads how long limits of a group, or of those around it, have stopped it; None for the root."""
    if not cgroup.strip("/"):
        return None
    folder = groups.folder("cpu", cgroup)
    local = folder / "cpu.stat.local"
    file = local if local.exists() else folder / "cpu.stat"
    return lambda: throttled_ns(_bytes_of(file)) / 1e9
