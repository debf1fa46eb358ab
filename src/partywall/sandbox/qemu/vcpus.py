"""CPUs and CPU limits of a guest's threads: affinity, and one cgroup for all vCPU threads.

A container's limit applies to all its work; a guest's applies to its virtual CPUs, and the emulator's own threads run
elsewhere. In version 1, single threads may be in a cgroup of the cpu controller; version 2 needs a threaded one. Kernel
documentation: cgroup-v1/cgroups.rst, cgroup-v2.rst (Threads).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall.files import stat_fields
from partywall.sandbox.base import Spent
from partywall.sandbox.cgroups import Cgroups, cpu_files, write

_THREADED = "vcpus"
# Positions after the command's name in /proc/PID/stat, see proc_pid_stat(5).
_OWN, _KERNEL, _GUEST = 11, 12, 40


def pin(pid: int, vcpus: Sequence[int], cpus: Sequence[int], host_cpus: Sequence[int]) -> None:
    """Pins virtual CPU k to the k-th of `cpus`, cyclically, and every other thread of the process to `host_cpus`."""
    for thread in sorted(int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir()):
        where = {cpus[vcpus.index(thread) % len(cpus)]} if thread in vcpus else set(host_cpus)
        # Workers for disk I/O come and go. New ones inherit the affinity of the thread that starts them.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, where)


def spent(pid: int, vcpus: Sequence[int], *, emulated: bool, proc: Path = Path("/proc")) -> Spent | None:
    """CPU time of a guest's virtual CPUs so far, and of the rest of its process; None if the process has ended.

    With KVM, a virtual CPU's time is what it spent in the guest. An emulated one counts as a whole, because the time
    of the translator cannot be separated from that of the code it translated.
    """
    whole = _times(proc / str(pid))
    threads = [times for thread in vcpus if (times := _times(proc / str(pid) / "task" / str(thread)))]
    if not whole or len(threads) < len(vcpus):
        return None
    guest = sum(times[_OWN] + times[_KERNEL] if emulated else times[_GUEST] for times in threads)
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return Spent(guest * tick_ns, (whole[_OWN] + whole[_KERNEL] - guest) * tick_ns)


def _times(folder: Path) -> dict[int, int]:
    """Clock ticks by field; empty if it is gone."""
    fields = stat_fields(f"{folder}/stat")
    return {at: int(fields[at]) for at in (_OWN, _KERNEL, _GUEST)} if fields else {}


@dataclass(frozen=True)
class VcpuGroup:
    """The cgroup of a guest's vCPU threads. path: the sandbox's cgroup below every hierarchy's root.

    handed_down: whether the parent cgroups already pass down the cpu controller, as in a delegated scope.
    """

    cgroups: Cgroups
    path: str
    handed_down: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the cpu controller's files."""
        own = self.cgroups.folder("cpu", self.path)
        return own / _THREADED if self.cgroups.is_v2 else own

    def create(self, pid: int, vcpus: Sequence[int]) -> None:
        """Creates the group and moves the vCPU threads of process `pid` into it."""
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
            if self.cgroups.is_v2:
                self._make_threaded(folder, pid)
            for thread in vcpus:
                (folder / ("cgroup.threads" if self.cgroups.is_v2 else "tasks")).write_text(str(thread))

    @property
    def _folders(self) -> list[Path]:
        """The folder with the limit, and in version 1 also the one with CPU time, if different."""
        counted = self.cgroups.v1.get("cpuacct")
        if self.cgroups.is_v2 or counted is None:
            return [self.folder]
        return list(dict.fromkeys([self.folder, counted / self.path.lstrip("/")]))

    def _make_threaded(self, folder: Path, pid: int) -> None:
        """Makes the group threaded.

        The process is in the parent, which passes down the controller, so its threads can be split.
        """
        parent, top = folder.parent, None if self.handed_down else self.cgroups.unified
        for above in reversed([p for p in parent.parents if top is not None and p.is_relative_to(top)]):
            (above / "cgroup.subtree_control").write_text("+cpu")
        (parent / "cgroup.procs").write_text(str(pid))
        (folder / "cgroup.type").write_text("threaded")
        (parent / "cgroup.subtree_control").write_text("+cpu")

    def set(self, cpus: Sequence[int], limit: float | None, weight: float | None) -> None:
        """Sets limit and weight, as for a container on the same CPUs."""
        for name, value in cpu_files(cpus, limit, weight, v2=self.cgroups.is_v2).items():
            write(self._weighed if name == "cpu.weight" else self.folder, {name: value})

    @property
    def _weighed(self) -> Path:
        """The group with the weight, whose siblings are the other sandboxes' groups, not the emulator's threads."""
        return self.folder.parent if self.cgroups.is_v2 else self.folder
