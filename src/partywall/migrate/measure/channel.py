"""The monitor of a QEMU that the user started: a Unix socket, here or on another machine through ssh."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from partywall.errors import CapabilityError
from partywall.migrate.measure import far_clock, resident
from partywall.migrate.measure.far_clock import Ahead
from partywall.sandbox.qemu.monitor import Monitor
from partywall.sandbox.ssh import connection

CONNECT_S = 30.0
LONGEST = 100
"""Bytes that the path of a Unix socket may have, about."""


class Channel:
    """One monitor. Use as a context manager; QEMU continues afterwards.

    ahead: the clock of another machine, which its events are stamped with.
    """

    def __init__(self, name: str, path: str, ssh: str | None, folder: Path) -> None:
        self._name, self._path, self._ssh = name, path, ssh
        self._local = folder / f"{name}.qmp" if ssh else Path(path)
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: socket.socket | None = None
        self.monitor: Monitor | None = None
        self.ahead: Ahead | None = None

    def __enter__(self) -> Self:
        if len(str(self._local)) > LONGEST:
            raise CapabilityError(
                f"the path {self._local} is too long for a socket; give a shorter folder (--work-dir)"
            )
        with contextlib.ExitStack() as stack:
            if self._ssh:
                stack.callback(self._local.unlink, missing_ok=True)
                self._process = stack.enter_context(self._forward(self._ssh))
                stack.callback(self._process.kill)
            self._stream = self._connected()
            self.monitor = Monitor(self._name, self._stream)
            stack.callback(self.monitor.close)
            self.monitor.connect()
            if self._ssh:
                self.ahead = self._ahead(self._ssh)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def resident(self, memory: int) -> resident.Area | None:
        """What QEMU's process holds of its guest's memory; None if that is not known. memory: bytes of the guest."""
        if self.monitor is None or self._stream is None:
            return None
        if self._ssh is None:
            return resident.here(self._stream, memory)
        return resident.there(self._ssh, self.monitor.vcpu_threads()[0], memory)

    def _ahead(self, ssh: str) -> Ahead:
        if (ahead := far_clock.ahead(ssh)) is None:
            raise CapabilityError(
                f"{ssh}, by ssh: it does not tell its time with 'date +%s%N'; install coreutils there"
            )
        return ahead

    def _forward(self, ssh: str) -> subprocess.Popen[bytes]:
        """Makes a Unix socket here that leads to the one there."""
        # The options of every connection, but for the one that would undo the forwarding.
        kept = {name: value for name, value in connection.OPTIONS.items() if name != "ClearAllForwardings"}
        kept["StreamLocalBindUnlink"] = "yes"
        options = [word for name, value in kept.items() for word in ("-o", f"{name}={value}")]
        argv = [*connection.program(), "-N", "-T", *options, "-L", f"{self._local}:{self._path}", "--", ssh]
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0,
            env=os.environ,
        )  # fmt: skip

    def _connected(self) -> socket.socket:
        deadline = time.monotonic() + CONNECT_S
        while True:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                stream.connect(str(self._local))
            except OSError as error:
                stream.close()
                ended = self._process is not None and self._process.poll() is not None
                if self._process is None or ended or time.monotonic() > deadline:
                    raise CapabilityError(self._why(error)) from None
                time.sleep(0.05)
            else:
                return stream

    def _why(self, error: OSError) -> str:
        if self._process is None:
            return (
                f"the QEMU monitor {self._path} cannot be reached: {error.strerror}; start QEMU with "
                f"-qmp unix:{self._path},server=on,wait=off, and check the path and your rights"
            )
        self._process.kill()
        said = self._process.communicate()[1].decode(errors="replace").strip()
        return f"{self._ssh}, by ssh: {connection.explained(said, self._ssh or '')}"
