"""The folder in which a run, a trace, a study or a load is kept: made anew, and written by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from partywall.errors import Problem, UsageError


def make(path: Path, instead: str = "") -> None:
    """Makes it; UsageError if something is there already or it cannot be made. instead: what else one may want."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{path} exists already; give another --out{instead}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}; give another --out") from None


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keeps other processes from writing there; UsageError if one does. Ends with the process, however that ends."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = "is being measured or read by another partywall at this moment"
        raise UsageError(Problem(message, "wait until that has ended", str(path))) from None
