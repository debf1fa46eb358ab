"""Loads that cannot be, or go wrong: command lines and servers, with what a user must be told.

Servers are a thread each; what they do wrong is one function on a connection that was accepted.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


def _garbage(peer: socket.socket) -> None:
    peer.recv(4096)
    peer.sendall(b"\x00\xffthis is no HTTP\r\n\r\n")


def _short(peer: socket.socket) -> None:
    peer.recv(4096)
    peer.sendall(HEAD + b"hel")


def _long_head(peer: socket.socket) -> None:
    peer.recv(4096)
    peer.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 4_000_000)


def _silent(peer: socket.socket) -> None:
    while peer.recv(4096):
        pass


def _reset(peer: socket.socket) -> None:
    peer.recv(4096)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _closes(peer: socket.socket) -> None:
    peer.recv(4096)


def _wrong_length(peer: socket.socket) -> None:
    peer.recv(4096)
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello")


SERVERS: dict[str, Callable[[socket.socket], None]] = {
    "garbage": _garbage,
    "short": _short,
    "long-head": _long_head,
    "silent": _silent,
    "reset": _reset,
    "closes": _closes,
    "wrong-length": _wrong_length,
}


@dataclass(frozen=True)
class Case:
    """arguments: of `partywall load`, with {NAME} for a server's port or a file. told: must stand in what is said.

    codes: exit codes that are right. files: how many the process may open; None for as many as now.
    """

    name: str
    arguments: tuple[str, ...]
    reported: tuple[str, ...]
    codes: tuple[int, ...] = (2,)
    files: int | None = None


QUICK = ("--users", "2", "--for", "1s", "--timeout", "500ms", "--think", "100ms")


def _served(name: str, reported: str) -> Case:
    # A service that answers nothing is a failed load; what it did is told by kind.
    return Case(
        f"server {name}", (f"http://127.0.0.1:{{{name}}}/", *QUICK), (reported, "no request was answered"), (5,)
    )


CASES = (
    Case("nobody listens", ("http://127.0.0.1:1/",), ("nobody listens there",)),
    Case("no such name", ("http://no.invalid/",), ("no.invalid", "cannot be resolved")),
    Case("no URL", ("http://:80/",), ("is not an http or https URL",)),
    Case("other scheme", ("ftp://127.0.0.1/",), ("is not an http or https URL",)),
    Case("plain server asked over TLS", ("https://127.0.0.1:{garbage}/",), ("TLS",)),
    Case("unknown authority", ("https://localhost:{tls}/",), ("certificate",)),
    Case("certificate of another name", ("https://127.0.0.1:{tls}/", "--ca-file", "{authority}"), ("certificate",)),
    Case("authority is no certificate", ("https://localhost:{tls}/", "--ca-file", "{bad_plan}"), ("no certificate",)),
    Case("no such authority", ("https://localhost:{tls}/", "--ca-file", "/nothing.pem"), ("/nothing.pem",)),
    Case("too few files", ("http://127.0.0.1:{silent}/", "--users", "2000"), ("files",), (2, 4), files=256),
    Case("more users than ports", ("http://127.0.0.1:{silent}/", "--users", "900000"), ("",), (2, 4)),
    Case("bad plan", ("{bad_plan}",), ("no feeder is called 'none'", "bad.yaml:8: users.one.actions[0].feed")),
    Case(
        "bad pattern",
        ("{bad_pattern}",),
        ("pattern.yaml:8: users.one.actions[0].http.extract.a", "is not a regular expression"),
    ),
    Case("plan is a folder", ("check", "/tmp"), ("a directory",)),
    Case("no such plan", ("nothing.yaml",), ("nothing.yaml: cannot be read",)),
    Case("HAR is none", ("import", "{bad_plan}", "-o", "{out}"), ("this is a load plan", "partywall load check")),
    Case("no such sandbox", ("http://127.0.0.1:1/", "--sandbox", "moon"), ("'moon' is not a sandbox",)),
    Case("generator is an option", ("http://127.0.0.1:1/", "--generator", "-x"), ("'-x' is not a host for ssh",)),
    Case(
        "generator is a domain without a name",
        ("http://127.0.0.1:1/", "--generator", "libvirt:"),
        ("--generator: 'libvirt:': domain cannot be ''",),
    ),
    Case(
        "server is a domain",
        ("http://127.0.0.1:1/", "--server-host", "libvirt:a"),
        ("'libvirt:a' is not a host for ssh",),
    ),
    Case("generator twice", ("http://127.0.0.1:1/", *("--generator", "a") * 2), ("'a' is given twice",)),
    Case(
        "generators elsewhere and here",
        ("http://127.0.0.1:1/", "--generator", "a", "--sandboxes", "2", "--cpus", "0"),
        ("--sandboxes: the generators are on other machines", "--cpus: the generators are on other machines"),
    ),
    Case(
        "generator that cannot be reached",
        ("http://127.0.0.1:1/", "--generator", "no.such.name.invalid"),
        ("--generator: no.such.name.invalid, by ssh: its name is not known",),
    ),
    _served("garbage", "bad response"),
    _served("short", "truncated"),
    _served("long-head", "bad response"),
    _served("silent", "timeout"),
    _served("reset", "reset"),
    _served("closes", "closed"),
    _served("wrong-length", "bad response"),
)

_BAD = """partywall_load: 1
name: a
base: http://127.0.0.1:{port}
closed: {{users: 1, hold: 1s}}
users:
  one:
    actions:
"""


@contextlib.contextmanager
def world(folder: Path) -> Iterator[dict[str, str]]:
    """What cases refer to: ports of servers, files."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(_listening(serve)) for name, serve in SERVERS.items()}
        ports["tls"] = stack.enter_context(_listening(_closes, context))
        bad = _BAD.format(port=ports["closes"])
        (folder / "bad.yaml").write_text(bad + "      - feed: none\n      - http: /\n")
        (folder / "pattern.yaml").write_text(bad + "      - http: {url: /, extract: {a: {regex: 'x(['}}}\n")
        files = {"authority": "authority.pem", "bad_plan": "bad.yaml", "bad_pattern": "pattern.yaml", "out": "out.yaml"}
        yield {name: str(port) for name, port in ports.items()} | {n: str(folder / f) for n, f in files.items()}


@contextlib.contextmanager
def _listening(serve: Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)

    def each(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True) if context else peer as wrapped:
            serve(wrapped)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                threading.Thread(target=each, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def complaints(case: Case, known: dict[str, str], folder: Path) -> list[str]:
    """What is wrong with how a case was answered; nothing if all is well."""
    arguments = [argument.format(**known) if "{" in argument else argument for argument in case.arguments]

    def fewer() -> None:
        if case.files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (case.files, case.files))

    try:
        said = subprocess.run(
            [sys.executable, "-m", "partywall", "load", *arguments],
            capture_output=True,
            text=True,
            timeout=45,
            check=False,
            cwd=folder,
            preexec_fn=fewer,
            env=os.environ | {"COLUMNS": "200"},
        )
    except subprocess.TimeoutExpired:
        return ["it did not end within 45 s"]
    whole = said.stdout + said.stderr
    result = [f"it does not say {part!r}: {said.stderr[-300:]}" for part in case.reported if part not in whole]
    if said.returncode not in case.codes:
        result.append(f"it ended with {said.returncode}, not {case.codes}: {said.stderr[-300:]}")
    if "Traceback" in whole or "this is a bug" in whole:
        result.append(f"it shows a traceback: {said.stderr[-600:]}")
    if said.stderr.count("\n") > 4:
        result.append(f"it says {said.stderr.count(chr(10))} lines where one would do")
    return result
