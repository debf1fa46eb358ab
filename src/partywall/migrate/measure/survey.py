"""What is to be known of a guest before it moves: how much of its memory has content, and how fast that changes.

The guest's memory is shared with this host, so both are read from outside, without a request to the guest or its QEMU.
QEMU's own ways to measure a dirty rate need KVM, give one window, or end an emulating QEMU (dirty-ring and dirty-bitmap
of 7.2).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from partywall.agent.client import AgentClient
from partywall.migrate.document import HttpSpec, ServiceSeen, Survey
from partywall.migrate.findings.response import quantiles, until_answered, weighted

INTERVAL_NS = 25_000_000
SAMPLES = 200
WINDOWS = (1, 2, 4, 8, 16, 32, 64, 96)
"""In intervals: 25 ms to 2.4 s. Samples that a busy host is late for are left out, and with them short windows."""
SCANNED_BYTES = 64 << 20
"""Of a larger guest only every second, third, … page is looked at, so that a scan takes a fraction of an interval."""
CHUNK_BYTES = 16 << 20
PARTS = 256
"""Of the memory, in which content is counted."""


def survey(workload: str, memory: Path, agent: AgentClient) -> Survey:
    """Watches a guest for some seconds. memory: its file; agent: one on this host that may read it."""
    layout, size = _content(memory)
    stride = max(1, -(-size // SCANNED_BYTES))
    watched_s = SAMPLES * INTERVAL_NS / 1e9
    seen = agent.call(
        "memory.changes",
        timeout_s=watched_s * 3 + 30,
        file=str(memory),
        interval_ns=INTERVAL_NS,
        samples=SAMPLES,
        stride=stride,
        windows=list(WINDOWS),
    )
    scale = seen["page_bytes"] * seen["pages"] / seen["looked_at"]
    every = [sample["changed"] for sample in seen["samples"]]
    rows = [row for row in every if any(count is not None for count in row)]
    return Survey(
        workload=workload,
        memory=size,
        content=sum(layout),
        layout=layout,
        windows_ns=tuple(window * INTERVAL_NS for window in WINDOWS),
        changed=tuple(tuple(None if count is None else count * scale for count in row) for row in rows),
        changes_from=f"one page in {stride} was watched" if stride > 1 else "",
    )


def seen_service(
    pings: npt.NDArray[np.int64], users: npt.NDArray[np.float64], http: HttpSpec | None
) -> ServiceSeen | None:
    """What clients saw: virtual users if there are any. Tables are those of `migrate.record.COLUMNS`."""
    answered = users[users[:, 2] >= 0] if len(users) else users
    if http is not None and len(answered):
        length_s = (answered[:, 1].max() - answered[:, 0].min()) / 1e9
        spread = weighted(answered[:, 2], answered[:, 3])
        waiting = http.users if http.rate is None else None
        return ServiceSeen(quantiles_ns=spread, rate=float(answered[:, 3].sum() / length_s), users=waiting)
    waits = until_answered(pings[:, 0], pings[:, 2])
    if not len(waits):
        return None
    length_s = float(pings[-1, 0] - pings[0, 0]) / 1e9
    return ServiceSeen(quantiles_ns=quantiles(waits.astype(np.float64)), rate=len(waits) / max(length_s, 1e-3))


def _content(memory: Path) -> tuple[tuple[int, ...], int]:
    """(bytes of pages that are not zero, in each of `PARTS` parts by address; bytes in all).

    Holes are left out: to read one would fill it with pages.
    """
    page = mmap.PAGESIZE
    with memory.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        filled = np.zeros(PARTS, np.int64)
        for begin, end in _extents(file.fileno(), size):
            for place in range(begin, end, CHUNK_BYTES):
                words = np.frombuffer(os.pread(file.fileno(), min(CHUNK_BYTES, end - place), place), np.uint64)
                pages = np.flatnonzero(words.reshape(-1, page // 8).any(axis=1))
                filled += np.bincount((place + pages * page) * PARTS // size, minlength=PARTS)
    return tuple(int(count) * page for count in filled), size


def _extents(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file holds data; both ends are of whole pages."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(file, at, os.SEEK_DATA)
        except OSError:
            return
        at = os.lseek(file, begin, os.SEEK_HOLE)
        yield begin, at
