"""QEMU's control channel (QMP) through qemu.qmp, as blocking calls.

The end of a machine is seen by its process and its streams, not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any

from qemu.qmp import QMPClient, QMPError

from partywall.errors import TrialError

TIMEOUT_S = 10.0
# The library logs every refused connection, and we report it anyway.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)


class Monitor:
    """One QEMU's monitor, on our end of a socket pair.

    timeout_s: how long QEMU may take to answer; None if both may be stopped together for any time.
    """

    def __init__(self, name: str, ours: socket.socket, timeout_s: float | None = TIMEOUT_S) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._socket = ours
        self._runner = asyncio.Runner()
        self._arrived: list[dict[str, Any]] = []
        self._client = QMPClient(name)

    def connect(self) -> None:
        """Waits for QEMU's greeting. TrialError if it does not arrive."""
        ours = self._socket
        ours.setblocking(False)
        self._run("greeting", lambda: self._client.connect(ours))

    def execute(self, command: str, **arguments: Any) -> Any:
        """The result of a command. TrialError if QEMU refuses it or has ended."""
        return self._run(command, lambda: self._client.execute(command, arguments or None))

    def unblock(self) -> None:
        """Breaks QEMU's connections to other hosts. A main loop that hangs on one of them goes on afterwards."""
        every = self._run("query-yank", lambda: self._client.execute("query-yank", oob=True))
        # The others are our own: this channel and the agent's.
        remote = [each for each in every if each["type"] != "chardev"]
        self._run("yank", lambda: self._client.execute("yank", {"instances": remote}, oob=True))

    def events(self) -> list[dict[str, Any]]:
        """What QEMU announced since the last call, oldest first. It arrives during `execute` and `wait` only."""
        arrived, self._arrived = self._arrived, []
        while not self._client.events.empty():
            arrived.append(dict(self._runner.run(self._client.events.get())))
        return arrived

    def wait(self, seconds: float) -> None:
        """Lets events arrive. Returns after the first one, or after this time."""

        async def first() -> None:
            with contextlib.suppress(TimeoutError):
                self._arrived.append(dict(await asyncio.wait_for(self._client.events.get(), seconds)))

        self._runner.run(first())

    def vcpu_threads(self) -> list[int]:
        """Thread IDs of the guest's CPUs on the host, in the order of the CPUs."""
        return [cpu["thread-id"] for cpu in self.execute("query-cpus-fast")]

    def close(self) -> None:
        """Closes the channel. QEMU continues."""
        with contextlib.suppress(QMPError, OSError, asyncio.TimeoutError, EOFError):
            self._runner.run(asyncio.wait_for(self._client.disconnect(), TIMEOUT_S))
        self._runner.close()
        self._socket.close()

    def _run(self, what: str, start: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(start(), self._timeout_s)

        try:
            return self._runner.run(bounded())
        except (QMPError, OSError, EOFError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise TrialError(f"sandbox {self._name}: QEMU's monitor: {what}: {reason}") from error
