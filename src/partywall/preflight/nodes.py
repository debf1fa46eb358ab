"""Checks whether the NUMA nodes that sandboxes name can hold their memory."""

from __future__ import annotations

from collections.abc import Iterator

from partywall import units
from partywall.errors import CapabilityError, Problem
from partywall.host import Host, memory_nodes
from partywall.model import factors
from partywall.model.scenario import Scenario
from partywall.preflight.requirements import workloads
from partywall.sandbox import cgroups


def lacking_nodes(scenario: Scenario, host: Host) -> Iterator[Problem]:
    """What keeps sandboxes' memory from the nodes that a scenario names, at all levels of its factors.

    Machines without facts are not checked.
    """
    bound: dict[tuple[str, str, str], list[str]] = {}
    for _, _, applied in factors.trials(scenario):
        for key, workload in workloads(applied).items():
            box = workload.sandbox
            if box.memory_nodes is not None and (not box.machine or box.machine in host.facts.get("machines", {})):
                keys = bound.setdefault((box.machine, box.backend, box.memory_nodes), [])
                keys += [key] if key not in keys else []
    by_reason: dict[tuple[str, str], list[str]] = {}
    for (machine, backend, wanted), keys in bound.items():
        for reason in _reasons(machine, backend, wanted, host):
            named = by_reason.setdefault(reason, [])
            named += [key for key in keys if key not in named]
    for (message, remedy), keys in by_reason.items():
        yield Problem(message, remedy, key=", ".join(f"{key}.sandbox.memory_nodes" for key in keys))


def _reasons(machine: str, backend: str, wanted: str, host: Host) -> Iterator[tuple[str, str]]:
    """(message, remedy) for each reason why memory cannot come from all of the nodes of a list."""
    where = f" of {machine}" if machine else ""
    nodes = {node.number: node for node in memory_nodes(host, machine)}
    if not nodes:
        yield f"no NUMA nodes{where or ' of this host'} are known", "leave memory_nodes out"
        return
    usable = ", ".join(str(node) for node in nodes.values() if not node.why_not)
    for number in units.parse_nodes(wanted):
        why = nodes[number].why_not if number in nodes else "does not exist"
        if why:
            yield f"NUMA node {number}{where} {why}; usable: {usable or 'none'}", "name some of these, or leave it out"
    if backend == "container" and not _has_cpuset(cgroups.read(host.root)):
        message = "this host has no cgroup controller cpuset, which binds a container's memory to nodes"
        yield message, "mount cgroup version 2, or leave memory_nodes out"


def _has_cpuset(mounted: cgroups.Cgroups) -> bool:
    """True also without any cgroups, which is a problem of its own."""
    if mounted.why_not():
        return True
    try:
        mounted.folder("cpuset", "/")
    except CapabilityError:
        return False
    return True
