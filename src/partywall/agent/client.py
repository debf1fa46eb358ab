"""The controller's connection to one agent: requests with responses, and notifications that are passed to a sink.

An agent is not trusted. Any message that violates the contract ends the connection with one reason, which every open
and later request gets. No request waits longer than its timeout, even if the agent stops reading.

Starting the process is done elsewhere: the creator of a sandbox passes its two streams.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from partywall.agent import binary
from partywall.agent.inbox import Received
from partywall.errors import AgentError, LackError, Problem, Refusal, RefusalError, UsageError

PROTOCOL = 1
NOTIFICATIONS = (
    "slices", "output", "usage", "sample", "trace", "trace_records", "load", "guard", "dropped", "ended"
)  # fmt: skip

CODES = {
    "request": -32600,
    "method": -32601,
    "params": -32602,
    "parse": -32700,
    "internal": -32603,
    "failed": 1,
    "denied": 2,
    "usage": 3,
    "lacking": 4,
    "passing": 5,
}
"""Refusals by the names of their codes in the schema of the contract."""
# All other codes are lasting; only programmers can fix them.
_REFUSALS = {
    CODES["denied"]: Refusal.LACKING,
    CODES["usage"]: Refusal.USAGE,
    CODES["lacking"]: Refusal.LACKING,
    CODES["passing"]: Refusal.PASSING,
}

# Facts of a large host, or files of a load, make long lines. Neither side accepts longer ones.
LINE_MAX = 64 << 20
KILLED_S = 30
# A message of many small values takes far more memory than its line.
VALUE_BYTES = 64
MESSAGE_BYTES = 512
MESSAGE_MAX = 256 << 20
# Limit for an agent that writes to standard error without ending a line.
STDERR_LINE_MAX = 64 << 10
# A writable pipe accepts this many bytes without blocking (PIPE_BUF).
PIECE = 4096
REMEDY = f"is this Partywall's agent, of this version? {binary.remedy()}"

Process = subprocess.Popen[bytes]
Sink = Callable[[str, dict[str, Any]], None]


def start_agent(argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
    """Starts an agent with its three streams as pipes. AgentError if the program cannot be started."""
    pipe = subprocess.PIPE
    try:
        # Its own process group, because the controller handles Ctrl-C and ends agents in order.
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, process_group=0)
    except OSError as error:
        raise AgentError(f"{argv[0]} cannot be started: {error.strerror}; {REMEDY}") from error


def _message(line: bytes, name: str) -> dict[str, Any]:
    """Parses a line. ValueError if it is not a valid message, or would take too much memory."""
    if len(line) >= LINE_MAX and not line.endswith(b"\n"):
        raise ValueError(f"it sent a line longer than {LINE_MAX >> 20} MiB")
    weight = MESSAGE_BYTES + len(line) + VALUE_BYTES * sum(line.count(each) for each in (b",", b"[", b"{"))
    if weight > MESSAGE_MAX:
        raise ValueError(f"it sent a message that takes more than {MESSAGE_MAX >> 20} MiB of memory")
    try:
        match json.loads(line):
            case {"method": str(method), "params": dict(params)} if method in NOTIFICATIONS:
                return {"method": method, "params": Received.of(params, name, weight)}
            case {"id": int() | None as number, "result": dict(result)}:
                return {"id": number, "result": Received.of(result, name)}
            case {"id": int() | None, "error": {"message": str()}} | {"id": int() | None, "result": _} as message:
                return dict(message)
    except RecursionError:
        raise ValueError("it sent a message whose values are nested too deeply") from None
    except ValueError:
        pass
    shown = line[:60].decode(errors="replace").rstrip()
    raise ValueError(f"it sent {shown!r}, which is not a valid message")


def refused(name: str, fault: Mapping[str, Any]) -> RefusalError:
    """The error for an agent's refusal. An agent may send any code, or none."""
    why = str(fault["message"])
    code = fault.get("code")
    refusal = _REFUSALS.get(code, Refusal.LASTING) if isinstance(code, int) else Refusal.LASTING
    message = f"agent {name}: {why}"
    if refusal is Refusal.LACKING:
        return LackError(message, why=why)
    return RefusalError(message, why=why, refusal=refusal)


