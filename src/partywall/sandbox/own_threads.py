"""Where Partywall's own threads run, so that none of them takes time of a CPU that is measured."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

TASKS = Path("/proc/self/task")


def keep_on(cpus: Iterable[int]) -> None:
    """Keeps all threads of this process on some CPUs, also those that draw on the terminal or read from agents.

    `os.sched_setaffinity(0, …)` alone moves the calling thread. Later threads inherit from the one that starts them.
    """
    wanted, moved = set(cpus), set[int]()
    # Repeated until no new one is found: a thread may start another before it is moved itself.
    while new := {int(task.name) for task in TASKS.iterdir()} - moved:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, wanted)
        moved |= new
