"""Records what a browser requests, through a proxy on this host, as HAR text.

The proxy is mitmproxy's `mitmdump`, a program of its own. It answers HTTPS with certificates of an authority that is
made for this recording, and verifies the servers' certificates itself. A browser is started with a new profile, which
accepts any certificate, because the proxy is the only server that it talks to. Profile and authority are removed
afterwards, also if this process is killed: everything carries the recording's label.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partywall import units
from partywall.errors import CapabilityError, Problem, TrialError, UsageError
from partywall.events import Doing, Emit, Left, Note
from partywall.host import Host, free_port
from partywall.host.label import Label
from partywall.host.processes import end_group
from partywall.sandbox import reaper

PROXY = "mitmdump"
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "microsoft-edge", "brave-browser")
NO_BROWSER = "none"
START_S = 60.0
STOP_S = 20.0
LOOK_S = 0.2
TOO_SOON_S = 3.0
"""A browser that ends with an error within this time did not start."""

OWN_HOSTS = (
    "accounts.google.com",
    "clients*.google.com",
    "update.googleapis.com",
    "content-autofill.googleapis.com",
    "optimizationguide-pa.googleapis.com",
    "safebrowsing*.googleapis.com",
    "*.gvt1.com",
    "edge.microsoft.com",
)
"""Hosts that browsers ask by themselves, whatever page they show."""

_QUIET = (
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication",
    "--ignore-certificate-errors",
    "--test-type",
)


@dataclass(frozen=True)
class Recording:
    """What is recorded. browser: a program, or `none` for one that the user starts. options: for the browser.

    port: of the proxy; 0 for a free one. length_s: ends the recording. authorities: certificates of servers to trust.
    """

    url: str
    browser: str | None = None
    options: tuple[str, ...] = ()
    port: int = 0
    length_s: float | None = None
    insecure: bool = False
    authorities: Path | None = None


@dataclass
class _Proxy:
    """A running proxy. lines: the end of its output; answered: the number of responses."""

    process: subprocess.Popen[str]
    port: int
    answered: int = 0
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            # The proxy prints a response as '<< 200 OK 1.2k'.
            self.answered += line.lstrip().startswith("<<")
            self.lines = [*self.lines[-2:], line.strip()]


def proxy_program(host: Host) -> str:
    """The proxy's program, beside this Python or on the path. CapabilityError if it is not installed."""
    beside = Path(sys.executable).parent / PROXY
    program = str(beside) if beside.exists() else host.which(PROXY)
    if program is None:
        remedy = "pip install 'partywall[record]', or pipx install mitmproxy"
        raise CapabilityError(Problem("mitmproxy is not installed, so there is no proxy to record with", remedy))
    return str(program)


def browser_program(host: Host, wanted: str | None) -> str | None:
    """The browser to start; None for `none`. UsageError or CapabilityError if there is none."""
    if wanted == NO_BROWSER:
        return None
    if wanted is not None:
        browser = host.which(wanted)
        if browser is None:
            remedy = f"give the path of a Chromium-based browser, or {NO_BROWSER}"
            raise UsageError(Problem(f"there is no program {wanted!r}", remedy, key="--browser"))
        return str(browser)
    every = (browser for name in BROWSERS if (browser := host.which(name)))
    browser = next(every, None)
    if browser is None:
        remedy = f"install chromium, or give --browser {NO_BROWSER} and set the proxy in your own browser"
        raise CapabilityError(Problem(f"no browser was found ({', '.join(BROWSERS)})", remedy))
    return str(browser)


def record(job: Recording, host: Host, work_root: Path, emit: Emit) -> str:
    """The recorded session. It ends when the browser is closed, after the length, or with KeyboardInterrupt."""
    browser, proxy = browser_program(host, job.browser), proxy_program(host)
    label = Label.create(f"record-{secrets.token_hex(4)}", work_root)
    try:
        har = label.work / "recording.har"
        with _proxy(proxy, job, label, har) as running:
            _tell_start(job, running, label, browser, emit)
            with _browser(browser, job, running, label) as shown, contextlib.suppress(KeyboardInterrupt):
                _wait(job, running, shown, emit)
        if not har.exists():
            raise TrialError(f"the proxy wrote no recording: {' | '.join(running.lines) or 'no output'}")
        return har.read_text(encoding="utf-8")
    finally:
        reaper.clean(label)


