"""Figures derived from hosts' counters, similar to LoadRunner's monitors. Pure.

About forty figures, by host and second. If a host lacks a counter, its figure is missing.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partywall.load.values import Series

SECOND_NS = 1_000_000_000
Values = Mapping[tuple[str, str], float]
"""(counter, subject) → value at a time. The subject is empty for a counter of the whole host."""


# The kernel counts a request at each layer: at a mapped disk or array and at its disks, at a virtual interface and at
# the one that leaves the host. Only names reveal the layer.
_OVER_DISKS = re.compile(r"(dm-|md|loop|z?ram)\d")
_VIRTUAL = re.compile(r"(br|virbr|docker|lxcbr|lxdbr|cni|cali|flannel|ovs|veth|vif|vnet|tap|tun|wg|bond|team)|.*\.\d")

_NOT_OF_ALL_CPUS = ("cpu_run_queue_wait_ns", "cpu_pressure_some_ns")
"""Counters of CPUs that have no column for the sum of all CPUs."""
LOOPBACK, VIRTUAL, OUTWARD = "loopback", "virtual", "outward"
"""Kinds of interface. A packet that passes virtual ones counts again at each."""


LISTEN_DROPS = "connections dropped by listeners"
"""The figure's name."""


@dataclass(frozen=True)
class Figure:
    """of: the counters whose differences (totals) or values (gauges) are summed, over the given subjects."""

    group: str
    name: str
    unit: str
    of: tuple[str, ...]
    scale: float = 1.0
    gauge: bool = False
    over: str | None = None
    """Divides by the difference of this counter, for time per operation."""
    interfaces: str | None = None
    """Only interfaces of this kind; None: all."""
    disk: str | None = None
    """Only this disk, even if it is over others; None: all that are not."""


FIGURES = (
    Figure("CPU", "programs", "cores", ("cpu_user_ns", "cpu_nice_ns"), 1e-9),
    Figure("CPU", "kernel", "cores", ("cpu_system_ns", "cpu_irq_ns", "cpu_softirq_ns"), 1e-9),
    Figure("CPU", "waiting for disks", "cores", ("cpu_iowait_ns",), 1e-9),
    Figure("CPU", "taken by the hypervisor", "cores", ("cpu_steal_ns",), 1e-9),
    Figure("CPU", "idle", "cores", ("cpu_idle_ns",), 1e-9),
    Figure("Run queue", "runnable", "tasks", ("runnable_count",), gauge=True),
    Figure("Run queue", "blocked on disks", "tasks", ("blocked_count",), gauge=True),
    Figure("Run queue", "waited for a CPU", "tasks", ("cpu_run_queue_wait_ns",), 1e-9),
    Figure("Switches", "context switches", "1/s", ("context_switches_count",)),
    Figure("Switches", "interrupts", "1/s", ("interrupts_count",)),
    Figure("Disk queue", "mean length", "requests", ("disk_queue_ns",), 1e-9),
    Figure("Disk queue", "busy", "disks", ("disk_busy_ns",), 1e-9),
    Figure("Disk time", "of a write", "ms", ("disk_write_wait_ns",), 1e-6, over="disk_writes_count"),
    Figure("Disk time", "of a read", "ms", ("disk_read_wait_ns",), 1e-6, over="disk_reads_count"),
    Figure("Disk bytes", "written", "MB/s", ("disk_written_bytes",), 1e-6),
    Figure("Disk bytes", "read", "MB/s", ("disk_read_bytes",), 1e-6),
    Figure("Disk operations", "writes", "1/s", ("disk_writes_count",)),
    Figure("Disk operations", "reads", "1/s", ("disk_reads_count",)),
    *(
        Figure(group, f"{direction}{by}", unit, (f"network_{direction}_{counter}",), scale, interfaces=kind)
        for kind, by in ((OUTWARD, ""), (LOOPBACK, " by loopback"), (VIRTUAL, " by virtual interfaces"))
        for group, unit, counter, scale in (
            ("Network bytes", "MB/s", "bytes", 1e-6),
            ("Network packets", "1/s", "packets_count", 1.0),
        )
        for direction in ("received", "sent")
    ),
    Figure("Network trouble", "segments sent again", "1/s", ("tcp_retransmitted_segments_count",)),
    Figure("Network trouble", LISTEN_DROPS, "1/s", ("tcp_listen_drops_count",)),
    Figure("Network trouble", "packets dropped", "1/s", ("network_receive_drops_count", "network_send_drops_count")),
    Figure("Memory", "available", "GB", ("memory_available_bytes",), 1e-9, gauge=True),
    Figure("Memory", "page cache", "GB", ("memory_cached_bytes",), 1e-9, gauge=True),
    Figure("Memory", "not yet on the disk", "GB", ("memory_dirty_bytes", "memory_writeback_bytes"), 1e-9, gauge=True),
    Figure("Memory faults", "all", "1/s", ("page_faults_count",)),
    Figure("Memory faults", "from the disk", "1/s", ("major_faults_count",)),
    Figure("Generator's process", "programs", "cores", ("process_user_ns",), 1e-9),
    Figure("Generator's process", "kernel", "cores", ("process_system_ns",), 1e-9),
)


