"""A kernel's disk requests: direction, size, and amount in flight. Pure.

Derived from its catalogue entry and parameters, to predict the effect of a disk limit. The requests of commands are
unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partywall.agent.catalogue import Catalogue, DiskRequests, WaitsForReadAhead, WaitsForWriteBack
from partywall.agent.memory import Params, effective_params
from partywall.host.block import Throttle

Direction = Literal["read", "write"]

WHOLE_BYTES = 128 << 10
"""Some devices split larger requests into several, each of which counts."""


@dataclass(frozen=True)
class Requests:
    """The disk requests of a workload.

    bytes: the amount that each thread waits for. at_once: bytes in flight of all threads. counted: bytes of each
    request at the device; None if the kernel does not determine it.
    """

    direction: Direction
    bytes: int
    at_once: int
    counted: int | None

    def ceiling_rate(self, limits: Throttle) -> float | None:
        """Bytes a second under these limits; None if none of them applies."""
        bps, iops = getattr(limits, f"{self.direction}_bps"), getattr(limits, f"{self.direction}_iops")
        by_count = None if iops is None or self.counted is None else iops * self.counted
        return min((float(rate) for rate in (bps, by_count) if rate is not None), default=None)

    def is_held_by(self, setting: str) -> bool:
        """True if a limit with this name applies to its direction."""
        return setting.startswith(self.direction)


def requests_of(kernel: str | None, params: Params, threads: int, catalogue: Catalogue) -> Requests | None:
    """The requests of a kernel; None for a command or a kernel that does not use a disk."""
    info = catalogue.kernel(kernel or "")
    if info is None or info.needs.requests is None:
        return None
    kind, effective = info.needs.requests, effective_params(info, params, {})
    own, waits = int(effective[kind.size]), _waits_bytes(kind, effective)
    return Requests(
        direction=kind.direction,
        bytes=waits,
        at_once=threads * max(waits, own * int(effective[kind.depth])),
        counted=own if kind.direct and own <= WHOLE_BYTES else None,
    )


def _waits_bytes(kind: DiskRequests, effective: Params) -> int:
    """Bytes that it waits for at a time.

    After each half of the permitted dirty data, it waits for the previous half.
    """
    own = int(effective[kind.size])
    match kind.waits:
        case WaitsForReadAhead(bytes=ahead):
            return max(ahead, own)
        case WaitsForWriteBack(bound=bound):
            return max(int(effective[bound]) // 2, own)
    return own
