"""Whether others used the host while something was measured, and measuring again because of it.

Two things disturb: a hypervisor that takes CPU time (steal), and processes that the benchmark did not start: a
package manager, a compiler, a browser. What the benchmark started is left out, as are the kernel's own threads, which
work for it. An idle benchmark is not disturbed by a hypervisor: from a machine that wants nothing, nothing is taken.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from common import stolen_s
from partywall.host.label import VARIABLE, state_root

Result = TypeVar("Result")

# Shares: of the time of all CPUs that was stolen, and of one CPU that other processes used.
STOLEN, OTHERS = 0.02, 0.1
PACKAGE_MANAGERS = frozenset(
    {"apk", "apt", "apt-get", "dnf", "dpkg", "pacman", "rpm", "unattended-upgr", "yum", "zypper"}
)
# The parent of all threads of the operating system's kernel; in a PID namespace this number is any process's.
KERNEL = (2, "kthreadd")
ATTEMPTS = 3
CALM_S, AT_MOST_S = 1.0, 30.0


@dataclass
class Seen:
    """What others did meanwhile. stolen: share of all CPUs; others: CPUs; by: who used most, or installs packages."""

    stolen: float = 0.0
    others: float = 0.0
    by: str = ""
    installing: bool = False

    @property
    def disturbed(self) -> bool:
        return self.stolen > STOLEN or self.others > OTHERS or self.installing

    def __str__(self) -> str:
        who = f" ({self.by} {'installs packages' if self.installing else 'most'})" if self.by else ""
        others = f"other processes used {self.others:.2f} CPUs{who}"
        return f"{others}, {self.stolen:.1%} of the CPU time was stolen"


@dataclass(frozen=True)
class _Moment:
    """Accounts of all processes that the benchmark did not start: by number and start, (name, seconds)."""

    at_s: float
    stolen_s: float
    others: dict[tuple[int, int], tuple[str, float]] = field(default_factory=dict)

    @classmethod
    def now(cls) -> _Moment:
        return cls(time.monotonic(), stolen_s(), _others())


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    name: str
    start: int
    cpu_s: float


def _others() -> dict[tuple[int, int], tuple[str, float]]:
    processes = {process.pid: process for process in map(_read, Path("/proc").iterdir()) if process}
    return {
        (process.pid, process.start): (process.name, process.cpu_s)
        for process in processes.values()
        if not _is_kernels(process, processes) and not _is_ours(process, processes)
    }


def _is_kernels(process: _Process, processes: dict[int, _Process]) -> bool:
    parent = processes.get(process.parent)
    return any(each and (each.pid, each.name) == KERNEL for each in (process, parent))


def _read(folder: Path) -> _Process | None:
    """From proc_pid_stat(5). Time of ended children counts with the parent, so that many short ones are seen."""
    if not folder.name.isdigit():
        return None
    try:
        text = (folder / "stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    words = rest.split()
    # The first process also has the time of orphans, which may be the benchmark's.
    times = words[11:13] if folder.name == "1" else words[11:15]
    cpu_s = sum(int(ticks) for ticks in times) / os.sysconf("SC_CLK_TCK")
    return _Process(int(folder.name), int(words[1]), name, int(words[19]), cpu_s)


def _is_ours(process: _Process, processes: dict[int, _Process]) -> bool:
    """Whether this process started it, or owns the run whose label it has: a container's first process is an orphan."""
    return _descends(process, processes) or _descends(processes.get(_owner(process.pid)), processes)


def _descends(process: _Process | None, processes: dict[int, _Process]) -> bool:
    while process is not None and process.pid != os.getpid():
        process = processes.get(process.parent)
    return process is not None


def _owner(pid: int) -> int:
    """The controller of the run that a process belongs to; 0 if it belongs to none, or is gone."""
    try:
        words = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        run = next((word.partition("=")[2] for word in words if word.startswith(f"{VARIABLE}=")), "")
        return int(json.loads((state_root() / run / "owner.json").read_text())["pid"]) if run else 0
    except (OSError, ValueError):
        return 0


@contextmanager
def watched() -> Iterator[Seen]:
    """What it yields is filled in at the end."""
    seen, before = Seen(), _Moment.now()
    try:
        yield seen
    finally:
        after = _Moment.now()
        lasted_s = after.at_s - before.at_s
        used: dict[str, float] = {}
        for key, (name, cpu_s) in after.others.items():
            used[name] = used.get(name, 0.0) + cpu_s - before.others.get(key, (name, 0.0))[1]
        seen.stolen = (after.stolen_s - before.stolen_s) / lasted_s / (os.cpu_count() or 1)
        # An ended child's time comes all at once, that of before included.
        seen.others = min(sum(used.values()) / lasted_s, float(os.cpu_count() or 1))
        names = {name for name, _ in (*before.others.values(), *after.others.values())}
        managers = sorted(names & PACKAGE_MANAGERS)
        seen.installing = bool(managers)
        most = max(used, key=used.__getitem__, default="")
        seen.by = managers[0] if managers else most if used.get(most) else ""


def undisturbed(measure: Callable[[], Result], met: Callable[[Result], bool], attempts: int = ATTEMPTS) -> Result:
    """Measures, and again if the bar was not met and the host was disturbed meanwhile, `attempts` times at most.

    Says so each time. A result of a disturbed host that meets the bar counts: what disturbs widens and delays.
    """
    for left in reversed(range(attempts)):
        with watched() as seen:
            measured = measure()
        if not seen.disturbed:
            return measured
        again = left > 0 and not met(measured)
        print(f"the host was disturbed: {seen}{'; measuring again' if again else ''}", flush=True)
        if not again:
            return measured
        await_undisturbed()
    raise AssertionError("unreachable: the last attempt returns")


def await_undisturbed(at_most_s: float = AT_MOST_S) -> None:
    """Until nobody disturbed for a second, or no longer than this."""
    until_s = time.monotonic() + at_most_s
    while time.monotonic() < until_s:
        with watched() as seen:
            time.sleep(CALM_S)
        if not seen.disturbed:
            return
