"""The time that a guest may take to start on this host, and how busy the host was meanwhile.

Usual times were measured on an idle machine. A slow or emulated processor and other work extend them. The user's own
time replaces them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from partywall import units
from partywall.errors import Problem, UsageError
from partywall.host.host import Host

VARIABLE = "PARTYWALL_GUEST_START"
LONGEST_S = 600.0
"""The longest time that a slow or busy host extends a wait to."""
LOOP = 500_000
REFERENCE_S = 0.0115
"""CPU time of these turns on the machine on which usual times were measured (a Xeon of 2023, Python 3.11)."""
FREE_CPUS = 0.8
"""A guest that starts needs one CPU. If other work leaves less than this, the host is busy."""


def set_by_user() -> float | None:
    """Seconds that the user gives a guest to start; None if not set. UsageError if it is not a duration."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        seconds = units.parse_duration_ns(text) / 1e9
    except ValueError as error:
        raise UsageError(Problem(str(error), key=VARIABLE)) from None
    if seconds <= 0:
        raise UsageError(Problem(f"must be greater than 0, got {text}", "write for example 2min", key=VARIABLE))
    return seconds


def start_s(usual_s: float, host: Host, loop_s: Callable[[], float] | None = None) -> float:
    """Seconds that a guest may take to start.

    usual_s: on an idle machine with a processor of its own. loop_s: CPU seconds of `LOOP` turns of a Python loop.
    """
    given_s = set_by_user()
    if given_s is not None:
        return given_s
    extended_s = usual_s * _slowness((loop_s or _loop)()) * _crowding(host)
    return max(usual_s, min(extended_s, LONGEST_S))


def _slowness(loop_s: float) -> float:
    """Shows an emulated processor, which takes some ten times as long, whatever names it reports."""
    return max(1.0, loop_s / REFERENCE_S)


def _loop() -> float:
    """The shortest CPU time of several, because interrupts and a cold start only add to it."""
    return min(_once() for _ in range(3))


def _once() -> float:
    began = time.thread_time()
    for _ in range(LOOP):
        pass
    return time.thread_time() - began


def _crowding(host: Host) -> float:
    """Threads that want to run for each CPU, with the guest's own one; at least 1."""
    words = (host.text("/proc/loadavg") or "").split()
    try:
        return max(1.0, (float(words[0]) + 1) / max(1, _cpus(host)))
    except (IndexError, ValueError):
        return 1.0


def _cpus(host: Host) -> int:
    """The online CPUs in /proc/stat, which other work can use too."""
    return sum(line.startswith("cpu") and line[3:4].isdigit() for line in (host.text("/proc/stat") or "").splitlines())


@dataclass(frozen=True)
class Busyness:
    """CPU time used on a host until now, in seconds.

    used_s: by all, and time that a hypervisor took away. own_s: by this process and the children that it waited for.
    """

    at_s: float
    used_s: float
    own_s: float

    @classmethod
    def now(cls, host: Host) -> Busyness:
        """Reads the counters. Without /proc/stat, nothing is known of other work."""
        fields = next((line.split() for line in (host.text("/proc/stat") or "").splitlines()), [])
        # user nice system idle iowait irq softirq steal
        ticks = [int(word) for word in fields[1:9] if word.isdigit()]
        used = sum(ticks) - sum(ticks[3:5])
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        return cls(time.monotonic(), used / os.sysconf("SC_CLK_TCK"), own_s)

    def since(self, before: Busyness, host: Host) -> str:
        """The other work that left less than a CPU; empty if a CPU was free."""
        cpus, elapsed_s = _cpus(host), self.at_s - before.at_s
        others_s = (self.used_s - before.used_s) - (self.own_s - before.own_s)
        if not cpus or others_s <= elapsed_s * (cpus - FREE_CPUS):
            return ""
        return f"other work used {others_s / elapsed_s:.1f} of {units.counted(cpus, 'CPU')}"
