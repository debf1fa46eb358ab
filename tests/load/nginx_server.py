"""nginx for tests, as an ordinary user: over TLS with a certificate of our own making, with and without HTTP/2."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
BODY_BYTES = 3_000_000

_CONFIG = """
{user} worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; default_type text/plain;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  {servers}
}}
"""
_SERVER = """
  server {{
    listen {listen}; {tls}
    keepalive_requests {keepalive_requests};
    location / {{ return 200 "hello\\n"; }}
    location /large {{ root {folder}; }}
  }}
"""


def listener(
    folder: Path,
    listen: str,
    certificate: Path | None = None,
    keepalive_requests: int = 1000,
    versions: str = "TLSv1.2 TLSv1.3",
) -> str:
    """One server of the configuration. certificate: PEM of certificates and key."""
    tls = ""
    if certificate:
        tls = f"ssl_certificate {certificate}; ssl_certificate_key {certificate}; ssl_protocols {versions};"
    return _SERVER.format(listen=listen, tls=tls, folder=folder, keepalive_requests=keepalive_requests)


@contextlib.contextmanager
def nginx(folder: Path, servers: Sequence[str], ports: Sequence[int] = ()) -> Iterator[None]:
    """Serves until the block ends. ports: waited for before it begins."""
    assert NGINX is not None
    # Workers of a privileged nginx are unprivileged, and the folder is ours alone.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "large").write_bytes(b"x" * BODY_BYTES)
    (folder / "nginx.conf").write_text(_CONFIG.format(user=user, folder=folder, servers="".join(servers)))
    process = subprocess.Popen(
        [NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "error.log")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for port in ports:
            _wait_for(port, process, folder)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert process.poll() is None, (folder / "error.log").read_text()
            assert time.monotonic() < deadline, "nginx does not answer"
            time.sleep(0.01)
        else:
            return
