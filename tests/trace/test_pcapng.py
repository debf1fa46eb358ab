"""The export is pcapng as others read it."""

import shutil
import struct
import subprocess

import pytest

from partywall.trace.pcapng import pcapng
from partywall.trace.record import merged
from tests.trace.synthetic_trace import evidence


def written():
    seen = evidence()
    return pcapng(seen.start.asked, merged(seen.reports), seen.start.wall_ns)


def blocks(data):
    while data:
        kind, length = struct.unpack_from("<II", data)
        assert length % 4 == 0
        assert struct.unpack_from("<I", data, length - 4)[0] == length
        yield kind, data[8 : length - 4]
        data = data[length:]


def test_blocks_are_whole_and_in_order():
    kinds = [kind for kind, _ in blocks(written())]
    assert kinds == [0x0A0D0D0A, *[1] * 6, *[6] * 3]


def test_a_packet_holds_its_time_its_addresses_and_its_marker():
    interface, high, low, captured, length = struct.unpack_from("<IIIII", list(blocks(written()))[-1][1])
    body = list(blocks(written()))[-1][1][20 : 20 + captured]
    assert (interface, (high << 32) + low, length) == (2, 10**18 + 10_000_050, 128)
    assert body[12:20] == bytes([10, 0, 0, 1, 10, 0, 0, 2])
    assert struct.unpack("!HH", body[20:24]) == (9000, 9001)
    assert body[28:44] == b"PWALLTAG" + (7).to_bytes(8, "big")


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_wireshark_reads_it(tmp_path):
    path = tmp_path / "t.pcapng"
    path.write_bytes(written())
    fields = ["-T", "fields", "-e", "ip.src", "-e", "udp.dstport", "-e", "frame.comment", "-e", "_ws.malformed"]
    reported = subprocess.run(["tshark", "-r", str(path), *fields], capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in reported.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [("10.0.0.1", "9001")] * 3
    assert "30 ns since the hop before" in rows[2][2]
    assert not any(row[3:] and row[3] for row in rows)
