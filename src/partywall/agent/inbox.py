"""Messages of agents that wait to be handled: one queue for all agents of a session, bounded for each of them.

Deliberately not here: what messages mean. Who reads them slowly loses nothing as long as an agent stays below the
bound; an agent that exceeds it is not one of ours, or its reader is stuck, and its connection ends with that reason.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from partywall.errors import AgentError

WAITING_MAX = 256 << 20
"""Bytes of memory, about, that unread messages of one agent may take."""

Message = tuple[str, str, dict[str, Any]]


class Received(dict[str, Any]):
    """An object that an agent sent. To ask for what it lacks is an AgentError, for the contract promises it."""

    agent: str = ""
    weight: int = 0
    """About how many bytes of memory it takes."""

    @classmethod
    def of(cls, content: Mapping[str, Any], agent: str, weight: int = 0) -> Received:
        received = cls(content)
        received.agent, received.weight = agent, weight
        return received

    def __missing__(self, key: str) -> NoReturn:
        raise AgentError(f"agent {self.agent}: a message of it has no {key!r}; is it of this version of Partywall?")


class FloodError(ValueError):
    """An agent sends more than is read."""


class Inbox:
    """Messages as (agent, method, params), in the order in which they came."""

    def __init__(self, most: int = WAITING_MAX) -> None:
        self._most = most
        self._queue: queue.SimpleQueue[tuple[Message, int]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()

    def put(self, name: str, method: str, params: dict[str, Any]) -> None:
        """Adds a message; FloodError if too many of this agent's wait already.

        What does not come from an agent's stream, such as `gone`, weighs nothing and is always taken.
        """
        weight = params.weight if isinstance(params, Received) else 0
        with self._lock:
            if weight and self._waiting[name] + weight > self._most:
                raise FloodError(f"it sends faster than its messages are read: {self._most >> 20} MiB of them wait")
            self._waiting[name] += weight
        self._queue.put(((name, method, params), weight))

    def get(self, timeout: float | None = None) -> Message:
        """The next message; queue.Empty if none comes within `timeout`."""
        return self._taken(*self._queue.get(timeout=timeout))

    def get_nowait(self) -> Message:
        """The next message; queue.Empty if there is none."""
        return self._taken(*self._queue.get_nowait())

    def empty(self) -> bool:
        return self._queue.empty()

    def qsize(self) -> int:
        """How many messages wait."""
        return self._queue.qsize()

    def _taken(self, message: Message, weight: int) -> Message:
        with self._lock:
            self._waiting[message[0]] -= weight
        return message
