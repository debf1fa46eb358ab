"""Web servers of odd behaviour on 127.0.0.1: load_server.py FORM… prints their ports. `sent` gets what they are sent.

With two forms there are two servers; {other} in a redirect of the first is the port of the second.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ANSWERS = {
    "identity": "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",
    "empty-line": OK + "\r\n",
    "garbage": "220 mail.test ESMTP\r\n",
    "redirects": "HTTP/1.1 302 Found\r\nLocation: /home\r\nContent-Length: 0\r\n\r\n",
    "redirects-away": "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{other}/home\r\nContent-Length: 0\r\n\r\n",
}


def served(connection: socket.socket, form: str, other: int, sent: Path, lock: threading.Lock) -> None:
    """Answers the requests of a connection until the form says to close it."""
    if form == "idle-for-half-a-second":
        connection.settimeout(0.5)
    for number, head in enumerate(requests(connection)):
        with lock, sent.open("a") as file:
            file.write(head)
        if form == "closes-at-the-second" and number == 1:
            break
        redirects = form.startswith("redirects") and not head.split(" ")[1].startswith("/home")
        answer = OK if form.startswith("redirects") and not redirects else ANSWERS.get(form, OK)
        connection.sendall(answer.replace("{other}", str(other)).encode())
        if form == "garbage":
            break
    connection.close()


def requests(connection: socket.socket) -> Iterator[str]:
    """The heads of a connection's requests, without their bodies."""
    with contextlib.suppress(OSError), connection.makefile("rb") as stream:
        while line := stream.readline():
            lines = [line]
            while (line := stream.readline()).strip():
                lines.append(line)
            length = next((int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")), 0)
            stream.read(length)
            yield b"".join([*lines, b"\n"]).decode().replace("\r", "")


def main() -> None:
    lock = threading.Lock()
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in sys.argv[1:]]
    ports = [listener.getsockname()[1] for listener in listeners]

    def accept(listener: socket.socket, form: str) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=served, args=(connection, form, ports[-1], Path("sent"), lock), daemon=True).start()

    threads = [threading.Thread(target=accept, args=pair) for pair in zip(listeners, sys.argv[1:], strict=True)]
    for thread in threads:
        thread.start()
    print(*ports, flush=True)


main()
