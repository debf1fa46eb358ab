"""A disk with a volatile cache that remembers every write and flush, so that a power failure at any moment can be made.

The disk is the one file of a FUSE file system, served here, and the backing file of a loop device. The kernel's own
file system is on that. The loop device hands its writes to the file as they come, and a flush as an fsync. What a
power failure leaves is then known: everything that was written before the last flush, and any part of the later writes,
for a disk writes its cache in whichever order it likes. A write may be torn, between sectors.

Linux only, needs root. No process that serves the disk may touch what is on it: it would wait for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import os
import random
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
NAME = b"disk"


class Op(enum.IntEnum):
    """Requests of linux/fuse.h, version 7.31."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    BATCH_FORGET = 42


VERSION = (7, 31)
DIRECT_IO = 1
BIG_WRITES = 1 << 5
WRITE_MOST = 1 << 20
ROOT, FILE = 1, 2
MOUNT_FLAGS = 0x2 | 0x4  # MS_NOSUID, MS_NODEV


@dataclass(frozen=True)
class Write:
    at: int
    data: bytes


@dataclass
class Disk:
    """Served by a thread. log: what came since `begin`, in order; None stands for a flush."""

    size: int
    log: list[Write | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._content = bytearray(self.size)
        self._base = b""

    @contextlib.contextmanager
    def served(self, folder: Path) -> Iterator[Path]:
        """The path of the disk's file, while it is served in `folder`."""
        descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"disk", os.fsencode(folder), b"fuse", MOUNT_FLAGS, options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
        threading.Thread(target=self._serve, args=(descriptor,), daemon=True).start()
        try:
            yield folder / os.fsdecode(NAME)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
            os.close(descriptor)

    def begin(self) -> None:
        """Forgets what came before: that is on the disk."""
        self._base, self.log = bytes(self._content), []

    def after_cut(self, image: Path, moment: int, chance: random.Random) -> int:
        """Writes what is left if power fails after `moment` entries of the log. Returns how many writes were lost."""
        seen = self.log[:moment]
        flushed = max((at for at, entry in enumerate(seen) if entry is None), default=0)
        state, lost = bytearray(self._base), 0
        for at, entry in enumerate(seen):
            if entry is None:
                continue
            kept = len(entry.data)
            if at > flushed:
                kept = chance.choice((0, chance.randint(0, kept // SECTOR) * SECTOR, kept))
                lost += kept < len(entry.data)
            state[entry.at : entry.at + kept] = entry.data[:kept]
        _write_sparse(image, state)
        return lost

    def _serve(self, descriptor: int) -> None:
        while True:
            try:
                request = os.read(descriptor, WRITE_MOST + (1 << 16))
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue
                return
            _, code, unique, node = struct.unpack_from("<IIQQ", request)
            if code in (Op.FORGET, Op.BATCH_FORGET):
                continue
            fault, answer = self._answer(code, node, memoryview(request)[40:])
            with contextlib.suppress(OSError):
                os.write(descriptor, struct.pack("<IiQ", 16 + len(answer), -fault, unique) + answer)

    def _answer(self, code: int, node: int, body: memoryview) -> tuple[int, bytes]:
        """Error number and content of an answer."""
        fault, answer = 0, b""
        match code:
            case Op.INIT:
                answer = struct.pack(
                    "<4I2H2I2H", *VERSION, WRITE_MOST, BIG_WRITES, 12, 10, WRITE_MOST, 1, 256, 0
                ) + bytes(32)
            case Op.LOOKUP if bytes(body).rstrip(b"\0") == NAME:
                answer = struct.pack("<4Q2I", FILE, 0, 3600, 3600, 0, 0) + self._attributes(FILE)
            case Op.LOOKUP:
                fault = errno.ENOENT
            case Op.GETATTR | Op.SETATTR:
                answer = struct.pack("<Q2I", 3600, 0, 0) + self._attributes(node)
            case Op.OPEN | Op.OPENDIR:
                answer = struct.pack("<Q2I", 1, DIRECT_IO, 0)
            case Op.READ:
                _, at, size = struct.unpack_from("<2QI", body)
                answer = bytes(self._content[at : at + size])
            case Op.WRITE:
                _, at, size = struct.unpack_from("<2QI", body)
                data = bytes(body[40 : 40 + size])
                self._content[at : at + size] = data
                self.log.append(Write(at, data))
                answer = struct.pack("<2I", size, 0)
            case Op.FSYNC:
                self.log.append(None)
            case Op.RELEASE | Op.FLUSH | Op.RELEASEDIR:
                pass
            case _:
                fault = errno.ENOSYS
        return fault, answer

    def _attributes(self, node: int) -> bytes:
        mode, size = (0o40755, 0) if node == ROOT else (0o100600, self.size)
        return struct.pack("<6Q10I", node, size, size // SECTOR, *bytes(6), mode, 1, 0, 0, 0, 4096, 0)


def _write_sparse(image: Path, content: bytearray, piece: int = 1 << 16) -> None:
    zeros = bytes(piece)
    with image.open("wb") as file:
        file.truncate(len(content))
        for at in range(0, len(content), piece):
            if content[at : at + piece] != zeros[: len(content) - at]:
                file.seek(at)
                file.write(content[at : at + piece])


@contextlib.contextmanager
def mounted(disk: Path, folder: Path, *options: str) -> Iterator[Path]:
    """The file system on a disk's file, at `folder`."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", ",".join(("loop", *options)), str(disk), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
