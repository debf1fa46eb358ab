"""Three real hosts behind ssh, each with namespaces of its own, one of them with a planted CPU limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from partywall.fleet.capability import Fleets
from partywall.fleet.record import FleetRecord
from tests import limited_group, ssh_server

SCENARIO = """
partywall: 1
name: one-neighbour
victims:
  integer: {probe: integer}
aggressors:
  busy: {stressor: integer}
budget: 15s
"""
SOURCE = Path(__file__).parents[2] / "src"


def lacking() -> str:
    if why := ssh_server.lacking():
        return why
    return "one CPU" if (os.cpu_count() or 1) < 2 else limited_group.lacking()


@pytest.fixture
def small_host() -> Iterator[Path]:
    with limited_group.limited(0.1) as group:
        yield group


@pytest.fixture
def inventory(small_host: Path, tmp_path: Path) -> Iterator[Path]:
    """An inventory of three hosts; the limit is that of `limited`."""
    lines, servers = [], []
    for name in ("sound", "limited", "sane"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "ledger").mkdir(mode=0o700)
        inside = small_host if name == "limited" else ""
        servers.append(ssh_server.SshServer(folder, alone=True, inside=inside))
        known = f"-o UserKnownHostsFile={folder}/known -o IdentitiesOnly=yes -o GlobalKnownHostsFile=none"
        lines.append(
            f"{name} ansible_host=127.0.0.1 ansible_port={servers[-1].port} ansible_ssh_private_key_file={folder}/user "
            f"ansible_ssh_common_args='{known}' partywall_ledger={folder}/ledger partywall_state={folder}/state"
        )
    shared = f"ansible_python_interpreter={sys.executable}\npartywall_path={SOURCE}\n"
    (tmp_path / "hosts.ini").write_text("[rack]\n" + "\n".join(lines) + f"\n[rack:vars]\n{shared}")
    yield tmp_path / "hosts.ini"
    for server in servers:
        server.stop()


@pytest.mark.host
@pytest.mark.slow
@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_the_host_with_the_planted_limit_is_named(inventory: Path, tmp_path: Path):
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    record = tmp_path / "fleet"
    # All at once: these hosts share the CPUs of this one, so that what else runs here meets all of them alike.
    words = [str(inventory), str(tmp_path / "scenario.yaml"), "--at-once=3", "--every=1s", f"--out={record}"]
    argv = [sys.executable, "-P", "-m", "partywall", "fleet", "run", *words, "--format=json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)["result"]
    assert result is not None, done.stdout + done.stderr
    assert (result["worse"], done.returncode) == (["limited"], 1), done.stdout + done.stderr
    judged = Fleets().findings(FleetRecord.open(record)).fleet
    assert set(judged.measured) == {"sound", "limited", "sane"}
    for name in judged.measured:
        assert (record / "hosts" / name / "record-1" / "report.html").exists()
        ledger = (tmp_path / name / "ledger" / "ledger.jsonl").read_text().splitlines()
        assert [json.loads(line)["what"] for line in ledger] == ["granted", "began", "ended"]
