"""Requirements for limits of an unprivileged user's sandboxes: a delegated cgroup and its controllers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from partywall.errors import CapabilityError, Problem
from partywall.host import Host
from partywall.model import factors
from partywall.model.scenario import Scenario
from partywall.preflight.requirements import backends, workloads
from partywall.sandbox import cgroups, delegation, remedies
from partywall.sandbox.backends import BACKENDS
from partywall.sandbox.runtime import Runtime

GUEST = "a CPU limit or weight of a guest"


def lacking_for_cgroups(scenario: Scenario, host: Host) -> Iterator[Problem]:
    """What prevents this user from applying the scenario's limits to containers and guests."""
    used = backends(scenario)
    containers = [key for key, names in used.items() if "container" in names]
    settings = controllers_by_setting(scenario)
    if containers:
        yield from (replace(problem, key=", ".join(containers)) for problem in lacking_for_containers(host))
    limited = [at for at in settings if "qemu" in used[at.partition(".sandbox.")[0]]]
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


def controllers_by_setting(scenario: Scenario) -> dict[str, str]:
    """The cgroup controller of every setting that needs one at any time, by the setting's key."""
    controllers: dict[str, str] = {}
    for key, names in backends(scenario).items():
        for name in names:
            for setting, controller in BACKENDS[name].controllers.items():
                if _is_set(scenario, key, setting):
                    controllers[f"{key}.sandbox.{setting}"] = controller
    return controllers


def _is_set(scenario: Scenario, key: str, setting: str) -> bool:
    """True if the setting is set, in the file or by a factor."""
    sandbox = workloads(scenario)[key].sandbox
    if (sandbox.throttle if setting == "disk" else getattr(sandbox, setting)) is not None:
        return True
    at = (*key.split(".", 1), "sandbox", setting)
    return any(place[:4] == at for path in scenario.factors for place in factors.targets(scenario, path))
