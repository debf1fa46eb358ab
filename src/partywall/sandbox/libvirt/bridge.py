"""Connects a domain's port or console to standard input and output, in a process of its own, as `ssh` does.

It ends with its standard input, and then destroys a domain created by Partywall, so that none outlives a killed
controller. On a console, everything before the first line of the stream goes to standard error, where its end explains
why a guest did not start. `python -m partywall.sandbox.libvirt.bridge URI DOMAIN port|console [--own]`
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from partywall.errors import PartywallError
from partywall.sandbox.libvirt.library import connect, library, libvirt_errors
from partywall.sandbox.qemu.machine import PORT

BEGINS = b"\npartywall-stream"
CHUNK = 1 << 16
_IN, _OUT, _ERROR = 0, 1, 2


class Bridge:
    """Copies bytes between our standard streams and a libvirt stream, until one of them ends."""

    def __init__(self, stream: Any, *, waits: bool) -> None:
        self._libvirt = library()
        self._stream = stream
        self._waits = waits
        self._before = b""
        self._pending = bytearray()
        self._watch: int | None = None
        self._over = False
        stream.eventAddCallback(self._libvirt.VIR_STREAM_EVENT_READABLE, self._turn, None)
        if not waits:
            self._listen()

    def run(self) -> None:
        while not self._over:
            self._libvirt.virEventRunDefaultImpl()

    def _listen(self) -> None:
        """Starts to read the controller's messages."""
        module = self._libvirt
        events = module.VIR_EVENT_HANDLE_READABLE | module.VIR_EVENT_HANDLE_HANGUP
        self._watch = module.virEventAddHandle(_IN, events, self._hear, None)

    def _hear(self, _watch: int, _fd: int, _events: int, _opaque: object) -> None:
        data = os.read(_IN, CHUNK)
        if not data:
            self._over = True
            return
        self._pending += data
        self._want()

    def _turn(self, stream: Any, events: int, _opaque: object) -> None:
        module = self._libvirt
        if events & (module.VIR_STREAM_EVENT_ERROR | module.VIR_STREAM_EVENT_HANGUP):
            self._over = True
            return
        try:
            if events & module.VIR_STREAM_EVENT_READABLE:
                self._receive(stream)
            if events & module.VIR_STREAM_EVENT_WRITABLE:
                self._send(stream)
        except module.libvirtError:
            self._over = True

    def _receive(self, stream: Any) -> None:
        data = stream.recv(CHUNK)
        # -2: no data yet.
        if isinstance(data, int):
            return
        if not data:
            self._over = True
        elif self._waits:
            self._until_it_begins(data)
        else:
            _write(_OUT, data)

    def _until_it_begins(self, data: bytes) -> None:
        self._before += data
        before, begins, rest = self._before.partition(BEGINS)
        line, end, rest = rest.partition(b"\n")
        if not (begins and end) or line.strip():
            return
        _write(_ERROR, before)
        self._waits = False
        self._listen()
        if rest:
            _write(_OUT, rest)

    def _send(self, stream: Any) -> None:
        sent = stream.send(bytes(self._pending[:CHUNK]))
        if sent > 0:
            del self._pending[:sent]
        self._want()

    def _want(self) -> None:
        module = self._libvirt
        writable = module.VIR_STREAM_EVENT_WRITABLE if self._pending else 0
        self._stream.eventUpdateCallback(module.VIR_STREAM_EVENT_READABLE | writable)

    def left(self) -> bytes:
        """The output before the stream began, if it never did."""
        return self._before if self._waits else b""


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main(uri: str, name: str, kind: str, *rest: str) -> int:
    module = library()
    module.virEventRegisterDefaultImpl()
    connection = connect(uri)
    with libvirt_errors(f"libvirt {uri}: domain {name}"):
        domain = connection.lookupByName(name)
        stream = connection.newStream(module.VIR_STREAM_NONBLOCK)
        if kind == "port":
            domain.openChannel(PORT, stream, module.VIR_DOMAIN_CHANNEL_FORCE)
        else:
            domain.openConsole(None, stream, 0 if connection.getType() == "Xen" else module.VIR_DOMAIN_CONSOLE_FORCE)
    bridge = Bridge(stream, waits=kind == "console")
    bridge.run()
    _write(_ERROR, bridge.left())
    if "--own" in rest:
        with contextlib.suppress(module.libvirtError):
            domain.destroy()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except (PartywallError, BrokenPipeError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
