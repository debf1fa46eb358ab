"""Creates the initramfs of a guest, with the agent as its first process and the needed kernel modules. Pure.

Source: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst (the "newc" format of cpio). It is not
compressed: an emulated processor needs longer to unpack it than the host needs to load it.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterable, Mapping, Sequence

FOLDERS = ("dev", "lib", "lib/modules", "proc", "run", "sys", "tmp", "work")
ORDER = "lib/modules/order"
_END = "TRAILER!!!"


def initramfs(agent: bytes, modules: Mapping[str, bytes]) -> bytes:
    """The archive. modules: content by file name, in the order of insertion."""
    files: list[tuple[str, int, bytes]] = [(name, stat.S_IFDIR | 0o755, b"") for name in FOLDERS]
    files.append(("init", stat.S_IFREG | 0o755, agent))
    files += [(f"lib/modules/{name}", stat.S_IFREG | 0o644, content) for name, content in modules.items()]
    files.append((ORDER, stat.S_IFREG | 0o644, _lines(modules)))
    return archive(files)


def archive(files: Sequence[tuple[str, int, bytes]]) -> bytes:
    """An archive of files and folders, each (name, mode, content), and the console."""
    # The kernel opens the console for the first process before anything is mounted.
    console = _entry(len(files) + 1, "dev/console", stat.S_IFCHR | 0o600, b"", device=(5, 1))
    return b"".join([*_entries(files), console, _entry(0, _END, 0, b"")])


def loaded(executable: bytes) -> bytes:
    """A 64-bit ELF executable without symbols and debug information, so that a smaller guest boots sooner.

    Any other content is returned unchanged. Source: elf(5).
    """
    if executable[:5] != b"\x7fELF\x02":
        return executable
    start, size, count = struct.unpack_from("<32xQ14xHH", executable)
    headers = (struct.unpack_from("<8xQ16xQ", executable, start + number * size) for number in range(count))
    end = max((offset + length for offset, length in headers), default=len(executable))
    header = bytearray(executable[:64])
    # No section headers: their offset, size, count and index of names are 0.
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
