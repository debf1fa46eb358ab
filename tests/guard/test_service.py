"""The guard's unit under a real systemd, as after a boot: guests start later than the guard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import partywall
from tests import systemd
from tests.waiting import until

UNIT = Path(__file__).parents[2] / "packaging/systemd/partywall-guard@.service"
TAP, PEER = f"pwu{os.getpid() % 10000}a", f"pwu{os.getpid() % 10000}b"
DEADLINE_S = 60

pytestmark = [
    pytest.mark.host,
    pytest.mark.long,
    pytest.mark.skipif(bool(why := systemd.lacking()), reason=f"a systemd needs: {why}"),
    pytest.mark.usefixtures("guarded_lab"),
]


def test_the_unit_hooks_a_guest_that_starts_after_it(tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.touch()
    (tmp_path / "edge.yaml").write_text(
        "partywall_guard: 1\nname: unit\nlink: {capacity: 100Mbit/s}\nservice_classes: {only: 1}\n"
        f"vifs: {{vm: {{interface: {TAP}, service_class: only, send: {{ceiling: 20Mbit/s}}}}}}\n"
    )
    own = [
        "[Unit]", "DefaultDependencies=no",
        "[Service]", f"StandardOutput=append:{said}", f"StandardError=append:{said}",
        f"Environment=PYTHONPATH={Path(partywall.__file__).parents[1]} PARTYWALL_STATE={tmp_path}/state",
    ]  # fmt: skip
    unit = UNIT.read_text().replace("/etc/partywall/guard", str(tmp_path)).replace("network-online.target", "")
    unit = unit.replace("/usr/bin/partywall", f"{sys.executable} -m partywall")
    with systemd.started() as host:
        host.write("/run/systemd/system/partywall-guard@.service", "\n".join([unit, *own, ""]))
        host.run("systemctl", "daemon-reload")
        host.run("systemctl", "start", "partywall-guard@edge")
        until(
            lambda: f"nothing is enforced yet: vifs.vm.interface: there is no interface '{TAP}'" in said.read_text(),
            said.read_text,
            DEADLINE_S,
        )
        try:
            subprocess.run(["ip", "link", "add", TAP, "type", "veth", "peer", "name", PEER], check=True)
            hooked = ["tc", "filter", "show", "dev", TAP, "ingress"]
            until(
                lambda: b"partywall_guard" in subprocess.run(hooked, capture_output=True, check=False).stdout,
                said.read_text,
                DEADLINE_S,
            )
            host.run("systemctl", "stop", "partywall-guard@edge")
        finally:
            subprocess.run(["ip", "link", "del", TAP], check=False, capture_output=True)
