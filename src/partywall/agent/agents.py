"""Agents by name, the messages that they send, and their end. Agents in sandboxes are added by `partywall.session`."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from partywall.agent.client import AgentClient, Process, Sink, start_agent
from partywall.agent.clock import DRIFT_PPB, Alignment
from partywall.agent.inbox import Inbox, Message
from partywall.clock import Clock, Monotonic


class Agents:
    """Use it as a context manager, or call `close`. Afterwards nothing of it is left on the host.

    It collects messages in one inbox and does not interpret them.
    """

    def __init__(self, clock: Clock | None = None, messages: Inbox | None = None) -> None:
        self.clock: Clock = clock or Monotonic()
        self.messages = messages or Inbox()
        self._attached: dict[str, AgentClient] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every agent, the last one first, and removes the sandboxes. May be called twice."""
        self._stack.close()

    def at_end(self, undo: Callable[..., object], *arguments: object) -> None:
        """Calls `undo` at the end, after the agents started later have ended."""
        self._stack.callback(undo, *arguments)

    def attach(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, patience_s: float = 5
    ) -> AgentClient:
        """Starts an agent by a command, here or on another machine. AgentError if it does not answer correctly.

        patience_s: how long it may take to end before it is killed.
        """
        return self.adopt(name, start_agent(command, env=env), patience_s)

    def adopt(self, name: str, process: Process, patience_s: float = 5) -> AgentClient:
        """Attaches to an agent that was started already."""
        client = AgentClient(name, process, self._sink(name))
        self._attached[name] = client
        self._stack.callback(client.close, patience_s)
        client.greet()
        return client

    def share(self, name: str, client: AgentClient) -> Sink:
        """Uses an agent that others started and end. Returns where its messages are to go."""
        self._attached[name] = client
        return self._sink(name)

    def client(self, name: str) -> AgentClient:
        """The connection to an agent."""
        return self._attached[name]

    def alignment(self, name: str, rounds: int, drift_ppb: int = DRIFT_PPB) -> Alignment:
        """Measures the offset of an agent's clock from this host's, by this many round trips.

        drift_ppb: largest difference of their rates.
        """
        alignment = Alignment(self.client(name), self.clock, drift_ppb=drift_ppb)
        alignment.ask(rounds)
        return alignment

    def take(self, timeout_s: float) -> list[Message]:
        """The messages waiting now, after waiting at most `timeout_s` for the first.

        Messages that arrive meanwhile are left for the next call, so that these are handled without delay.
        """
        messages: list[Message] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self.messages.get(timeout=timeout_s) if timeout_s > 0 else self.messages.get_nowait())
            messages += [self.messages.get_nowait() for _ in range(self.messages.qsize())]
        return messages

    def _sink(self, name: str) -> Sink:
        return lambda method, params: self.messages.put(name, method, params)
