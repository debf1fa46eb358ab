"""What a kernel asks of a disk: in which direction, how much at a time, and how much of it is under way at once. Pure.

From its name and parameters, for what a limit of the disk does to it. Nothing is known of what commands ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from partywall.agent.catalogue import Catalogue
from partywall.agent.memory import asked_of, request_bytes
from partywall.model.scenario import Throttle, Workload

Direction = Literal["read", "write"]
Params = Mapping[str, Any]

READ_AHEAD_BYTES = 128 << 10
"""What Linux reads ahead of a sequential reader, if nobody changed the device's read_ahead_kb."""

DIRTY_BYTES = 8 << 20
"""What a buffered writer may have written that is not yet on the disk, by itself."""

WHOLE_BYTES = 128 << 10
"""Larger requests are cut by some devices into several, each of which counts."""


@dataclass(frozen=True)
class Requests:
    """bytes: what the kernel waits for at a time, of each thread. at_once: bytes of all threads that may be under way.

    counted: bytes of each request that the device sees; None where that is not the kernel's to say.
    """

    direction: Direction
    bytes: int
    at_once: int
    counted: int | None

    def ceiling_rate(self, limits: Throttle) -> float | None:
        """Bytes a second that limits let through; None if none of them is in the way."""
        bps, iops = getattr(limits, f"{self.direction}_bps"), getattr(limits, f"{self.direction}_iops")
        by_count = None if iops is None or self.counted is None else iops * self.counted
        return min((float(rate) for rate in (bps, by_count) if rate is not None), default=None)

    def is_held_by(self, setting: str) -> bool:
        """Whether a limit of this name is of its direction."""
        return setting.startswith(self.direction)


def requests_of(kernel: str | None, workload: Workload, catalogue: Catalogue) -> Requests | None:
    """None if it is no kernel, or one that asks nothing of a disk."""
    found = KERNELS.get(kernel or "")
    if found is None or catalogue.kernel(kernel or "") is None:
        return None
    direction, waits = found
    asked = asked_of(kernel or "", workload, catalogue)
    own = request_bytes(asked)
    waits_bytes = waits(asked)
    direct = "direct" in (kernel or "")
    return Requests(
        direction=direction,
        bytes=waits_bytes,
        at_once=workload.threads * max(waits_bytes, own * int(asked["queue_depth"])),
        counted=own if direct and own <= WHOLE_BYTES else None,
    )


def _ahead(asked: Params) -> int:
    return max(READ_AHEAD_BYTES, request_bytes(asked))


def _written_back(asked: Params) -> int:
    """After each half of what may be dirty it waits for the half before."""
    return max(int(asked["dirty_bytes"] or DIRTY_BYTES) // 2, request_bytes(asked))


KERNELS: dict[str, tuple[Direction, Callable[[Params], int]]] = {
    "disk-read": ("read", _ahead),
    "disk-direct-read": ("read", request_bytes),
    "disk-write": ("write", _written_back),
    "disk-rewrite": ("write", _written_back),
    "disk-direct-write": ("write", request_bytes),
}
"""By kernel its direction, and what it waits for at a time. disk-reread asks memory, once its file is there."""
