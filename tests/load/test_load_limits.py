"""What runs out on the generator's side is said by name, in the second in which it does: on real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from partywall.load.health import Doubt, judge
from partywall.load.quick import Quick, program
from partywall.load.session import Session, Setup

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextlib.contextmanager
def server(*, accepts=True, backlog=128):
    """Answers any request on connections that it never closes; gives its URL."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        kept = []

        def answer(connection):
            with contextlib.suppress(OSError):
                while connection.recv(65536):
                    connection.sendall(ANSWER)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    kept.append(connection)
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        if accepts:
            threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        for connection in kept:
            connection.close()


def carry_out(quick, before=lambda session: None, **connections):
    """Doubts and errors of a load, by how many seconds and how often."""
    whole = program(quick)
    whole["connections"] |= connections
    whole["grace_ns"] = 100_000_000
    doubts, errors = Counter(), Counter()
    with Session(whole, Setup(name="limits", cpus=(0,))) as session:
        before(session)
        for second in session.run():
            if second is None:
                continue
            doubts.update(judge(second, session.monitor.host(second.start_ns // 10**9, session.setup.cpus)).doubts)
            for error, count in second.errors.items():
                errors[error.kind] += count
    return doubts, errors


def test_a_generator_that_may_open_no_more_files_says_so():
    def narrow(session):
        open_now = len(os.listdir(f"/proc/{session.generator_pid}/fd"))  # noqa: PTH208 - counted, not used
        resource.prlimit(session.generator_pid, resource.RLIMIT_NOFILE, (open_now + 2, open_now + 2))

    with server() as url:
        doubts, errors = carry_out(Quick(url=url, for_ns=1_000_000_000, users=5, think_ns=50_000_000), narrow)
    assert Doubt.NO_FILES in doubts
    assert set(errors) == {"no_files"}


def test_connections_that_a_listener_drops_are_a_doubt():
    with server(accepts=False, backlog=1) as url:
        quick = Quick(url=url, for_ns=2_000_000_000, users=20, timeout_ns=500_000_000)
        doubts, errors = carry_out(quick, connect_timeout_ns=300_000_000)
    assert Doubt.LISTEN_DROPS in doubts
    assert "connect_timeout" in errors


def in_a_namespace_of_few_ports():
    """Run by `unshare -n`: connections that are used once, from ten ports."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40009")
    with server() as url:
        quick = Quick(url=url, for_ns=2_000_000_000, users=2, think_ns=20_000_000, keep_alive=False)
        doubts, errors = carry_out(quick)
    sys.stdout.write(json.dumps([[str(doubt) for doubt in doubts], sorted(errors)]) + "\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace of few ports needs root")
@pytest.mark.skipif(not (shutil.which("unshare") and shutil.which("ip")), reason="needs unshare and ip")
def test_ports_that_run_out_are_doubted_before_and_when_they_do():
    argv = ["unshare", "-n", sys.executable, __file__]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    doubts, errors = json.loads(said.splitlines()[-1])
    assert {"few_ports", "no_ports"} <= set(doubts)
    assert errors == ["no_ports"]


if __name__ == "__main__":
    in_a_namespace_of_few_ports()
