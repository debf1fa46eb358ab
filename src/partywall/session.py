"""The agents of one execution: those in sandboxes created for it, and those that it attaches to.

A session starts the agents, collects their messages in one inbox, and knows the offset of each agent's clock from the
host's. It ends the agents when the execution ends, even by an error. It does not interpret messages.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from partywall.agent.client import AgentClient, Sink, start_agent
from partywall.agent.clock import Alignment
from partywall.agent.inbox import Inbox, Message
from partywall.clock import Clock, Monotonic
from partywall.errors import TrialError
from partywall.sandbox import Label, Sandbox, Settings, make
from partywall.sandbox.clock import Looks


class Session:
    """Agents by name. Use it as a context manager, or call `close`. Afterwards nothing of it is left on the host.

    make: creates a sandbox; tests pass a simulation.
    """

    def __init__(
        self, label: Label, clock: Clock | None = None, make: Callable[[Settings, Label], Sandbox] = make
    ) -> None:
        self.label = label
        self._make = make
        self.clock: Clock = clock or Monotonic()
        self.messages = Inbox()
        self.sandboxes: dict[str, Sandbox] = {}
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
        """Calls `undo` when the session ends, after the agents started later have ended."""
        self._stack.callback(undo, *arguments)

    def add(self, *every: Settings) -> list[Sandbox]:
        """Creates sandboxes and starts their agents. Slow ones, such as guests, start in parallel.

        TrialError or CapabilityError if the host refuses one.
        """
        made = [self._make(settings, self.label) for settings in every]
        for sandbox in made:
            # Registered before the start, so that a sandbox that fails half-way is removed too.
            self.sandboxes[sandbox.settings.name] = sandbox
            self._stack.callback(sandbox.stop)
            sandbox.launch(self._sink(sandbox.settings.name))
        for sandbox in made:
            sandbox.start(self._sink(sandbox.settings.name))
        for sandbox in made:
            sandbox.settle()
        return made

    def attach(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, patience_s: float = 5
    ) -> AgentClient:
        """Starts an agent by a command, here or on another machine. AgentError if it does not answer correctly.

        patience_s: how long it may take to end before it is killed.
        """
        client = AgentClient(name, start_agent(command, env=env), self._sink(name))
        self._attached[name] = client
        self._stack.callback(client.close, patience_s)
        client.greet()
        return client

    def client(self, name: str) -> AgentClient:
        """The connection to an agent. TrialError if there is none."""
        if name in self._attached:
            return self._attached[name]
        client = self.sandboxes[name].client
        if client is None:
            raise TrialError(f"sandbox {name} has no agent")
        return client

    def alignment(self, name: str, rounds: int) -> Alignment:
        """Measures the offset of an agent's clock from this host's, by this many round trips."""
        alignment = Alignment(self.client(name), self.clock)
        alignment.ask(rounds)
        return alignment

    def look(self, now_ns: int, for_ns: int = 0) -> Looks:
        """Reads the clocks of all sandboxes and corrects them to this host's.

        for_ns: the longest time until the next reading. TrialError if a clock jumped.
        """
        each = tuple(look for sandbox in self.sandboxes.values() if (look := sandbox.look(for_ns)))
        return Looks(min((look.offset.at_ns for look in each), default=now_ns), each)

    def take(self, timeout_s: float) -> list[Message]:
        """The messages waiting now, after waiting at most `timeout_s` for the first.

        Messages that arrive meanwhile are left for the next call, so that these are handled without delay.
        """
        messages: list[Message] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self.messages.get(timeout=timeout_s) if timeout_s > 0 else self.messages.get_nowait())
            messages += [self.messages.get_nowait() for _ in range(self.messages.qsize())]
        return messages

    def reason_gone(self, name: str, reason: str) -> str:
        """Why an agent has ended, with what is known about its sandbox."""
        sandbox = self.sandboxes.get(name)
        return sandbox.reason_gone(reason) if sandbox else reason

    def _sink(self, name: str) -> Sink:
        def put(method: str, params: dict[str, Any]) -> None:
            self.messages.put(name, method, params)

        return put
