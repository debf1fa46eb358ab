"""Starts the server: its socket, its runner, and the link to open."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import pwd
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from partywall.errors import PartywallError, Problem, UsageError
from partywall.web import app, runner
from partywall.web.connections import Prompt
from partywall.web.jobs import Folder
from partywall.web.security import Role, Secrets, Site
from partywall.web.site import Server

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
CONNECTIONS_MAX = 400
GRACE_S = 2
NOBODY = 65534
"""The account that programs of any kind share."""


@dataclass(frozen=True)
class Settings:
    """How the server is started.

    share_view: also print a link whose sessions may only look.
    names: further host names under which it is reached, for example behind a proxy. user: the account that serves the
    page, while the runner and its measurements keep the rights of this process.
    """

    root: Path
    address: str = "127.0.0.1"
    port: int = 8733
    read_only: bool = False
    share_view: bool = False
    allow_commands: bool = False
    insecure: bool = False
    certificate: Path | None = None
    certificate_key: Path | None = None
    names: tuple[str, ...] = ()
    user: str | None = None


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
    if settings.user is not None:
        _check_account(settings.user)


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serves until it is interrupted. say: prints a line for the user."""
    check(settings)
    folder = Folder(settings.root)
    folder.make()
    account = pwd.getpwnam(settings.user) if settings.user is not None else None
    if account is not None:
        _check_access(folder, account)
    listener = _listener(settings.address, settings.port)
    port = listener.getsockname()[1]
    scheme = "https" if settings.certificate else "http"
    site = _site(settings, port, scheme)
    secrets = Secrets(folder.own, Role.LOOK if settings.read_only else Role.FULL, shares_view=settings.share_view)
    user = account.pw_uid if account else None
    start_runner = partial(runner.start_runner, folder, user=user, allow_commands=settings.allow_commands)
    if not settings.read_only:
        start_runner()
    say(f"Records: {folder.root}")
    if account is not None and account.pw_uid == NOBODY:
        say(f"WARNING: any other program that runs as {account.pw_name} can give the runner orders; use an own account")
    if settings.insecure and not is_loopback(settings.address):
        say("WARNING: --insecure: everything is sent unencrypted; anyone on the network path can take the session over")
    login = f"{scheme}://{site.names[0]}:{port}/login?token="
    say(f"Open this link, which works once: {login}{secrets.launch_token}")
    if secrets.view_token is not None:
        say(f"Share this link, whose sessions may only look: {login}{secrets.view_token}")
    say("Ctrl-C ends the server; measurements continue")
    if account is not None:
        child = os.fork()
        if child:
            _supervise(child, (lambda: None) if settings.read_only else start_runner)
            return
        _become(account)
        start_runner = partial(runner.await_runner, folder)
    server = Server(
        folder,
        site,
        secrets,
        start_runner=start_runner,
        allow_commands=settings.allow_commands,
        is_runner_other_user=account is not None and not settings.read_only,
    )
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
        http=Prompt,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.certificate_key,
    )
    Unhurried(config).run(sockets=[listener])


def _site(settings: Settings, port: int, scheme: str) -> Site:
    """The addresses of the server, first the one to open."""
    shown = f"[{settings.address}]" if ":" in settings.address else settings.address
    is_any = settings.address in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    own = socket.gethostname() if is_any else shown
    return Site(port, tuple(dict.fromkeys((*settings.names, own, *LOOPBACK))), scheme)


class Unhurried(uvicorn.Server):
    """Sleeps until it has to end. Uvicorn wakes ten times a second, which takes time from what is being measured."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._end: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        loop, ends = asyncio.get_running_loop(), asyncio.Event()
        self._end = lambda: loop.call_soon_threadsafe(ends.set)
        await self.on_tick(0)
        if not self.should_exit:
            await ends.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._end()


def _check_account(name: str) -> None:
    """UsageError if the page cannot be served as this account."""
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise UsageError(Problem(f"there is no account {name!r}", "name one of this host", key="--user")) from None
    if os.geteuid() != 0 and account.pw_uid != os.geteuid():
        remedy = f"start it with sudo, or without --user {name}"
        raise UsageError(Problem("another account can serve the page only if root starts it", remedy, key="--user"))


def _check_access(folder: Folder, account: pwd.struct_passwd) -> None:
    """UsageError if an account cannot read the records or the program, or could change the queue."""

    def can(*words: str) -> bool:
        try:
            test = subprocess.run(
                words, check=False, capture_output=True, user=account.pw_uid, group=account.pw_gid, extra_groups=[]
            )
        except PermissionError:
            return False
        return test.returncode == 0

    if not can("test", "-r", str(folder.own), "-a", "-x", str(folder.own)):
        remedy = f"choose a folder that {account.pw_name} can enter, such as one below /var/lib"
        raise UsageError(Problem(f"{account.pw_name} cannot read this folder", remedy, str(folder.root)))
    # Modules that are imported later must be readable too.
    if not can(sys.executable, "-P", "-c", "import partywall.web.server"):
        remedy = "install Python and Partywall where every account can read them, such as /usr and /opt/partywall"
        raise UsageError(Problem(f"{account.pw_name} cannot read Partywall's own files", remedy, sys.prefix))
    if account.pw_uid != os.geteuid() and (place := _changeable(folder, can)) is not None:
        # The runner trusts the queue: an account that can write it has the runner's rights.
        remedy = f"choose a folder that only its owner can change: sudo chown root {place}; sudo chmod go-w {place}"
        raise UsageError(
            Problem(
                f"{account.pw_name} could change this folder, and so give itself the runner's rights",
                remedy,
                str(place),
            )
        )


def _changeable(folder: Folder, can: Callable[..., bool]) -> Path | None:
    """A folder in which an account could change or replace the queue. None if there is none.

    can: runs a command as the account, and returns whether it succeeded.
    """
    own = [folder.root, folder.own, *(path for path in folder.own.iterdir() if path.is_dir())]
    above = [path for path in folder.root.parents if not path.stat().st_mode & stat.S_ISVTX]
    return next((path for path in [*own, *above] if can("test", "-w", str(path))), None)


def _become(account: pwd.struct_passwd) -> None:
    """Gives up all rights of this process but those of an account, for good."""
    os.initgroups(account.pw_name, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    os.environ |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}


def _supervise(child: int, start_runner: Callable[[], None]) -> None:
    """Waits for the process that serves the page, and starts a runner whenever there is none."""

    def end(number: int, _frame: object) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        with contextlib.suppress(PartywallError):
            start_runner()
        time.sleep(1)


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
