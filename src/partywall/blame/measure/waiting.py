"""What the victim waits for, from counters of the kernel: shows through which resource a suspect harms it. Only reads.

Of the victim's own group where the kernel counts it, or else of the host. Missing counters are left out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from partywall.files import kernel_text
from partywall.host import Host
from partywall.sandbox.cgroups import Cgroups
from partywall.sandbox.group_counts import waited_ns

PRESSURES = {"a CPU": "cpu", "a disk": "io", "memory": "memory"}
SOFTIRQ, STEAL = 6, 7
"""Places of times in /proc/stat, in clock ticks of 10 ms."""
TICK_S = 0.01
Counter = Callable[[], float]


def counters(host: Host, groups: Cgroups, pids: Sequence[int]) -> dict[str, Counter]:
    """Functions that read how long the victim waited for each resource so far, in seconds, by the resource.

    pids: the victim's; empty if they are not known.
    """
    stat = str(host.path("/proc/stat"))
    found: dict[str, Counter] = {
        "packets": lambda: _time_s(stat, SOFTIRQ),
        "the hypervisor": lambda: _time_s(stat, STEAL),
    }
    for name, file in PRESSURES.items():
        places = [*_of_group(host, groups, pids, file), str(host.path(f"/proc/pressure/{file}"))]
        if place := next((each for each in places if waited_ns(each) is not None), None):
            found[name] = _pressure(place)
    if pids:
        found["a CPU"] = lambda: sum(_queued_s(str(host.path(f"/proc/{pid}"))) for pid in pids)
    return found


def _queued_s(process: str) -> float:
    """How long the threads of a process waited in a run queue."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in os.scandir(f"{process}/task"):
            if text := kernel_text(f"{thread.path}/schedstat"):
                total += int(text.split()[1])
    return total / 1e9


def _of_group(host: Host, groups: Cgroups, pids: Sequence[int], file: str) -> list[str]:
    if groups.unified is None or not pids:
        return []
    # Version 2's path is the last one of those that have no controllers.
    lines = (kernel_text(str(host.path(f"/proc/{pids[0]}/cgroup"))) or "").split("\n")
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return [str(Path(groups.unified) / path.strip("/") / f"{file}.pressure") for path in paths if path != "/"]


def _pressure(place: str) -> Counter:
    return lambda: (waited_ns(place) or 0) / 1e9


def _time_s(stat: str, place: int) -> float:
    words = (kernel_text(stat) or "cpu").partition("\n")[0].split()[1:]
    return int(words[place]) * TICK_S if len(words) > place else 0.0


def read(found: Mapping[str, Counter]) -> dict[str, float]:
    """All counters now."""
    return {name: counter() for name, counter in found.items()}


def between(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The share of the time that was waited for each resource."""
    return {name: max(0.0, after[name] - was) / seconds for name, was in before.items()}
