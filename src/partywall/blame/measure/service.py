"""The processes of a service that is known by its port or its log. They are the victim, so they are no suspects."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from partywall.files import kernel_text
from partywall.host import Host

LISTENS = "0A"
"""The state of a socket that listens, in /proc/net/tcp."""


def listening(host: Host, port: int) -> list[int]:
    """The processes of this network namespace that listen at a TCP port. Without root, only one's own are found."""
    inodes = {inode for name in ("tcp", "tcp6") for inode in _sockets(host, name, port)}
    named = {f"socket:[{inode}]" for inode in inodes}
    return _with_open(host, lambda place: str(Path(place).readlink()) in named) if named else []


def writing(host: Host, file: Path) -> list[int]:
    """The other processes that have a file open."""
    with contextlib.suppress(OSError):
        wanted = file.stat()

        def is_it(place: str) -> bool:
            seen = Path(place).stat()
            return (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino)

        return [pid for pid in _with_open(host, is_it) if pid != os.getpid()]
    return []


def _sockets(host: Host, name: str, port: int) -> Iterator[str]:
    """The inodes of sockets that listen at a port."""
    for line in (kernel_text(str(host.path(f"/proc/net/{name}"))) or "").split("\n")[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
            yield words[9]


def _with_open(host: Host, is_it: Callable[[str], bool]) -> list[int]:
    """The processes with a descriptor that `is_it` accepts. Those that end meanwhile, or are another's, are skipped."""
    found = []
    for process in os.scandir(host.path("/proc")):
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for descriptor in os.scandir(f"{process.path}/fd"):
                    with contextlib.suppress(OSError):
                        if is_it(descriptor.path):
                            found.append(int(process.name))
                            break
    return found
