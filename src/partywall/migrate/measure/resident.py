"""How much of a guest's memory its QEMU holds, from the kernel's list of that process's mappings. Changes nothing.

A page that is not resident was never written, so it is zero. A resident one mostly has content, but need not.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from partywall.files import kernel_text
from partywall.migrate.measure.survey import PARTS
from partywall.sandbox.ssh import connection

KIB = 1024
ENTRIES = 1 << 20
HELD = np.uint64(1 << 62 | 1 << 56)
"""Bits of an entry: the page is swapped out, or in memory and mapped here alone. The kernel's page of zeros is not."""
COUNTED = ("Rss", "Swap", "Private_Hugetlb", "Shared_Hugetlb")
CLOSE = 0.02
"""Largest difference of two counts of the same pages, as a share."""
_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ +\d+ *(.*)$")
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Area:
    """The mapping with a guest's memory. resident: bytes in memory or swapped out.

    layout: the same in equal parts of the memory, by address; empty if it is not known. file: one that has the same
    pages, if reading it changes nothing; None otherwise.
    """

    resident: int
    begin: int = 0
    layout: tuple[int, ...] = ()
    file: Path | None = None


def here(monitor: socket.socket, memory: int) -> Area | None:
    """Of the process at the other end of a Unix socket; None if it is unknown or not ours to look at.

    memory: bytes that the guest has.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = monitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process = Path("/proc", str(_CREDENTIALS.unpack(credentials)[0]))
    if (listed := kernel_text(str(process / "smaps"))) is None:
        return None
    memory_area = area(listed, memory, process / "map_files")
    if memory_area is None or memory_area.file is not None:
        return memory_area
    with contextlib.suppress(OSError, ValueError):
        layout = _layout(process / "pagemap", memory_area.begin, memory)
        # Pages that are shared with others, such as merged ones, are not among them.
        if abs(sum(layout) - memory_area.resident) <= CLOSE * memory_area.resident:
            return replace(memory_area, layout=layout)
    return memory_area


def _layout(pages: Path, begin: int, memory: int) -> tuple[int, ...]:
    """Resident bytes in each part of a mapping, from the kernel's table of its pages (Documentation: pagemap)."""
    page = os.sysconf("SC_PAGE_SIZE")
    filled = np.zeros(PARTS, np.int64)
    with pages.open("rb", buffering=0) as table:
        table.seek(begin // page * 8)
        for first in range(0, memory // page, ENTRIES):
            entries = np.frombuffer(table.read(8 * min(ENTRIES, memory // page - first)), np.uint64)
            held = first + np.flatnonzero(entries & HELD)
            filled += np.bincount(held * page * PARTS // memory, minlength=PARTS)
    return tuple(int(count) * page for count in filled)


def there(ssh: str, thread: int, memory: int) -> Area | None:
    """Of the process of a thread on another machine, by ssh."""
    command = connection.argv(ssh, f"cat /proc/{thread}/smaps")
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=60, env=os.environ
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return area(ran.stdout, memory) if ran.returncode == 0 else None


def area(listed: str, memory: int, files: Path | None = None) -> Area | None:
    """The guest's memory among the mappings of its process: the one of just this size. None if there is not one.

    listed: `/proc/PID/smaps`; files: `/proc/PID/map_files`, if the process is on this machine.
    """
    fitting = [each for each in _mappings(listed) if each[0] == memory]
    if len(fitting) != 1:
        return None
    _, span, is_file, counts = fitting[0]
    begin = int(span.partition("-")[0], 16)
    resident = min(memory, sum(counts.get(name, 0) for name in COUNTED) * KIB)
    # Reading a hole of a file of huge pages would allocate a page.
    if not is_file or files is None or counts.get("KernelPageSize") != os.sysconf("SC_PAGE_SIZE") // KIB:
        return Area(resident, begin)
    return Area(resident, begin, file=_readable(files / span, memory))


def _readable(file: Path, memory: int) -> Path | None:
    """The file, if it holds the memory and nothing else."""
    try:
        return file if os.access(file, os.R_OK) and file.stat().st_size == memory else None
    except OSError:
        return None


def _mappings(listed: str) -> Iterator[tuple[int, str, bool, dict[str, int]]]:
    """(bytes, begin-end, whether it shares a file from its beginning, counts in KiB) of each mapping that is data."""
    head: re.Match[str] | None = None
    counts: dict[str, int] = {}
    for line in (*listed.split("\n"), "0-0 ---p 0 0:0 0"):
        if (following := _HEAD.match(line)) is None:
            name, _, rest = line.partition(":")
            words = rest.split()
            if len(words) == 2 and words[1] == "kB":
                counts[name] = int(words[0])
            continue
        if head is not None and head[3].startswith("rw-"):
            begin, end = int(head[1], 16), int(head[2], 16)
            yield end - begin, f"{head[1]}-{head[2]}", head[3] == "rw-s" and not int(head[4], 16), counts
        head, counts = following, {}
