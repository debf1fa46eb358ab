"""A small HTTP server in the watch's own loop: /metrics and /ready.

It has no threads, and never waits for a client. A request that is not complete within some seconds is dropped. Files
of many groups may use up all descriptors, so those of its clients are reserved.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from partywall.errors import PartywallError

CLIENTS_MAX = 16
REQUEST_MAX = 8192
PATIENCE_NS = 5_000_000_000
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; charset=utf-8"

Answer = tuple[int, str, str]
"""Status, type of the content, content."""
REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(slots=True)
class _Client:
    connection: socket.socket
    until_ns: int
    received: bytes = b""
    left: memoryview = field(default_factory=lambda: memoryview(b""))


class Server:
    """Answers GET requests. answer: from a path to an answer.

    PartywallError if the address cannot be used now. It may be later, as before the network is up.
    """

    def __init__(self, address: str, port: int, answer: Callable[[str], Answer]) -> None:
        self._answer = answer
        self._clients: dict[int, _Client] = {}
        self._reserved: list[int] = []
        self._reserve()
        try:
            kind = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._socket = socket.create_server((address, port), family=kind, backlog=16)
        except OSError as error:
            said = f"{address}:{port} cannot be used: {error.strerror}"
            raise PartywallError(f"--port: {said} — give another port or an address of this host") from None
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._poll = select.poll()

    def wait(self, until_ns: int, now: Callable[[], int]) -> None:
        """Serves until a time of the clock `now`."""
        self._poll.register(self._socket, select.POLLIN)
        while (left_ns := until_ns - now()) > 0:
            for descriptor, _ in self._poll.poll(left_ns / 1e6):
                if descriptor == self._socket.fileno():
                    self._accept(now())
                elif client := self._clients.get(descriptor):
                    self._serve(client)
            self._drop(now())

    def close(self) -> None:
        """Closes all connections."""
        for client in list(self._clients.values()):
            self._end(client)
        self._socket.close()
        for descriptor in self._reserved:
            os.close(descriptor)
        self._reserved.clear()

    def _reserve(self) -> None:
        """Opens as many files as clients may come, to have their descriptors."""
        try:
            while len(self._reserved) + len(self._clients) < CLIENTS_MAX:
                self._reserved.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            # Tried again after the next client.
            return

    def _accept(self, now_ns: int) -> None:
        if self._reserved:
            os.close(self._reserved.pop())
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            self._reserve()
            return
        except OSError:
            # No descriptor is left. The client stays in the queue, so the socket is not asked before the next turn.
            self._poll.unregister(self._socket)
            return
        if len(self._clients) >= CLIENTS_MAX:
            connection.close()
            return
        connection.setblocking(False)
        self._clients[connection.fileno()] = _Client(connection, now_ns + PATIENCE_NS)
        self._poll.register(connection, select.POLLIN)

    def _serve(self, client: _Client) -> None:
        try:
            if not client.left:
                more = client.connection.recv(REQUEST_MAX)
                client.received += more
                if not more or len(client.received) > REQUEST_MAX:
                    self._end(client)
                    return
                if b"\r\n\r\n" not in client.received:
                    return
                client.left = memoryview(self._response(client.received))
                self._poll.modify(client.connection, select.POLLOUT)
            client.left = client.left[client.connection.send(client.left) :]
            if not client.left:
                self._end(client)
        except BlockingIOError:
            return
        except OSError:
            self._end(client)

    def _response(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        status, kind, text = self._answer(path) if method == "GET" else (405, PLAIN, "only GET is answered\n")
        body = text.encode()
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + body

    def _drop(self, now_ns: int) -> None:
        for client in [client for client in self._clients.values() if client.until_ns < now_ns]:
            self._end(client)

    def _end(self, client: _Client) -> None:
        descriptor = client.connection.fileno()
        if self._clients.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
        client.connection.close()
        self._reserve()
