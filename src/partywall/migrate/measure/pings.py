"""A client that sends numbered datagrams on a fixed schedule, and when each answer arrived.

The schedule does not wait for answers, so a guest that stands still is seen for as long as it does. Arrival times are
the kernel's (SO_TIMESTAMPNS), so a busy client does not look like a slow guest. With an interface, the client also
hears when a guest, or its QEMU, announces there where it is: until then requests go to the host that it has left.

The client runs as a program of its own in the clients' namespace, `python -m partywall.migrate.measure.pings` with
ADDRESS PORT RATE FILE [INTERFACE], until its standard input ends. Port 0 asks any guest by ICMP echo requests, which
needs root. FILE then holds two arrays of int64, all in monotonic nanoseconds. pings, (n, 3): intended start, sent,
answered, 0 if never. announced, (m, 1): when an announcement arrived.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from partywall.clock import realtime_offset_ns
from partywall.errors import TrialError

SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("qq")
NUMBER = struct.Struct("<Q")
DATAGRAM_BYTES = 64
ECHO = struct.Struct("!BBHHH")
ECHO_REQUEST, ECHO_REPLY = 8, 0
LARGEST_HEADERS = 68
ETH_P_ARP, ETH_P_RARP = 0x0806, 0x8035
FRAME_BYTES = 64
AGAIN_S = 1.0
LAST_ANSWERS_S = 1.0

Times = npt.NDArray[np.int64]
Tables = dict[str, Times]
"""See above; `migrate.record.COLUMNS` has the columns."""


class Pings:
    """The client as a process. enter: what a command in the clients' namespace begins with; interface: see above."""

    def __init__(
        self, address: str, port: int, rate: float, file: Path, enter: Sequence[str], interface: str | None = None
    ) -> None:
        argv = [
            *enter,
            sys.executable,
            "-m",
            "partywall.migrate.measure.pings",
            address,
            str(port),
            str(rate),
            str(file),
        ]
        argv += [interface] if interface else []
        self._file = file
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, process_group=0)
        if not self._process.stdout or not self._process.stdout.readline():
            self.close()
            raise TrialError(f"the client of the guest at {address}:{port} did not start")

    def stop(self) -> Tables:
        """Ends the client, after waiting a second for the last answers. What it saw."""
        try:
            self._end()
            with np.load(self._file) as content:
                return dict(content)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, subprocess.TimeoutExpired) as error:
            raise TrialError(f"the client of the guest ended before its time, or hangs: {error}") from None

    def timeouts(self) -> int | None:
        """How often TCP's retransmission timer has run out in the clients' namespace; None if the kernel is silent."""
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{self._process.pid}/net/netstat").read_text().splitlines()
            names, counts = (line.split() for line in lines if line.startswith("TcpExt:"))
            return int(counts[names.index("TCPTimeouts")])
        return None

    def close(self) -> None:
        """Ends the client, however it is doing."""
        self._process.kill()
        self._process.wait()

    def _end(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(LAST_ANSWERS_S + 10)


def answers(address: str, within_s: float) -> bool:
    """Whether an address answers an echo request within some time. TrialError without the right to ask."""
    own, deadline = os.getpid() & 0xFFFF, time.monotonic() + within_s
    try:
        talk = _socket(0)
    except PermissionError:
        raise TrialError(
            f"echo requests to {address} need root (CAP_NET_RAW); run as root, or remove clients.address"
        ) from None
    with talk:
        talk.settimeout(AGAIN_S)
        with contextlib.suppress(OSError):
            talk.connect((address, 0))
        while time.monotonic() < deadline:
            _send(talk, 0, own)
            again_s = time.monotonic() + AGAIN_S
            with contextlib.suppress(OSError):
                while time.monotonic() < again_s:
                    if echo_reply(talk.recv(DATAGRAM_BYTES + LARGEST_HEADERS), own) is not None:
                        return True
    return False


def ping(address: str, port: int, rate: float, interface: str | None) -> Tables:
    """Sends `rate` datagrams a second until standard input ends."""
    period_ns = round(1e9 / rate)
    sent: list[tuple[int, int]] = []
    answered: dict[int, int] = {}
    announced: list[int] = []
    own = os.getpid() & 0xFFFF
    with _socket(port) as talk, contextlib.ExitStack() as open_sockets:
        heard = [open_sockets.enter_context(each) for each in _listening(interface)]
        talk.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        talk.setblocking(False)
        talk.connect((address, port))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        due_ns = time.monotonic_ns()
        last_ns: int | None = None
        while last_ns is None or time.monotonic_ns() < last_ns:
            now_ns = time.monotonic_ns()
            while last_ns is None and due_ns <= now_ns:
                _send(talk, len(sent), own if port == 0 else None)
                sent.append((due_ns, time.monotonic_ns()))
                due_ns += period_ns
            wait_s = LAST_ANSWERS_S if last_ns else max(0, due_ns - time.monotonic_ns()) / 1e9
            watched = [talk, *heard] if last_ns else [talk, *heard, sys.stdin]
            ready, _, _ = select.select(watched, [], [], wait_s)
            if talk in ready:
                _receive(talk, answered, own if port == 0 else None)
            announced += [at_ns for each in heard if each in ready for at_ns in _arrivals(each)]
            if sys.stdin in ready:
                last_ns = time.monotonic_ns() + round(LAST_ANSWERS_S * 1e9)
    pings = [(*times, answered.get(number, 0)) for number, times in enumerate(sent)]
    return {
        "pings": np.array(pings, np.int64).reshape(-1, 3),
        "announced": np.array(announced, np.int64).reshape(-1, 1),
    }


def _listening(interface: str | None) -> Iterator[socket.socket]:
    """Sockets that hear announcements: gratuitous ARP of a guest, RARP of a QEMU. packet(7)."""
    for protocol in (ETH_P_ARP, ETH_P_RARP) if interface else ():
        heard = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(protocol))
        heard.bind((interface, protocol))
        heard.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        heard.setblocking(False)
        yield heard


