"""CPUs, cores, packages, nodes and caches of a host: what is expected of them, and what the facts and the planner say.

Both sides become the same words, so that they can be compared: lists of CPUs as the kernel writes them, such as 0-3,8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from partywall import units
from partywall.agent.memory import caches_of
from partywall.host import Host
from partywall.run.plan.placement import topology_of

GROUPED = "CPUs that planning groups"
SIZES = "cache sizes for planning"


def expected(reported: dict[str, Any]) -> dict[str, Any]:
    """The table `topology` of a NAME.toml, with what follows from it.

    `shared_by` of a cache is a list of groups of CPUs, or "cores" or "last_level" for groups that stand in the table.
    `cpus` limits it to some CPUs.
    """
    caches = [each for cache in reported["caches"] for each in _caches_expected(cache, reported)]
    groups = {group for _, _, _, group in caches} | set(_cores(reported)) | set(reported["packages"])
    sizes: dict[int, int] = {}
    for level, holds, size, _ in caches:
        if holds != "instruction":
            sizes[level] = max(sizes.get(level, 0), size)
    return reported | {
        "caches": sorted(map(_cache, caches)),
        GROUPED: sorted(groups | {node["cpus"] for node in reported["nodes"]}),
        SIZES: sizes,
    }


def _caches_expected(cache: dict[str, Any], reported: dict[str, Any]) -> Iterable[tuple[int, str, int, str]]:
    known = {"cores": _cores(reported), "last_level": reported["last_level_groups"]}
    shared = cache["shared_by"]
    groups = known[shared] if isinstance(shared, str) else shared
    within = set(units.parse_cpus(cache.get("cpus") or reported["online"]))
    for group in groups:
        if within.issuperset(units.parse_cpus(group)):
            yield cache["level"], cache["holds"], cache["size_bytes"], group


def _cores(reported: dict[str, Any]) -> list[str]:
    """The CPUs of each core: siblings, and the CPUs that have a core of their own."""
    if not reported["packages"]:
        return []
    shared = {cpu for group in reported["siblings"] for cpu in units.parse_cpus(group)}
    return [*reported["siblings"], *(str(cpu) for cpu in units.parse_cpus(reported["online"]) if cpu not in shared)]


def result(host: Host, level: int) -> dict[str, Any]:
    """What the agent's facts say of the same, and what planning makes of them. level: of the last cache expected."""
    cpu, nodes = host.facts["cpu"], host.facts["memory"]["nodes"]
    places = cpu["places"]
    packages: dict[int, set[int]] = {}
    for place in places:
        if place["package"] is not None:
            packages.setdefault(place["package"], set()).add(place["cpu"])
    threads = Counter((place["package"], place["core"]) for place in places)
    caches = [(each["level"], each["holds"], each["size_bytes"], listed(each["shared_by"])) for each in cpu["caches"]]
    known = {place["cpu"] for place in places}
    offline = host.text("/sys/devices/system/cpu/offline")
    return {
        "allowed": listed(host.cpus),
        "online": listed(cpu["online"] or ()),
        "isolated": listed(cpu["isolated"] or ()),
        "offline": listed(set(units.parse_cpus(offline)) - known) if offline else "",
        "packages": _lists(packages.values()),
        "cores": len(threads),
        "threads_per_core": sorted(set(threads.values())),
        "nodes": [each | {"cpus": listed(each["cpus"])} for each in nodes],
        "siblings": _lists(place["siblings"] for place in places if len(place["siblings"]) > 1),
        "last_level": max((each["level"] for each in cpu["caches"]), default=0),
        "last_level_groups": _lists(each["shared_by"] for each in cpu["caches"] if each["level"] == level),
        "caches": sorted(map(_cache, caches)),
        GROUPED: sorted(map(listed, topology_of(host.facts).groups)),
        SIZES: caches_of(host.facts),
    }


def _cache(cache: tuple[int, str, int, str]) -> str:
    level, holds, size, group = cache
    return f"L{level} {holds} {size} of {group}"


def _lists(groups: Iterable[Collection[int]]) -> list[str]:
    return [listed(group) for group in sorted({tuple(sorted(group)) for group in groups})]


def listed(cpus: Collection[int]) -> str:
    """As the kernel writes it: 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
