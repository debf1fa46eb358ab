"""What lies beyond this host's own sandboxes: other machines, and domains of libvirt."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from partywall.errors import CapabilityError
from partywall.model import factors
from partywall.model.scenario import Scenario
from partywall.preflight.asked import workloads
from partywall.sandbox import WORK_ROOT, libvirt, qemu, ssh


def machine_facts(scenario: Scenario, work_root: Path = WORK_ROOT) -> dict[str, dict[str, Any]]:
    """Facts about every other machine of a scenario, as its agent tells them, by the name it is reached by.

    CapabilityError, for all machines at once, if one cannot be reached or lacks a program that shall run there.
    """
    found: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    for (backend, machine), programs in other_machines(scenario).items():
        try:
            if backend == "ssh":
                found[machine] = ssh.survey(machine, str(work_root), sorted(programs))
            else:
                found[machine] = libvirt.survey(machine)
                failures += _unusable_domains(scenario, machine)
        except CapabilityError as error:
            failures.append(str(error))
    if failures:
        raise CapabilityError("\n".join(failures))
    return found


def other_machines(scenario: Scenario) -> dict[tuple[str, str], set[str]]:
    """The other machines of a scenario, by backend, with the programs that shall run on each."""
    found: dict[tuple[str, str], set[str]] = {}
    for _, _, applied in factors.trials(scenario):
        for workload in workloads(applied).values():
            if machine := workload.sandbox.machine:
                found.setdefault((workload.sandbox.backend, machine), set()).update((workload.command or ())[:1])
    return found


def lacking_for_domains(scenario: Scenario) -> Iterator[str]:
    """What keeps this host's libvirt from making the scenario's domains. Other hosts are asked what they are anyway."""
    here = [w.sandbox for w in workloads(scenario).values() if w.sandbox.backend == "libvirt" and not w.sandbox.machine]
    checks: list[Callable[[], object]] = [
        functools.partial(libvirt.reachable, uri) for uri in dict.fromkeys(sandbox.uri for sandbox in here)
    ]
    if any(sandbox.guest and sandbox.boot is None for sandbox in here):
        checks.append(qemu.GuestKernel.prepared)
    unreachable = []
    for check in checks:
        try:
            check()
        except CapabilityError as error:
            unreachable.append(str(error))
    yield from unreachable or _unusable_domains(scenario, "")


def _unusable_domains(scenario: Scenario, machine: str) -> Iterator[str]:
    """Domains of the user's on a machine that cannot be sandboxes. CapabilityError if its daemon does not answer."""
    asked: dict[tuple[str | None, str, bool], list[str]] = {}
    for _, _, applied in factors.trials(scenario):
        for key, workload in workloads(applied).items():
            box = workload.sandbox
            if box.backend == "libvirt" and box.domain is not None and box.machine == machine:
                keys = asked.setdefault((box.uri, box.domain, box.host is not None), [])
                keys += [key] if key not in keys else []
    for (uri, domain, by_ssh), keys in asked.items():
        if why := libvirt.unusable(uri, domain, by_ssh=by_ssh):
            yield f"{', '.join(keys)}: {why}"
