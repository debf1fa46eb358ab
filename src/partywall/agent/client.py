"""A controller's end of one agent: requests with answers, and notifications pushed into a sink as they come.

Deliberately not here: how the agent's process came to be. Whoever makes a sandbox hands over its two streams.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, cast

from partywall.agent import binary
from partywall.errors import AgentError, Problem, RefusalError, UsageError

PROTOCOL = 1
NOTIFICATIONS = ("slices", "output", "usage", "sample", "trace", "trace_records", "load", "guard", "ended")

# Facts of a large host, or files of a load, are a long line; neither side takes more.
LINE_MAX = 64 << 20
REMEDY = f"is this Partywall's agent, of this version? {binary.remedy()}"

Process = subprocess.Popen[bytes]
Sink = Callable[[str, dict[str, Any]], None]


def start_agent(argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
    """Starts an agent with its three streams piped; AgentError if it is not even a program."""
    pipe = subprocess.PIPE
    try:
        # A group of its own: Ctrl-C is the controller's to handle, which ends agents in order.
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, process_group=0)
    except OSError as error:
        raise AgentError(f"{argv[0]} cannot be started: {error.strerror}; {REMEDY}") from error


def _message(line: bytes) -> dict[str, Any]:
    """A line as a message; ValueError if it is none that agents send."""
    with contextlib.suppress(ValueError):
        match json.loads(line):
            case {"method": str(method), "params": dict()} as message if method in NOTIFICATIONS:
                return dict(message)
            case {"id": int() | None, "error": {"message": str()}} | {"id": int() | None, "result": _} as message:
                return dict(message)
    shown = line[:60].decode(errors="replace").rstrip()
    raise ValueError(f"it sent {shown!r}, which is no message of an agent")


class AgentClient:
    """One agent over the standard streams of `process`.

    Notifications go to `sink(method, params)` from a reading thread. When the stream ends every open request fails, and
    `sink("gone", {"reason": …})` is called once, unless `close` was called first.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], sink: Sink) -> None:
        self.name = name
        self.process = process
        self._sink = sink
        self._numbers = itertools.count(1)
        self._open: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._stderr: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, name=f"read-{name}", daemon=True),
            threading.Thread(target=self._drain_stderr, name=f"stderr-{name}", daemon=True),
        ]
        # What it says last is read by the time its end is noticed.
        for thread in reversed(self._threads):
            thread.start()
        self.hello: dict[str, Any] = {}

    def greet(self, timeout_s: float = 20) -> dict[str, Any]:
        """The first request; AgentError if it is not answered in time or the protocols differ."""
        try:
            self.hello = self.call("hello", timeout_s=timeout_s, protocol=PROTOCOL)
        except AgentError as error:
            raise AgentError(f"{error}; {REMEDY}") from error
        return self.hello

    def call(self, method: str, *, timeout_s: float = 30, **params: Any) -> Any:
        """Sends a request and returns its result; AgentError if it fails, or is not answered within `timeout_s`.

        UsageError if it is too long to send.
        """
        number = next(self._numbers)
        future: Future[Any] = Future()
        with self._lock:
            self._open[number] = future
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        try:
            line = json.dumps(message, allow_nan=False).encode()
            if len(line) > LINE_MAX:
                what = f"{method} takes {len(line) / 1e6:.0f} MB, and an agent {LINE_MAX / 1e6:.0f} at most"
                raise UsageError(Problem(what, "make the files that are sent with it smaller", self.name))
            stream = cast("IO[bytes]", self.process.stdin)
            with self._lock:
                stream.write(line + b"\n")
                stream.flush()
            return future.result(timeout_s)
        # First, for it is a kind of OSError.
        except TimeoutError:
            raise AgentError(f"agent {self.name}: {method} was not answered within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:
            reason = self._end() if isinstance(error, BrokenPipeError) else str(error)
            raise AgentError(f"agent {self.name}: {method}: {self._last_words(reason)}") from error
        finally:
            with self._lock:
                self._open.pop(number, None)

    def close(self, timeout_s: float = 5, *, kill: bool = False) -> None:
        """Ends the stream, upon which the agent ends; kills it if it does not.

        kill: at once, where nothing is to be saved.
        """
        self._closing = True
        if kill:
            self.process.kill()
        with contextlib.suppress(OSError, ValueError):
            cast("IO[bytes]", self.process.stdin).close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join(timeout_s)

    def _last_words(self, fallback: str) -> str:
        return " | ".join(self._stderr[-5:]) or fallback

    def _drain_stderr(self) -> None:
        for line in cast("IO[bytes]", self.process.stderr):
            self._stderr.append(line.decode(errors="replace").rstrip())
            del self._stderr[:-50]

    def _read(self) -> None:
        stream = cast("IO[bytes]", self.process.stdout)
        try:
            for line in iter(lambda: stream.readline(LINE_MAX), b""):
                self._receive(_message(line))
        except (OSError, ValueError) as error:
            self._gone(str(error))
        else:
            self._gone(self._end())

    def _receive(self, message: Mapping[str, Any]) -> None:
        if "method" in message:
            self._sink(message["method"], message["params"])
            return
        with self._lock:
            future = self._open.get(message["id"] or 0)
        if future is None:
            return
        if fault := message.get("error"):
            future.set_exception(RefusalError(f"agent {self.name}: {fault['message']}"))
        else:
            future.set_result(message.get("result"))

    def _end(self) -> str:
        """How the process ended, once its stream has, and what it said last has been read."""
        self._threads[1].join(1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(2)
            return f"it ended with status {status}" if status >= 0 else f"it was killed by signal {-status}"
        return "its stream ended"

    def _gone(self, reason: str) -> None:
        self._threads[1].join(1)
        text = self._last_words(reason) if self._stderr else reason
        with self._lock:
            futures = list(self._open.values())
        for future in futures:
            if not future.done():
                future.set_exception(AgentError(f"agent {self.name}: {text}"))
        if not self._closing:
            self._sink("gone", {"reason": text})
