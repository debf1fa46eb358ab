"""Counters of a cgroup that several capabilities read: its work on disks, and how long its tasks waited (PSI).

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
    text = kernel_text(path) or ""
    total = text.partition("\n")[0].rpartition("total=")[2] if text.startswith("some ") else ""
    return int(total) * 1000 if total.isdecimal() else None
