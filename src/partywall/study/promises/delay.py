"""One-way delay in a lab, measured by a few datagrams a second beside a tenant's own.

They are stamped when they are sent and, by the kernel, when they arrive, both by this host's clock. A probe takes the
path of its tenant's packets, waits in the same queues, and may be dropped with them.
"""

from __future__ import annotations

import itertools
import socket
import statistics
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from partywall.sandbox.networks import in_namespace

SO_TIMESTAMPNS = 35
EVERY_S = 0.005
PORT = 7


def _sender() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _receiver() -> socket.socket:
    made = _sender()
    made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    made.bind(("0.0.0.0", PORT))  # noqa: S104 - in a namespace that nobody else can reach
    return made


@dataclass
class Probe:
    """Probes of one tenant, from its namespace to its sink's."""

    tenant: Path
    sink: Path
    address: str
    delays_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._out = in_namespace(self.tenant, _sender)
        self._in = in_namespace(self.sink, _receiver)

    def send(self) -> None:
        """Sends one probe, unless the socket's buffer is full."""
        try:
            self._out.sendto(struct.pack("!q", time.time_ns()), (self.address, PORT))
        except BlockingIOError:
            return

    def receive(self) -> None:
        """Records the probes that have arrived."""
        while True:
            try:
                data, extra, _, _ = self._in.recvmsg(8, 64)
            except BlockingIOError:
                return
            seconds, nanos = struct.unpack("qq", extra[0][2])
            self.delays_ns.append(seconds * 1_000_000_000 + nanos - struct.unpack("!q", data)[0])

    def take(self) -> tuple[float | None, float | None]:
        """(median delay, mean difference between consecutive delays) since the last call; None if there are too few."""
        self.receive()
        delays, self.delays_ns = self.delays_ns, []
        steps = [abs(later - earlier) for earlier, later in itertools.pairwise(delays)]
        return (statistics.median(delays) if delays else None, statistics.fmean(steps) if steps else None)

    def close(self) -> None:
        """Closes its sockets."""
        self._out.close()
        self._in.close()


def run(probes: list[Probe], seconds: float) -> None:
    """Sends probes at an even rate for this time."""
    begun = time.monotonic()
    for number in range(int(seconds / EVERY_S)):
        time.sleep(max(0.0, begun + number * EVERY_S - time.monotonic()))
        for probe in probes:
            probe.send()
            probe.receive()
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
