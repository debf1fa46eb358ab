"""The clock of the agent's records, replaceable in tests: integer nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

import time
from typing import Protocol


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
