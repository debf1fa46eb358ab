"""CPU time as the kernel limits it: a quota in each period."""

from __future__ import annotations

PERIOD_US = 100_000
"""The kernel's default."""
LEAST_QUOTA_US = 1_000
"""The smallest that the kernel takes."""


def quota_us(cpus: float, period_us: int = PERIOD_US) -> int:
    """The quota of a number of CPUs, which may be a part of one."""
    return max(LEAST_QUOTA_US, round(cpus * period_us))
