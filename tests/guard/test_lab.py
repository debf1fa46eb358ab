"""A guard under load, in a lab: what waits, what is dropped, and what a goal in delay does."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from partywall import guard, pipeline
from partywall.guard import delay
from partywall.guard.lab import Lab, ip, lab, policy, sender, tc
from partywall.guard.run import Kept, Report
from partywall.model.policy import Policy
from partywall.sandbox.networks import NETNS

pytestmark = pytest.mark.host
REPORT_NS = 100_000_000


@pytest.fixture(scope="module", autouse=True)
def able() -> None:
    if os.geteuid() != 0:
        pytest.skip("root")
    if not all(shutil.which(tool) for tool in ("ip", "tc", "bridge")):
        pytest.skip("iproute2")
    if any(missing["what"] == "eBPF programs" for missing in pipeline.host_facts()["missing"]):
        pytest.skip("an agent built with clang, for eBPF programs")


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))


def flat(made: Lab, vifs: dict[str, Any], capacity: str, **more: Any) -> guard.Flat:
    asked = Policy.model_validate(policy(made, vifs, capacity) | more)
    return guard.flatten(asked, guard.resolve(asked), REPORT_NS, guard.resolve_link(asked))


def until(kept: Kept, condition: Callable[[Report], bool], deadline_s: float = 30) -> Report:
    """The first report of which it is true."""
    deadline = time.monotonic() + deadline_s
    seen = None
    while time.monotonic() < deadline:
        seen = kept.report(1) or seen
        if seen and condition(seen):
            return seen
    raise AssertionError(f"no such report within {deadline_s} s; the last: {seen}")


def test_a_sender_of_datagrams_waits_for_its_turn_instead_of_being_dropped() -> None:
    def waits(report: Report) -> bool:
        row = report.rows["vm"]
        return row["dropped_packets"] == 0 and abs(row["passed_bps"] / 80e6 - 1) < 0.03

    vm = {"send": {"ceiling": "80Mbit/s"}}
    with lab(["vm"]) as made, sender(made, "vm", 1514, None), guard.keep(flat(made, {"vm": vm}, "1Gbit/s")) as kept:
        seen = until(kept, waits)
        assert 0 < seen.rows["vm"]["delay_ns"] <= 25_000_000
        assert "tbf" in tc(made.namespace("vm"), "qdisc", "show", "dev", "eth0")


def test_a_limit_of_packets_holds_whatever_their_size() -> None:
    vm = {"send": {"guarantee": "100Mbit/s", "packets": "10k/s"}}
    with lab(["vm"]) as made, sender(made, "vm", 64, None), guard.keep(flat(made, {"vm": vm}, "1Gbit/s")) as kept:
        seen = until(kept, lambda report: abs(report.rows["vm"]["passed_pps"] / 10e3 - 1) < 0.03)
        assert seen.rows["vm"]["granted_pps"] == 10_000


@pytest.fixture
def crowded() -> Iterator[Lab]:
    """A link that carries a sixth less than its policy says."""
    with lab(["a", "b"], "50mbit") as made, sender(made, "a", 1514, 5000), sender(made, "b", 1514, 5000):
        yield made


GOLD = {"service_classes": {"gold": {"priority": 2, "delay": "4ms"}, "silver": 1}}


def test_a_goal_in_delay_takes_from_what_is_lent_until_it_holds(crowded: Lab) -> None:
    vifs = {"a": {"service_class": "gold", "send": {"guarantee": "10Mbit/s"}}, "b": {"send": {"guarantee": "10Mbit/s"}}}
    with guard.keep(flat(crowded, vifs, "60Mbit/s", **GOLD)) as kept:
        until(kept, lambda report: (report.pools["send"]["delay_ns"] or 0) > 4_000_000)
        seen = until(kept, lambda report: report.pools["send"]["delay_ns"] < 2_000_000)
        assert seen.pools["send"]["divided_bps"] < 60e6
        assert not seen.notes


def test_a_goal_that_guarantees_forbid_is_told(crowded: Lab) -> None:
    vifs = {"a": {"service_class": "gold", "send": {"guarantee": "29Mbit/s"}}, "b": {"send": {"guarantee": "29Mbit/s"}}}
    with guard.keep(flat(crowded, vifs, "60Mbit/s", **GOLD)) as kept:
        seen = until(kept, lambda report: bool(report.notes))
        assert [(about, kind) for about, kind, _ in seen.notes] == [("gold", "unmet")]
        assert "its goal 4.00 ms" in seen.notes[0][2]


TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000


def open_tap(name: str) -> Any:
    if not Path("/dev/net/tun").exists():
        pytest.skip("/dev/net/tun")
    file = Path("/dev/net/tun").open("r+b", buffering=0)  # noqa: SIM115 - the test closes it
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    os.set_blocking(file.fileno(), False)
    return file


def test_what_a_machine_sends_through_its_tap_is_held_to_its_ceiling() -> None:
    """A program that writes frames into a tap is, for the host, a virtual machine."""
    with lab(["vm"]) as made:
        inside = made.namespace("vm")
        tap = delay.in_namespace(NETNS / inside, lambda: open_tap("tap0"))
        try:
            ip("-n", inside, "link", "set", "tap0", "up")
            vm = {"interface": "tap0", "side": "outside", "send": {"ceiling": "8Mbit/s"}}
            with guard.keep(flat(made, {"vm": vm}, "1Gbit/s")) as kept:
                assert kept.excess == {"vm": "dropped"}
                frame = b"\xff" * 6 + b"\x02" + b"\x00" * 5 + b"\x88\xb5" + b"x" * 986
                begun = time.monotonic()
                written, passed = 0, 0
                while time.monotonic() - begun < 0.6:
                    written += tap.write(frame) == len(frame)
                ended = time.monotonic() + 3 * REPORT_NS / 1e9
                while time.monotonic() < ended:
                    if (report := kept.report(0.1)) is not None:
                        passed += report.rows["vm"]["passed_pps"] * (report.at_ns - report.from_ns) / 1e9
                most = 8e6 * (0.6 + 0.01) / 8 / len(frame) + 2
                assert 0.5 * most < passed <= most * 1.05 + 5
                assert written > 2 * passed
        finally:
            tap.close()
