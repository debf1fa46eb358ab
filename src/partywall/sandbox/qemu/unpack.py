"""Uncompresses a kernel image once on the host, so that guests need not do it at every boot.

An emulated processor needs long for it. Source: the kernel's Documentation/arch/x86/boot.rst (payload_offset), and
QEMU's direct boot of ELF kernels by their PVH entry. Pure, except for external programs for formats that Python lacks.
"""

from __future__ import annotations

import lzma
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator

_ELF = b"\x7fELF\x02"
_PT_NOTE = 4
# XEN_ELFNOTE_PHYS32_ENTRY: the entry point in 32-bit mode.
_PVH_NOTE = 18


def _by(*argv: str) -> Callable[[bytes], bytes]:
    return lambda data: subprocess.run(argv, input=data, capture_output=True, check=True).stdout


# Magic numbers of compressed data. The uncompressed size after it is ignored by these.
_PACKINGS: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (b"\xfd7zXZ\0", lambda data: lzma.LZMADecompressor().decompress(data)),
    (b"\x1f\x8b", lambda data: zlib.decompressobj(31).decompress(data)),
    (b"\x28\xb5\x2f\xfd", _by("zstd", "-dcq")),
    (b"\x02\x21\x4c\x18", lambda data: _by("lz4", "-dc")(data[:-4])),
)


def unpacked(image: bytes) -> bytes | None:
    """The kernel in a bzImage as a bootable ELF file; None if it cannot be extracted."""
    if image[0x202:0x206] != b"HdrS":
        # Some builds ship it uncompressed.
        return image if can_be_entered(image) else None
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    payload = image[start : start + length]
    unpack = next((unpack for magic, unpack in _PACKINGS if payload.startswith(magic)), None)
    if unpack is None:
        return None
    try:
        kernel = unpack(payload)
    except (OSError, subprocess.CalledProcessError, lzma.LZMAError, zlib.error):
        return None
    return kernel if can_be_entered(kernel) else None


def can_be_entered(kernel: bytes) -> bool:
    """True if it is a 64-bit ELF file with a note of its entry point."""
    if not kernel.startswith(_ELF):
        return False
    start, size, count = struct.unpack_from("<32xQ14xHH", kernel)
    for number in range(count):
        kind, at, length = struct.unpack_from("<I4xQ16xQ", kernel, start + number * size)
        if kind == _PT_NOTE and (b"Xen\0", _PVH_NOTE) in _notes(kernel[at : at + length]):
            return True
    return False


def _notes(section: bytes) -> Iterator[tuple[bytes, int]]:
    at = 0
    while at + 12 <= len(section):
        name, content, kind = struct.unpack_from("<III", section, at)
        yield section[at + 12 : at + 12 + name], kind
        at += 12 + -(-name // 4) * 4 + -(-content // 4) * 4
