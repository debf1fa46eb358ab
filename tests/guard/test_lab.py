"""A guard under load, in a lab: what waits, what is dropped, and what a goal in delay does."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from partywall.errors import AgentError, TrialError
from partywall.guard.document import Policy
from partywall.guard.measure.flatten import Flat, flatten
from partywall.guard.measure.resolve import resolve, resolve_links
from partywall.guard.measure.run import Kept, keep, remove
from partywall.guard.record import GuardInterval
from partywall.sandbox.lab import Lab, ip, lab, sender, tc
from partywall.sandbox.networks import NETNS, in_namespace
from partywall.study.promises.lab import policy
from tests.measured import measured

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("guarded_lab", "own_state")]
REPORT_NS = 100_000_000


def flat(made: Lab, vifs: dict[str, Any], capacity: str, **more: Any) -> Flat:
    requested = Policy.model_validate(policy(made, vifs, capacity) | more)
    return flatten(requested, resolve(requested), REPORT_NS, resolve_links(requested))


def until(kept: Kept, condition: Callable[[GuardInterval], bool], deadline_s: float = 30) -> GuardInterval:
    """The first report of which it is true."""
    deadline = time.monotonic() + deadline_s
    seen = None
    while time.monotonic() < deadline:
        seen = kept.report(1) or seen
        if seen and condition(seen):
            return seen
    raise AssertionError(f"no such report within {deadline_s} s; the last: {seen}")


@pytest.fixture
def has_fq() -> bool:
    tried = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "fq"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.fixture(params=["fq", "tbf"])
def queue(request: pytest.FixtureRequest, has_fq: bool) -> str:
    if request.param == "fq" and not has_fq:
        pytest.skip("the kernel has no fq")
    return str(request.param)


def queues(made: Lab) -> str:
    return tc(made.namespace("vm"), "qdisc", "show", "dev", "eth0")


@measured
def test_a_sender_of_datagrams_waits_for_its_turn_instead_of_being_dropped(queue: str) -> None:
    def waits(report: GuardInterval) -> bool:
        row = report.rows["vm"]
        return row["dropped_packets"] == 0 and abs(row["passed_bps"] / 80e6 - 1) < 0.03

    vm = {"send": {"ceiling": "80Mbit/s"}}
    with (
        lab(["vm"]) as made,
        sender(made, "vm", 1514, None),
        keep(flat(made, {"vm": vm}, "1Gbit/s", queue=queue)) as kept,
    ):
        assert kept.queue == queue
        seen = until(kept, waits)
        assert 0 < seen.rows["vm"]["delay_ns"] <= 25_000_000
        assert f"qdisc {queue} " in queues(made)


def test_a_sender_whose_buffer_is_larger_than_its_queue_does_not_wait() -> None:
    """Its own interface carries 413 of 3000 packets/s."""
    handed = {}
    with lab(["vm"]) as made:
        tbf = ("tbf", "rate", "5mbit", "burst", "256k", "latency", "2s")
        tc(made.namespace("vm"), "qdisc", "replace", "dev", "eth0", "root", *tbf)
        for size in (None, 64 << 20):
            with sender(made, "vm", 1514, 3000, send_buffer_bytes=size):
                time.sleep(0.5)
                first = made.handed("vm")
                time.sleep(0.5)
                handed[size] = (made.handed("vm") - first) / 0.5
    assert handed[None] < 1500
    assert handed[64 << 20] > 2000


def test_without_a_wish_packets_wait_in_fq_if_the_kernel_has_it(has_fq: bool) -> None:
    with lab(["vm"]) as made, keep(flat(made, {"vm": {}}, "1Gbit/s")) as kept:
        assert kept.queue == ("fq" if has_fq else "tbf")


def test_a_wish_for_fq_that_the_kernel_cannot_fulfil_is_refused_by_name(has_fq: bool) -> None:
    if has_fq:
        pytest.skip("the kernel has fq")
    with (
        lab(["vm"]) as made,
        pytest.raises(AgentError, match="has no fq"),
        keep(flat(made, {"vm": {}}, "1Gbit/s", queue="fq")),
    ):
        pass


def test_a_guard_that_starts_again_puts_its_own_kind_of_queue_in_place_of_the_other(queue: str) -> None:
    if queue == "tbf":
        pytest.skip("the other kind is needed too")
    vms = {"vm": {"send": {"ceiling": "20Mbit/s"}}}
    with lab(["vm"]) as made, sender(made, "vm", 1514, None):
        for kind in ("fq", "tbf", "fq"):
            with keep(flat(made, vms, "1Gbit/s", queue=kind), leave=True) as kept:
                until(kept, lambda _, kind=kind: f"qdisc {kind} " in queues(made))
        with keep(flat(made, vms, "1Gbit/s")):
            pass
        assert "qdisc noqueue" in queues(made)


# A sender that waits for a CPU does not lose what it could have sent meanwhile.
PATIENT = {"burst": "200ms"}


def test_a_limit_of_packets_holds_whatever_their_size() -> None:
    vm = {"send": {"guarantee": "100Mbit/s", "packets": "10k/s"}}
    with (
        lab(["vm"]) as made,
        sender(made, "vm", 64, None),
        keep(flat(made, {"vm": vm}, "1Gbit/s", **PATIENT)) as kept,
    ):
        seen = until(kept, lambda report: abs(report.rows["vm"]["passed_pps"] / 10e3 - 1) < 0.03)
        assert seen.rows["vm"]["granted_pps"] == 10_000


@pytest.fixture
def crowded() -> Iterator[Lab]:
    """A link that carries a sixth less than its policy says."""
    with lab(["a", "b"], "50mbit") as made, sender(made, "a", 1514, 5000), sender(made, "b", 1514, 5000):
        yield made


GOLD = {"service_classes": {"gold": {"priority": 2, "delay": "4ms"}, "silver": 1}}


@measured
def test_a_goal_in_delay_takes_from_what_is_lent_until_it_holds(crowded: Lab) -> None:
    vifs = {"a": {"service_class": "gold", "send": {"guarantee": "10Mbit/s"}}, "b": {"send": {"guarantee": "10Mbit/s"}}}
    with keep(flat(crowded, vifs, "60Mbit/s", **GOLD)) as kept:
        until(kept, lambda report: (report.pools["send"]["delay_ns"] or 0) > 4_000_000)
        seen = until(kept, lambda report: report.pools["send"]["delay_ns"] < 2_000_000)
        assert seen.pools["send"]["divided_bps"] < 60e6
        assert not seen.notes


def test_a_goal_that_guarantees_forbid_is_reported(crowded: Lab) -> None:
    vifs = {"a": {"service_class": "gold", "send": {"guarantee": "29Mbit/s"}}, "b": {"send": {"guarantee": "29Mbit/s"}}}
    with keep(flat(crowded, vifs, "60Mbit/s", **GOLD)) as kept:
        seen = until(kept, lambda report: bool(report.notes))
        assert [(about, kind) for about, kind, _ in seen.notes] == [("gold", "unmet")]
        assert "its goal 4.00 ms" in seen.notes[0][2]


TUNSETIFF, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D8
IFF_TUN, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x1, 0x2, 0x1000, 0x4000
VNET_HEADER = 10


def open_tun(name: str, flags: int) -> Any:
    if not Path("/dev/net/tun").exists():
        pytest.skip("/dev/net/tun")
    file = Path("/dev/net/tun").open("r+b", buffering=0)  # noqa: SIM115 - the test closes it
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags | IFF_NO_PI))
    os.set_blocking(file.fileno(), False)
    return file


@contextlib.contextmanager
def machine(made: Lab) -> Iterator[Any]:
    """A program that writes frames into a tap, as QEMU does, is for the host a virtual machine."""

    def tap() -> Any:
        file = open_tun("tap0", IFF_TAP | IFF_VNET_HDR)
        fcntl.ioctl(file, TUNSETVNETHDRSZ, struct.pack("i", VNET_HEADER))
        return file

    inside = made.namespace("vm")
    file = in_namespace(NETNS / inside, tap)
    try:
        ip("-n", inside, "link", "set", "tap0", "up")
        yield file
    finally:
        file.close()


def passed(kept: Kept, vif: str = "vm") -> tuple[float, float]:
    """Packets and bytes that passed by the end of some reports."""
    packets, bytes_ = 0.0, 0.0
    ended = time.monotonic() + 3 * REPORT_NS / 1e9
    while time.monotonic() < ended:
        if (report := kept.report(0.1)) is not None:
            seconds = (report.at_ns - report.from_ns) / 1e9
            packets += report.rows[vif]["passed_pps"] * seconds
            bytes_ += report.rows[vif]["passed_bps"] / 8 * seconds
    return packets, bytes_


def test_what_a_machine_sends_through_its_tap_is_held_to_its_ceiling() -> None:
    vm = {"interface": "tap0", "side": "outside", "send": {"ceiling": "8Mbit/s"}}
    with lab(["vm"]) as made, machine(made) as tap, keep(flat(made, {"vm": vm}, "1Gbit/s", **PATIENT)) as kept:
        assert kept.excess == {"vm": "tcp_held"}
        frame = b"\xff" * 6 + b"\x02" + b"\x00" * 5 + b"\x88\xb5" + b"x" * 986
        begun = time.monotonic()
        written = 0
        while time.monotonic() - begun < 0.6:
            written += tap.write(bytes(VNET_HEADER) + frame) == VNET_HEADER + len(frame)
        packets, _ = passed(kept)
        most = 8e6 * (0.6 + 0.2) / 8 / len(frame) + 2
        assert 0.5 * most < packets <= most * 1.05 + 5
        assert written > 2 * packets


def large_segment() -> bytes:
    """Forty segments of TCP in one frame, as a guest hands them over that leaves cutting to the host."""
    data = b"z" * (1448 * 40)
    tcp = struct.pack("!HHIIBBHHH", 1000, 2000, 1, 0, 5 << 4, 0x10, 100, 0, 0)
    address = bytes([10, 0, 0, 9]), bytes([10, 0, 0, 10])
    bare = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40 + len(data), 1, 0x4000, 64, 6, 0, *address)
    total = sum(struct.unpack("!10H", bare))
    folded = (total & 0xFFFF) + (total >> 16)
    header = bare[:10] + struct.pack("!H", ~(folded + (folded >> 16)) & 0xFFFF) + bare[12:]
    ethernet = bytes.fromhex("02000000000102000000000a0800")
    needs_sum, tcp4 = 1, 1
    vnet = struct.pack("<BBHHHH", needs_sum, tcp4, 54, 1448, 34, 16)
    return vnet + ethernet + header + tcp + data


def test_a_machines_large_segments_count_as_the_packets_they_will_be() -> None:
    vm = {"interface": "tap0", "side": "outside", "send": {"guarantee": "900Mbit/s", "packets": "200/s"}}
    with lab(["vm"]) as made, machine(made) as tap, keep(flat(made, {"vm": vm}, "1Gbit/s")) as kept:
        frame = large_segment()
        rates = []
        begun = time.monotonic()
        for second in (1, 2):
            while time.monotonic() - begun < second:
                assert tap.write(frame) == len(frame)
                time.sleep(0.01)
            rates.append(passed(kept))
    (first, _), (packets, bytes_) = rates
    # At its start three frames of forty may wait, and the bucket may go into debt by one.
    assert 40 <= first <= 1.1 * 200 + 4 * 40
    assert 40 <= packets <= 1.1 * 200 + 40
    assert bytes_ == pytest.approx(packets * (1448 + 54), rel=0.01)


def test_packets_of_a_tunnel_that_carries_bare_ip_arrive_unchanged() -> None:
    ect = 2
    with lab(["vm"]) as made:
        inside = made.namespace("vm")
        tun = in_namespace(NETNS / inside, lambda: open_tun("tun0", IFF_TUN))
        try:
            ip("-n", inside, "addr", "add", "10.0.0.1/24", "dev", "tun0")
            ip("-n", inside, "link", "set", "tun0", "up")
            sender = in_namespace(NETNS / inside, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ect)
            vm = {"interface": "tun0", "excess": "drop", "send": {"ceiling": "2Mbit/s"}}
            vm["flows"] = {"port": {"protocol": "udp", "ports": "9", "ceiling": "2Mbit/s"}}
            seen: Counter[tuple[str, str, int]] = Counter()
            with keep(flat(made, {"vm": vm}, "1Gbit/s")) as kept:
                for _ in range(400):
                    sender.sendto(b"x" * 1000, ("10.0.0.2", 9))
                    time.sleep(0.001)
                    with contextlib.suppress(BlockingIOError):
                        while packet := tun.read(65536):
                            if packet[0] >> 4 == 4:
                                ends = [socket.inet_ntoa(packet[at : at + 4]) for at in (12, 16)]
                                seen[ends[0], ends[1], packet[1]] += 1
                packets, _ = passed(kept, "vm:port")
            sender.close()
        finally:
            tun.close()
    marked = ect | 3
    assert set(seen) <= {("10.0.0.1", "10.0.0.2", ect), ("10.0.0.1", "10.0.0.2", marked)}
    assert seen["10.0.0.1", "10.0.0.2", marked] > 0
    # Told by its port, so the header was found.
    assert packets > 0
    assert sum(seen.values()) < 200


PACKET_QDISC_BYPASS = 20


def raw_sender() -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(263, PACKET_QDISC_BYPASS, 1)
    made.bind(("eth0", 0))
    return made


def send_raw(made: socket.socket, seconds: float, pause_s: float = 0.002) -> None:
    frame = bytes.fromhex("02000000000102000000000a0800") + b"\x45" + b"\0" * 1499
    ended = time.monotonic() + seconds
    while time.monotonic() < ended:
        for _ in range(20):
            made.send(frame)
        time.sleep(pause_s)


def counted(made: Lab, vif: str, port: str, what: str) -> int:
    shown = json.loads(ip("-n", made.namespace(vif), "-s", "-j", "link", "show", port))[0]["stats64"]
    return int(shown[what]["bytes"])


@measured
def test_who_goes_round_the_hook_with_raw_frames_is_reported_and_held_at_the_interfaces_other_end() -> None:
    with lab(["vm"], None) as made:
        vm = {"send": {"ceiling": "5Mbit/s"}}
        with keep(flat(made, {"vm": vm}, "1Gbit/s")) as kept:
            assert kept.without_backstop == ()
            out = in_namespace(NETNS / made.namespace("vm"), raw_sender)
            before = counted(made, "far", "uplink", "rx")
            begun = time.monotonic()
            send_raw(out, 1.5)
            through = (counted(made, "far", "uplink", "rx") - before) * 8
            seconds = time.monotonic() - begun
            out.close()
            assert through <= 5e6 * seconds * 1.1 + 4e6
            seen = until(kept, lambda report: bool(report.notes))
            assert [(vif, kind) for vif, kind, _ in seen.notes] == [("vm", "bypassed")]
        shown = tc(made.namespace("switch"), "filter", "show", "dev", "p1", "ingress")
        assert "partywall" not in shown


def test_an_interface_made_again_is_hooked_before_the_next_look() -> None:
    with lab(["vm"]) as made:
        inside = made.namespace("vm")
        ip("-n", inside, "link", "add", "new0", "type", "veth", "peer", "name", "peer0")
        vm = {"interface": "new0", "send": {"ceiling": "5Mbit/s"}}
        requested = flat(made, {"vm": vm}, "1Gbit/s")
        requested.start["check_ns"] = 3600 * 10**9
        with keep(requested) as kept:
            ip("-n", inside, "link", "del", "new0")
            ip("-n", inside, "link", "add", "new0", "type", "veth", "peer", "name", "peer0")
            seen = until(kept, lambda report: any(kind == "repaired" for _, kind, _ in report.notes))
            assert "recreated" in str(seen.notes)
            assert "partywall_guard" in tc(inside, "filter", "show", "dev", "new0", "egress")


@measured
def test_who_owes_much_at_next_to_nothing_is_not_shut_out_once_he_is_granted_more() -> None:
    vifs = {
        "gold": {"service_class": "gold", "excess": "drop"},
        "silver": {"excess": "drop"},
    }
    with lab(list(vifs)) as made, keep(flat(made, vifs, "20Mbit/s")) as kept:
        with sender(made, "gold", 1514, 4000):
            until(kept, lambda report: report.rows["silver"]["granted_bps"] < 1e6)
            # 57 KB at once: minutes at what is granted now.
            with sender(made, "silver", 1514, 20_000):
                until(kept, lambda report: report.rows["silver"]["offered_bps"] > 20e6)
        with sender(made, "silver", 1514, 800):
            result = until(kept, lambda report: report.rows["silver"]["granted_bps"] > 9.5e6)
            served = until(kept, lambda report: report.rows["silver"]["passed_bps"] > 9e6)
            assert served.at_ns - result.at_ns < 500_000_000


def test_a_death_leaves_tcp_a_queue_at_its_guarantee_and_no_process_stays(queue: str) -> None:
    vifs = {"vm": {"send": {"guarantee": "20Mbit/s", "ceiling": "80Mbit/s"}}}

    def fallback_processes() -> list[int]:
        lines = {path: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()}
        return [
            int(path.parent.name) for path, line in lines.items() if line.startswith(b"partywall-agent\0guard-fallback")
        ]

    with lab(["vm"]) as made:
        requested = flat(made, vifs, "100Mbit/s", fallback_after="200ms", queue=queue)
        with keep(requested, leave=True) as kept:
            (process,) = map(os.pidfd_open, fallback_processes())
            assert queue not in queues(made)
            kept.client.process.kill()
            kept.client.process.wait()
            ended, _, _ = select.select([process], [], [], 5)
            os.close(process)
            assert ended
        assert not fallback_processes()
        (there,) = (line for line in queues(made).splitlines() if f"qdisc {queue} " in line)
        # The hook gives the departure times of the guarantee by itself.
        assert ("rate 19996Kbit" if queue == "tbf" else "nopacing") in there, there
        remove(requested.start["id"], requested.start["hooks"])
        assert queue not in queues(made)
        # Where all is taken away nobody may put anything there meanwhile.
        with keep(requested):
            assert len(fallback_processes()) == 1
        assert not fallback_processes()


@contextlib.contextmanager
def stream(
    made: Lab, name: str, address: str | None = None, mss: int | None = None, control: str | None = None
) -> Iterator[None]:
    """A TCP connection from a tenant to its sink that sends as fast as it can. control: its congestion control."""
    inside, sink = (NETNS / made.namespace(space) for space in (name, f"{name}-sink"))
    end = (address or made.address(name, counted=False), 5001)
    listener = in_namespace(sink, lambda: socket.create_server(end))
    if mss:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
    ended = threading.Event()
    peers: list[socket.socket] = []

    def receive() -> None:
        peers.append(listener.accept()[0])
        # The sender ends with a reset if it is cut off.
        with contextlib.suppress(ConnectionError), peers[0]:
            while peers[0].recv(1 << 18):
                pass

    def send() -> None:
        with contextlib.suppress(OSError), sending:
            while not ended.is_set():
                sending.send(bytes(1 << 16))

    receiver = threading.Thread(target=receive)
    receiver.start()
    sending = in_namespace(inside, lambda: socket.create_connection(end, 10))
    if control:
        sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    sending.settimeout(5)
    sender_ = threading.Thread(target=send)
    sender_.start()
    try:
        yield
    finally:
        ended.set()
        sender_.join()
        # What still waits for a slow queue would arrive minutes later.
        with contextlib.suppress(OSError):
            peers[0].shutdown(socket.SHUT_RDWR)
        receiver.join()
        listener.close()


def has_control(name: str) -> bool:
    with socket.socket() as tried, contextlib.suppress(OSError):
        tried.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        return True
    return False


def capped_beside_guarantee(made: Lab, queue: str) -> Flat:
    """Two vifs whose shares of 30 Mbit/s are 25 and 5, if both want all they may have."""
    promises = {"large": {"guarantee": "20Mbit/s"}, "small": {"ceiling": "5Mbit/s"}}
    switch = made.namespace("switch")
    vifs = {
        name: {"interface": made.port(name), "namespace": switch, "side": "outside", "send": promise}
        for name, promise in promises.items()
    }
    return flat(made, vifs, "30Mbit/s", queue=queue)


@pytest.mark.parametrize("control", ["reno", "cubic", "bbr"])
def test_tcp_below_a_ceiling_gets_it_beside_a_guarantee(control: str, queue: str) -> None:
    """BBR got 0.3 of 5 Mbit/s, and its packets waited for half a minute, because only arrivals counted as demand."""
    if not has_control(control):
        pytest.skip(f"the kernel has no {control}")
    seconds, shares, waited = 2, {"large": 25e6, "small": 5e6}, []
    recent: list[GuardInterval] = []

    def all_served(report: GuardInterval) -> bool:
        recent.append(report)
        waited.extend(text for _, kind, text in report.notes if kind == "waited")
        last = recent[-seconds * 1_000_000_000 // REPORT_NS :]
        means = {name: sum(each.rows[name]["passed_bps"] for each in last) / len(last) for name in shares}
        return len(recent) > len(last) and all(0.9 < means[name] / share < 1.1 for name, share in shares.items())

    with (
        lab(["large", "small"]) as made,
        keep(capped_beside_guarantee(made, queue)) as kept,
        stream(made, "large", control=control),
        stream(made, "small", control=control),
    ):
        until(kept, all_served)
    assert not waited


def test_packets_that_wait_for_too_long_are_a_finding() -> None:
    """The rule of arrivals holds a sender back for seconds; the check of waits does not depend on the rule."""
    if not has_control("bbr"):
        pytest.skip("the kernel has no bbr")
    with lab(["large", "small"]) as made:
        requested = capped_beside_guarantee(made, "tbf")
        requested = dataclasses.replace(requested, start={**requested.start, "demand": "arrived"})
        with (
            keep(requested) as kept,
            stream(made, "large", control="bbr"),
            stream(made, "small", control="bbr"),
        ):
            seen = until(kept, lambda report: any(kind == "waited" for _, kind, _ in report.notes))
    (text,) = {text for name, kind, text in seen.notes if kind == "waited" and name == "small"}
    assert "may wait 355 ms" in text


FAR = "10.10.0.2"


def vxlan(made: Lab, name: str) -> None:
    """A tunnel between a tenant and its sink, which has FAR at its end."""
    ends = {
        name: (f"10.9.1.{1 + made.names.index(name)}", "10.10.0.1"),
        f"{name}-sink": (made.address(name, counted=False), FAR),
    }
    for (space, (local, inner)), (remote, _) in zip(ends.items(), reversed(ends.values()), strict=True):
        there = made.namespace(space)
        number = ["id", "7", "dstport", "4789", "local", local, "remote", remote]
        try:
            ip("-n", there, "link", "add", "vxlan0", "type", "vxlan", *number, "dev", "eth0")
        except TrialError as why:
            pytest.skip(str(why))
        ip("-n", there, "addr", "add", f"{inner}/24", "dev", "vxlan0")
        ip("-n", there, "link", "set", "vxlan0", "up")


def test_segments_in_a_tunnel_count_with_every_header_that_the_link_carries() -> None:
    """Two thirds of it counted, when only the outer headers did."""
    with lab(["vm"]) as made:
        switch = made.namespace("switch")
        # The link takes single segments only, so its counter has their headers.
        ip("-n", switch, "link", "set", "nic", "gso_max_segs", "1")
        vxlan(made, "vm")
        with keep(flat(made, {"vm": {"send": {"ceiling": "50Mbit/s"}}}, "1Gbit/s")) as kept:
            before = counted(made, "switch", "nic", "tx")
            with stream(made, "vm", FAR, mss=112):
                time.sleep(2)
            packets, bytes_ = passed(kept)
            carried = counted(made, "switch", "nic", "tx") - before
    assert packets > 500
    assert bytes_ == pytest.approx(carried, rel=0.02)


def detours(space: str) -> list[str]:
    return [link["ifname"] for link in json.loads(ip("-n", space, "-j", "link", "show", "type", "ifb")) if link]


@pytest.mark.parametrize("place", ["host end", "received", "drop", "host end, in a tunnel"])
def test_tcp_waits_where_only_a_hook_can_be_and_nothing_is_left(place: str) -> None:
    """Without a queue, TCP gets some 6 % of its promise here."""
    promise = {"guarantee": "20Mbit/s", "ceiling": "20Mbit/s"}
    place, _, tunnel = place.partition(", ")
    with lab(["vm"]) as made:
        if tunnel:
            vxlan(made, "vm")
        switch, sink = made.namespace("switch"), made.namespace("vm-sink")
        outside = {"interface": made.port("vm"), "namespace": switch, "side": "outside"}
        vif, space, row = {
            "host end": (outside | {"send": promise}, switch, "vm"),
            "received": ({"interface": "eth0", "namespace": sink, "receive": promise}, sink, "vm (receives)"),
            "drop": ({"excess": "drop", "send": promise}, "", "vm"),
        }[place]  # fmt: skip
        requested = flat(made, {"vm": vif}, "100Mbit/s")
        with keep(requested) as kept:
            assert kept.excess[row] == "tcp_held"
            assert not space or detours(space) == []
            with stream(made, "vm", FAR if tunnel else None):
                shares = []

                def holds(report: GuardInterval) -> bool:
                    """Half a second in a row."""
                    shares.append(report.rows[row]["passed_bps"] / 20e6)
                    return len(shares) >= 5 and all(0.9 < share < 1.1 for share in shares[-5:])

                until(kept, holds)
                if space:
                    (detour,) = detours(space)
                    ip("-n", space, "link", "del", detour)
                    until(kept, lambda report: any(kind == "repaired" for _, kind, _ in report.notes))
                    shares.clear()
                    until(kept, holds)
        assert not space or detours(space) == []
        assert "tbf" not in queues(made)


@contextlib.contextmanager
def tcp_into_a_ceiling() -> Iterator[tuple[Lab, Kept]]:
    """A connection that fills the queue behind the detour of a receiving namespace."""
    promise = {"guarantee": "20Mbit/s", "ceiling": "20Mbit/s"}
    with lab(["vm"]) as made:
        vif = {"interface": "eth0", "namespace": made.namespace("vm-sink"), "receive": promise}
        with keep(flat(made, {"vm": vif}, "100Mbit/s")) as kept, stream(made, "vm"):
            until(kept, lambda report: report.rows["vm (receives)"]["delay_ns"] > 1_000_000)
            yield made, kept


def test_a_peer_is_found_again_beside_tcp_that_fills_its_ceiling() -> None:
    """Otherwise the connection stops when the kernel asks for the peer's address anew."""
    with tcp_into_a_ceiling() as (made, _):
        sink, result = made.namespace("vm-sink"), 0
        (peer, *_) = json.loads(ip("-n", sink, "-j", "neigh", "show", "dev", "eth0"))
        for _ in range(20):
            ip("-n", sink, "neigh", "del", peer["dst"], "dev", "eth0")
            time.sleep(0.1)
            entries = json.loads(ip("-n", sink, "-j", "neigh", "show", "dev", "eth0"))
            result += any(entry["dst"] == peer["dst"] and "lladdr" in entry for entry in entries)
        assert result >= 19


