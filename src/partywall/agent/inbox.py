"""Messages of agents that wait to be handled: one queue for a session, with a limit for each agent.

A slow reader loses nothing while an agent stays below the limit. Above it, the agent is faulty or its reader is stuck,
and its connection ends with that reason, or, for an agent that must go on, its messages are dropped until they are read
again. Messages are not interpreted here, except that the end of a workload is never dropped.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from partywall.errors import AgentError

WAITING_MAX = 256 << 20
"""Approximate limit on the memory, in bytes, of one agent's unread messages."""

NOT_READ = "this process was stopped, or its host is overloaded"
"""Why messages of an agent were not read in time."""

END = "ended"
"""The message that is never dropped: there is one for each workload, and nothing says it later."""

Message = tuple[str, str, dict[str, Any]]


class Received(dict[str, Any]):
    """An object that an agent sent. Access to a missing key is an AgentError, because the contract requires the key."""

    agent: str = ""
    weight: int = 0
    """Its approximate memory use in bytes."""

    @classmethod
    def of(cls, content: Mapping[str, Any], agent: str, weight: int = 0) -> Received:
        received = cls(content)
        received.agent, received.weight = agent, weight
        return received

    def __missing__(self, key: str) -> NoReturn:
        raise AgentError(f"agent {self.agent}: a message lacks {key!r}; check that it is of this version of Partywall")


class FloodError(ValueError):
    """An agent sends faster than its messages are read."""


class Inbox:
    """Messages as (agent, method, params), in order of arrival.

    most: limit on an agent's waiting messages, in bytes. lossy: drops what is above it, except `END`; the connection
    stays.
    """

    def __init__(self, most: int = WAITING_MAX, *, lossy: bool = False) -> None:
        self._most, self._lossy = most, lossy
        self._queue: queue.SimpleQueue[tuple[Message, int]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()

    def put(self, name: str, method: str, params: dict[str, Any]) -> None:
        """Adds a message. FloodError if too many of this agent's messages are waiting, unless the inbox is lossy.

        Messages that did not come from an agent's stream, such as `gone`, have no size and are always accepted.
        """
        weight = params.weight if isinstance(params, Received) else 0
        with self._lock:
            if weight and self._waiting[name] + weight > self._most:
                if not self._lossy:
                    raise FloodError(f"it sends faster than its messages are read: {self._most >> 20} MiB of them wait")
                if method != END:
                    return
            self._waiting[name] += weight
        self._queue.put(((name, method, params), weight))

    def get(self, timeout: float | None = None) -> Message:
        """The next message. queue.Empty if none arrives within `timeout`."""
        return self._taken(*self._queue.get(timeout=timeout))

    def get_nowait(self) -> Message:
        """The next message. queue.Empty if there is none."""
        return self._taken(*self._queue.get_nowait())

    def empty(self) -> bool:
        return self._queue.empty()

    def qsize(self) -> int:
        """The number of waiting messages."""
        return self._queue.qsize()

    def _taken(self, message: Message, weight: int) -> Message:
        with self._lock:
            self._waiting[message[0]] -= weight
        return message
