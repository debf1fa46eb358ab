"""Memory transactions of the whole host, if its processor counts them: misses of the last-level cache.

Source: perf_event_open(2), a counter for each CPU. Virtual machines seldom have one, and without root the kernel's
setting `perf_event_paranoid` must allow it. Without a counter, the report says so in place of the figure.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from typing import Self

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTE_BYTES = 128
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
