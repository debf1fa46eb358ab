"""The time that a guest may take to start on this host, and how busy the host was meanwhile.

Usual times were measured on an idle machine. A slow or emulated processor and other work extend them. The user's own
time replaces them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

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
LOOK_S, STILL_S = 0.5, 2.0
"""How often it is checked that the host goes on, and how late a check is on no host that does."""


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
    extended_s = usual_s * slowness(loop_s or _loop) * _crowding(host)
    return max(usual_s, min(extended_s, LONGEST_S))


def _loop() -> float:
    """The shortest CPU time of several, because interrupts and a cold start only add to it."""
    return min(_once() for _ in range(3))


def _once() -> float:
    began = time.thread_time()
    for _ in range(LOOP):
        pass
    return time.thread_time() - began


def slowness(loop_s: Callable[[], float] = _loop) -> float:
    """How many times as slow as usual the processor is; at least 1.

    Shows an emulated one, which takes some ten times as long, whatever names it reports.
    """
    return max(1.0, loop_s() / REFERENCE_S)


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


class Watch:
    """Watches a host while something starts on it. Use as a context manager.

    busy: afterwards, what kept the host from it; empty if nothing did.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._over = threading.Event()
        self._late_s = 0.0
        self._looker = threading.Thread(target=self._look, args=(time.monotonic(),), name="watch-host", daemon=True)
        self.busy = ""

    def __enter__(self) -> Self:
        self._before = _CpuTime.now(self._host)
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looker.join()
        others = _CpuTime.now(self._host).others_since(self._before)
        cpus = _cpus(self._host)
        if self._late_s > STILL_S:
            self.busy = f"this host stood still for {self._late_s:.0f} s"
        elif cpus and others * cpus > cpus - FREE_CPUS:
            self.busy = f"other work used {others * cpus:.1f} of {units.counted(cpus, 'CPU')}"

    def _look(self, before: float) -> None:
        """Wakes up regularly, and measures how late. A virtual machine that was paused sees its clock jump."""
        is_over = False
        while not is_over:
            is_over = self._over.wait(LOOK_S)
            now = time.monotonic()
            self._late_s, before = max(self._late_s, now - before - LOOK_S), now


@dataclass(frozen=True)
class _CpuTime:
    """CPU seconds until now.

    all_s: of all CPUs, idle or not. used_s: used by all, and taken away by a hypervisor. own_s: used by this process
    and the children that it waited for.
    """

    all_s: float
    used_s: float
    own_s: float

    @classmethod
    def now(cls, host: Host) -> _CpuTime:
        """Reads the counters. Without /proc/stat, nothing is known of other work."""
        fields = next((line.split() for line in (host.text("/proc/stat") or "").splitlines()), [])
        # user nice system idle iowait irq softirq steal
        seconds = [int(word) / os.sysconf("SC_CLK_TCK") for word in fields[1:9] if word.isdigit()]
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        return cls(sum(seconds), sum(seconds) - sum(seconds[3:5]), own_s)

    def others_since(self, before: _CpuTime) -> float:
        """The share of all CPU time that others used; 0 if it is not known."""
        others_s = (self.used_s - before.used_s) - (self.own_s - before.own_s)
        all_s = self.all_s - before.all_s
        return others_s / all_s if all_s > 0 else 0.0
