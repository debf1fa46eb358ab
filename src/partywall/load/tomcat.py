"""Tomcat with a sample shop as a service under load: Debian's package, in its own folder, removed afterwards.

The shop has the steps of a test script: log in, connect, select an item, pay with the form's token, log out.

Uses only the programs of the system's Tomcat. No service of the system is started or stopped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from partywall.errors import CapabilityError, TrialError
from partywall.host import Host, free_port, install
from partywall.sandbox import Label

HOME = Path("/usr/share/tomcat10")
START_S = 60.0
STOP_S = 10.0
REFUSED = 403
PAGES = ("login.jsp", "index.jsp", "item.jsp?id=1", "pay.jsp", "logout.jsp")
"""Pages of the shop, in an order in which a visitor may request them."""

_SERVER = """<?xml version="1.0"?>
<Server port="-1"><Service name="Catalina">
<Connector port="{port}" address="127.0.0.1" protocol="HTTP/1.1" maxKeepAliveRequests="-1" maxThreads="200"/>
<Engine name="Catalina" defaultHost="localhost"><Host name="localhost" appBase="webapps" autoDeploy="false"/></Engine>
</Service></Server>
"""
_WEB = """<?xml version="1.0"?>
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0">
<servlet><servlet-name>default</servlet-name>
<servlet-class>org.apache.catalina.servlets.DefaultServlet</servlet-class></servlet>
<servlet><servlet-name>jsp</servlet-name><servlet-class>org.apache.jasper.servlet.JspServlet</servlet-class>
<init-param><param-name>development</param-name><param-value>false</param-value></init-param></servlet>
<servlet-mapping><servlet-name>default</servlet-name><url-pattern>/</url-pattern></servlet-mapping>
<servlet-mapping><servlet-name>jsp</servlet-name><url-pattern>*.jsp</url-pattern></servlet-mapping>
</web-app>
"""


def missing(host: Host) -> str:
    """What prevents Tomcat from starting on a host; empty if nothing does."""
    if not host.exists(HOME / "bin" / "catalina.sh"):
        remedy = install(host, "tomcat10-common")
        return f"Tomcat 10 is not installed, so there is no service to put under load: {remedy}"
    return "" if host.which("java") else f"Tomcat needs Java: {install(host, 'default-jre-headless')}"


@dataclass(frozen=True)
class Service:
    """A running Tomcat. pid: of the Java process."""

    url: str
    pid: int


@contextlib.contextmanager
def running(label: Label) -> Iterator[Service]:
    """It runs until the end. CapabilityError if it is not installed, TrialError if it does not start."""
    if said := missing(Host.here()):
        raise CapabilityError(said)
    base = label.work / "tomcat"
    port = free_port()
    _lay_out(base, port)
    environment = os.environ | label.environment | {"CATALINA_HOME": str(HOME), "CATALINA_BASE": str(base)}
    log = (base / "logs" / "out.txt").open("wb")
    command = [str(HOME / "bin" / "catalina.sh"), "run"]
    process = subprocess.Popen(
        command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, process, base)
        # The script has replaced itself by Java.
        yield Service(url, process.pid)
    finally:
        _stop(process)
        log.close()
        shutil.rmtree(base, ignore_errors=True)


def _lay_out(base: Path, port: int) -> None:
    pages = base / "webapps" / "ROOT"
    for folder in (base / "conf", base / "logs", base / "temp", base / "work", pages):
        folder.mkdir(parents=True, exist_ok=True)
    (base / "conf" / "server.xml").write_text(_SERVER.format(port=port))
    (base / "conf" / "web.xml").write_text(_WEB)
    for page in resources.files("partywall").joinpath("load", "shop").iterdir():
        (pages / page.name).write_bytes(page.read_bytes())


def _wait_for(url: str, process: subprocess.Popen[bytes], base: Path) -> None:
    """Waits for the first page, and then requests all, because each is compiled at its first request."""
    deadline = time.monotonic() + START_S
    visitor = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    while time.monotonic() < deadline and process.poll() is None:
        try:
            for page in PAGES:
                _fetch(visitor, f"{url}/{page}")
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    said = (base / "logs" / "out.txt").read_text(errors="replace").strip().splitlines()
    raise TrialError(f"Tomcat did not start within {START_S:g} s: {' | '.join(said[-3:]) or 'no output'}")


def _fetch(visitor: urllib.request.OpenerDirector, page: str) -> None:
    try:
        visitor.open(page, timeout=20).close()
    except urllib.error.HTTPError as error:
        # Paying without a token is refused, but compiles the page.
        if error.code != REFUSED:
            raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends its process group, because the script that starts it may still run."""
    for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return
