"""Tomcat with a sample shop as a service under load: Debian's package, in its own folder, removed afterwards.

It runs on this host, or on another machine that is reached by ssh.
The shop has the steps of a test script: log in, connect, select an item, pay with the form's token, log out.

Uses only the programs of the system's Tomcat. No service of the system is started or stopped.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from partywall.errors import CapabilityError, TrialError
from partywall.host import Host, free_port, install
from partywall.host.label import Label
from partywall.host.processes import end_group
from partywall.sandbox import Settings
from partywall.session import Session

HOME = Path("/usr/share/tomcat10")
PROGRAMS = (str(HOME / "bin" / "catalina.sh"), "java")
"""What a machine needs to run it."""
FOLDERS = ("conf", "logs", "temp", "work", "webapps", "webapps/ROOT")
APPLICATION = "application"
HERE = "127.0.0.1"
START_S = 60.0
WAIT_S = 0.2
STOP_S = 10.0
REFUSED = 403
PAGES = ("login.jsp", "index.jsp", "item.jsp?id=1", "pay.jsp", "logout.jsp")
"""Pages of the shop, in an order in which a visitor may request them."""

_SERVER = """<?xml version="1.0"?>
<Server port="-1"><Service name="Catalina">
<Connector port="{port}" address="{address}" protocol="HTTP/1.1" maxKeepAliveRequests="-1" maxThreads="200"/>
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


def version(home: Path = HOME) -> str:
    """The version of an installed Tomcat, such as 'Apache Tomcat/10.1.6'; empty if its library does not say it."""
    try:
        with zipfile.ZipFile(home / "lib" / "catalina.jar") as library:
            text = library.read("org/apache/catalina/util/ServerInfo.properties").decode()
    except (OSError, KeyError, zipfile.BadZipFile):
        return ""
    return next((line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("server.info=")), "")


# Unpacks the files in the agent's folder, which is removed with it, and becomes Java.
_SCRIPT = 'printf %s "$1" | base64 -d | tar -xzf - && CATALINA_BASE=$PWD exec "$2" run'
# Otherwise it goes on without a port at which it cannot listen.
_OPTIONS = "-Dorg.apache.catalina.startup.EXIT_ON_INIT_FAILURE=true"
# With port 0 the system chooses one, which Tomcat prints when it listens.
_LISTENS = re.compile(r'"http-nio-.*-auto-\d+-(\d+)"')


@dataclass(frozen=True)
class Service:
    """A running Tomcat. pid: of the Java process. cpus: how many it may use. version: empty if it was not read."""

    url: str
    pid: int
    cpus: int
    version: str = ""


@contextlib.contextmanager
def running(label: Label, address: str = HERE) -> Iterator[Service]:
    """It runs until the end. CapabilityError if it is not installed, TrialError if it does not start.

    address: of this host, at which it listens.
    """
    if said := missing(Host.here()):
        raise CapabilityError(said)
    port = _free_port(address)
    base = label.work / f"tomcat-{port}"
    _lay_out(base, address, port)
    environment = os.environ | label.environment | {"CATALINA_HOME": str(HOME), "CATALINA_BASE": str(base)}
    log = (base / "logs" / "out.txt").open("wb")
    command = [str(HOME / "bin" / "catalina.sh"), "run"]
    process = subprocess.Popen(
        command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0
    )
    try:
        url = _url(address, port)
        _wait_for(url, process, base)
        # The script has replaced itself by Java.
        yield Service(url, process.pid, len(os.sched_getaffinity(0)), version())
    finally:
        # The script that starts it may still run.
        end_group(process, STOP_S)
        log.close()
        shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def running_on(machine: str, label: Label, address: str) -> Iterator[Service]:
    """It runs on another machine, reached by ssh, until the end. TrialError if it does not start.

    address: of that machine, at which it listens. Its pages are compiled at their first requests.
    """
    with Session(label) as agents:
        agents.add(Settings(name=APPLICATION, backend="ssh", cpus=(), host=machine))
        client = agents.client(APPLICATION)
        argv = ["sh", "-c", _SCRIPT, "sh", _packed(address), PROGRAMS[0]]
        command = {"argv": argv, "env": {"CATALINA_HOME": str(HOME), "CATALINA_OPTS": _OPTIONS, "LC_ALL": "C"}}
        work_dir = agents.sandboxes[APPLICATION].work_dir
        started = client.call(
            "workload.start", id=APPLICATION, work={"command": command}, pace="flat_out", work_dir=work_dir
        )
        port = _port_said(agents, machine)
        yield Service(_url(address, port), started["pid"], len(client.hello["cpus"]))


def _port_said(agents: Session, machine: str) -> int:
    """The port at which it listens, from its output."""
    deadline, said = time.monotonic() + START_S, ["no output"]
    while time.monotonic() < deadline:
        for _, method, params in agents.take(WAIT_S):
            for line in params["lines"] if method == "output" else ():
                said.append(line["text"].strip())
                if match := _LISTENS.search(said[-1]):
                    return int(match[1])
            if method in ("ended", "gone"):
                raise TrialError(f"Tomcat ended on {machine}, {params['reason']}: {_cause(said)}")
    raise TrialError(f"Tomcat did not start on {machine} within {START_S:g} s: {_cause(said)}")


def _cause(said: Sequence[str]) -> str:
    """The last exception in Tomcat's output, or else the last line."""
    return next((line for line in reversed(said) if "Exception" in line), said[-1])


def _packed(address: str) -> str:
    """Its folder as a compressed archive, in base64."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        for folder in FOLDERS:
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o700
            packed.addfile(info)
        for name, content in _files(address, 0).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return base64.b64encode(archive.getvalue()).decode()


def _url(address: str, port: int) -> str:
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def _free_port(address: str) -> int:
    try:
        return free_port(address=address)
    except OSError as error:
        raise TrialError(f"Tomcat cannot listen at {address}: {error.strerror}; give an address of this host") from None


def _files(address: str, port: int) -> dict[str, bytes]:
    """The files of its folder, by path."""
    pages = resources.files("partywall").joinpath("load", "shop").iterdir()
    return {
        "conf/server.xml": _SERVER.format(address=address, port=port).encode(),
        "conf/web.xml": _WEB.encode(),
        **{f"webapps/ROOT/{page.name}": page.read_bytes() for page in pages},
    }


def _lay_out(base: Path, address: str, port: int) -> None:
    for folder in FOLDERS:
        (base / folder).mkdir(parents=True, exist_ok=True)
    for name, content in _files(address, port).items():
        (base / name).write_bytes(content)


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
