"""The kernel proper inside a bzImage, unpacked: an emulated processor takes long to do that by itself. Pure.

Source: the kernel's Documentation/arch/x86/boot.rst (setup_sects, payload_offset, payload_length); the length of what
is unpacked is appended to the payload.
"""

from __future__ import annotations

import gzip
import lzma
import struct
from collections.abc import Callable, Iterator

import pyarrow as pa

from partywall.errors import CapabilityError

_SECTOR = 512
# Of lz4's legacy format, in which kernels are packed: a magic number, then blocks with their packed length before them.
_LZ4_BLOCK = 8 << 20


def _lz4_blocks(packed: bytes, size: int) -> Iterator[bytes]:
    at = 4
    while size > 0:
        (length,) = struct.unpack_from("<I", packed, at)
        block = packed[at + 4 : at + 4 + length]
        there = min(size, _LZ4_BLOCK)
        yield pa.decompress(block, decompressed_size=there, codec="lz4_raw", asbytes=True)
        at, size = at + 4 + length, size - there


_PACKERS: dict[bytes, Callable[[bytes, int], bytes]] = {
    b"\x02\x21\x4c\x18": lambda packed, size: b"".join(_lz4_blocks(packed, size)),
    b"\x1f\x8b": lambda packed, _size: gzip.decompress(packed),
    b"\xfd7zXZ": lambda packed, _size: lzma.decompress(packed),
}


def unpacked(image: bytes) -> bytes:
    """The ELF file in a bzImage; CapabilityError if it is none, or packed in a way that is not known here."""
    if image[0x202:0x206] != b"HdrS":
        start, length = 0, 0
    else:
        offset, length = struct.unpack_from("<II", image, 0x248)
        start = ((image[0x1F1] or 4) + 1) * _SECTOR + offset
    payload = image[start : start + length]
    for magic, unpack in _PACKERS.items():
        if payload.startswith(magic):
            (size,) = struct.unpack("<I", payload[-4:])
            return unpack(payload[:-4], size)
    raise CapabilityError(
        f"the kernel cannot be unpacked: its format is not known ({payload[:4].hex() or 'no bzImage'}); "
        "leave --uncompressed out, or get another kernel with: partywall vm prepare --fetch"
    )
