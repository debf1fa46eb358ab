"""The victim's rate: what a command or a log says, or how much of its runnable time a group runs.

Victims that an agent runs are in `at_work`, those that Prometheus watches in `queried`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from partywall.blame.job import BlameJob
from partywall.blame.measure import service
from partywall.errors import Problem, UsageError
from partywall.files import kernel_text
from partywall.host import Host
from partywall.host.processes import end_group
from partywall.sandbox import cgroups, tenants

STOP_S = 5.0
ENDED = "has ended"
Counts = tuple[float, float]
"""Work so far, and what it is divided by: seconds, or the sum of latencies."""
Number = Callable[[bytes], float | None]
"""Finds the number in a line; None if there is none."""


class Victim(Protocol):
    """A victim. unit: of its rate. pids: its processes. is_weak: the rate only says how long it waited for a CPU."""

    unit: str
    is_weak: bool

    def read(self, now_ns: int) -> Any:
        """What is known now. Two readings give a rate."""
        ...

    def is_known(self, now_ns: int) -> bool:
        """True if rates up to this moment can be said. Some victims report late."""
        ...

    def rate(self, before: Any, after: Any) -> float | None:
        """The rate between two readings; None if nothing is known."""
        ...

    def pids(self) -> list[int]: ...

    def ended(self) -> str:
        """What has happened to it, as the end of a sentence; empty while it can be measured."""
        ...


class Counted:
    """A victim whose work is counted, and known at once."""

    is_weak = False

    def is_known(self, now_ns: int) -> bool:
        del now_ns
        return True

    def rate(self, before: Counts, after: Counts) -> float | None:
        work, by = after[0] - before[0], after[1] - before[1]
        return work / by if by > 0 else None


class Stated(Counted):
    """A victim that states its speed from time to time. What it said last holds until it says another.

    is_slowness: whether it states a time, so that the rate is its reciprocal.
    """

    unit = "as it states"

    def __init__(self, *, is_slowness: bool) -> None:
        self._is_slowness, self._lock = is_slowness, threading.Lock()
        self._value: float | None = None
        self._sum, self._seconds, self._last_ns = 0.0, 0.0, 0

    def state(self, value: float | None) -> None:
        """It states a value; None if it states none any more."""
        if value is not None and self._is_slowness:
            value = 1 / value if value > 0 else None
        with self._lock:
            self._value = value

    def read(self, now_ns: int) -> Counts:
        with self._lock:
            seconds = (now_ns - self._last_ns) / 1e9 if self._last_ns else 0.0
            if self._value is not None:
                self._sum, self._seconds = self._sum + self._value * seconds, self._seconds + seconds
            self._last_ns = now_ns
            return self._sum, self._seconds


class Printed(Counted):
    """A command that this process starts: each line is one unit of work."""

    unit = "lines/s"

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._lines, self._seconds, self._is_closed = process, 0, 0.0, False
        # A descriptor of the thread's own: whoever closes the command's would otherwise let it read another file.
        stream = None if process.stdout is None else os.fdopen(os.dup(process.stdout.fileno()), "rb", buffering=0)
        threading.Thread(target=self._count, args=(stream,), daemon=True).start()

    def _count(self, stream: FileIO | None) -> None:
        try:
            if stream is not None:
                with stream:
                    while part := stream.read(65536):
                        self._hear(part)
        finally:
            # Also after an error: nobody reads it any more.
            self._is_closed = True

    def _hear(self, part: bytes) -> None:
        self._lines += part.count(b"\n")

    def read(self, now_ns: int) -> Counts:
        # Without an output nothing is known, so its time stands still.
        self._seconds = self._seconds if self._is_closed else now_ns / 1e9
        return self._lines, self._seconds

    def pids(self) -> list[int]:
        return [self._process.pid]

    def ended(self) -> str:
        if self._process.poll() is not None:
            return ENDED
        return "has closed its output" if self._is_closed else ""


class Speaking(Printed):
    """A command that prints its speed. number: finds it in a line."""

    def __init__(self, process: subprocess.Popen[bytes], number: Number, *, is_slowness: bool) -> None:
        self._said, self._number, self._rest = Stated(is_slowness=is_slowness), number, b""
        self.unit = self._said.unit
        super().__init__(process)

    def _hear(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            if (speed := self._number(line)) is not None:
                self._said.state(speed)

    def read(self, now_ns: int) -> Counts:
        if self._is_closed:
            self._said.state(None)
        return self._said.read(now_ns)


class Logged(Counted):
    """A log that somebody writes: each new line is a request, which may have its latency.

    latency: finds it in a line. pids: the processes that write it.

    A log that is rotated or truncated is followed. The old file is read until the new one has a line, because a service
    writes to the old one until it is told of the new.
    """

    def __init__(self, file: Path, latency: Number | None, pids: Sequence[int] = ()) -> None:
        self._pids, self._number = list(pids), latency
        self.unit = "lines/s" if latency is None else "requests per second of latency"
        self._file, self._stream = file, file.open("rb")
        self._stream.seek(0, os.SEEK_END)
        self._rest, self._lines, self._latency = b"", 0, 0.0

    def _lines_since(self) -> list[bytes]:
        lines = self._whole_lines(self._rest)
        # Half a line of the old file is lost.
        return lines + self._whole_lines(b"") if self._begins_anew() else lines

    def _whole_lines(self, rest: bytes) -> list[bytes]:
        *lines, self._rest = (rest + self._stream.read()).split(b"\n")
        return lines

    def _begins_anew(self) -> bool:
        """Goes to the beginning of the log if it is another file now, or shorter than what was read of it."""
        try:
            now, known = self._file.stat(), os.fstat(self._stream.fileno())
            if (now.st_dev, now.st_ino) == (known.st_dev, known.st_ino):
                if is_shorter := now.st_size < self._stream.tell():
                    self._stream.seek(0)
                return is_shorter
            fresh = self._file.open("rb") if now.st_size else None
        except OSError:
            # There is no new one yet.
            return False
        if fresh is not None:
            self._stream.close()
            self._stream = fresh
        return fresh is not None

    def read(self, now_ns: int) -> Counts:
        for line in self._lines_since():
            if self._number is None:
                self._lines += 1
            elif (latency := self._number(line)) is not None:
                self._latency += latency
                self._lines += 1
        return self._lines, now_ns / 1e9 if self._number is None else self._latency

    def pids(self) -> list[int]:
        return self._pids

    def ended(self) -> str:
        return ""


class Waiting(Counted):
    """The threads of processes: the time that they ran, as a share of that in which they wanted to run."""

    unit, is_weak = "of its runnable time", True

    def __init__(self, host: Host, find: Callable[[], list[int]]) -> None:
        self._proc, self._find = str(host.path("/proc")), find
        self._seen: dict[str, tuple[int, int]] = {}
        self._sums = [0, 0]

    def read(self, now_ns: int) -> Counts:
        del now_ns
        seen = {}
        for pid in self._find():
            with contextlib.suppress(OSError):
                for thread in os.scandir(f"{self._proc}/{pid}/task"):
                    if text := kernel_text(f"{thread.path}/schedstat"):
                        ran, waited, _ = text.split()
                        seen[thread.name] = (int(ran), int(waited))
        for name, now in seen.items():
            was = self._seen.get(name, now)
            for way in (0, 1):
                self._sums[way] += max(0, now[way] - was[way])
        self._seen = seen
        return self._sums[0], float(sum(self._sums))

    def pids(self) -> list[int]:
        return self._find()

    def ended(self) -> str:
        return "" if self._find() else ENDED


@contextlib.contextmanager
def started(job: BlameJob, host: Host) -> Iterator[Victim]:
    """The victim of a job. What this process starts for it ends with the block. UsageError if there is none."""
    # Each is slow to import, and most jobs have another victim.
    if job.probe or job.url:
        from partywall.blame.measure import at_work  # noqa: PLC0415

        with at_work.started(job, host) as victim:
            yield victim
    elif job.prometheus_url:
        from partywall.blame.measure import queried  # noqa: PLC0415

        with queried.started(job) as victim:
            yield victim
    elif job.victim:
        number = _by_pattern(job.metric, "--metric") if job.metric else None
        with _command(job.victim) as process:
            is_slowness = job.smaller_is_better
            yield Printed(process) if number is None else Speaking(process, number, is_slowness=is_slowness)
    elif job.log:
        yield _log(job, host)
    else:
        yield Waiting(host, _processes(job, host))


def check(job: BlameJob, host: Host) -> None:
    """UsageError if what a job starts as its victim cannot be started. Starts nothing."""
    if job.probe or job.url:
        from partywall.blame.measure import at_work  # noqa: PLC0415 - see `started`

        at_work.work_of(job)
    if job.metric:
        _by_pattern(job.metric, "--metric")
    if job.victim and host.which(program := next(iter(_words(job.victim)), "")) is None:
        said = f"{program or 'an empty command'} cannot be started: there is no such program"
        raise UsageError(Problem(said, "give a command with its path", key="--victim"))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            Problem(f"{text!r} is no command: {error}", "quote it as a shell does", key="--victim")
        ) from None


@contextlib.contextmanager
def _command(text: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = _words(text)
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        said = f"{argv[0]} cannot be started: {error.strerror}"
        raise UsageError(Problem(said, "give a command with its path", key="--victim")) from None
    try:
        yield process
    finally:
        end_group(process, STOP_S)


def _log(job: BlameJob, host: Host) -> Logged:
    latency = None
    if job.latency:
        latency = _by_pattern(job.latency, "--latency")
    elif job.latency_key:
        latency = by_key(job.latency_key)
    try:
        return Logged(Path(job.log), latency, service.writing(host, Path(job.log)))
    except OSError as error:
        raise UsageError(Problem(f"{job.log} cannot be read: {error.strerror}", key="--log")) from None


def _by_pattern(text: str, option: str) -> Number:
    """Finds the number in the group of a regular expression. UsageError if it is none, or has no group."""
    try:
        pattern = re.compile(text.encode())
    except re.error as error:
        raise UsageError(Problem(f"{text!r} is not a regular expression: {error}", key=option)) from None
    if pattern.groups < 1:
        raise UsageError(Problem(f"{text!r} has no group", "put the number into ( )", key=option))
    return by_group(pattern)


def by_group(pattern: re.Pattern[bytes]) -> Number:
    """Finds the number in the group of a pattern."""

    def number(line: bytes) -> float | None:
        match = pattern.search(line)
        return None if match is None else _finite(match[1])

    return number


def by_key(key: str) -> Number:
    """Finds the number at a key of a line of JSON, such as upstream.time: that of `time` in `upstream`."""
    names = key.split(".")

    def number(line: bytes) -> float | None:
        try:
            value = json.loads(line)
            for name in names:
                value = value[name]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return _finite(value)

    return number


def _finite(value: Any) -> float | None:
    """The number of a text, or a number; None if it is none, or without end."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _processes(job: BlameJob, host: Host) -> Callable[[], list[int]]:
    if job.pid is not None:
        pid = job.pid
        if not host.path(f"/proc/{pid}").exists():
            raise UsageError(Problem(f"there is no process {pid}", "give the number of a running process", key="--pid"))
        return lambda: [pid] if host.path(f"/proc/{pid}").exists() else []
    folder = cgroups.read(host.root).folder("cpu", job.group)
    if not folder.is_dir():
        raise UsageError(
            Problem(f"there is no cgroup {job.group}", "give a path as in /proc/PID/cgroup", key="--group")
        )
    return lambda: tenants.all_processes(folder)
