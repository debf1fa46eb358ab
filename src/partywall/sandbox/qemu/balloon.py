"""Changes a guest's memory while it runs: its balloon takes pages from its kernel, or returns them.

The balloon does not deflate under memory pressure, because it would then be no limit. As under any memory limit, the
guest's kernel drops its page cache, and kills processes if that is not enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from partywall import units
from partywall.errors import TrialError

# A balloon that has not moved for this long will not move further.
STUCK_S = 2.0
LOOK_S = 0.02
NEAR_BYTES = 1 << 20


class Executes(Protocol):
    """A QEMU monitor."""

    def execute(self, command: str, **arguments: Any) -> Any:
        """The result of a command."""


def resize(monitor: Executes, size: int, name: str) -> None:
    """Returns when the guest called `name` has `size` bytes. TrialError if it cannot give up that much."""
    monitor.execute("balloon", value=size)
    settle(lambda: int(monitor.execute("query-balloon")["actual"]), size, name)


def settle(has: Callable[[], int], size: int, name: str) -> None:
    """Returns when a guest, which `has` this many bytes, reaches `size`. TrialError when it stops moving before."""
    last, moved_s = -1, time.monotonic()
    while abs((actual := has()) - size) > NEAR_BYTES:
        now_s = time.monotonic()
        if actual != last:
            last, moved_s = actual, now_s
        elif now_s - moved_s > STUCK_S:
            raise TrialError(
                f"sandbox {name}: the balloon should leave {units.format_bytes(size)} of memory, but its guest keeps "
                f"{units.format_bytes(actual)}; its programs need more than this level of sandbox.memory"
            )
        time.sleep(LOOK_S)