def on_disk(figures: Sequence[Figure], disk: str) -> tuple[Figure, ...]:
    """The same figures, with this disk in place of all."""
    return tuple(replace(each, disk=disk) if each.of[0].startswith("disk_") else each for each in figures)


SERVICE_FIGURES = (
    Figure("Service", "CPU time", "cores", ("process_user_ns", "process_system_ns"), 1e-9),
    Figure("Service", "waited for a CPU", "threads", ("process_run_queue_wait_ns",), 1e-9),
    Figure("Service", "threads", "threads", ("process_threads_count",), gauge=True),
    Figure("Service", "page faults", "1/s", ("process_minor_faults_count", "process_major_faults_count")),
)
"""Of a monitor that watches only the service's process."""

SOFTIRQ = Figure("CPU", "packets and timers", "cores", ("cpu_softirq_ns",), 1e-9)
"""A part of the kernel's time, so it is not in the list of all figures."""


def series(rows: Iterable[Mapping[str, Any]], begin_ns: int, figures: Sequence[Figure] = FIGURES) -> tuple[Series, ...]:
    """Every figure that has values, by host."""
    moments: dict[str, dict[int, dict[tuple[str, str], float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        moments[row["host"]][row["at_ns"]][row["counter"], row["subject"] or ""] = row["value"]
    return tuple(made for host, values in moments.items() for made in _of_host(host, values, begin_ns, figures))


def _of_host(host: str, moments: Mapping[int, Values], begin_ns: int, figures: Sequence[Figure]) -> Iterator[Series]:
    order = sorted(moments)
    for figure in figures:
        points = [
            ((before - begin_ns) / 1e9, value)
            for before, after in itertools.pairwise(order)
            if (value := value_of(figure, moments[before], moments[after], (after - before) / 1e9)) is not None
        ]
        if points:
            yield Series(host, figure.group, figure.name, figure.unit, tuple(points))


def value_of(figure: Figure, before: Values, after: Values, length_s: float) -> float | None:
    """A figure between two readings. None if its counters were not read."""
    if figure.gauge:
        values = [value for key, value in after.items() if key[0] in figure.of and _counted(figure, *key)]
        return sum(values) * figure.scale if values else None
    total = _difference(figure, figure.of, before, after)
    if total is None:
        return None
    if figure.over is None:
        return total * figure.scale / length_s
    count = _difference(figure, (figure.over,), before, after)
    return total * figure.scale / count if count else None


def _difference(figure: Figure, names: tuple[str, ...], before: Values, after: Values) -> float | None:
    differences = [
        value - before[key]
        for key, value in after.items()
        if key[0] in names and key in before and _counted(figure, *key)
    ]
    return sum(differences) if differences else None


def _counted(figure: Figure, name: str, subject: str) -> bool:
    """True if it belongs in the figure's sum. What the kernel counts twice is included once."""
    if name.startswith("disk_"):
        return subject == figure.disk if figure.disk else not _OVER_DISKS.match(subject)
    if name.startswith("network_"):
        return figure.interfaces in (None, _kind(subject))
    return subject == "cpu" or not name.startswith("cpu_") or name in _NOT_OF_ALL_CPUS


def _kind(interface: str) -> str:
    if interface == "lo":
        return LOOPBACK
    return VIRTUAL if _VIRTUAL.match(interface) else OUTWARD
