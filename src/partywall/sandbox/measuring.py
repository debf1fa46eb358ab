"""The lock that says whether this host is being measured. It ends with the processes that hold it.

Commands share it, because their user decides what runs beside what. A queue of jobs holds it alone, because two
measurements at a time would spoil each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from partywall.errors import UsageError
from partywall.sandbox.label import made_state_root, state_root


def locked(how: int) -> int | None:
    """The lock, held in a mode of flock, as a descriptor; None if others hold it. Never waits.

    The folder of states itself is locked, so that no file is left.
    """
    while True:
        descriptor = os.open(made_state_root(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # It may have been removed before it was locked.
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """Says that this host is measured, so that a queue of jobs waits. Leaves no folder that it made and nobody uses."""
    try:
        was_there = state_root().exists()
        descriptor = locked(fcntl.LOCK_SH)
    except (OSError, UsageError):
        descriptor = None
    if descriptor is None:
        yield
        return
    try:
        yield
    finally:
        if not was_there:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                state_root().rmdir()
        os.close(descriptor)
