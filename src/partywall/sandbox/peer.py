"""The other end of a network kernel: an agent on the host's side that answers while its sandbox exists."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partywall.agent import binary
from partywall.errors import TrialError
from partywall.host.label import Label
from partywall.sandbox.base import Settings

READY_S = 10.0
PEER = "peer"
"""A scenario's address for a peer that Partywall provides."""


@dataclass(frozen=True)
class Peer:
    """A running peer, and its port."""

    process: subprocess.Popen[str]
    port: int

    @classmethod
    def start(
        cls,
        settings: Settings,
        label: Label,
        kernel: str,
        params: Mapping[str, Any],
        address: str,
        enter: Sequence[str] = (),
    ) -> Peer:
        """Listens at `address`, on a port chosen by the system. enter: a command prefix to enter its network namespace.

        TrialError if it does not report its port.
        """
        peer_params = {key: value for key, value in params.items() if key != "to"}
        argv = [*enter, str(binary.find()), "peer", "--listen", f"{address}:0", kernel, json.dumps(peer_params)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            env=os.environ | label.environment,
            process_group=0,
        )
        for cpus in (settings.host_cpus, settings.cpus):
            if cpus:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(process.pid, cpus)
                break
        peer = cls(process, 0)
        line = _first_line(process)
        if not line:
            peer.stop()
            said = (process.stderr.read() if process.stderr else "").strip()
            raise TrialError(f"sandbox {settings.name}: the peer of {kernel} did not start: {said or 'no output'}")
        return cls(process, int(line.rpartition(":")[2]))

    def stop(self) -> None:
        """Ends it. May be called twice."""
        self.process.kill()
        self.process.wait()


def _first_line(process: subprocess.Popen[str]) -> str:
    if process.stdout is None:
        return ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline().strip() if selector.select(READY_S) else ""
