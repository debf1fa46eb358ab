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
from partywall.sandbox.label import made_state_root


def opened() -> int:
    """What is locked, as a descriptor: the folder of states, so that no file is left."""
    return os.open(made_state_root(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """Says that this host is measured, so that a queue of jobs waits. Never waits itself."""
    try:
        descriptor = opened()
    except (OSError, UsageError):
        yield
        return
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
