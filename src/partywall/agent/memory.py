"""Memory and disk space that a kernel's threads use, according to its parameters, for checks before a run. Pure.

Evaluates the formulas in each kernel's catalogue entry. The result is the least amount. A kernel that takes what is
available (memory-space without parameters) counts as 0, because it checks the host and its cgroup itself. The use of
commands is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from partywall import units
from partywall.agent.catalogue import Catalogue, Constant, Held, Implied, KernelInfo, OfCache, OfParameter

AGENT_BYTES = 16 << 20
"""An agent with its program and buffers. Measured: 6 to 12 MiB."""

Params = Mapping[str, Any]
Caches = Mapping[int, int]


def caches_of(facts: Mapping[str, Any]) -> dict[int, int]:
    """Bytes of the data caches by level, from a host's facts."""
    sizes: dict[int, int] = {}
    for cache in facts.get("cpu", {}).get("caches", []):
        if cache.get("size_bytes") and cache.get("holds") != "instruction":
            sizes[int(cache["level"])] = max(sizes.get(int(cache["level"]), 0), int(cache["size_bytes"]))
    return sizes


def held_bytes(kernel: str | None, params: Params, threads: int, catalogue: Catalogue, caches: Caches) -> int:
    """Memory of all threads of a workload; 0 for a command, whose use is unknown."""
    info = catalogue.kernel(kernel or "")
    if info is None:
        return 0
    effective = effective_params(info, params, caches)
    return sum(_held(term, effective, threads) for term in info.needs.memory)


def _held(term: Held, effective: Params, threads: int) -> int:
    holders = threads if term.by == "each_thread" else 1
    return holders * term.times * math.prod(int(effective.get(name) or 0) for name in term.parameters)


def file_bytes(kernel: str | None, params: Params, threads: int, catalogue: Catalogue) -> int:
    """Disk space of all threads of a workload. Files in the user's own folder are not counted."""
    info = catalogue.kernel(kernel or "")
    effective = effective_params(info, params, {}) if info else {}
    # The threads share what is read before the work. It lies on the disk beside their files.
    before = int(effective.get("read_before_bytes") or 0)
    return 0 if effective.get("path") else threads * int(effective.get("file_bytes") or 0) + before


def left_free(disk: int) -> int:
    """Bytes that an agent's kernels leave free on any disk that contains their files."""
    return max(disk // 20, 512 << 20)


def effective_params(info: KernelInfo, params: Params, caches: Caches) -> Params:
    """Parameters as given, by default or as implied. Sizes are numbers."""
    defaults = {key: schema.get("default") for key, schema in info.params.get("properties", {}).items()}
    effective = {key: _as_number(key, value) for key, value in {**defaults, **params}.items()}
    for implied in info.needs.implied:
        if effective.get(implied.parameter) is None:
            effective[implied.parameter] = _implied(implied, effective, caches)
    return effective


def _as_number(name: str, value: Any) -> Any:
    """Parses a text by the unit at the end of the parameter's name."""
    return units.parse_bytes(value) if name.endswith("bytes") and value is not None else value


def sized(kernel: str | None, params: Params, catalogue: Catalogue, caches: Caches) -> Params:
    """Parameters with sizes that are derived from these caches, instead of the caches that the agent would see.

    A guest's kernel may report other caches than its host has. A buffer meant for a cache would then be in memory.
    """
    info = catalogue.kernel(kernel or "")
    if info is None or not caches:
        return params
    effective, changed = effective_params(info, params, caches), dict(params)
    for implied in info.needs.implied:
        name = implied.parameter
        if not implied.by_caches or changed.get(name) is not None or not effective[name]:
            continue
        if isinstance(implied.source, OfCache):
            changed.pop(implied.source.level, None)
        changed[name] = effective[name]
    return changed


def _implied(implied: Implied, effective: Params, caches: Caches) -> int:
    """The implied value; 0 if unknown."""
    match implied.source:
        case Constant(value=value):
            return value
        case OfParameter(parameter=parameter, otherwise=otherwise, times=times):
            return int(effective.get(parameter) or otherwise) * times
        case OfCache(level=level, otherwise=otherwise, percent=percent):
            return caches.get(int(str(effective.get(level) or otherwise).lstrip("Ll")), 0) * percent // 100
        case largest:
            size = max(largest.least, max(caches.values(), default=0) * largest.percent // 100)
            return int(min(size, effective[largest.most]))
