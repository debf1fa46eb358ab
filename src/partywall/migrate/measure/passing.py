"""A migration that passes by: one end of QEMU's pre-copy, again and again, as an aggressor of a scenario.

`python -m partywall.migrate.measure.passing KEYS` is the program of such an aggressor. All of its processes are one
group, which the agent stops and continues at any moment and kills at the end. So nothing here has a deadline, and no
process outside the group is needed.

Pre-copy goes in one direction, so the other end can be a stand-in that costs next to nothing. A source sends to a
socket, and the kernel drops the bytes. A destination receives a stream that a source has made before. The guest stands
still: a guest of your own runs with and without a migration. QEMU itself writes what changes in the guest's memory.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Self

from partywall.clock import Clock, Monotonic
from partywall.errors import Exit, PartywallError, TrialError
from partywall.migrate.document import Method
from partywall.migrate.measure.end import ENDED
from partywall.migrate.measure.qemu_end import LOOK_S, QemuEnd
from partywall.run.document.scenario import Passing
from partywall.sandbox.qemu.machine import PROGRAM
from partywall.sandbox.qemu.monitor import Monitor

ADDRESS = "127.0.0.1"
PAGE = 4096
START = 1 << 20
"""Below lie the firmware and its devices."""
CONTENT = 0x5A
# The link decides on the rate, not QEMU's own limit of 1 Gbit/s.
METHOD = Method.model_validate({"bandwidth": "8Tbit/s"})
TICK_NS = 5_000_000
MADE_UP_NS = 4 * TICK_NS
"""Longer delays are not made up for: the group was stopped."""
REPORT_NS = 20_000_000
CHUNK = 1 << 20


class StillGuest(QemuEnd):
    """A QEMU of this process group, with a guest whose CPU stands still. Use as a context manager."""

    def __init__(self, keys: Passing, *, incoming: bool = False) -> None:
        (monitor, their_monitor), (writer, their_writer) = (socket.socketpair() for _ in range(2))
        with their_monitor, their_writer:
            qmp, requests = their_monitor.fileno(), their_writer.fileno()
            argv = _argv(keys.memory, qmp, incoming=incoming)
            self._process = subprocess.Popen(argv, stdin=requests, stdout=requests, pass_fds=(qmp,))
        super().__init__("b" if incoming else "a", Monitor(f"migration, {keys.role}", monitor, timeout_s=None), ADDRESS)
        self._writer = writer
        self._resent = keys.resent
        self._filled = (round(keys.memory * keys.content) - START) // PAGE * PAGE
        self._owed = 0.0
        self._at = 0

    def __enter__(self) -> Self:
        self.monitor.connect()
        self.prepare(METHOD)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.monitor.close()
        self._writer.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def fill(self) -> None:
        """Gives the guest's memory its content."""
        for at in range(0, self._filled, CHUNK):
            self._write(at, min(CHUNK, self._filled - at))
            self._writer.recv(PAGE)

    def change(self, sent: int) -> None:
        """Changes as much memory as is due after so many bytes that were sent.

        QEMU may send before it answers, so its answer is not waited for.
        """
        self._owed += sent * self._resent
        while self._owed >= PAGE:
            size = min(int(self._owed) // PAGE * PAGE, CHUNK, self._filled - self._at)
            self._write(self._at, size)
            self._owed -= size
            self._at = (self._at + size) % self._filled
        while self._answers():
            pass

    def completed(self) -> None:
        """Waits for the end of a move. TrialError if it failed."""
        while (look := self.look()).state not in ENDED:
            self.wait(LOOK_S)
        if look.state != "completed":
            raise TrialError(f"the migration has {look.state}: {look.reason or 'QEMU gives no reason'}")

    def _write(self, at: int, size: int) -> None:
        self._writer.sendall(f"memset {START + at:#x} {size:#x} {CONTENT:#x}\n".encode())

    def _answers(self) -> bool:
        try:
            return bool(self._writer.recv(PAGE, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False


def _argv(memory: int, monitor: int, *, incoming: bool) -> list[str]:
    """QEMU's command line. monitor: file descriptor of QMP. Its standard streams take requests to write to memory."""
    return [
        *("setpriv", "--pdeathsig", "KILL", PROGRAM, "-name", "partywall-migration,debug-threads=on"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-S"),
        # Pages of like content stay pages of their own.
        *("-machine", "pc,graphics=off,mem-merge=off", "-accel", "tcg", "-m", f"{memory >> 10}k"),
        *("-chardev", f"socket,id=qmp,fd={monitor}", "-mon", "chardev=qmp,mode=control"),
        *("-qtest", "stdio", "-qtest-log", os.devnull),
        *(("-incoming", "defer") if incoming else ()),
    ]


class Link:
    """A link of a fixed rate. passed: called with the bytes that have passed, some 50 times a second."""

    def __init__(self, bytes_per_s: float, passed: Callable[[int], None], clock: Clock | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._passed = passed
        self._clock: Clock = clock or Monotonic()
        self._total = 0
        self._said_ns = 0

    def quotas(self) -> Iterator[int]:
        """How many bytes may pass now, again and again."""
        at_ns = self._clock.now_ns()
        while True:
            self._clock.sleep_until(at_ns + TICK_NS)
            passed_ns = self._clock.now_ns() - at_ns
            at_ns += passed_ns
            yield int(self._bytes_per_s * min(passed_ns, MADE_UP_NS) / 1e9)

    def carried(self, size: int) -> None:
        self._total += size
        if self._clock.now_ns() - self._said_ns >= REPORT_NS:
            self.report()

    def report(self) -> None:
        self._said_ns = self._clock.now_ns()
        self._passed(self._total)


def send(keys: Passing, link: Link) -> None:
    """The source's side, without end."""
    with StillGuest(keys) as guest, socket.create_server((ADDRESS, 0)) as server:
        guest.fill()
        link.report()
        while True:
            guest.migrate(_uri(server))
            with server.accept()[0] as stream:
                _drop(stream, guest, link)
            guest.completed()
            # A guest that has left cannot leave again before it has run.
            guest.resume()
            guest.pause()


def _drop(stream: socket.socket, guest: StillGuest, link: Link) -> None:
    """Takes what the source sends at the link's rate. The kernel drops it without a copy."""
    nowhere = bytearray(CHUNK)
    for quota in link.quotas():
        left = quota
        while left > 0:
            size = stream.recv_into(nowhere, min(left, CHUNK), socket.MSG_TRUNC)
            if not size:
                return
            left -= size
            guest.change(size)
            link.carried(size)


def receive(keys: Passing, link: Link) -> None:
    """The destination's side, without end. Each guest arrives in a QEMU of its own."""
    stream = recorded(keys)
    while True:
        with StillGuest(keys, incoming=True) as guest:
            guest.listen(0)
            with socket.create_connection((ADDRESS, _port(guest))) as connection:
                link.report()
                _feed(connection, stream, link)
            guest.completed()


def _feed(connection: socket.socket, stream: int, link: Link) -> None:
    at, end = 0, os.fstat(stream).st_size
    for quota in link.quotas():
        left = min(quota, end - at)
        while left > 0:
            size = os.sendfile(connection.fileno(), stream, at, left)
            at, left = at + size, left - size
            link.carried(size)
        if at == end:
            return


def recorded(keys: Passing) -> int:
    """The stream of such a migration, as a file descriptor of memory."""
    stream = os.memfd_create("migration")
    with StillGuest(keys) as guest, socket.create_server((ADDRESS, 0)) as server:
        guest.fill()
        guest.migrate(_uri(server))
        with server.accept()[0] as connection:
            while data := connection.recv(CHUNK):
                os.write(stream, data)
                guest.change(len(data))
        guest.completed()
    return stream


def _uri(server: socket.socket) -> str:
    address, port = server.getsockname()
    return f"tcp:{address}:{port}"


def _port(guest: StillGuest) -> int:
    """Where a destination listens."""
    return int(guest.monitor.execute("query-migrate")["socket-address"][0]["port"])


def _say(total: int) -> None:
    print(f"moved {total}", flush=True)  # noqa: T201 - the agent reads it


def main() -> int:
    keys = Passing.model_validate_json(sys.argv[1])
    side = send if keys.role == "source" else receive
    try:
        side(keys, Link(keys.bytes_per_s, _say))
    except PartywallError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return Exit.FAILED
    return Exit.HOLDS


if __name__ == "__main__":
    sys.exit(main())
