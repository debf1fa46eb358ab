"""A sandbox that is a process with its affinity, and nothing else: no root needed, no limit possible."""

from __future__ import annotations

import os
import subprocess

from partywall.agent import binary
from partywall.agent.client import AgentClient, Sink
from partywall.errors import CapabilityError
from partywall.model.plan import Limits
from partywall.sandbox.base import Sandbox


class Process(Sandbox):
    """An agent as a child of the controller, pinned."""

    def start(self, sink: Sink) -> AgentClient:
        cpus = ",".join(map(str, self.settings.cpus))
        argv = [str(binary.find()), "serve", "--cpus", cpus, "--die-with-parent"]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | self.label.environment,
            cwd=self._own_work_dir(),
            # Ctrl-C is the controller's to handle: it ends agents in order.
            process_group=0,
        )
        self.client = AgentClient(self.settings.name, process, sink)
        self.client.greet()
        return self.client

    def limit(self, limits: Limits) -> None:
        if limits != Limits():
            raise CapabilityError(
                f"sandbox {self.settings.name}: a process has no limits to change; use backend: container"
            )

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()

    @property
    def work_dir(self) -> str:
        return str(self._own_work_dir())

    @property
    def pid(self) -> int | None:
        return self.client.process.pid if self.client else None
