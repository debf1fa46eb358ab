"""Where Partywall's own threads run, so that none of them takes time of a CPU that is measured."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
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


@contextlib.contextmanager
def kept_off(cpus: Iterable[int]) -> Iterator[None]:
    """Keeps all threads of this process off some CPUs while the block runs, if others are left.

    Entered before agents start, because the threads that read from them inherit this affinity.
    """
    allowed = os.sched_getaffinity(0)
    others = allowed - set(cpus)
    if not others:
        yield
        return
    keep_on(others)
    try:
        yield
    finally:
        keep_on(allowed)