def _arrivals(heard: socket.socket) -> Iterator[int]:
    """When frames from others to everyone arrived; monotonic nanoseconds."""
    while True:
        try:
            _, extra, _, source = heard.recvmsg(FRAME_BYTES, 64)
        except OSError:
            return
        if source[2] == socket.PACKET_BROADCAST:
            yield from _stamps(extra)


def _socket(port: int) -> socket.socket:
    if port:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def echo_request(own: int, number: int) -> bytes:
    """An ICMP echo request (RFC 792). own: tells our requests from those of others."""
    content = NUMBER.pack(number).ljust(DATAGRAM_BYTES, b"\1")
    header = ECHO.pack(ECHO_REQUEST, 0, 0, own, number & 0xFFFF)
    total = sum(struct.unpack(f"!{(len(header) + len(content)) // 2}H", header + content))
    total = (total & 0xFFFF) + (total >> 16)
    total += total >> 16
    return ECHO.pack(ECHO_REQUEST, 0, ~total & 0xFFFF, own, number & 0xFFFF) + content


def echo_reply(packet: bytes, own: int) -> bytes | None:
    """The content of an answer to a request of this process; None for any other packet. packet: with its IP header."""
    header = (packet[0] & 0xF) * 4
    if len(packet) < header + ECHO.size + NUMBER.size:
        return None
    kind, _, _, whose, _ = ECHO.unpack_from(packet, header)
    return packet[header + ECHO.size :] if (kind, whose) == (ECHO_REPLY, own) else None


def _send(talk: socket.socket, number: int, own: int | None) -> None:
    try:
        talk.send(NUMBER.pack(number).ljust(DATAGRAM_BYTES, b"\1") if own is None else echo_request(own, number))
    except OSError:
        # Nobody answers for the address now, or the queue is full: an answer that never comes.
        return


def _receive(talk: socket.socket, answered: dict[int, int], own: int | None) -> None:
    while True:
        try:
            data, extra, _, _ = talk.recvmsg(DATAGRAM_BYTES + LARGEST_HEADERS, 64)
        except BlockingIOError:
            return
        except OSError:
            # An ICMP error of an earlier datagram.
            continue
        if own is not None:
            reply = echo_reply(data, own)
            if reply is None:
                continue
            data = reply
        if len(data) < NUMBER.size:
            # Whoever else answers from that address.
            continue
        for at_ns in _stamps(extra):
            answered.setdefault(NUMBER.unpack_from(data)[0], at_ns)


def _stamps(extra: Sequence[tuple[int, int, bytes]]) -> Iterator[int]:
    """The kernel's time of arrival in what came with a packet; monotonic nanoseconds.

    The kernel's times are of the real-time clock, which may be set meanwhile, so its offset is taken for each packet.
    """
    for level, kind, value in extra:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = TIMESPEC.unpack(value)
            yield seconds * 1_000_000_000 + nanoseconds + realtime_offset_ns()


if __name__ == "__main__":
    seen = ping(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[5] if sys.argv[5:] else None)
    with Path(sys.argv[4]).open("wb") as stream:
        np.savez(stream, pings=seen["pings"], announced=seen["announced"])
