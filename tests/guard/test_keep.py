"""A guard on real interfaces, in namespaces of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from partywall import guard, pipeline
from partywall.guard.flatten import Flat
from partywall.guard.run import Kept, Report
from partywall.model.policy import Policy

pytestmark = pytest.mark.host
INSIDE, OUTSIDE = f"pwt{os.getpid() % 10000}a", f"pwt{os.getpid() % 10000}b"


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def hooks() -> list[str]:
    shown = subprocess.run(
        ["tc", "-n", INSIDE, "-j", "filter", "show", "dev", "eth0", "egress"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = json.loads(shown or "[]")
    return [item["options"]["bpf_name"] for item in found if "bpf_name" in item.get("options", {})]


def qdiscs() -> str:
    return subprocess.run(
        ["tc", "-n", INSIDE, "qdisc", "show", "dev", "eth0"], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(scope="module", autouse=True)
def able() -> None:
    if os.geteuid() != 0:
        pytest.skip("root")
    if not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("iproute2")
    if any(missing["what"] == "eBPF programs" for missing in pipeline.host_facts()["missing"]):
        pytest.skip("an agent built with clang, for eBPF programs")


@pytest.fixture
def flat(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Iterator[Flat]:
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))
    ip("netns", "add", INSIDE)
    ip("netns", "add", OUTSIDE)
    try:
        ip("link", "add", "eth0", "netns", INSIDE, "type", "veth", "peer", "name", "eth0", "netns", OUTSIDE)
        for number, namespace in enumerate((INSIDE, OUTSIDE), start=1):
            ip("-n", namespace, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")
        policy = Policy.model_validate(
            {
                "partywall_guard": 1,
                "name": f"test-{INSIDE}",
                "link": {"capacity": "100Mbit/s"},
                "service_classes": {"only": 1},
                "vifs": {
                    "vm": {
                        "interface": "eth0",
                        "namespace": INSIDE,
                        "service_class": "only",
                        "send": {"guarantee": "10Mbit/s", "ceiling": "20Mbit/s"},
                        "flows": {"ping": {"protocol": "icmp", "packets": 50}},
                    }
                },
            }
        )
        yield guard.flatten(policy, guard.resolve(policy), 50_000_000)
    finally:
        ip("netns", "del", INSIDE)
        ip("netns", "del", OUTSIDE)


def until(kept: Kept, condition: Callable[[Report], bool]) -> Report:
    """The first report of which it is true."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        report = kept.report(1)
        if report and condition(report):
            return report
    raise AssertionError("no such report within 20 s")


def send(count: int) -> None:
    # Flat out; what is dropped is not waited for.
    command = ["ip", "netns", "exec", INSIDE, "bash", "-c"]
    script = f"for i in $(seq {count}); do echo x > /dev/udp/10.77.0.2/9; done"
    subprocess.run([*command, script], capture_output=True, check=False)


def test_traffic_is_counted_at_the_leaf_it_belongs_to_and_nothing_is_left(flat: Flat) -> None:
    with guard.keep(flat) as kept:
        assert hooks() == ["partywall_guard"]
        assert "tbf" not in qdiscs(), "a queue is there only where packets wait"
        send(20)
        seen = until(kept, lambda report: report.rows["vm"]["passed_pps"] > 0)
        assert seen.rows["vm:ping"]["granted_pps"] == 50
        assert not seen.notes
    assert not hooks()
    assert "clsact" not in qdiscs()
    assert "tbf" not in qdiscs()


def test_a_hook_that_somebody_removed_is_put_back_and_told(flat: Flat) -> None:
    with guard.keep(flat) as kept:
        subprocess.run(["tc", "-n", INSIDE, "qdisc", "del", "dev", "eth0", "clsact"], check=True)
        assert not hooks()
        found = until(kept, lambda report: bool(report.notes))
        assert [(hook, kind) for hook, kind, _ in found.notes] == [("vm", "repaired")]
        assert hooks() == ["partywall_guard"]


def test_a_killed_daemon_leaves_the_hooks_until_they_are_removed(flat: Flat) -> None:
    with guard.keep(flat, leave=True) as kept:
        kept.client.process.send_signal(signal.SIGKILL)
        kept.client.process.wait()
        assert hooks() == ["partywall_guard"]
    assert len(guard.remove(flat.start["id"], flat.start["hooks"])) == 1
    assert not hooks()
    assert "clsact" not in qdiscs()
    assert guard.remove(flat.start["id"], flat.start["hooks"]) == []
