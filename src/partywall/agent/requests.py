"""What a kernel asks of a disk: in which direction, how much at a time, and how much of it is under way at once. Pure.

From its entry in the catalogue and its parameters, for what a limit of the disk does to it. Nothing is known of what
commands ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partywall.agent.catalogue import Catalogue, DiskRequests, WaitsForReadAhead, WaitsForWriteBack
from partywall.agent.memory import Params, asked_of
from partywall.model.scenario import Throttle, Workload

Direction = Literal["read", "write"]

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
    info = catalogue.kernel(kernel or "")
    if info is None or info.needs.requests is None:
        return None
    kind, asked = info.needs.requests, asked_of(info, workload, {})
    own, waits = int(asked[kind.size]), _waits_bytes(kind, asked)
    return Requests(
        direction=kind.direction,
        bytes=waits,
        at_once=workload.threads * max(waits, own * int(asked[kind.depth])),
        counted=own if kind.direct and own <= WHOLE_BYTES else None,
    )


def _waits_bytes(kind: DiskRequests, asked: Params) -> int:
    """What it waits for at a time; after each half of what may be dirty it waits for the half before."""
    own = int(asked[kind.size])
    match kind.waits:
        case WaitsForReadAhead(bytes=ahead):
            return max(ahead, own)
        case WaitsForWriteBack(bound=bound):
            return max(int(asked[bound]) // 2, own)
    return own
