"""What benchmarks of virtual users share: nginx on a core of its own, and a generator driven without a screen."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import cpu_ns, until
from partywall.host import free_port
from partywall.load.health import Health
from partywall.load.measure import PreparedLoad, Setup
from partywall.load.second import Second
from partywall.load.summary import Summary, summarise

SERVER_CPU, GENERATOR_CPU = 0, 1

NGINX = """
worker_processes {workers}; worker_cpu_affinity {mask};
daemon off; master_process on; pid {folder}/pid; error_log {folder}/error.log crit;
worker_rlimit_nofile 65536;
events {{ worker_connections 32768; multi_accept on; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 3600s; default_type text/html;
  server {{
    listen 127.0.0.1:{port} reuseport backlog=16384;
    location / {{ return 200 "hello, load\\n"; }}
    location /first {{ return 200 "<form><input name='token' value='t0k3n'></form>\\n"; }}
    location /second {{ return 200 "welcome\\n"; }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(cpu: int = SERVER_CPU, workers: int = 1) -> Iterator[str]:
    """A server with its workers on `cpu`; gives its URL."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        serving(NGINX, Path(folder), cpu, workers) as url,
    ):
        yield url


@contextlib.contextmanager
def serving(template: str, folder: Path, cpu: int, workers: int = 1) -> Iterator[str]:
    """Nginx with a configuration whose places are workers, mask, folder and port, with its workers on `cpu`."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    port, config = free_port(), folder / "nginx.conf"
    mask = " ".join([f"{1 << cpu:b}"] * workers)
    config.write_text(template.format(workers=workers, mask=mask, folder=folder, port=port))
    argv = [program, "-c", str(config), "-p", str(folder)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: is_open(port), 10, "nginx does not answer", every_s=0.02)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.terminate()
        server.wait()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class Loaded:
    """What a load found. cpu_ns: CPU time of the generator's process, sending records included."""

    summary: Summary
    seconds: Sequence[Second]
    healths: Sequence[Health]
    cpu_ns: int
    started: Mapping[str, Any]
    begin_ns: int

    @property
    def cpu_us_per_request(self) -> float:
        return self.cpu_ns / 1e3 / self.summary.responses


def load(
    program: Mapping[str, Any],
    setup: Setup | None = None,
    around: Callable[[PreparedLoad], contextlib.AbstractContextManager[None]] = lambda _: contextlib.nullcontext(),
) -> Loaded:
    """Carries out a program on the generator's core. around: entered when the generator is there, before it begins."""
    setup = setup or Setup(name="bench", cpus=(GENERATOR_CPU,))
    seconds, healths = [], []
    with PreparedLoad(program, setup) as session, around(session):
        pid = session.generator_pid
        before = cpu_ns(pid) if pid else 0
        used = before
        for second in session.run():
            if second is not None:
                seconds.append(second)
                healths.append(session.judge(second))
            with contextlib.suppress(OSError):
                used = max(used, cpu_ns(pid) if pid else 0)
        summary = summarise(seconds, healths, session.begin_ns, session.stages_ns)
        return Loaded(summary, seconds, healths, used - before, session.started, session.begin_ns)
