"""Another machine whose ssh hangs, fails or keeps its streams open: an error in time, and no guess."""

import os
import subprocess
import time

import pytest

from partywall.errors import CapabilityError
from partywall.sandbox.ssh import connection


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Puts a shell script in place of ssh."""

    def put(script):
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PARTYWALL_SSH", str(program))

    return put


def test_a_survey_that_hangs_is_the_machines_fault(ssh, monkeypatch):
    monkeypatch.setattr(connection, "GREETING_S", 0.3)
    ssh("exec sleep 60")
    with pytest.raises(CapabilityError, match=r"far, by ssh: no answer within 0.3 s"):
        connection._lacking("far", ["fio"])


@pytest.mark.parametrize("script", ["echo 'Connection refused' >&2; exit 255", "echo there; exit 255", "echo there"])
def test_programs_that_were_not_looked_for_do_not_count_as_installed(ssh, script):
    ssh(script)
    with pytest.raises(CapabilityError, match="far, by ssh: "):
        connection._lacking("far", ["fio", "stress-ng"])


def test_programs_are_looked_for_one_by_one(ssh):
    ssh('for last; do :; done; eval "$last"')
    odd = "no such; program"
    assert connection._lacking("far", ["sh", odd, "ls"]) == [odd]


@pytest.mark.parametrize("end", ["end", "_why_silent"])
def test_a_child_of_ssh_that_keeps_its_streams_open_holds_up_nothing(ssh, monkeypatch, end):
    """As a ProxyCommand does that runs in a session of its own."""
    monkeypatch.setattr(connection, "STREAMS_S", 0.3)
    ssh("setsid sleep 5 & exec sleep 5")
    made = connection.Connection.__new__(connection.Connection)
    made.destination = "far"
    pipe = subprocess.PIPE
    made.process = subprocess.Popen(
        connection.argv("far", "x"), stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ, process_group=0
    )
    time.sleep(0.2)
    begun = time.monotonic()
    if end == "end":
        made.end()
    else:
        made.process.kill()
        assert "no answer within 7 s" in made._why_silent(b"", 7)
    assert time.monotonic() - begun < 4
    assert made.process.returncode is not None
