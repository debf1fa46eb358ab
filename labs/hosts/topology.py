"""The shape of a host as Partywall tells it, compared with what lscpu and free say of the same host. Pure.

lscpu numbers cores, sockets and caches by itself, so groups of CPUs are compared and not their numbers. The memory of
each NUMA node is not compared, because neither tool tells it; nor is the size of all caches of a level together, for
which lscpu 2.38 counts a shared cache once for each core of a guest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# With these columns lscpu names each cache in the line above the CPUs. Offline CPUs are left out.
LSCPU = "lscpu -p=CPU,CORE,SOCKET,NODE,CACHE"
LSCPU_CACHES = "lscpu -C -J -B"
FREE = "free -b"

Groups = list[tuple[int, ...]]
SUFFIXES = {"data": "d", "instruction": "i", "unified": ""}


@dataclass(frozen=True)
class Tools:
    """What the host's own tools print: `LSCPU`, `LSCPU_CACHES` and `FREE`."""

    cpus: str
    caches: str
    memory: str


def differences(facts: Mapping[str, Any], tools: Tools) -> list[str]:
    """What Partywall tells otherwise than the tools, a line each."""
    there, here = reported(facts), shown(tools)
    return [
        f"{what}: Partywall says {there.get(what)}, the host's tools say {here.get(what)}"
        for what in dict.fromkeys((*here, *there))
        if there.get(what) != here.get(what)
    ]


def reported(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of a host from an agent's facts."""
    cpu, memory = facts["cpu"], facts["memory"]
    places = cpu["places"]
    behind: dict[str, Groups] = defaultdict(list)
    sizes: dict[str, list[int]] = defaultdict(list)
    for cache in sorted(cpu["caches"], key=lambda each: min(each["shared_by"])):
        name = f"L{cache['level']}{SUFFIXES[cache['holds']]}"
        behind[name].append(tuple(sorted(cache["shared_by"])))
        sizes[name].append(cache["size_bytes"])
    return {
        "CPUs": sorted(cpu["online"] or ()),
        "cores": grouped((place["cpu"], (place["package"], place["core"])) for place in places),
        "siblings": sorted({tuple(sorted(place["siblings"])) for place in places}),
        "sockets": grouped((place["cpu"], place["package"]) for place in places),
        "nodes": sorted(tuple(sorted(node["cpus"])) for node in memory["nodes"] if node["cpus"]),
        **{f"CPUs of each {name} cache": sorted(groups) for name, groups in behind.items()},
        **{f"bytes of the first {name} cache": each[0] for name, each in sizes.items()},
        "bytes of memory": memory["total_bytes"],
        "bytes of swap": memory["swap_bytes"],
    }


def shown(tools: Tools) -> dict[str, Any]:
    """The shape of a host from what its tools print."""
    rows = list(_rows(tools.cpus))
    memory = {line.split()[0]: int(line.split()[1]) for line in tools.memory.splitlines() if ": " in line}
    cores = grouped((row["cpu"], (row["socket"], row["core"])) for row in rows)
    caches = [name for name in (rows[0] if rows else {}) if name.startswith("L")]
    sizes = json.loads(tools.caches)["caches"] if tools.caches.strip() else []
    return {
        "CPUs": sorted(row["cpu"] for row in rows),
        "cores": cores,
        "siblings": cores,
        "sockets": grouped((row["cpu"], row["socket"]) for row in rows),
        "nodes": grouped((row["cpu"], row["node"]) for row in rows if row["node"] is not None),
        **{f"CPUs of each {name} cache": grouped((row["cpu"], row[name]) for row in rows) for name in caches},
        **{f"bytes of the first {each['name']} cache": int(each["one-size"]) for each in sizes},
        "bytes of memory": memory["Mem:"],
        "bytes of swap": memory["Swap:"],
    }


def grouped(pairs: Iterable[tuple[int, Any]]) -> Groups:
    """CPUs that have the same thing."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for cpu, thing in pairs:
        groups[thing].append(cpu)
    return sorted(tuple(sorted(cpus)) for cpus in groups.values())


def _rows(text: str) -> Iterator[dict[str, Any]]:
    """One row a CPU. The header is the last comment; where a host has no NUMA nodes, the column is empty."""
    names: Collection[str] = ()
    for line in text.splitlines():
        cells = line.strip().removeprefix("# ").replace(":", ",").split(",")
        if line.startswith("#"):
            names = [name if name.startswith("L") else name.lower() for name in cells]
        elif cells != [""]:
            numbers = {name: int(cell) if cell else None for name, cell in zip(names, cells, strict=False)}
            yield {name: number for name, number in numbers.items() if name}
