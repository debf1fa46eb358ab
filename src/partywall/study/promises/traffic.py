"""Memory transactions of the whole host, if its processor counts them: misses of the last-level cache.

Source: perf_event_open(2), a counter for each CPU. Virtual machines seldom have one, and without root the kernel's
setting `perf_event_paranoid` must allow it. Without a counter, the report says so in place of the figure.

What a host can carry is taken from copies of memory on all CPUs, because they do nothing else. Prefetched lines may
not count as misses, so the share of another program can be off, even above 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import tempfile
import time
from typing import Self

from partywall.agent import binary
from partywall.agent.agents import Agents
from partywall.agent.inbox import Inbox

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTE_BYTES = 128
MOST_S, WARM_UP_S = 1.0, 0.3
HARDWARE, CACHE_MISSES = 0, 3
"""PERF_TYPE_HARDWARE and PERF_COUNT_HW_CACHE_MISSES."""


class Counters:
    """One event on every CPU, counted from creation. Must be closed."""

    def __init__(self, kind: int = HARDWARE, event: int = CACHE_MISSES) -> None:
        """OSError if the host does not count this event, or not for this user."""
        number = _SYSCALLS.get(platform.machine())
        if number is None:
            raise OSError(f"no number of perf_event_open is known for {platform.machine()}")
        libc = ctypes.CDLL(None, use_errno=True)
        attribute = struct.pack("IIQ", kind, _ATTRIBUTE_BYTES, event).ljust(_ATTRIBUTE_BYTES, b"\0")
        self._files: list[int] = []
        for cpu in range(os.cpu_count() or 1):
            file = libc.syscall(number, attribute, -1, cpu, -1, 0)
            if file < 0:
                code = ctypes.get_errno()
                self.close()
                raise OSError(code, os.strerror(code))
            self._files.append(file)

    @classmethod
    def where_there_are(cls) -> Self | None:
        with contextlib.suppress(OSError):
            return cls()
        return None

    def read(self) -> int:
        """The sum over all CPUs so far."""
        return sum(int.from_bytes(os.read(file, 8), "little") for file in self._files)

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files.clear()


def most_per_s() -> float | None:
    """Memory transactions a second while each CPU copies memory; None if the host does not count them."""
    counters = Counters.where_there_are()
    if counters is None:
        return None
    command = [str(binary.find()), "serve", "--die-with-parent", "--only", "probe"]
    with contextlib.closing(counters), Agents(messages=Inbox(0, lossy=True)) as agents:
        client = agents.attach("copies", command)
        client.call(
            "workload.start",
            id="copies",
            work={"kernel": {"name": "memory-copy", "params": {}}},
            pace="flat_out",
            threads=len(os.sched_getaffinity(0)),
            work_dir=tempfile.gettempdir(),
        )
        time.sleep(WARM_UP_S)
        before, began_s = counters.read(), time.monotonic()
        time.sleep(MOST_S)
        return (counters.read() - before) / (time.monotonic() - began_s)
