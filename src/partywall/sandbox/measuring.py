"""The lock that says whether this host is being measured, and by whom. It ends with the processes that hold it.

Every measurement shares the lock: of a terminal, of a queue of jobs and of the Python interface. One that waits for the
others gets it only while nobody else holds it. A small file for each measurement says what it is. The lock and the
files are those of one user.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall import units
from partywall.errors import Problem, UsageError
from partywall.events import Emit, Event, Left, Note, Started, silent
from partywall.files import write_whole
from partywall.host.label import made_state_root, start_ticks, state_root

POLL_S = 0.5
MOVED_S = 5.0
"""Changes of an expected end that are smaller are not written."""


def locked(how: int) -> int | None:
    """The lock, held in a mode of flock, as a descriptor; None if others hold it. Never waits.

    The folder of states itself is locked, so that no file is left.
    """
    gone = None
    while True:
        descriptor = os.open(made_state_root(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # It may have been removed before it was locked. Then there is another one now, unless it is a mount point.
        status = os.fstat(descriptor)
        if status.st_nlink:
            return descriptor
        os.close(descriptor)
        if (status.st_ino, status.st_ctime_ns) == gone:
            said = f"{state_root()} is a mounted folder that was removed on its host"
            raise UsageError(Problem(said, "mount it again, or set $PARTYWALL_STATE"))
        gone = (status.st_ino, status.st_ctime_ns)


def lock_alone() -> int | None:
    """The shared lock as a descriptor, if nobody else holds it; else None. Never waits."""
    descriptor = locked(fcntl.LOCK_EX)
    if descriptor is None:
        return None
    try:
        # Others may begin beside it, but none that waits for others.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # The kernel releases the lock for a moment, in which somebody else took it.
        os.close(descriptor)
        return None
    return descriptor


def detached(
    argv: Sequence[str], lock: int | None, output: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a command that holds the lock until its end, in a session of its own: who starts it may end before.

    output: a file that it appends to. The caller may close its own lock.
    """
    with output.open("ab") as stream:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, cwd=cwd, env=env,
            start_new_session=True, pass_fds=[] if lock is None else [lock],
        )  # fmt: skip


@dataclass(frozen=True)
class Other:
    """A measurement of this host by another process. what: its command; record: where it writes, if it has begun.

    ends_s: when it is expected to end, in seconds since the epoch; None if that is not known.
    """

    pid: int
    what: str
    record: str = ""
    ends_s: float | None = None

    def __str__(self) -> str:
        known = [f"process {self.pid}", *([self.record] if self.record else [])]
        if self.ends_s is not None:
            left_s = max(1, round(self.ends_s - time.time()))
            known.append(f"about {units.format_duration(left_s * 10**9)} left")
        return f"{self.what} ({', '.join(known)})"


def others() -> list[Other]:
    """The measurements of this host by other processes. Removes the files of processes that have died."""
    running = []
    for file in sorted(state_root().glob("measuring-*.json")):
        try:
            written = json.loads(file.read_text(encoding="utf-8"))
            ticks, other = written.pop("start_ticks"), Other(**written)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if start_ticks(other.pid) != ticks:
            file.unlink(missing_ok=True)
        elif other.pid != os.getpid():
            running.append(other)
    return running


class _Mark:
    """The file that says what is measured, and a listener that adds where, and until when."""

    def __init__(self, what: str) -> None:
        self._file = state_root() / f"measuring-{os.getpid()}-{secrets.token_hex(2)}.json"
        pid = os.getpid()
        self._written: dict[str, str | float | None] = {"pid": pid, "start_ticks": start_ticks(pid), "what": what}
        self._ends_s = float("-inf")
        self._put()

    def __call__(self, event: Event) -> None:
        match event:
            case Started(path) if path is not None:
                self._put(record=str(path))
            case Left(seconds) if abs(time.time() + seconds - self._ends_s) > MOVED_S:
                self._ends_s = time.time() + seconds
                self._put(ends_s=round(self._ends_s))

    def _put(self, **more: str | float) -> None:
        self._written |= more
        with contextlib.suppress(OSError):
            write_whole(self._file, json.dumps(self._written))

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)


@contextlib.contextmanager
def measuring(what: str, emit: Emit, *, wait: str = "", is_waiting: bool = False) -> Iterator[Emit]:
    """Says that this host is measured, and yields a listener that keeps up what others see of it.

    Names the measurements that run already, in a note: both sides disturb each other. wait: how to wait for them
    instead, for that note. is_waiting: whether to wait for them. Leaves no folder that it made and nobody uses.
    """
    try:
        was_there = state_root().exists()
        descriptor = _when_alone(emit) if is_waiting else locked(fcntl.LOCK_SH)
        running = others()
        mark = _Mark(what)
    except (OSError, UsageError):
        yield lambda _event: None
        return
    for other in running:
        text = f"{other} measures on this host too: the two disturb each other{wait and f'; {wait}'}"
        emit(Note(text, is_warning=True))
    try:
        yield mark
    finally:
        mark.remove()
        if descriptor is not None:
            _release(descriptor, is_removed=not was_there)


def _release(descriptor: int, *, is_removed: bool) -> None:
    if is_removed:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            state_root().rmdir()
    os.close(descriptor)


@contextlib.contextmanager
def alone(emit: Emit = silent) -> Iterator[None]:
    """Waits until no other process measures this host, as `--wait` does. Within the block, nobody else is alone.

    emit: hears a note that says who is waited for.
    """
    descriptor = _when_alone(emit)
    try:
        yield
    finally:
        os.close(descriptor)


def _when_alone(emit: Emit) -> int:
    """The lock, once nobody else holds it. A note says who is waited for."""
    said: list[str] = []
    while (descriptor := lock_alone()) is None:
        whom = [f"{other.what} (process {other.pid})" for other in others()]
        if whom and whom != said:
            said = whom
            emit(Note(f"waiting for {' and '.join(map(str, others()))}"))
        time.sleep(POLL_S)
    return descriptor
