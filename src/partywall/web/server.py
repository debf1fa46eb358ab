"""Starts the server: its socket, its runner, and the link to open."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn

from partywall.errors import Problem, UsageError
from partywall.web import app, runner
from partywall.web.jobs import Folder
from partywall.web.security import Role, Secrets, Site
from partywall.web.site import Server

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
CONNECTIONS_MAX = 400
GRACE_S = 2


@dataclass(frozen=True)
class Settings:
    """How the server is started.

    names: further host names under which it is reached, for example behind a proxy.
    """

    root: Path
    address: str = "127.0.0.1"
    port: int = 8733
    read_only: bool = False
    allow_commands: bool = False
    insecure: bool = False
    certificate: Path | None = None
    certificate_key: Path | None = None
    names: tuple[str, ...] = ()


def is_loopback(address: str) -> bool:
    """True if only this host can connect to an address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def check(settings: Settings) -> None:
    """UsageError if others could read what is sent, or the folder cannot be used."""
    if not is_loopback(settings.address) and settings.certificate is None and not settings.insecure:
        said = f"{settings.address} can be reached by others, who could read the session and take it over"
        remedy = "give --certificate and --certificate-key, use an SSH tunnel to 127.0.0.1, or give --insecure twice"
        raise UsageError(Problem(said, remedy, key="--address"))
    if (settings.certificate is None) != (settings.certificate_key is None):
        raise UsageError(Problem("a certificate and its key belong together", "give both", key="--certificate"))
    if settings.certificate is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                settings.certificate, settings.certificate_key
            )
        except OSError as error:
            message = f"the certificate or its key cannot be used: {error.strerror or error}"
            raise UsageError(Problem(message, "give files in PEM", str(settings.certificate))) from None
    if settings.root.exists() and not settings.root.is_dir():
        raise UsageError(Problem("is not a folder", "give a folder of records", str(settings.root)))


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serves until it is interrupted. say: prints a line for the user."""
    check(settings)
    folder = Folder(settings.root)
    folder.make()
    listener = _listener(settings.address, settings.port)
    port = listener.getsockname()[1]
    scheme = "https" if settings.certificate else "http"
    shown = f"[{settings.address}]" if ":" in settings.address else settings.address
    own = () if settings.address in ("0.0.0.0", "::") else (shown,)  # noqa: S104 - compared, not bound
    site = Site(port, tuple(dict.fromkeys((*LOOPBACK, *own, *settings.names))), scheme)
    secrets = Secrets(folder.own, Role.LOOK if settings.read_only else Role.FULL)
    start_runner = partial(runner.start_runner, folder, allow_commands=settings.allow_commands)
    if not settings.read_only:
        start_runner()
    server = Server(folder, site, secrets, start_runner=start_runner, allow_commands=settings.allow_commands)
    host = settings.names[0] if settings.names else (socket.gethostname() if not own else shown)
    say(f"Records: {folder.root}")
    if settings.insecure and not is_loopback(settings.address):
        say("WARNING: --insecure: everything is sent unencrypted; anyone on the network path can take the session over")
    say(f"Open this link, which works once: {scheme}://{host}:{port}/login?token={secrets.launch_token}")
    say("Ctrl-C ends the server; measurements continue")
    threading.Thread(target=server.doctor, daemon=True).start()
    config = uvicorn.Config(
        app.build(server),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=False,
        ws="none",
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=32768,
        http="h11",
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.certificate_key,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _listener(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address.strip("[]"), port))
    except OSError as error:
        remedy = "give another --port, or end the other server"
        raise UsageError(
            Problem(f"cannot listen on {address}:{port}: {error.strerror}", remedy, key="--port")
        ) from None
    listener.listen(512)
    return listener


def bearer(root: Path, *, read_only: bool) -> str:
    """The token of programs for a folder's server."""
    folder = Folder(root)
    folder.make()
    return Secrets(folder.own, Role.LOOK if read_only else Role.FULL).bearer
