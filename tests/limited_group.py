"""A cgroup (version 1) with a CPU limit in parts that are shorter than a slot: a host that gets less than it should."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

CPU = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 10_000
EMPTY_S = 20.0


def lacking() -> str:
    """Why no such group can be made here; empty if one can."""
    return "" if (CPU / "cgroup.procs").exists() else "no cgroup version 1 for CPU time"


@contextlib.contextmanager
def limited(cpus: float) -> Iterator[Path]:
    """The group while the block runs; then what is in it has to end. cpus: its limit."""
    group = CPU / f"partywall-limited-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(round(cpus * PERIOD_US)))
        yield group
    finally:
        until = time.monotonic() + EMPTY_S
        while (group / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.1)
        group.rmdir()
