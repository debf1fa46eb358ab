"""The clock the agent's records carry, and a seam for tests: integer nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time and the means to wait for it."""

    def now_ns(self) -> int: ...

    def sleep_until(self, deadline_ns: int) -> None: ...


class Monotonic:
    """The host's own monotonic clock, the one all processes and containers of the host share."""

    def now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def sleep_until(self, deadline_ns: int) -> None:
        while (left_ns := deadline_ns - self.now_ns()) > 0:
            time.sleep(left_ns / 1e9)
