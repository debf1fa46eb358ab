"""Kernels are unpacked as their own loaders would."""

import gzip
import lzma
import struct

import pyarrow as pa
import pytest

from partywall.errors import CapabilityError
from partywall.sandbox.qemu.bzimage import unpacked

KERNEL = b"\x7fELF" + bytes(range(256)) * 40_000
BLOCK = 8 << 20


def image(payload):
    payload += struct.pack("<I", len(KERNEL))
    header = bytearray(2 * 512)
    header[0x1F1] = 1
    header[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", header, 0x248, 16, len(payload))
    return bytes(header) + bytes(16) + payload + b"after"


def lz4(content):
    blocks = [
        pa.compress(content[at : at + BLOCK], codec="lz4_raw", asbytes=True) for at in range(0, len(content), BLOCK)
    ]
    return b"\x02\x21\x4c\x18" + b"".join(struct.pack("<I", len(block)) + block for block in blocks)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, lz4])
def test_each_packing_gives_the_kernel_back(pack):
    assert len(KERNEL) > BLOCK
    assert unpacked(image(pack(KERNEL))) == KERNEL


@pytest.mark.parametrize("wrong", [b"", b"MZ" + bytes(5000), image(b"\x28\xb5\x2f\xfd zstd")])
def test_what_is_no_such_kernel_is_refused_with_a_way_out(wrong):
    with pytest.raises(CapabilityError, match=r"cannot be unpacked: its format is not known.*--uncompressed"):
        unpacked(wrong)
