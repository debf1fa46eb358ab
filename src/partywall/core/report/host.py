"""A summary of the host in a few lines. The page lists all facts further below, as the agent reported them.

Unknown facts have no line here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from partywall import units

Facts = Mapping[str, Any]


def summary(host: Facts) -> tuple[tuple[str, str], ...]:
    """(name, figure): processors, caches, memory, disks, kernel, cgroups, and whether the host is itself a guest."""
    entries = (
        ("processors", _processors(_part(host, "cpu"))),
        ("caches", "; ".join(_caches(_part(host, "cpu")))),
        ("memory", _size(_part(host, "memory").get("total_bytes"))),
        ("disks", "; ".join(_disks(host))),
        ("kernel", str(_part(host, "kernel").get("release") or "")),
        ("clock", str(_part(host, "kernel").get("clocksource") or "")),
        ("cgroups", str(_part(host, "cgroup").get("mode") or "")),
        ("is itself a guest", _guest(_part(host, "virtualisation"))),
    )
    return tuple((what, text) for what, text in entries if text)


def _part(host: Facts, name: str) -> Facts:
    part = host.get(name)
    return part if isinstance(part, Mapping) else {}


def _processors(cpu: Facts) -> str:
    if not cpu.get("online"):
        return ""
    threads = ", two or more threads a core" if cpu.get("smt") else ""
    return f"{len(cpu['online'])} of {cpu.get('model') or 'an unknown model'}{threads}"


def _caches(cpu: Facts) -> Iterator[str]:
    """'L1 data 32 KiB (2)': each kind of cache once, with its number."""
    kinds = Counter((c["level"], c["holds"], c["size_bytes"]) for c in cpu.get("caches") or ())
    for (level, holds, size), count in sorted(kinds.items()):
        what = "" if holds == "unified" else f" {holds}"
        yield f"L{level}{what} {units.format_bytes(size)}{f' ({count} of them)' if count > 1 else ''}"


def _disks(host: Facts) -> Iterator[str]:
    for disk in host.get("disks") or ():
        scheduler = f", {disk['scheduler']}" if disk.get("scheduler") else ""
        yield f"{disk['name']} {_size(disk.get('size_bytes'))}{scheduler}"


def _guest(facts: Facts) -> str:
    named = next((f", of {facts[key]}" for key in ("hypervisor_type", "vendor") if facts.get(key)), "")
    return "" if facts.get("guest") is None else f"yes{named}" if facts["guest"] else "no"


def _size(count: int | None) -> str:
    return "" if count is None else units.format_bytes(count)
