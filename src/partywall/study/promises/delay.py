"""One-way delay in a lab, by a few datagrams a second beside a tenant's own.

They are stamped when they are handed over and, by the kernel, when they arrive; both on this host's clock. A probe
takes the way of its tenant's packets and waits in the same queues; what drops them may drop it.
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
    made.bind(("0.0.0.0", PORT))  # noqa: S104 - in a namespace that nobody else reaches
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
        """Hands one over; where there is no room it is not sent."""
        try:
            self._out.sendto(struct.pack("!q", time.time_ns()), (self.address, PORT))
        except BlockingIOError:
            return

    def receive(self) -> None:
        """Takes down those that arrived."""
        while True:
            try:
                data, extra, _, _ = self._in.recvmsg(8, 64)
            except BlockingIOError:
                return
            seconds, nanos = struct.unpack("qq", extra[0][2])
            self.delays_ns.append(seconds * 1_000_000_000 + nanos - struct.unpack("!q", data)[0])

    def take(self) -> tuple[float | None, float | None]:
        """(median delay, mean difference from one to the next) since the last call; None where there are too few."""
        self.receive()
        delays, self.delays_ns = self.delays_ns, []
        steps = [abs(later - earlier) for earlier, later in itertools.pairwise(delays)]
        return (statistics.median(delays) if delays else None, statistics.fmean(steps) if steps else None)

    def close(self) -> None:
        """Ends it."""
        self._out.close()
        self._in.close()


def run(probes: list[Probe], seconds: float) -> None:
    """Sends at an even pace for so long."""
    begun = time.monotonic()
    for number in range(int(seconds / EVERY_S)):
        time.sleep(max(0.0, begun + number * EVERY_S - time.monotonic()))
        for probe in probes:
            probe.send()
            probe.receive()
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
