"""What a tenant may do to its packets so that a flow class would not be told: fragments, extension headers, tags."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from partywall.guard.document import Policy
from partywall.guard.measure.flatten import flatten
from partywall.guard.measure.resolve import resolve, resolve_links
from partywall.guard.measure.run import Kept, keep
from partywall.sandbox.lab import Lab, lab
from partywall.sandbox.networks import NETNS, in_namespace
from partywall.study.promises.lab import policy

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("guarded_lab", "own_state")]
REPORT_NS = 100_000_000
PORT = 5000
IPV4, IPV6, VLAN = 0x0800, 0x86DD, 0x8100
HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION, UDP = 0, 43, 44, 60, 17
FLOWS = {
    "bulk": {"protocol": "udp", "ports": str(PORT), "ceiling": "500Mbit/s"},
    "tight": {"protocol": "udp", "ports": "7", "ceiling": "10Mbit/s"},
    "ping": {"protocol": "icmp", "packets": 50},
}


def datagram(port: int = PORT) -> bytes:
    return struct.pack("!HHHH", 40000, port, 8 + 64, 0) + b"x" * 64


def ipv4(payload: bytes, place: int = 0, identification: int = 1, protocol: int = UDP) -> bytes:
    """place: of a fragment, its flags and offset."""
    addresses = bytes([10, 9, 1, 1, 10, 9, 3, 1])
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), identification, place, 64, protocol, 0)
    return header + addresses + payload


def ipv6(payload: bytes, first: int) -> bytes:
    return struct.pack("!IHBB", 6 << 28, len(payload), first, 64) + bytes(15) + b"\x01" + bytes(15) + b"\x02" + payload


def extended(*headers: int) -> bytes:
    """A datagram behind so many extension headers of eight bytes."""
    chain = b"".join(bytes([after, 0]) + bytes(6) for after in (*headers[1:], UDP))
    return ipv6(chain + datagram(), headers[0])


def fragment6(payload: bytes, place: int, identification: int, protocol: int = UDP) -> bytes:
    return ipv6(struct.pack("!BBHI", protocol, 0, place, identification) + payload, FRAGMENT)


def frame(kind: int, packet: bytes, *tags: int) -> bytes:
    tagged = b"".join(struct.pack("!HH", VLAN, tag) for tag in tags)
    return bytes.fromhex("020000000201020000000101") + tagged + struct.pack("!H", kind) + packet


KINDS: Mapping[str, tuple[list[bytes], str]] = {
    "plain": ([frame(IPV4, ipv4(datagram()))], "vm:bulk"),
    "of another port": ([frame(IPV4, ipv4(datagram(9)))], "vm"),
    "with a VLAN tag": ([frame(IPV4, ipv4(datagram()), 5)], "vm:bulk"),
    "with two tags": ([frame(IPV6, extended(DESTINATION), 5, 6)], "vm:bulk"),
    "with too many tags": ([frame(IPV4, ipv4(datagram()), 5, 6, 7)], "vm:ping"),
    "IPv6": ([frame(IPV6, ipv6(datagram(), UDP))], "vm:bulk"),
    "behind six headers": ([frame(IPV6, extended(HOP_BY_HOP, *[DESTINATION] * 5))], "vm:bulk"),
    "behind too many headers": ([frame(IPV6, extended(HOP_BY_HOP, *[DESTINATION] * 6))], "vm:ping"),
    "fragments": ([frame(IPV4, ipv4(datagram(), 0x2000)), frame(IPV4, ipv4(b"y" * 99, 9))], "vm:bulk"),
    "fragments of another port": ([frame(IPV4, ipv4(datagram(9), 0x2000)), frame(IPV4, ipv4(b"y" * 99, 9))], "vm"),
    "a later fragment alone": ([frame(IPV4, ipv4(b"y" * 99, 9, 77))], "vm:tight"),
    "a later fragment of a protocol without rules": ([frame(IPV4, ipv4(b"y" * 99, 9, 77, 132))], "vm"),
    "fragments of IPv6": (
        [frame(IPV6, fragment6(datagram(), 1, 9)), frame(IPV6, fragment6(b"y" * 99, 72, 9, protocol=132))],
        "vm:bulk",
    ),
    "a later fragment of IPv6 alone": ([frame(IPV6, fragment6(b"y" * 99, 72, 88, protocol=132))], "vm:ping"),
    "ports that are cut off": ([frame(IPV4, ipv4(b"ab"))], "vm:tight"),
}
COPIES = 10


def counted(kept: Kept, packets: int) -> dict[str, int]:
    """Packets that came to each leaf, once so many have come to all."""
    result: Counter[str] = Counter()
    for _ in range(50):
        if (report := kept.report(1)) is None:
            continue
        seconds = (report.at_ns - report.from_ns) / 1e9
        for leaf, row in report.rows.items():
            result[leaf] += round(row["offered_pps"] * seconds)
        if sum(result.values()) >= packets:
            break
    return {leaf: count for leaf, count in result.items() if count}


@pytest.fixture(scope="module")
def made() -> Iterator[Lab]:
    with lab(["vm", "flood"], None) as built:
        yield built


@pytest.mark.parametrize("kind", KINDS)
def test_a_packet_is_charged_to_its_flow_class(kind: str, made: Lab) -> None:
    frames, leaf = KINDS[kind]
    requested = Policy.model_validate(policy(made, {"vm": {"flows": FLOWS}}, "1Gbit/s"))
    flat = flatten(requested, resolve(requested), REPORT_NS, resolve_links(requested))
    with raw_in(made.namespace("vm")) as out, keep(flat) as kept:
        for _ in range(COPIES):
            for each in frames:
                # What is dropped says so to its sender.
                with contextlib.suppress(OSError):
                    out.send(each)
        assert counted(kept, COPIES * len(frames)) == {leaf: COPIES * len(frames)}


@contextlib.contextmanager
def kept_with(made: Lab, vif: dict[str, object]) -> Iterator[tuple[socket.socket, Kept]]:
    requested = Policy.model_validate(policy(made, {"vm": vif}, "1Gbit/s"))
    flat = flatten(requested, resolve(requested), REPORT_NS, resolve_links(requested))
    with raw_in(made.namespace("vm")) as out, keep(flat) as kept:
        yield out, kept


def test_a_packet_that_may_be_of_no_flow_class_is_charged_to_the_vif_if_that_is_slower(made: Lab) -> None:
    promised = {"guarantee": "900Mbit/s"}
    bulk = {"protocol": "udp", "ports": str(PORT), **promised}
    with kept_with(made, {"send": promised, "flows": {"bulk": bulk}}) as (out, kept):
        for _ in range(COPIES):
            out.send(frame(IPV6, extended(HOP_BY_HOP, *[DESTINATION] * 6)))
        assert counted(kept, COPIES) == {"vm": COPIES}


def test_a_first_fragment_that_is_sent_again_moves_nothing_to_a_faster_flow_class(made: Lab) -> None:
    with kept_with(made, {"flows": FLOWS}) as (out, kept):
        for number in range(COPIES):
            parts = (ipv4(datagram(7), 0x2000, number), ipv4(datagram(), 0x2000, number), ipv4(b"y" * 99, 9, number))
            sent(out, *parts)
        assert counted(kept, 3 * COPIES) == {"vm:tight": 2 * COPIES, "vm:bulk": COPIES}


def raw_in(namespace: str) -> socket.socket:
    def opened() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.bind(("eth0", 0))
        return made

    return in_namespace(NETNS / namespace, opened)


def sent(out: socket.socket, *packets: bytes) -> None:
    for packet in packets:
        # What is dropped says so to its sender.
        with contextlib.suppress(OSError):
            out.send(frame(IPV4, packet))


def test_a_flood_of_first_fragments_at_one_vif_pushes_out_none_of_another(made: Lab) -> None:
    flood = 20_000
    requested = Policy.model_validate(policy(made, {name: {"flows": FLOWS} for name in made.names}, "1Gbit/s"))
    flat = flatten(requested, resolve(requested), REPORT_NS, resolve_links(requested))
    with raw_in(made.namespace("vm")) as vm, raw_in(made.namespace("flood")) as other, keep(flat) as kept:
        sent(vm, *(ipv4(datagram(), 0x2000, identification) for identification in range(COPIES)))
        sent(other, *(ipv4(datagram(), 0x2000, identification) for identification in range(flood)))
        sent(vm, *(ipv4(b"y" * 99, 9, identification) for identification in range(COPIES)))
        result = counted(kept, flood + 2 * COPIES)
    assert {leaf: count for leaf, count in result.items() if leaf.startswith("vm")} == {"vm:bulk": 2 * COPIES}


def test_all_of_a_datagram_in_fragments_goes_where_its_first_went(made: Lab) -> None:
    requested = Policy.model_validate(policy(made, {"vm": {"flows": FLOWS}}, "1Gbit/s"))
    flat = flatten(requested, resolve(requested), REPORT_NS, resolve_links(requested))
    with keep(flat) as kept:
        opened = in_namespace(NETNS / made.namespace("vm"), lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with opened as out:
            out.sendto(b"x" * 16384, (made.address("vm"), PORT))
            assert counted(kept, 12) == {"vm:bulk": 12}
