"""Counters of a cgroup that several capabilities read: its work on disks, its waits (PSI), and what its limit stopped.

Version 2 counts requests of disks in `io.stat`, version 1 in files of the blkio controller's policies, and there only
for some disks. Sources: cgroup-v2.rst, cgroup-v1/blkio-controller.rst, accounting/psi.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from partywall.files import kernel_text
from partywall.sandbox import tenants

V1_POLICIES = ("throttle.", "bfq.", "")
"""The beginnings of names of version 1; the last is that of CFQ, until Linux 4.20."""
Counts = tuple[int, int, int]
"""Operations, bytes read, bytes written, since some fixed moment."""


def disk_work(
    folder: str,
    *,
    is_v2: bool,
    policies: Sequence[str] = V1_POLICIES,
    text_of: Callable[[str], str | None] = kernel_text,
) -> dict[str, Counts] | None:
    """What a group and those below it did on each disk, by 'major:minor'. None if nothing is counted for it.

    policies: of version 1. The first one that counts a disk is taken. text_of: reads a file.
    """
    if is_v2:
        if (text := text_of(f"{folder}/io.stat")) is None:
            return None
        return {
            number: (row.get("rios", 0) + row.get("wios", 0), row["rbytes"], row.get("wbytes", 0))
            for number, row in map(device_row, text.splitlines())
            if "rbytes" in row
        }
    every: dict[str, Counts] = {}
    for policy in policies:
        operations = v1_counts(folder, policy, "io_serviced", text_of)
        sizes = v1_counts(folder, policy, "io_service_bytes", text_of) if operations else {}
        for number, counts in operations.items():
            every.setdefault(number, (sum(counts), *sizes.get(number, (0, 0))))
    return every


def v1_counts(
    folder: str, policy: str, what: str, text_of: Callable[[str], str | None] = kernel_text
) -> dict[str, tuple[int, int]]:
    """Reads and writes of a group by the number of a disk. Empty if no file can be read.

    Old kernels have no file that includes the groups below, so theirs are added.
    """
    name = f"blkio.{policy}{what}"
    text = text_of(f"{folder}/{name}_recursive")
    if text is None:
        texts = [text_of(f"{each}/{name}") for each in tenants.all_groups(Path(folder))]
        text = "\n".join(filter(None, texts))
    every: dict[str, tuple[int, int]] = {}
    for words in map(str.split, text.splitlines()):
        if len(words) == 3 and words[1] in ("Read", "Write") and words[2].isdecimal():
            reads, writes = every.get(words[0], (0, 0))
            count = int(words[2])
            every[words[0]] = (reads + count, writes) if words[1] == "Read" else (reads, writes + count)
    return every


def device_row(line: str) -> tuple[str, dict[str, int]]:
    """A line of io.stat. Some kernels print devices without counters before another, or before the end of the file."""
    words = line.split()
    names = [word for word in words if "=" not in word]
    pairs = (word.partition("=") for word in words)
    return names[-1] if names else "", {key: int(value) for key, _, value in pairs if value.isdecimal()}


def waited_ns(path: str) -> int | None:
    """How long some task waited (PSI): the total of a pressure file; None if the kernel does not say."""
    text = (kernel_text(path) or "").encode()
    return pressure_ns(text)[0] if text.startswith(b"some ") else None


def pressure_ns(text: bytes) -> tuple[int, int]:
    """The totals of a pressure file: how long some task waited, and how long all did."""
    some, _, rest = text.partition(b"total=")[2].partition(b"\n")
    full = rest.rpartition(b"total=")[2]
    return int(some or 0) * 1000, int(full or 0) * 1000


def field(text: bytes, name: bytes, times: int = 1) -> int | None:
    """The number after a name, which ends with a space, at the beginning of a line; None if there is none."""
    at = 0 if text.startswith(name) else text.find(b"\n" + name) + 1
    return int(text[at + len(name) :].split(None, 1)[0]) * times if at or text.startswith(name) else None


def throttled_ns(stat: bytes) -> int:
    """How long a limit stopped a group, of its cpu.stat or cpu.stat.local, of either version.

    The latter, since Linux 6.5, also has the time in which limits of groups around it did.
    """
    if (since := field(stat, b"throttled_usec ", 1000)) is not None:
        return since
    return field(stat, b"throttled_time ") or 0
