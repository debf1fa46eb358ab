"""The guard's part of the Xen lab: its policy, its guests and its judgement. The lab itself takes too long here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from labs.xen import network
from labs.xen.network import CEILING_BPS, FLOOD, GUARANTEE_BPS, LINK_BPS, OFFERED_BPS, STEADY, Held, Rates
from partywall.agent import binary
from partywall.errors import TrialError
from partywall.guard.check import load
from tests.measured import measured

FREE = {STEADY: Rates(OFFERED_BPS, 0.3 * OFFERED_BPS), FLOOD: Rates(5 * LINK_BPS, 0.8 * LINK_BPS)}
GUARDED = {STEADY: Rates(OFFERED_BPS, OFFERED_BPS), FLOOD: Rates(5 * LINK_BPS, CEILING_BPS)}
HELD = Held(free=FREE, guarded=GUARDED, after=FREE, left=(), kernel="6.1", xen="4.17")


def test_the_policy_is_good_and_names_the_guests_by_their_domains(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(network.policy()))
    policy = load(file)
    assert {name: vif.domain for name, vif in policy.vifs.items()} == {
        STEADY: network.domain(STEADY),
        FLOOD: network.domain(FLOOD),
    }
    assert policy.vifs[FLOOD].send.ceiling == CEILING_BPS
    assert policy.vifs[STEADY].send.guarantee == GUARANTEE_BPS > OFFERED_BPS


def test_a_guest_has_an_interface_on_the_bridge_and_sends_to_its_own_sink():
    texts = (network.guest(name) for name in (STEADY, FLOOD))
    first, second = (ET.fromstring(text) for text in texts)  # noqa: S314 - our own
    assert first.get("type") == "xen"
    assert first.find("devices/interface/source").get("bridge") == network.BRIDGE
    assert first.findtext("os/cmdline").endswith("-- init --console /dev/hvc0 198.18.1.1/16 198.18.2.1:9 958 500")
    assert second.findtext("os/cmdline").endswith(" 198.18.1.2/16 198.18.2.2:9 958 null")
    macs = {guest.find("devices/interface/mac").get("address") for guest in (first, second)}
    assert len(macs) == 2


def test_rates_come_from_two_readings_of_the_counters():
    text = "10.00\n100\n50\n0\n0\n12.00\n350\n175\n1000\n0\n"
    assert network.FRAME_BYTES == 1000
    assert network.rates(text, (STEADY, FLOOD)) == {STEADY: Rates(1e6, 0.5e6), FLOOD: Rates(4e6, 0)}
    assert network.span_s(text, 2) == 2
    with pytest.raises(TrialError, match="counters cannot be read: '10"):
        network.rates("10.00\n1000\n", (STEADY, FLOOD))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"free": FREE | {FLOOD: Rates(LINK_BPS, LINK_BPS)}}, "too little to show anything"),
        ({"guarded": GUARDED | {FLOOD: Rates(5 * LINK_BPS, 1.1 * CEILING_BPS)}}, "passed a ceiling of 3.00 Mbit/s"),
        ({"guarded": GUARDED | {STEADY: Rates(OFFERED_BPS, 0.85 * OFFERED_BPS)}}, "only 3.40 Mbit/s of 4.00 Mbit/s"),
        ({"left": ("qdisc clsact",)}, "the guard left qdisc clsact"),
    ],
)
def test_what_does_not_hold_is_named(changed, said):
    assert HELD.faults == []
    (fault,) = replace(HELD, **changed).faults
    assert said in fault


def test_a_steady_guest_that_offers_more_than_its_guarantee_is_owed_the_guarantee():
    more = GUARDED | {STEADY: Rates(2 * GUARANTEE_BPS, GUARANTEE_BPS)}
    assert replace(HELD, guarded=more).faults == []


class Namespace:
    """In place of the lab's dom0: a network namespace of this host, and namespaces in it in place of the guests."""

    def __init__(self) -> None:
        own = (
            "mount -t sysfs sysfs /sys; mkdir -p /run/netns; mount -t tmpfs netns /run/netns; echo; exec sleep infinity"
        )
        self._holder = subprocess.Popen(["unshare", "-n", "-m", "sh", "-c", own], stdout=subprocess.PIPE)
        assert self._holder.stdout
        self._holder.stdout.readline()
        self._senders: list[subprocess.Popen[bytes]] = []

    def shell(self, command: str) -> list[str]:
        return ["nsenter", "-t", str(self._holder.pid), "-n", "-m", "sh", "-c", command]

    def run(self, command: str, text: str = "") -> str:
        done = subprocess.run(self.shell(command), input=text, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sender(self, name: str, rate_pps: float) -> str:
        """The host's end of the interface of a sender, which sends until the end."""
        number, _ = network.SENDERS[name]
        self.run(
            f"ip netns add g-{name}; ip link add vif-{name} type veth peer name eth0 netns g-{name}; "
            f"ip link set vif-{name} master {network.BRIDGE} up; ip -n g-{name} link set eth0 up; "
            f"ip -n g-{name} addr add 198.18.1.{number}/16 dev eth0"
        )
        params = {"to": f"198.18.2.{number}:9", "datagram_bytes": network.FRAME_BYTES - network.HEADERS}
        work = {"kernel": {"name": "udp-send", "params": params | {"rate_pps": rate_pps}}}
        start = {"id": "send", "work": work, "pace": "flat_out", "work_dir": "/tmp"}
        argv = self.shell(f"exec ip netns exec g-{name} {binary.find()} serve > /dev/null")
        self._senders.append(subprocess.Popen(argv, stdin=subprocess.PIPE))
        stdin = self._senders[-1].stdin
        assert stdin
        request = {"jsonrpc": "2.0", "id": 1, "method": "workload.start", "params": start}
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        return f"vif-{name}"

    def end(self) -> None:
        for process in (*self._senders, self._holder):
            process.kill()
            process.communicate()


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and iproute2")
@pytest.mark.usefixtures("ebpf")
@measured
def test_the_labs_network_and_guard_hold_a_flood_when_namespaces_take_the_guests_place(tmp_path, monkeypatch):
    here = Namespace()
    monkeypatch.setattr(network, "SPAN_S", 4)
    monkeypatch.setattr(network, "POLICY", str(tmp_path / "policy.yaml"))
    monkeypatch.setattr(network, "PID", str(tmp_path / "pid"))
    monkeypatch.setattr(network, "GUARD", f"echo $$ > {network.PID} && exec {sys.executable} -m partywall guard")
    try:
        here.run(f"sh -s {LINK_BPS}bit {STEADY} {FLOOD}", (network.HERE / "dom0-network").read_text())
        offered = {STEADY: OFFERED_BPS, FLOOD: 3 * LINK_BPS}
        vifs = {name: here.sender(name, bps / 8 / network.FRAME_BYTES) for name, bps in offered.items()}
        policy = network.policy()
        for name, vif in policy["vifs"].items():
            del vif["domain"]
            vif["interface"] = vifs[name]
        (tmp_path / "policy.yaml").write_text(json.dumps(policy | {"name": f"test-xen-{os.getpid()}"}))
        free = network.measured(here, vifs)
        with network.guarding(here, vifs, print):
            guarded = network.measured(here, vifs)
        left = network.hooks(here, vifs)
        assert Held(free, guarded, network.measured(here, vifs), left, "", "").faults == []
        assert free[STEADY].arrived_bps < 0.9 * OFFERED_BPS, "the flood harms nobody, so nothing is shown"
    finally:
        here.end()
