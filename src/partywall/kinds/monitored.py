"""What the counters of a monitor say about the last second, for those who watch a measurement. Pure.

Findings are not derived from these figures: they have the counters themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from partywall.events import Counters
from partywall.load.monitors import SOFTIRQ, Figure, value_of

PERCENT = 1e-7
"""Nanoseconds a second as a percentage."""
FIGURES = (
    Figure(
        "CPU of the host",
        "programs and kernel",
        "cores",
        ("cpu_user_ns", "cpu_nice_ns", "cpu_system_ns", "cpu_irq_ns", *SOFTIRQ.of),
        1e-9,
    ),
    Figure("CPU of the host", "taken by the hypervisor", "cores", ("cpu_steal_ns",), 1e-9),
    Figure("CPU of the host", "runnable", "tasks", ("runnable_count",), gauge=True),
    Figure("Pressure (PSI)", "some task waited for a CPU", "%", ("cpu_pressure_some_ns",), PERCENT),
    Figure("Pressure (PSI)", "some task waited for memory", "%", ("memory_pressure_some_ns",), PERCENT),
    Figure("Pressure (PSI)", "some task waited for a disk", "%", ("io_pressure_some_ns",), PERCENT),
    Figure("Process that is watched", "throttled by its CPU limit", "%", ("cgroup_cpu_throttled_ns",), PERCENT),
    Figure("Process that is watched", "threads waited for a CPU", "%", ("process_run_queue_wait_ns",), PERCENT),
    Figure("Disks and memory", "disks busy", "disks", ("disk_busy_ns",), 1e-9),
    Figure("Disks and memory", "memory available", "GB", ("memory_available_bytes",), 1e-9, gauge=True),
)


def figures(read: Counters) -> Iterator[tuple[str, str, str, float]]:
    """Group, name, unit and value of each figure whose counters were read."""
    before, after = (
        {
            (name, subject): value
            for (subject, name), value in zip(read.columns, values, strict=True)
            if value is not None
        }
        for values in (read.before, read.after)
    )
    for figure in FIGURES:
        value = value_of(figure, before, after, read.length_s)
        if value is not None:
            yield figure.group, figure.name, figure.unit, float(f"{max(value, 0.0):.4g}")
