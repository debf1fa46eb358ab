"""A sandbox that is a process on an existing machine, with an affinity, and a clock corrected to this host's."""

from __future__ import annotations

import threading

from partywall.agent.client import AgentClient, Sink
from partywall.clock import Monotonic
from partywall.errors import AgentError, CapabilityError, TrialError
from partywall.host.label import Label
from partywall.sandbox import own_files
from partywall.sandbox.base import Sandbox, Settings
from partywall.sandbox.clock import GuestClock, Look
from partywall.sandbox.ssh.connection import PATIENCE_S, Connection, put

SIGN_OF_LIFE_S = PATIENCE_S / 6


class Ssh(Sandbox):
    """An agent at the other end of an ssh connection."""

    def __init__(self, settings: Settings, label: Label) -> None:
        super().__init__(settings, label)
        self._connection: Connection | None = None
        self._folder = ""
        self._clock: GuestClock | None = None
        self._life: SignOfLife | None = None

    def launch(self, sink: Sink) -> None:  # noqa: ARG002 - messages come only after the start
        options = self.settings.agent_options
        agent = ["serve", "--own-clock", "--die-with-parent", "--patience", str(PATIENCE_S), *options]
        base, env = str(self.label.work.parent), self.label.environment
        self._connection = Connection(self.settings.host or "", base, self.label.run, agent, env)

    def start(self, sink: Sink) -> AgentClient:
        if self._connection is None:
            self.launch(sink)
        connection = self._connection
        if connection is None:
            raise TrialError(f"sandbox {self.settings.name}: ssh was not launched")
        try:
            self._folder = connection.ready()
        except CapabilityError as error:
            self._connection = None
            raise TrialError(f"sandbox {self.settings.name}: {error}") from error
        self.client = AgentClient(self.settings.name, connection.process, sink)
        self._life = SignOfLife(self.client)
        self.client.greet()
        for file in self.settings.copies:
            own_files.check(file)
            try:
                put(self.settings.host or "", f"{self._folder}/{file.name}", file, own_files.mode(file))
            except (CapabilityError, OSError) as error:
                raise TrialError(f"sandbox {self.settings.name}: {error}") from error
        return self.client

    def settle(self) -> None:
        if self.client is not None:
            self._clock = GuestClock(self.client.call, Monotonic().now_ns)
            self._clock.shift()

    def stop(self) -> None:
        if self._life is not None:
            self._life.end()
        if self.client is not None:
            self.client.close()
        elif self._connection is not None:
            self._connection.end()

    def look(self, for_ns: int = 0) -> Look | None:
        return self._clock.keep(for_ns) if self._clock else None

    def reason_gone(self, reason: str) -> str:
        return f"the connection to {self.settings.host} ended: {reason}"

    @property
    def work_dir(self) -> str:
        return self._folder

    @property
    def pid(self) -> int | None:
        """The process ID on the other machine, where the monitor runs too."""
        return self.client.hello.get("pid") if self.client else None


class SignOfLife:
    """Sends messages to an agent from time to time, because an agent without messages ends itself."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=f"life-{client.name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(1)

    def _go_on(self) -> None:
        while not self._over.wait(SIGN_OF_LIFE_S):
            try:
                # It may be busy writing a file for minutes, and reads the message afterwards.
                self._client.call("clock", timeout_s=SIGN_OF_LIFE_S)
            except AgentError:
                if self._client.process.poll() is not None:
                    return