def _tell_start(job: Recording, proxy: _Proxy, label: Label, browser: str | None, emit: Emit) -> None:
    if browser is None:
        authority = label.work / "authority" / "mitmproxy-ca-cert.pem"
        emit(Note(f"set 127.0.0.1:{proxy.port} as the proxy for HTTP and HTTPS, and trust {authority}"))
        emit(Note(f"then open {job.url}; press Ctrl-C to finish"))
    elif os.geteuid() == 0:
        emit(Note("the browser runs as root, without its own sandbox: record only sites that you trust"))


def _wait(job: Recording, proxy: _Proxy, browser: subprocess.Popen[bytes] | None, emit: Emit) -> None:
    """Until the browser is closed or the time is over."""
    begun, how = time.monotonic(), "press Ctrl-C" if browser is None else "close the browser"
    shown = -1
    while browser is None or browser.poll() is None:
        if proxy.process.poll() is not None:
            raise TrialError(f"the proxy ended: {' | '.join(proxy.lines) or 'no output'}")
        passed = time.monotonic() - begun
        if proxy.answered != shown:
            shown = proxy.answered
            emit(Doing(f"recording, {units.counted(shown, 'response')}; {how} to finish"))
        if job.length_s is not None:
            emit(Left(max(0.0, job.length_s - passed)))
            if passed >= job.length_s:
                return
        time.sleep(LOOK_S)
    if browser.returncode and time.monotonic() - begun < TOO_SOON_S and not proxy.answered:
        remedy = f"it needs a display; --browser-option=--headless=new does without, or --browser {NO_BROWSER}"
        raise TrialError(f"the browser ended at once, with exit code {browser.returncode}: {remedy}")


# The proxy


@contextlib.contextmanager
def _proxy(program: str, job: Recording, label: Label, har: Path) -> Iterator[_Proxy]:
    port = job.port or free_port()
    process = subprocess.Popen(
        _proxy_command(program, job, label, har, port),
        env=os.environ | label.environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        process_group=0,
    )
    running = _Proxy(process, port)
    try:
        _wait_for(running)
        yield running
    finally:
        end_group(process, STOP_S, signal.SIGINT)


def _proxy_command(program: str, job: Recording, label: Label, har: Path, port: int) -> list[str]:
    settings = {
        "listen_host": "127.0.0.1",
        "listen_port": port,
        "confdir": label.work / "authority",
        "hardump": har,
        "flow_detail": 1,
        "connection_strategy": "lazy",
        "http3": "false",
        "ssl_insecure": str(job.insecure).lower(),
    }
    if job.authorities is not None:
        settings["ssl_verify_upstream_trusted_ca"] = job.authorities.resolve()
    return [program, *(part for name, value in settings.items() for part in ("--set", f"{name}={value}"))]


def _wait_for(proxy: _Proxy) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and proxy.process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", proxy.port), timeout=1):
            return
        time.sleep(0.05)
    raise TrialError(f"the proxy did not start: {' | '.join(proxy.lines) or 'no output'}")


# The browser


@contextlib.contextmanager
def _browser(
    program: str | None, job: Recording, proxy: _Proxy, label: Label
) -> Iterator[subprocess.Popen[bytes] | None]:
    if program is None:
        yield None
        return
    process = subprocess.Popen(
        _browser_command(program, job, proxy.port, label.work / "profile"),
        env=os.environ | label.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield process
    finally:
        end_group(process, STOP_S)


def _browser_command(program: str, job: Recording, port: int, profile: Path) -> Sequence[str]:
    # Without this, a browser asks services on its own host directly.
    through = (f"--proxy-server=127.0.0.1:{port}", "--proxy-bypass-list=<-loopback>")
    alone = ("--no-sandbox",) if os.geteuid() == 0 else ()
    return [program, f"--user-data-dir={profile}", *through, *_QUIET, *alone, *job.options, job.url]
