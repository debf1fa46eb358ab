"""The stream of an agent whose guest migrates: one connection for the client, whichever QEMU the guest is in."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import subprocess
import threading
from typing import IO

CHUNK_BYTES = 1 << 16


class Relay:
    """Carries bytes between an agent's client and the guest, and stands for the guest's process to the client.

    Before the guest moves, call `hold`, and afterwards `attach` with the new QEMU. What the client sends meanwhile
    waits. What the guest sends is passed on in order: that of the old QEMU first, because the guest stops there before
    it goes on in the new one.
    """

    def __init__(self, process: subprocess.Popen[bytes], guest: socket.socket) -> None:
        self._process = process
        self._guests = [guest]
        self._dropped: list[socket.socket] = []
        self._target = guest
        ours, theirs = socket.socketpair()
        self._client = ours
        self._lock = threading.Lock()
        self._held = False
        self._waiting = b""
        self._bell, self._ring = os.pipe()
        # Separate descriptors, because the client closes the two directions separately.
        self.stdin: IO[bytes] = os.fdopen(os.dup(theirs.fileno()), "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(os.dup(theirs.fileno()), "rb")
        said, self._say = os.pipe()
        self.stderr: IO[bytes] = os.fdopen(said, "rb")
        theirs.close()
        self._thread = threading.Thread(target=self._carry, name="relay", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def hold(self) -> None:
        """Keeps what the client sends until `attach` or `release`."""
        with self._lock:
            self._held = True

    def release(self) -> None:
        """The guest stays where it is."""
        with self._lock:
            self._held = False
        self._wake(b"r")

    def listen(self, guest: socket.socket) -> None:
        """Passes on what arrives from the QEMU that the guest moves to."""
        with self._lock:
            self._guests.append(guest)
        self._wake(b"l")

    def forget(self, guest: socket.socket) -> None:
        """Ends the connection to a QEMU that the guest is not in."""
        with self._lock:
            # One that ended is forgotten already.
            if guest in self._guests:
                self._guests.remove(guest)
                self._dropped.append(guest)
        self._wake(b"f")

    def attach(self, process: subprocess.Popen[bytes], guest: socket.socket) -> None:
        """The guest is in this QEMU now."""
        with self._lock:
            self._process = process
            self._target = guest
            self._held = False
        self._wake(b"a")

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Ends the thread. The client sees the end of its stream."""
        self._wake(b"q")
        self._thread.join(5)
        with contextlib.suppress(OSError):
            os.close(self._ring)
        # The number may soon be somebody else's.
        self._ring = -1

    def _wake(self, why: bytes) -> None:
        """Has the thread look again. It has ended if no QEMU is left."""
        with contextlib.suppress(OSError):
            os.write(self._ring, why)

    def _carry(self) -> None:
        """Passes on bytes until no guest is left, or by a bug. The client then sees the end, and why."""
        try:
            self._pass_on()
        except Exception as error:  # noqa: BLE001 - the client's calls fail with this reason, and do not wait
            os.write(self._say, f"the connection to the guest failed: {error!r}\n".encode()[: select.PIPE_BUF])
        finally:
            for guest in self._guests:
                guest.close()
            self._client.close()
            os.close(self._bell)
            os.close(self._say)

    def _pass_on(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._client, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            watched: list[socket.socket] = []
            while True:
                with self._lock:
                    guests = list(self._guests)
                    dropped, self._dropped = self._dropped, []
                for gone in [each for each in watched if each not in guests]:
                    selector.unregister(gone)
                    gone.close()
                for gone in dropped:
                    gone.close()
                for new in [each for each in guests if each not in watched]:
                    selector.register(new, selectors.EVENT_READ)
                watched = guests
                ready = {key.fileobj for key, _ in selector.select()}
                if self._bell in ready and b"q" in os.read(self._bell, 64):
                    break
                # The old QEMU comes first in the list: all that it sent is passed on before the new one is read.
                speaking = [guest for guest in watched if guest in ready][:1]
                ended = [guest for guest in speaking if not self._from(guest)]
                with self._lock:
                    self._guests = [each for each in self._guests if each not in ended]
                    if not self._guests:
                        break
                if self._client in ready and not self._from_client():
                    break
                self._flush()

    def _from(self, guest: socket.socket) -> bool:
        """Whether the guest's QEMU is still there."""
        try:
            if chunk := guest.recv(CHUNK_BYTES):
                self._client.sendall(chunk)
                return True
        except OSError:
            pass
        return False

    def _from_client(self) -> bool:
        try:
            chunk = self._client.recv(CHUNK_BYTES)
        except OSError:
            return False
        self._waiting += chunk
        return bool(chunk)

    def _flush(self) -> None:
        with self._lock:
            if self._held or not self._waiting or not self._guests:
                return
            target, chunk = self._target, self._waiting
        with contextlib.suppress(OSError):
            # QEMU reads as fast as the guest does, and requests are short.
            target.sendall(chunk)
            self._waiting = b""
