"""Guests with a network: their kernels find peers, neighbours share a bridge, and a guard holds what a tap brings."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partywall.guard.document import Policy
from partywall.guard.measure.flatten import flatten
from partywall.guard.measure.resolve import resolve
from partywall.guard.measure.run import keep
from partywall.guard.measure.source import AtSource
from partywall.host import Host
from partywall.host.label import Label
from partywall.run.measure.stage import with_peer
from partywall.sandbox import Sandbox, Settings, make, networks, qemu, reaper, switch, vif
from partywall.sandbox.lab import lab, sender
from partywall.study.promises.lab import policy as lab_policy
from tests.guests import ACCEL
from tests.measured import measured
from tests.waiting import until

CEILING_BPS = 4_000_000


def lacking() -> str:
    return switch.lacking(Host.here()) or qemu.lacking(Host.here())


pytestmark = [pytest.mark.host, pytest.mark.skipif(bool(lacking()), reason=f"guests with taps need: {lacking()}")]


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARTYWALL_STATE", str(tmp_path_factory.mktemp("tap") / "state"))
        label = Label.create(f"test-tap-{os.getpid()}", Path("/var/tmp"))
        made = make(
            Settings(name="sender", backend="qemu", accel=ACCEL, cpus=(0,), files=False, interface="bridge"), label
        )
        try:
            made.start(lambda *_: None)
            yield made
        finally:
            made.stop()
            assert vif.find("sender") == []
            reaper.clean(label)
            assert not (networks.NETNS / label.run).exists()


@contextlib.contextmanager
def working(guest: Sandbox, kernel: str, **params: Any) -> Iterator[dict[str, Any]]:
    """Gives a dictionary that afterwards has the facts of the work."""
    assert guest.client
    work = with_peer({"kernel": {"name": kernel, "params": {"to": "peer", **params}}}, guest)
    guest.client.call("workload.start", timeout_s=60, id="w", work=work, pace="flat_out", work_dir=guest.work_dir)
    facts: dict[str, Any] = {}
    try:
        yield facts
    finally:
        facts |= guest.client.call("workload.stop", id="w")["facts"][0]


@pytest.mark.parametrize("kernel", ["udp-request", "tcp-request", "tcp-stream", "udp-send"])
def test_network_kernels_of_a_guest_talk_to_a_peer_behind_its_tap(guest: Sandbox, kernel: str) -> None:
    before = arrived()
    with working(guest, kernel) as facts:
        until(lambda: arrived() > before + 10_000, within_s=60.0)
    assert facts.get("answered", facts.get("sent_bytes")) > 0
    assert facts.get("lost", 0) == 0


def arrived() -> int:
    """Bytes that came through the tap, hooks on it passed: what the bridge itself was given."""
    (result,) = vif.find("sender")
    lines = _in(result, "cat", "/proc/self/net/dev").splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith(f"{switch.BRIDGE}:"))


def _in(result: vif.HostVif, *command: str) -> str:
    argv = ["nsenter", f"--net={result.path}", *command]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def promised(send: dict[str, str]) -> Policy:
    """A policy about the guest's tap alone."""
    return Policy.model_validate(
        {
            "partywall_guard": 1,
            "name": f"test-tap-{os.getpid()}",
            "link": {"capacity": "100Mbit/s"},
            "service_classes": {"only": 1},
            "vifs": {"vm": {"sandbox": "sender", "service_class": "only", "send": send}},
        }
    )


@pytest.mark.usefixtures("ebpf")
@measured
def test_a_guest_behind_a_tap_is_held_by_a_guards_policy_that_names_its_sandbox(guest: Sandbox) -> None:
    policy = promised({"guarantee": "1Mbit/s", "ceiling": f"{CEILING_BPS}bit/s"})
    result = resolve(policy)
    assert (result["vm"].interface, result["vm"].inside) == ("tap1", False)
    with working(guest, "udp-send"):
        free = rate_bps()
        with keep(flatten(policy, result, 50_000_000)) as kept:
            until(lambda: (report := kept.report(1)) and report.rows["vm"]["passed_pps"] > 0, within_s=60.0)
            held = rate_bps()
        freed = rate_bps()
    assert free > 2 * CEILING_BPS, "the guest sends too little for a test"
    assert held < 1.15 * CEILING_BPS
    assert freed > 2 * CEILING_BPS


