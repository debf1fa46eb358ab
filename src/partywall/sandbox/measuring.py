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
    """The file that is locked, as a descriptor."""
    return os.open(made_state_root() / "measuring.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


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
