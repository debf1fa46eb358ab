"""The processes of a service by its port or its log."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from partywall.blame.job import BlameJob
from partywall.blame.measure import service
from partywall.blame.measure.at_work import served_by
from partywall.host import Host


def test_who_listens_at_a_port_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert service.listening(Host.here(), port) == [os.getpid()]
        assert served_by(BlameJob(url=f"http://localhost:{port}/"), Host.here()) == [os.getpid()]
    assert service.listening(Host.here(), port) == []


def test_a_service_elsewhere_has_no_process_here():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        # An address that RFC 5737 keeps for documents is no host's own.
        assert served_by(BlameJob(url=f"http://192.0.2.7:{port}/"), Host.here()) == []
    assert served_by(BlameJob(url="http://no-such-host.invalid/"), Host.here()) == []


def test_who_writes_a_log_is_found_and_this_process_is_left_out(tmp_path: Path):
    log = tmp_path / "access.log"
    script = f"import sys; out = open({str(log)!r}, 'a'); print('open', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with log.open():
            assert service.writing(Host.here(), log) == [writer.pid]
        writer.kill()
    assert service.writing(Host.here(), tmp_path / "none") == []
