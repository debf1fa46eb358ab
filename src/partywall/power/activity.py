"""CPU time that was used, by each CPU of a host and by each consumer: a cgroup or a process with its threads.

The CPU time of a process is that of its threads, those that have ended included. Of living threads the kernel states
nanoseconds; of all together only ticks, so the time of ended threads is known to two ticks (20 ms), once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import CapabilityError
from partywall.files import stat_fields
from partywall.host import Host
from partywall.sandbox import cgroups, tenants
from partywall.sandbox.tenants import Tenant
from partywall.units import parse_cpus

Read = Callable[[], float]
"""CPU seconds since some fixed moment."""

TICK_S = 0.01
"""Unit of times in /proc/stat (USER_HZ is 100 on all Linux architectures that Partywall supports)."""
IDLE = (3, 4)
GUEST = (8, 9)
"""Columns of /proc/stat: idle and iowait; guest time, which user time includes."""


class HostCpus:
    """Busy seconds of each CPU: from the cgroup accounting in nanoseconds if there is one, else from /proc/stat.

    CPUs that have never been online are left out. A CPU that goes offline keeps its last value. One that appears later
    is added at the end.
    """

    def __init__(self, host: Host) -> None:
        mounted = cgroups.read(host.root).v1.get("cpuacct")
        self._fine = mounted / "cpuacct.usage_percpu" if mounted else None
        if self._fine is not None and not self._fine.exists():
            self._fine = None
        self._stat, self._possible = host.path("/proc/stat"), host.path("/sys/devices/system/cpu/possible")
        self._busy: dict[str, float] = {}

    def __call__(self) -> tuple[float, ...]:
        online = stat_cpus(self._stat.read_text(encoding="ascii"))
        self._busy |= online
        if self._fine is not None:
            # All CPUs that the host could have are listed there, as many as a socket has room for.
            values = self._fine.read_text(encoding="ascii").split()
            fine = {
                f"cpu{number}": int(text) / 1e9
                for number, text in zip(self._numbers(len(values)), values, strict=False)
            }
            self._busy |= {name: fine[name] for name in self._busy if name in fine}
        return tuple(self._busy.values())

    def _numbers(self, count: int) -> Sequence[int]:
        """The numbers of the CPUs that this host could have."""
        try:
            return parse_cpus(self._possible.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return range(count)


def stat_cpus(text: str) -> dict[str, float]:
    """Busy seconds of each CPU in the text of /proc/stat, which has only CPUs that are online."""
    rows = [line.split() for line in text.splitlines() if line.startswith("cpu") and line[3:4].isdigit()]
    left_out = {*IDLE, *GUEST}
    return {
        row[0]: TICK_S * sum(int(value) for place, value in enumerate(row[1:]) if place not in left_out) for row in rows
    }


class Process:
    """CPU seconds of a process with all its threads, in nanoseconds' resolution. OSError if it has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended_s = 0.0

    def __call__(self) -> float:
        # Read first: what threads use meanwhile must not look like that of ended ones.
        if not (fields := stat_fields(f"{self._folder}/stat")):
            raise ProcessLookupError(f"{self._folder} has ended")
        all_s = TICK_S * (int(fields[11]) + int(fields[12]))
        living_s = 0.0
        for task in (self._folder / "task").iterdir():
            try:
                living_s += int((task / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
            except (OSError, IndexError):
                continue
        self._ended_s = max(self._ended_s, all_s - living_s)
        return living_s + self._ended_s


class Threads:
    """Busy seconds of each of several processes, as the shares of a machine that runs nothing else."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = [Process(Path("/proc") / str(pid)) for pid in pids]

    def __call__(self) -> tuple[float, ...]:
        return tuple(process() for process in self._processes)


@dataclass(frozen=True)
class Consumer:
    """Something that uses CPU time, such as a container."""

    name: str
    read: Read


def consumer(text: str, host: Host) -> Consumer:
    """A consumer by a text, as `sandbox.tenants` reads it.

    UsageError if there is no such thing; CapabilityError if this host does not count its CPU time.
    """
    tenant = tenants.named(text, host)
    if tenant.pid is not None:
        return Consumer(tenant.name, Process(host.path(f"/proc/{tenant.pid}")))
    file, scale = _cgroup_file(tenant, host)
    return Consumer(tenant.name, lambda: _cgroup_s(file, scale))


def containers(host: Host) -> list[Consumer]:
    """The cgroups of containers, guests and services."""
    groups = cgroups.read(host.root)
    top = groups.unified if groups.is_v2 else groups.v1.get("cpuacct")
    return [consumer(f"/{folder.relative_to(top)}", host) for folder in tenants.groups(top)] if top else []


def _cgroup_file(tenant: Tenant, host: Host) -> tuple[Path, float]:
    groups = cgroups.read(host.root)
    inner = tenant.cgroup or ""
    if groups.is_v2 and groups.unified is not None:
        file, scale = groups.unified / inner / "cpu.stat", 1e-6
    elif "cpuacct" in groups.v1:
        file, scale = groups.v1["cpuacct"] / inner / "cpuacct.usage", 1e-9
    else:
        raise CapabilityError("this host counts no CPU time by cgroup; mount cgroup version 2")
    if not file.exists():
        raise tenants.no_cgroup(tenant)
    return file, scale


def _cgroup_s(file: Path, scale: float) -> float:
    text = file.read_text(encoding="ascii")
    if file.name == "cpu.stat":
        return scale * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("usage_usec"))
    return scale * int(text)


def used(consumers: Mapping[str, Read], last: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds of each consumer. One that has ended keeps its last value."""
    usage = {}
    for name, read in consumers.items():
        try:
            usage[name] = max(read(), last.get(name, 0.0))
        except (OSError, ValueError, StopIteration):
            usage[name] = last.get(name, 0.0)
    return usage
