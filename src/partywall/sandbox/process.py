"""A sandbox that is a process with an affinity. It needs no root, and cannot have limits."""

from __future__ import annotations

import os

from partywall.agent import binary
from partywall.agent.client import AgentClient, Sink, start_agent
from partywall.sandbox import own_files
from partywall.sandbox.base import Sandbox


class Process(Sandbox):
    """An agent as a child of the controller, pinned. enter: a command prefix to enter a network namespace."""

    enter: tuple[str, ...] = ()

    def start(self, sink: Sink) -> AgentClient:
        argv = [*self.enter, str(binary.find()), "serve", "--die-with-parent", *self.settings.agent_options]
        work = self._own_work_dir()
        if self.settings.command:
            own_files.place(self.settings.copies, work)
        process = start_agent(argv, env=os.environ | self.label.environment, cwd=work)
        self.client = AgentClient(self.settings.name, process, sink)
        self.client.greet()
        return self.client

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()

    @property
    def work_dir(self) -> str:
        return str(self._own_work_dir())

    @property
    def pid(self) -> int | None:
        return self.client.process.pid if self.client else None