def _result(future: Future[Any], deadline: float, each_second: Callable[[], None] | None) -> Any:
    """The result of a request. TimeoutError if there is none by the deadline."""
    while each_second is not None and time.monotonic() + 1 < deadline:
        with contextlib.suppress(TimeoutError):
            return future.result(1)
        each_second()
    return future.result(max(0.0, deadline - time.monotonic()))


class AgentClient:
    """One agent over the standard streams of `process`.

    Notifications go to `sink(method, params)` from a reading thread. When the stream ends or contains an invalid
    message, every open and later request fails with the same reason. `sink("gone", {"reason": …})` is then called once,
    unless `close` was called before.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], sink: Sink) -> None:
        self.name = name
        self.process = process
        self._sink = sink
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[Any]] = {}
        # Requests that timed out. Their responses may still arrive.
        self._late: set[int] = set()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._closing = False
        self._lost: str | None = None
        self._stderr: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, name=f"read-{name}", daemon=True),
            threading.Thread(target=self._drain_stderr, name=f"stderr-{name}", daemon=True),
        ]
        # The agent's last output on standard error is read before its end is reported.
        for thread in reversed(self._threads):
            thread.start()
        self.hello: dict[str, Any] = {}

    def greet(self, timeout_s: float = 20) -> dict[str, Any]:
        """Sends the first request. AgentError if it is not answered in time, or the protocols differ."""
        try:
            self.hello = self.call("hello", timeout_s=timeout_s, protocol=PROTOCOL)
        except AgentError as error:
            raise AgentError(f"{error}; {REMEDY}") from error
        return self.hello

    def call(
        self, method: str, *, timeout_s: float = 30, each_second: Callable[[], None] | None = None, **params: Any
    ) -> Any:
        """Sends a request and returns its result. AgentError if it fails, or is not answered within `timeout_s`.

        each_second: is called about every second until then.

        RefusalError if the agent refuses; LackError if it or its host lacks something. UsageError if the request is too
        long to send.
        """
        deadline = time.monotonic() + timeout_s
        number, future = self._begin()
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        try:
            line = json.dumps(message, allow_nan=False).encode()
            if len(line) > LINE_MAX:
                what = f"{method} takes {len(line) / 1e6:.0f} MB, but an agent accepts {LINE_MAX / 1e6:.0f} at most"
                raise UsageError(Problem(what, "make the files that are sent with it smaller", self.name))
            self._write(line + b"\n", deadline)
            return _result(future, deadline, each_second)
        # First, because it is a kind of OSError.
        except TimeoutError:
            raise AgentError(f"agent {self.name}: {method} was not answered within {timeout_s:g} s") from None
        except ValueError as error:
            raise AgentError(f"agent {self.name}: {method} cannot be sent: {error}") from error
        except OSError:
            self._fail_as_lost()
        finally:
            with self._lock:
                if self._open.pop(number, None) is not None and self._lost is None:
                    self._late.add(number)

    def close(self, timeout_s: float = 5, *, kill: bool = False, killed_s: float = KILLED_S) -> None:
        """Closes the stream, which ends the agent, and kills it if it does not end.

        kill: immediately, if no output is needed. AgentError if a killed one has not ended after `killed_s`.
        """
        self._closing = True
        if kill:
            self.process.kill()
        self._close_stdin(timeout_s)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            try:
                # A guest's memory takes time to be freed on a busy host.
                self.process.wait(killed_s)
            except subprocess.TimeoutExpired:
                said = f"process {self.process.pid} was killed and has not ended within {killed_s:g} s"
                raise AgentError(f"agent {self.name}: {said}; its host may be stuck") from None
        for thread in self._threads:
            thread.join(timeout_s)

    def _begin(self) -> tuple[int, Future[Any]]:
        future: Future[Any] = Future()
        with self._lock:
            if self._lost is not None:
                raise AgentError(self._lost)
            number = next(self._numbers)
            self._open[number] = future
        return number, future

    def _write(self, line: bytes, deadline: float) -> None:
        """Writes a line. TimeoutError if the agent does not read it until `deadline`.

        No other request can follow one that was cut off, so this ends the connection.
        """
        if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        try:
            stdin = cast("IO[bytes]", self.process.stdin)
            # The reading thread closes it when the connection has ended.
            if stdin.closed:
                raise BrokenPipeError
            descriptor = stdin.fileno()
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            left = memoryview(line)
            while left:
                if self._lost is not None or self._closing:
                    raise BrokenPipeError
                left_s = deadline - time.monotonic()
                if poll.poll(min(100.0, max(0.0, left_s * 1e3))):
                    left = left[os.write(descriptor, left[:PIECE]) :]
                elif left_s <= 0:
                    if len(left) < len(line):
                        self._lose("it stopped reading in the middle of a request")
                    raise TimeoutError
        finally:
            self._writing.release()

    def _close_stdin(self, timeout_s: float = 1) -> None:
        # While a connection is being closed, writes do not wait long.
        free = self._writing.acquire(timeout=timeout_s)
        try:
            with contextlib.suppress(OSError, ValueError):
                cast("IO[bytes]", self.process.stdin).close()
        finally:
            if free:
                self._writing.release()

    def _fail_as_lost(self) -> NoReturn:
        """Raises the reason why this agent ended, which the reading thread is about to know."""
        if threading.current_thread() is not self._threads[0]:
            self._threads[0].join(5)
        if self._lost is None:
            # On a busy host the reading thread takes longer. It keeps this reason then.
            self._lose(self._last_words(self._end()))
        raise AgentError(cast("str", self._lost))

    def _last_words(self, fallback: str) -> str:
        return " | ".join(self._stderr[-5:]) or fallback

    def _drain_stderr(self) -> None:
        stream = cast("IO[bytes]", self.process.stderr)
        for line in iter(lambda: stream.readline(STDERR_LINE_MAX), b""):
            self._stderr.append(line.decode(errors="replace").rstrip())
            del self._stderr[:-50]

    def _read(self) -> None:
        stream = cast("IO[bytes]", self.process.stdout)
        try:
            for line in iter(lambda: stream.readline(LINE_MAX), b""):
                self._receive(_message(line, self.name))
        except (OSError, ValueError) as error:
            self._gone(str(error))
        except Exception as error:  # noqa: BLE001 - whatever a message caused, waiting callers must be informed
            self._gone(f"its message could not be handled: {error!r}")
        else:
            reason = self._end()
            self._gone(self._last_words(reason))

    def _receive(self, message: Mapping[str, Any]) -> None:
        if "method" in message:
            self._sink(message["method"], message["params"])
            return
        number, fault = message["id"], message.get("error")
        with self._lock:
            future = self._open.pop(number, None)
            late = number in self._late
            self._late.discard(number)
        if future is not None and fault:
            future.set_exception(refused(self.name, fault))
        elif future is not None:
            future.set_result(message.get("result"))
        elif number is None and fault:
            raise ValueError(f"it could not read a request: {fault['message']}")
        elif not late:
            raise ValueError(f"it answered request {number}, which is not open")

    def _end(self) -> str:
        """How the process ended, after its stream has ended and its last output has been read."""
        self._threads[1].join(1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(2)
            return f"it ended with status {status}" if status >= 0 else f"it was killed by signal {-status}"
        return "its stream ended"

    def _lose(self, reason: str) -> None:
        """Fails all open and later requests. The first reason counts."""
        with self._lock:
            if self._lost is None:
                self._lost = f"agent {self.name}: {reason}"
            futures = list(self._open.values())
            self._open.clear()
            self._late.clear()
        for future in futures:
            future.set_exception(AgentError(self._lost))

    def _gone(self, reason: str) -> None:
        """Ends the connection, from the reading thread."""
        self._lose(reason)
        # Closes both directions, so that an agent that still writes or reads ends too.
        with contextlib.suppress(OSError, ValueError):
            cast("IO[bytes]", self.process.stdout).close()
        self._close_stdin()
        if not self._closing:
            self._sink("gone", {"reason": cast("str", self._lost).removeprefix(f"agent {self.name}: ")})
