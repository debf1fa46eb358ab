"""The clock of the agent's records, replaceable in tests: integer nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

import time
from typing import Protocol


def realtime_offset_ns() -> int:
    """What to add to times of the real-time clock to get monotonic ones: of several readings the tightest."""
    readings = []
    for _ in range(5):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        readings.append((after - before, (before + after) // 2 - real))
    return min(readings)[1]


class Clock(Protocol):
    """Monotonic time, and a way to wait for it."""

    def now_ns(self) -> int: ...

    def sleep_until(self, deadline_ns: int) -> None: ...


class Monotonic:
    """The host's monotonic clock, which all processes and containers of the host share."""

    def now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def sleep_until(self, deadline_ns: int) -> None:
        while (left_ns := deadline_ns - self.now_ns()) > 0:
            time.sleep(left_ns / 1e9)
