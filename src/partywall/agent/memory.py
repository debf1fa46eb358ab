"""How much memory and disk a kernel's threads hold, by its parameters: what must be there before a run. Pure.

The least that is held, not the most: a kernel that takes what is available (memory-space by itself) counts for nothing,
as it asks the host and its cgroup; what commands hold is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from partywall import units
from partywall.agent.catalogue import Catalogue
from partywall.model.scenario import Workload

AGENT_BYTES = 16 << 20
"""An agent with its program and buffers; seen: 6 to 12 MiB."""

RING_LEAST = 256 << 20
"""What memory-latency walks at the least by itself; else four times the last cache."""

SIZES = (
    *("bytes", "bound_bytes", "block_bytes", "message_bytes"),
    *("request_bytes", "response_bytes", "file_bytes", "dirty_bytes"),
)
BLOCK = 8192

Params = Mapping[str, Any]
Caches = Mapping[int, int]


def caches_of(facts: Mapping[str, Any]) -> dict[int, int]:
    """Bytes of the data caches by level, from a host's facts."""
    found: dict[int, int] = {}
    for cache in facts.get("cpu", {}).get("caches", []):
        if cache.get("size_bytes") and cache.get("holds") != "instruction":
            found[int(cache["level"])] = max(found.get(int(cache["level"]), 0), int(cache["size_bytes"]))
    return found


def held_bytes(kernel: str | None, workload: Workload, catalogue: Catalogue, caches: Caches) -> int:
    """What all threads of a workload hold; for a command nothing is known, and nothing counted."""
    count = HOLDS.get(kernel or "")
    return 0 if count is None else count(asked_of(kernel or "", workload, catalogue), workload.threads, caches)


def file_bytes(kernel: str | None, workload: Workload, catalogue: Catalogue) -> int:
    """What all threads of a workload keep on the disk; files in a folder of the user's own are that disk's affair."""
    asked = asked_of(kernel or "", workload, catalogue)
    return 0 if asked.get("path") else workload.threads * int(asked.get("file_bytes") or 0)


def left_free(disk: int) -> int:
    """Bytes that an agent's kernels leave free of a disk that their files are on, whosever it is."""
    return max(disk // 20, 512 << 20)


def asked_of(kernel: str, workload: Workload, catalogue: Catalogue) -> dict[str, Any]:
    """Parameters as given or by default, sizes as numbers."""
    info = catalogue.kernel(kernel)
    defaults = {
        key: schema.get("default") for key, schema in (info.params if info else {}).get("properties", {}).items()
    }
    asked = defaults | workload.params
    return asked | {key: units.parse_bytes(asked[key]) for key in SIZES if asked.get(key) is not None}


def sized(kernel: str | None, workload: Workload, catalogue: Catalogue, caches: Caches) -> Params:
    """Parameters with the size of a ring that follows from these caches, in place of those that its agent would see.

    A guest's kernel may count other caches than its host has, and walk a ring in memory that was to be in a cache.
    """
    ring = RINGS.get(kernel or "")
    if ring is None or not caches or workload.params.get("bytes") is not None:
        return workload.params
    size = ring(asked_of(kernel or "", workload, catalogue), caches)
    if not size:
        return workload.params
    return {key: value for key, value in workload.params.items() if key != "level"} | {"bytes": size}


def _cache_ring(asked: Params, caches: Caches) -> int:
    """A quarter more than its level; 0 where that is not known."""
    return caches.get(int(str(asked.get("level") or "L3").lstrip("Ll")), 0) * 5 // 4


def _latency_ring(asked: Params, caches: Caches) -> int:
    return int(min(max(RING_LEAST, 4 * max(caches.values(), default=0)), asked["bound_bytes"]))


RINGS: dict[str, Callable[[Params, Caches], int]] = {"cache": _cache_ring, "memory-latency": _latency_ring}
"""How large a ring is by itself, by kernel."""


def _blocks(count: int) -> Callable[[Params, int, Caches], int]:
    return lambda asked, threads, _: threads * count * int(asked["block_bytes"])


def _ring(kernel: str) -> Callable[[Params, int, Caches], int]:
    def held(asked: Params, threads: int, caches: Caches) -> int:
        return threads * int(RINGS[kernel](asked, caches) if asked.get("bytes") is None else asked["bytes"])

    return held


def _space(asked: Params, _threads: int, _caches: Caches) -> int:
    return int(asked.get("bound_bytes") or 0)


def _matrix(asked: Params, threads: int, _caches: Caches) -> int:
    size = int(asked["size"])
    # The rows are shared out; the vector is every thread's own.
    return 8 * (size * size + threads * size + size)


def _disk(asked: Params, threads: int, _caches: Caches) -> int:
    return threads * int(asked["queue_depth"]) * request_bytes(asked)


def request_bytes(asked: Params) -> int:
    """Size of a disk kernel's requests."""
    return int(asked.get("request_bytes") or (asked.get("request_blocks") or 1) * BLOCK)


def _messages(copies: int) -> Callable[[Params, int, Caches], int]:
    return lambda asked, threads, _: threads * copies * int(asked["message_bytes"])


def _shared(asked: Params, threads: int, _caches: Caches) -> int:
    # Beside the slots, the sender's message and the receiver's copy.
    return threads * (int(asked["slots"]) + 2) * int(asked["message_bytes"])


HOLDS: dict[str, Callable[[Params, int, Caches], int]] = {
    "memory-read": _blocks(1),
    "memory-write": _blocks(1),
    "memory-copy": _blocks(2),
    "memory-scale": _blocks(2),
    "memory-triad": _blocks(3),
    "memory-space": _space,
    **{kernel: _ring(kernel) for kernel in RINGS},
    "matrix-vector": _matrix,
    "shared-memory": _shared,
    **dict.fromkeys(("pipe", "unix-socket", "tcp-loopback", "tcp-stream"), _messages(2)),
    **dict.fromkeys(
        ("disk-read", "disk-reread", "disk-write", "disk-rewrite", "disk-direct-read", "disk-direct-write"), _disk
    ),
}
"""By kernel; what is not listed holds less than an agent."""
