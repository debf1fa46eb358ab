"""What is to be known of a guest before it moves: how much of its memory has content, and how fast that changes.

The guest's memory is shared with this host, so both are read from outside, without a word to the guest or its QEMU.
QEMU's own ways to measure a dirty rate need KVM, give one window, or end an emulating QEMU (dirty-ring and dirty-bitmap
of 7.2).
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from partywall.agent.client import AgentClient
from partywall.model.migration import Survey

INTERVAL_NS = 50_000_000
SAMPLES = 100
WINDOWS = (1, 2, 4, 8, 16, 32, 48)
"""In intervals: 50 ms to 2.4 s."""
SCANNED_BYTES = 64 << 20
"""Of a larger guest only every second, third, … page is looked at, so that a scan takes a fraction of an interval."""
CHUNK_PAGES = 4096


def survey(workload: str, memory: Path, agent: AgentClient) -> Survey:
    """Watches a guest for some seconds. memory: its file; agent: one on this host that may read it."""
    content, size = _content(memory)
    stride = max(1, size // SCANNED_BYTES)
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
    rows = [sample["changed"] for sample in seen["samples"] if sample["changed"][0] is not None]
    return Survey(
        workload=workload,
        memory=size,
        content=content,
        windows_ns=tuple(window * INTERVAL_NS for window in WINDOWS),
        changed=tuple(tuple(None if count is None else count * scale for count in row) for row in rows),
    )


def _content(memory: Path) -> tuple[int, int]:
    """(bytes of pages that are not zero, bytes in all)."""
    page = mmap.PAGESIZE
    with memory.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        words = np.frombuffer(mapped, np.uint64).reshape(-1, page // 8)
        filled = sum(
            int(words[first : first + CHUNK_PAGES].any(axis=1).sum()) for first in range(0, len(words), CHUNK_PAGES)
        )
        size = words.size * 8
        # The map cannot be closed while an array looks at it.
        del words
    return filled * page, size
