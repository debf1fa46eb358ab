"""What sandboxes need of a host and its user: cgroups with their controllers, and NUMA nodes with memory.

The backends' own needs are in their folders: `qemu.needs`, `libvirt.needs`. All of them take the same value, sandboxes
by the keys of their workloads, and yield every problem at once. They create nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from partywall import units
from partywall.errors import CapabilityError, Problem
from partywall.host import Host, memory_nodes
from partywall.sandbox import cgroups, delegation, remedies
from partywall.sandbox.backends import BACKENDS
from partywall.sandbox.document import Sandbox
from partywall.sandbox.runtime import Runtime

GUEST = "a CPU limit or weight of a guest"


@dataclass(frozen=True)
class Wanted:
    """A sandbox that a workload asks for."""

    sandbox: Sandbox
    command: str = ""
    """The program of its command; empty without one."""
    programs: tuple[str, ...] = ()
    """The programs that its machine must have. Its own files are not among them."""


Sandboxes = Mapping[str, Sequence[Wanted]]
"""By the key of a workload: its sandbox, once for each level of what is varied."""


def keys_with(wanted: Sandboxes, backend: str) -> list[str]:
    """The keys of workloads that are in a sandbox of this backend, at any level."""
    return [key for key, each in wanted.items() if any(one.sandbox.backend == backend for one in each)]


def lacking(wanted: Sandboxes, host: Host) -> Iterator[Problem]:
    """What prevents this user from applying the sandboxes' limits, or their memory from being on its nodes."""
    yield from lacking_for_cgroups(wanted, host)
    yield from lacking_nodes(wanted, host)


def lacking_for_cgroups(wanted: Sandboxes, host: Host) -> Iterator[Problem]:
    """What prevents this user from applying limits to containers and guests."""
    settings = controllers_by_setting(wanted)
    if containers := keys_with(wanted, "container"):
        yield from (replace(problem, key=", ".join(containers)) for problem in lacking_for_containers(host))
    guests = keys_with(wanted, "qemu")
    limited = [at for at in settings if at.partition(".sandbox.")[0] in guests]
    if limited and (problem := remedies.lacking_scope(GUEST, cgroups.read(host.root), host)):
        yield replace(problem, key=", ".join(limited))
    yield from lacking_controllers(settings, host)


def check_containers(option: str, settings: dict[str, str]) -> None:
    """CapabilityError if this user may not start containers or apply these settings. For options of a command line."""
    host = Host.here()
    problems = list(lacking_for_containers(host, option))
    problems += lacking_controllers(settings, host)
    if problems:
        raise CapabilityError(*problems)


def check_guests(settings: dict[str, str]) -> None:
    """CapabilityError if this user may not apply these settings to guests. For options of a command line."""
    host = Host.here()
    scope = remedies.lacking_scope(GUEST, cgroups.read(), host) if settings else None
    problems = [replace(scope, key=", ".join(settings))] if scope else []
    problems += lacking_controllers(settings, host)
    if problems:
        raise CapabilityError(*problems)


def lacking_for_containers(
    host: Host, option: str = "backend:", argv: Sequence[str] | None = None
) -> Iterator[Problem]:
    """What prevents this user from starting containers at all, with or without limits.

    option: the option that requested a container. argv: the command repeated in a remedy, by default this process's
    own.
    """
    mounted = cgroups.read(host.root)
    try:
        Runtime.choose(Path("/"), mounted, prefer=os.environ.get("PARTYWALL_RUNTIME"), which=host.which, host=host)
    except CapabilityError as error:
        yield from error.problems
    if why := mounted.why_not():
        remedy = f"mount cgroup version 2 on /sys/fs/cgroup for writing, or use {option} process"
        yield Problem(f"{option} container needs cgroups, and there is {why}", remedy)
        return
    if problem := remedies.lacking_scope(f"{option} container", mounted, host, argv):
        yield replace(problem, remedy=f"use {option} process, {problem.remedy}")
    if not delegation.may_divide_all(mounted, host) and (problem := remedies.lacking_namespaces(host)):
        yield problem


def lacking_controllers(settings: dict[str, str], host: Host) -> Iterator[Problem]:
    """Settings whose controllers this user's cgroup lacks. settings: the controller of each, by its key."""
    mounted = cgroups.read(host.root)
    if delegation.may_divide_all(mounted, host) or not mounted.is_v2:
        return
    # A missing scope is a problem of its own. This reports what the scope would still lack.
    there, on_offer = delegation.controllers(mounted, host), delegation.manager_controllers(mounted, host)
    for controller in dict.fromkeys(settings.values()):
        keys: Sequence[str] = [key for key, name in settings.items() if name == controller]
        if problem := remedies.lacking_controllers([controller], there, on_offer):
            yield replace(problem, key=", ".join(keys))


def controllers_by_setting(wanted: Sandboxes) -> dict[str, str]:
    """The cgroup controller of every setting that needs one at any time, by the setting's key."""
    return {
        f"{key}.sandbox.{setting}": controller
        for key, each in wanted.items()
        for one in each
        for setting, controller in BACKENDS[one.sandbox.backend].controllers.items()
        if _is_set(one.sandbox, setting)
    }


def _is_set(sandbox: Sandbox, setting: str) -> bool:
    return (sandbox.throttle if setting == "disk" else getattr(sandbox, setting)) is not None


def lacking_nodes(wanted: Sandboxes, host: Host) -> Iterator[Problem]:
    """What keeps sandboxes' memory from the nodes that they name. Machines without facts are not checked."""
    bound: dict[tuple[str, str, str], list[str]] = {}
    for key, each in wanted.items():
        for box in (one.sandbox for one in each):
            if box.memory_nodes is not None and (not box.machine or box.machine in host.facts.get("machines", {})):
                keys = bound.setdefault((box.machine, box.backend, box.memory_nodes), [])
                keys += [key] if key not in keys else []
    by_reason: dict[tuple[str, str], list[str]] = {}
    for (machine, backend, nodes), keys in bound.items():
        for reason in _reasons(machine, backend, nodes, host):
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
