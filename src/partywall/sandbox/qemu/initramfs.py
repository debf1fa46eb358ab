"""What a guest boots into: an initramfs with the agent as its first process, and the kernel modules it needs. Pure.

Source: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst (the "newc" format of cpio). It is not
compressed: an emulated processor takes longer to unpack it than the host takes to hand it over.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterable, Mapping, Sequence

FOLDERS = ("dev", "lib", "lib/modules", "proc", "run", "sys", "tmp", "work")
ORDER = "lib/modules/order"
_END = "TRAILER!!!"


def initramfs(agent: bytes, modules: Mapping[str, bytes]) -> bytes:
    """The archive. modules: their content by file name, in the order in which they are to be inserted."""
    files: list[tuple[str, int, bytes]] = [(name, stat.S_IFDIR | 0o755, b"") for name in FOLDERS]
    files.append(("init", stat.S_IFREG | 0o755, agent))
    files += [(f"lib/modules/{name}", stat.S_IFREG | 0o644, content) for name, content in modules.items()]
    files.append((ORDER, stat.S_IFREG | 0o644, _lines(modules)))
    return archive(files)


def archive(files: Sequence[tuple[str, int, bytes]]) -> bytes:
    """Files and folders, each (name, mode, content), and the console."""
    # The kernel opens it for the first process before anything is mounted.
    console = _entry(len(files) + 1, "dev/console", stat.S_IFCHR | 0o600, b"", device=(5, 1))
    return b"".join([*_entries(files), console, _entry(0, _END, 0, b"")])


def loaded(executable: bytes) -> bytes:
    """A 64-bit ELF executable without what is never loaded (symbols, debug information): a smaller guest boots sooner.

    Anything else is returned as it is. Source: elf(5).
    """
    if executable[:5] != b"\x7fELF\x02":
        return executable
    start, size, count = struct.unpack_from("<32xQ14xHH", executable)
    headers = (struct.unpack_from("<8xQ16xQ", executable, start + number * size) for number in range(count))
    end = max((offset + length for offset, length in headers), default=len(executable))
    header = bytearray(executable[:64])
    # No section headers: neither an offset nor a size, count or index of names.
    struct.pack_into("<Q", header, 40, 0)
    struct.pack_into("<HHH", header, 58, 0, 0, 0)
    return bytes(header) + executable[64:end]


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def _entries(files: Sequence[tuple[str, int, bytes]]) -> Iterable[bytes]:
    return (_entry(number, name, mode, content) for number, (name, mode, content) in enumerate(files, start=1))


def _entry(number: int, name: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> bytes:
    path = name.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, device of the file system, device, length of the name, checksum
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + path) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
