"""The agents of one execution: those in sandboxes created for it, and those that it attaches to.

A session starts the agents, collects their messages in one inbox, and knows the offset of each agent's clock from the
host's. It ends the agents when the execution ends, even by an error. It does not interpret messages.
"""

from __future__ import annotations

from collections.abc import Callable

from partywall.agent.agents import Agents
from partywall.agent.client import AgentClient
from partywall.clock import Clock
from partywall.errors import TrialError
from partywall.host.label import Label
from partywall.sandbox import Sandbox, Settings, make
from partywall.sandbox.clock import Looks


class Session(Agents):
    """The agents of one execution.

    make: creates a sandbox; tests pass a simulation.
    """

    def __init__(
        self, label: Label, clock: Clock | None = None, make: Callable[[Settings, Label], Sandbox] = make
    ) -> None:
        super().__init__(clock)
        self.label = label
        self._make = make
        self.sandboxes: dict[str, Sandbox] = {}

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

    def client(self, name: str) -> AgentClient:
        """The connection to an agent. TrialError if there is none."""
        if name not in self.sandboxes:
            return super().client(name)
        client = self.sandboxes[name].client
        if client is None:
            raise TrialError(f"sandbox {name} has no agent")
        return client

    def look(self, now_ns: int, for_ns: int = 0) -> Looks:
        """Reads the clocks of all sandboxes and corrects them to this host's.

        for_ns: the longest time until the next reading. TrialError if a clock jumped.
        """
        each = tuple(look for sandbox in self.sandboxes.values() if (look := sandbox.look(for_ns)))
        return Looks(min((look.offset.at_ns for look in each), default=now_ns), each)

    def reason_gone(self, name: str, reason: str) -> str:
        """Why an agent has ended, with what is known about its sandbox."""
        sandbox = self.sandboxes.get(name)
        return sandbox.reason_gone(reason) if sandbox else reason