@pytest.mark.usefixtures("ebpf")
@measured
def test_tcp_of_a_guest_gets_its_promise_although_no_queue_can_stand_before_its_tap(guest: Sandbox) -> None:
    policy = promised({"guarantee": f"{CEILING_BPS}bit/s", "ceiling": f"{CEILING_BPS}bit/s"})
    with working(guest, "tcp-stream"):
        free = rate_bps()
        with keep(flatten(policy, resolve(policy), 50_000_000)) as kept:
            until(lambda: (report := kept.report(1)) and report.rows["vm"]["passed_pps"] > 0, within_s=60.0)
            # The connection first has to learn of its limit.
            until(lambda: rate_bps() < 1.15 * CEILING_BPS, within_s=60.0)
            held = rate_bps(seconds=5)
    assert free > 2 * CEILING_BPS, "the guest sends too little for a test"
    assert 0.95 * CEILING_BPS < held < 1.05 * CEILING_BPS


@pytest.mark.usefixtures("ebpf")
@measured
def test_tenants_of_a_lab_can_be_guests_whose_promises_are_kept_at_their_taps() -> None:
    with lab(["vm"], "50mbit", accel=ACCEL) as made, sender(made, "vm", 1514, None):
        assert made.emulated == (ACCEL == "tcg")
        until(lambda: made.read().packets["vm"] > 100, within_s=60.0)
        written = lab_policy(made, {"vm": {"send": {"ceiling": f"{CEILING_BPS}bit/s"}}}, "50Mbit/s")
        policy = Policy.model_validate(written)
        with keep(flatten(policy, resolve(policy), 50_000_000)) as kept:
            until(lambda: (report := kept.report(1)) and report.rows["vm"]["dropped_packets"] > 0, within_s=60.0)
            before, given = made.read(), made.given()
            until(lambda: made.read().bytes["vm"] > before.bytes["vm"] + CEILING_BPS // 8, within_s=60.0)
            (bps, _), after = before.rates(made.read())["vm"], made.given()
    assert bps < 1.15 * CEILING_BPS
    assert after["vm"] - given["vm"] > 1.5 * bps / 8 / 1514, "the guest offers too little for a test"
    assert not (networks.NETNS / made.namespace("switch")).exists()


@pytest.mark.usefixtures("ebpf")
@measured
def test_excess_packets_can_stop_in_the_guest_and_its_hook_is_gone_afterwards() -> None:
    with lab(["vm"], "50mbit", accel=ACCEL) as made, sender(made, "vm", 1514, None) as client:
        until(lambda: made.read().packets["vm"] > 100, within_s=60.0)
        vif = {"send": {"ceiling": f"{CEILING_BPS}bit/s"}, "source": "guest/eth0"}
        policy = Policy.model_validate(lab_policy(made, {"vm": vif}, "50Mbit/s"))
        flat = flatten(policy, resolve(policy), 50_000_000)
        with keep(flat, sources={"vm": AtSource("eth0", client)}) as kept:
            # Until the guest has its queue, it drops.
            until(lambda: (report := kept.report(1)) and report.rows["vm"]["passed_pps"] > 0, within_s=60.0)
            before, given = made.read(), made.given()
            until(lambda: made.read().bytes["vm"] > before.bytes["vm"] + CEILING_BPS // 4, within_s=60.0)
            report = kept.report(5)
            assert report is not None
            assert report.notes == ()
            (bps, pps), sent = before.rates(made.read())["vm"], made.given()["vm"] - given["vm"]
            arrived = made.read().packets["vm"] - before.packets["vm"]
            assert kept.notes() == []
        assert 0.8 * CEILING_BPS < bps < 1.15 * CEILING_BPS
        assert pps > 0
        assert sent < 1.1 * arrived + 20, "what exceeds the ceiling stops in the guest"
        begun = made.given()["vm"]
        until(lambda: made.given()["vm"] > begun + 3 * CEILING_BPS / 8 / 1514, within_s=60.0)
        assert client.call("guard.remove", id=policy.name, hooks=[])["removed"] == []


def rate_bps(seconds: float = 1) -> float:
    """What came through in some seconds, after what waited in buckets and queues is gone."""
    begun = arrived()
    until(lambda: arrived() > begun + CEILING_BPS // 8 // 4, within_s=60.0)
    first, at_ns = arrived(), time.monotonic_ns()
    until(lambda: time.monotonic_ns() > at_ns + seconds * 1e9, within_s=60.0)
    return (arrived() - first) * 8e9 / (time.monotonic_ns() - at_ns)
