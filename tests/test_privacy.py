"""Partywall sends nothing anywhere: where every packet that leaves the host is counted, its commands send none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.host, pytest.mark.long]

SCENARIO = """\
partywall: 1
name: small
victims:
  api: {probe: integer}
aggressors:
  batch: {stressor: integer, intensity: [1]}
budget: 3s
"""
# A network whose only way out is an interface that counts. IPv6 would send packets by itself.
COUNTED = """\
set -e
ip link set lo up
ip link add out type veth peer name far
for each in out far; do echo 1 > /proc/sys/net/ipv6/conf/$each/disable_ipv6; done
ip address add 192.0.2.1/24 dev out
ip link set far up
ip link set out up arp off
ip route add default dev out
code=0
"$@" >&2 || code=$?
awk '$1 == "out:" {print $11}' /proc/net/dev
exit $code
"""


def sent(folder: Path, *argv: str) -> tuple[int, int, str]:
    """(packets that left the host, exit code, output) of a command."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a network namespace")
    if not shutil.which("ip"):
        pytest.skip("ip is not installed")
    own = ["unshare", "--net", "sh", "-c", COUNTED, "-", *argv]
    done = subprocess.run(own, cwd=folder, capture_output=True, text=True, check=False)
    return int(done.stdout or -1), done.returncode, done.stderr


def test_a_packet_that_leaves_the_host_is_counted(tmp_path: Path):
    line = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('198.51.100.1', 53))"
    packets, code, said = sent(tmp_path, sys.executable, "-c", line)
    assert (packets, code) == (1, 0), said


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ("--help", {0}),
        ("doctor", {0}),
        ("run small.yaml --out run", {0, 3}),
        ("report run -f svg -f png", {0, 3}),
        ("sql run 'SELECT 1'", {0}),
        ("consolidate plan cluster", {0}),
        ("scenario check small.yaml", {0}),
        ("guard status", {0}),
        ("reap", {0}),
    ],
)
def test_no_command_sends_anything(measured: Path, words: str, codes: set[int]):
    packets, code, said = sent(measured, "sh", "-c", f"{sys.executable} -m partywall {words}")
    assert packets == 0, said
    assert code in codes, said


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, in which the commands run in order."""
    folder = tmp_path_factory.mktemp("privacy")
    (folder / "small.yaml").write_text(SCENARIO)
    return folder
