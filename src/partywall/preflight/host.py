"""Requirements of a scenario on a host and its user, all reported at once before anything is created."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from partywall.errors import CapabilityError, Problem, UsageError
from partywall.host import Host, block, install
from partywall.model import factors
from partywall.model.scenario import Scenario
from partywall.preflight import unprivileged
from partywall.preflight.elsewhere import lacking_for_domains
from partywall.preflight.guests import lacking_for_guests
from partywall.preflight.nodes import lacking_nodes
from partywall.preflight.requirements import backends, brings, workloads
from partywall.run import idle, settings
from partywall.sandbox import WORK_ROOT, cgroups
from partywall.sandbox.qemu.machine import PROGRAM


def check_host(scenario: Scenario, host: Host, work_root: Path = WORK_ROOT) -> None:
    """CapabilityError, all problems at once, for what the scenario needs and a host or its user lacks.

    work_root: the folder for sandboxes' files.
    """
    everyone = workloads(scenario)
    missing: list[Problem] = []
    missing += list(unprivileged.lacking_for_cgroups(scenario, host))
    if scenario.idle == "poll" and (why := idle.why_not(host)):
        message = f"idle CPUs cannot poll here: {why}; leave it out, and CPUs sleep as usual"
        missing.append(Problem(message, key="idle"))
    missing += list(_lacking_settings(scenario, host, work_root))
    missing += list(_lacking_for_disk_limits(scenario, host, work_root))
    missing += list(lacking_nodes(scenario, host))
    missing += list(lacking_for_guests(scenario, host))
    missing += list(_lacking_for_migrations(scenario, host))
    missing += list(lacking_for_domains(scenario))
    used = backends(scenario)
    for key, workload in everyone.items():
        if used[key] <= {"qemu", "libvirt"} or bool(workload.sandbox.machine):
            continue
        for what, argv in (("command", workload.command), ("version", workload.version)):
            if argv and not brings(workload, argv[0]) and not host.which(argv[0]):
                message = f"{argv[0]!r} is not installed or not on the PATH; install it, or give its path"
                missing.append(Problem(message, key=f"{key}.{what}"))
    if missing:
        raise CapabilityError(*missing)


def _lacking_for_migrations(scenario: Scenario, host: Host) -> Iterator[Problem]:
    """What prevents migrations from passing by."""
    keys = ", ".join(f"aggressors.{name}.migration" for name, a in scenario.aggressors.items() if a.migration)
    if keys and not host.which(PROGRAM):
        yield Problem(f"{PROGRAM} was not found", install(host, "qemu-system-x86"), key=keys)


def _lacking_settings(scenario: Scenario, host: Host, work_root: Path) -> Iterator[Problem]:
    """What prevents the host's settings of a scenario, at all levels of its factors."""
    constant = settings.wanted(scenario.host)
    for name, setting in settings.SETTINGS.items():
        key = settings.key(name)
        levels = scenario.factors.get(key, [constant[name]] if name in constant else [])
        if levels and (why := setting.why_not([str(level) for level in levels], work_root, host)):
            yield Problem(why, key=key)


def _lacking_for_disk_limits(scenario: Scenario, host: Host, work_root: Path) -> Iterator[Problem]:
    """What prevents disk limits for containers, constant or switched by slot. Other backends check this themselves."""
    held = [key for key in _disk_limited(scenario) if "container" in backends(scenario)[key]]
    if not held:
        return
    why = block.lacking(work_root, host.root)
    try:
        cgroups.read(host.root).folder("io", "/")
    except CapabilityError as error:
        why = str(error)
    if why:
        yield Problem(why, key=", ".join(held))


def _disk_limited(scenario: Scenario) -> Iterator[str]:
    """Keys of the workloads whose disk is limited at any time."""
    varied = {at[:2] for path in scenario.factors for at in factors.targets(scenario, path) if at[3:4] == ("disk",)}
    for key, workload in workloads(scenario).items():
        if workload.sandbox.throttle is not None or tuple(key.split(".", 1)) in varied:
            yield key


def check_folder(work_root: Path) -> None:
    """UsageError if the files of disk kernels cannot be created there."""
    if not work_root.is_dir():
        what = "this is not a folder" if work_root.exists() else "the folder does not exist"
    elif not os.access(work_root, os.W_OK | os.X_OK):
        what = "you may not write there"
    else:
        return
    raise UsageError(
        Problem(f"{work_root}: {what}", "give a writable folder on the disk to be measured", key="--work-dir")
    )
