"""Packets of a trace as pcapng, for Wireshark and others, with one interface for each hop and direction.

A trace contains tags and times, not packets. Headers are rebuilt from known values (addresses, ports, sequence numbers,
lengths). Unknown fields are filled in, and comments in the file say so. Layout: draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from partywall import __version__
from partywall.trace.record import Flow, Packet, Report
from partywall.trace.request import PROTOCOLS, WAYS, TraceRequest
from partywall.units import format_duration

SECTION, INTERFACE, PACKET = 0x0A0D0D0A, 1, 6
RAW_IP = 101
OPT_COMMENT, SHB_APPLICATION, IF_NAME, IF_DESCRIPTION, IF_RESOLUTION = 1, 4, 2, 3, 9
NANOSECONDS = 9
MARKER = b"PWALLTAG"
TCP_ACK = 0x10
NOTE = (
    "Headers are rebuilt from a trace of tags and times: addresses, ports, TCP sequence numbers and lengths were "
    "observed; "
    "acknowledgements, flags, windows, checksums and payload were not, and are placeholders."
)


@dataclass(frozen=True)
class _Sight:
    at_ns: int
    interface: int
    data: bytes
    length: int
    comment: str


def pcapng(request: TraceRequest, report: Report, wall_ns: int) -> bytes:
    """The packets in a report, ordered by time. wall_ns: wall-clock time at monotonic zero."""
    flows = {flow.flow: flow for flow in report.flows}
    blocks = [_section()]
    for way, name in enumerate(WAYS):
        blocks += [_interface(hop, name) for hop in request.names(way)]
    sights = sorted(_sights(report, flows, len(request.hops)), key=lambda sight: sight.at_ns)
    blocks += [_packet(sight, wall_ns) for sight in sights]
    return b"".join(blocks)


def _sights(report: Report, flows: Mapping[str, Flow], hops: int) -> Iterator[_Sight]:
    for way, seen in enumerate(report.ways):
        for packet in dict.fromkeys((*seen.packets, *seen.slowest)):
            flow = flows.get(packet.flow)
            if flow is None:
                continue
            data, length = _rebuilt(packet, flow)
            for place, at_ns in enumerate(packet.at_ns):
                if at_ns is not None:
                    yield _Sight(at_ns, way * hops + place, data, length, _comment(packet, place))


def _comment(packet: Packet, place: int) -> str:
    before = packet.at_ns[place - 1] if place else None
    at = packet.at_ns[place]
    since = f"{format_duration(at - before)} since the hop before; " if before is not None and at is not None else ""
    return f"{since}{packet.fate}; tag {packet.tag}, flow {packet.flow}"


def _rebuilt(packet: Packet, flow: Flow) -> tuple[bytes, int]:
    """Rebuilt headers, and the packet's length."""
    transport = _transport(packet, flow)
    six = ":" in flow.from_
    length = len(transport.header) + packet.length
    network = _ip6(flow, length) if six else _ip4(flow, length)
    return network + transport.header + transport.payload, len(network) + length


@dataclass(frozen=True)
class _Transport:
    header: bytes
    payload: bytes = b""


def _transport(packet: Packet, flow: Flow) -> _Transport:
    ports = struct.pack("!HH", flow.from_port, flow.to_port)
    if flow.protocol == PROTOCOLS["tcp"] and flow.from_port:
        sequence = packet.tag & 0xFFFFFFFF if packet.stream else 0
        return _Transport(ports + struct.pack("!IIBBHHH", sequence, 0, 5 << 4, TCP_ACK, 0xFFFF, 0, 0))
    if flow.protocol == PROTOCOLS["udp"] and flow.from_port:
        header = ports + struct.pack("!HH", min(8 + packet.length, 0xFFFF), 0)
        # The marker of our own senders is a counter; the hash of any other payload is not a small number.
        marked = packet.length >= 16 and packet.tag < 1 << 40
        return _Transport(header, MARKER + struct.pack("!Q", packet.tag) if marked else b"")
    return _Transport(b"")


def _ip4(flow: Flow, length: int) -> bytes:
    ends = b"".join(ipaddress.IPv4Address(address).packed for address in (flow.from_, flow.to))
    head = struct.pack("!BBHHHBBH", 0x45, 0, min(20 + length, 0xFFFF), 0, 0, 64, flow.protocol, 0) + ends
    return head[:10] + struct.pack("!H", _checksum(head)) + head[12:]


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return int(~total & 0xFFFF)


def _ip6(flow: Flow, length: int) -> bytes:
    ends = b"".join(ipaddress.IPv6Address(address).packed for address in (flow.from_, flow.to))
    return struct.pack("!IHBB", 6 << 28, min(length, 0xFFFF), flow.protocol, 64) + ends


def _block(kind: int, body: bytes) -> bytes:
    length = 12 + len(body)
    return struct.pack("<II", kind, length) + body + struct.pack("<I", length)


def _options(options: Iterable[tuple[int, bytes]]) -> bytes:
    parts = [struct.pack("<HH", code, len(value)) + _padded(value) for code, value in options]
    return b"".join([*parts, struct.pack("<HH", 0, 0)])


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _section() -> bytes:
    options = _options([(OPT_COMMENT, NOTE.encode()), (SHB_APPLICATION, f"Partywall {__version__}".encode())])
    return _block(SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + options)


def _interface(hop: str, way: str) -> bytes:
    described = f"{hop}, {way} packets"
    options = [
        (IF_NAME, f"{hop} {way}".encode()),
        (IF_DESCRIPTION, described.encode()),
        (IF_RESOLUTION, bytes([NANOSECONDS])),
    ]
    return _block(INTERFACE, struct.pack("<HHI", RAW_IP, 0, 0) + _options(options))


def _packet(sight: _Sight, wall_ns: int) -> bytes:
    at = sight.at_ns + wall_ns
    head = struct.pack("<IIIII", sight.interface, at >> 32, at & 0xFFFFFFFF, len(sight.data), sight.length)
    return _block(PACKET, head + _padded(sight.data) + _options([(OPT_COMMENT, sight.comment.encode())]))
