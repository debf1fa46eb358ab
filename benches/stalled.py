"""What a watch of stalls is tried on: cgroups in all hierarchies that it reads, the program, and what it says."""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import until
from frame import NotMeasured
from partywall.sandbox import cgroups
from partywall.sandbox.group_counts import throttled_ns, waited_ns

WATCH = (sys.executable, "-m", "partywall.watch.stalls")
SPIN = "while :; do :; done"
_SAMPLE = re.compile(r'partywall_stalled_seconds_total\{victim="(.*)",suspect="(.*)",resource="(.*)"\} (\S+)')
Key = tuple[str, str, str]


def lacking() -> str:
    """What is missing on this host; empty if nothing is."""
    if os.geteuid():
        return "root"
    mounted = cgroups.read()
    if mounted.unified is None or not Path("/proc/pressure/cpu").exists():
        return "PSI and cgroup version 2 (boot with psi=1)"
    return mounted.why_not()


@dataclass
class Groups:
    """Cgroups by name, each in every hierarchy that is read."""

    parent: str
    mounted: cgroups.Cgroups = field(default_factory=cgroups.read)
    made: list[Path] = field(default_factory=list)

    @property
    def tops(self) -> list[Path]:
        v1 = [] if self.mounted.is_v2 else [self.mounted.v1[n] for n in ("cpu", "cpuacct") if n in self.mounted.v1]
        return [*([self.mounted.unified] if self.mounted.unified else []), *v1]

    def make(self, names: Sequence[str]) -> None:
        for top in self.tops:
            for folder in (top / self.parent, *(top / self.parent / name for name in names)):
                folder.mkdir()
                self.made.append(folder)
                control = folder / "cgroup.subtree_control"
                if self.mounted.is_v2 and folder == top / self.parent:
                    (top / "cgroup.subtree_control").write_text("+cpu +memory +io")
                    control.write_text("+cpu +memory +io")

    def enter(self, pid: int, name: str) -> None:
        for top in self.tops:
            (top / self.parent / name / "cgroup.procs").write_text(str(pid))

    def limit(self, name: str, cpus: float) -> None:
        folder = self.mounted.folder("cpu", f"{self.parent}/{name}")
        cgroups.write(folder, cgroups.cpu_files((0,), cpus, None, v2=self.mounted.is_v2))

    def waited_s(self, name: str) -> float:
        return (waited_ns(f"{self.mounted.unified}/{self.parent}/{name}/cpu.pressure") or 0) / 1e9

    def stopped_s(self, name: str) -> float:
        """How long its limit stopped it, by the kernel."""
        folder = self.mounted.folder("cpu", f"{self.parent}/{name}")
        return throttled_ns((folder / "cpu.stat").read_bytes()) / 1e9

    def known_as(self, name: str) -> str:
        return f"/{self.parent}/{name}"


@contextlib.contextmanager
def groups(names: Sequence[str]) -> Iterator[Groups]:
    """Cgroups until the block ends. Processes in them must end before it does."""
    made = Groups(f"bench-stalls-{os.getpid()}")
    try:
        made.make(names)
        yield made
    finally:
        for folder in reversed(made.made):
            until(lambda folder=folder: _removed(folder), otherwise=f"{folder} still has processes")


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


@dataclass
class Watch:
    """The running program. lines: what it says, each with the monotonic time at which it did."""

    process: subprocess.Popen[str]
    port: int
    lines: queue.Queue[tuple[float, str]]

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def pairs(self) -> dict[Key, float]:
        """Seconds by victim, suspect and resource."""
        found = (_SAMPLE.match(line) for line in self.get("/metrics").splitlines())
        return {(each[1], each[2], each[3]): float(each[4]) for each in found if each}


@contextlib.contextmanager
def watch(now: Callable[[], float], *options: str) -> Iterator[Watch]:
    """The program until the block ends. now: a function that returns the time for its lines."""
    with subprocess.Popen([*WATCH, "--port", "0", *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = next((int(found[1]) for line in process.stdout if (found := re.search(r":(\d+)/metrics", line))), 0)
            if not port:
                raise NotMeasured("the watch did not start; see what it said")
            lines: queue.Queue[tuple[float, str]] = queue.Queue()
            threading.Thread(target=_follow, args=(process.stdout, lines, now), daemon=True).start()
            running = Watch(process, port, lines)
            until(
                lambda: "period_seconds{} 0\n" not in running.get("/metrics"),
                otherwise="it read nothing twice",
                every_s=1,
            )
            yield running
        finally:
            process.terminate()


def _follow(stream: Iterator[str], lines: queue.Queue[tuple[float, str]], now: Callable[[], float]) -> None:
    for line in stream:
        lines.put((now(), line))
