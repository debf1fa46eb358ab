"""A guest's memory, changed while it runs: its balloon takes pages from its kernel and gives them to the host, or back.

The guest is not asked to give memory back under pressure: a limit that gives way is none. As beyond any memory limit,
the kernel in the guest then drops its page cache, and kills when that is not enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from partywall import units
from partywall.errors import TrialError

# A balloon that has stopped moving for so long will not get further.
STUCK_S = 2.0
LOOK_S = 0.02
NEAR_BYTES = 1 << 20


class Executes(Protocol):
    """A QEMU monitor."""

    def execute(self, command: str, **arguments: Any) -> Any:
        """The result of a command."""


def resize(monitor: Executes, size: int, name: str) -> None:
    """Returns when the guest called `name` has `size` bytes; TrialError if it does not give up as much."""
    monitor.execute("balloon", value=size)
    settle(lambda: int(monitor.execute("query-balloon")["actual"]), size, name)


def settle(has: Callable[[], int], size: int, name: str) -> None:
    """Returns when a guest, which `has` so many bytes, has come to `size`; TrialError once it moves no more."""
    last, moved_s = -1, time.monotonic()
    while abs((actual := has()) - size) > NEAR_BYTES:
        now_s = time.monotonic()
        if actual != last:
            last, moved_s = actual, now_s
        elif now_s - moved_s > STUCK_S:
            raise TrialError(
                f"sandbox {name}: its guest was to have {units.format_bytes(size)} of memory and stays at "
                f"{units.format_bytes(actual)}; what runs in it needs more than this level of sandbox.memory"
            )
        time.sleep(LOOK_S)