@pytest.mark.parametrize("flooded", [False, True])
@measured
def test_few_datagrams_arrive_beside_tcp_and_a_flood_takes_little_of_it(flooded: bool) -> None:
    def receive() -> int:
        count = 0
        with contextlib.suppress(TimeoutError):
            while receiver.recv(2048):
                count += 1
        return count

    with tcp_into_a_ceiling() as (made, kept):
        address = made.address("vm", counted=False)
        inside, sink = NETNS / made.namespace("vm"), NETNS / made.namespace("vm-sink")
        receiver = in_namespace(sink, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sending = in_namespace(inside, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with receiver, sending:
            receiver.bind((address, 5002))
            receiver.settimeout(1)
            size, gap_s, count = (1400, 0.0002, 10_000) if flooded else (100, 0.02, 100)
            shares: list[float] = []
            for _ in range(count):
                sending.sendto(bytes(size), (address, 5002))
                time.sleep(gap_s)
                if report := kept.report(0):
                    shares.append(report.rows["vm (receives)"]["passed_bps"] / 20e6)
            arrived = receive()
    if flooded:
        # Its share is 1/16 of the rate, some 1.25 Mbit/s.
        span_s = count * gap_s
        assert arrived * size * 8 / span_s < 0.1 * 20e6
        assert sum(shares) / len(shares) > 0.9
    else:
        assert arrived >= 0.95 * count


@measured
def test_tcp_at_a_small_ceiling_is_not_reported_to_exceed_it() -> None:
    """The queue then holds a third of a second of packets of 64 KiB, and its bucket fills up while a sender pauses."""
    promise = {"guarantee": "5Mbit/s", "ceiling": "5Mbit/s"}
    with lab(["vm"]) as made:
        vif = {"interface": "eth0", "namespace": made.namespace("vm-sink"), "receive": promise}
        reports: list[GuardInterval] = []

        def is_long(report: GuardInterval) -> bool:
            reports.append(report)
            return len(reports) >= 100

        with keep(flat(made, {"vm": vif}, "100Mbit/s")) as kept, stream(made, "vm"):
            until(kept, is_long)
        assert [note for report in reports for note in report.notes if note[1] == "exceeded"] == []
        passed = [report.rows["vm (receives)"]["passed_bps"] for report in reports]
        assert 2.5e6 < sum(passed) / len(passed) < 5.5e6
