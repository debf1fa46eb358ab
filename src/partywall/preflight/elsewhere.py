"""Resources beyond this host's own sandboxes: other machines, and libvirt domains."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from partywall.errors import CapabilityError, Problem
from partywall.model import factors
from partywall.model.scenario import Scenario
from partywall.preflight.requirements import brings, workloads
from partywall.sandbox import WORK_ROOT, libvirt, qemu, ssh
from partywall.sandbox.document import Sandbox


def machine_facts(scenarios: Sequence[Scenario], work_root: Path = WORK_ROOT) -> dict[str, dict[str, Any]]:
    """Facts about every other machine of the scenarios, as its agent reports them, by its name.

    CapabilityError, for all machines at once, if one is unreachable or lacks a required program.
    """
    wanted: dict[tuple[str, str], set[str]] = {}
    for scenario in scenarios:
        for reached, programs in other_machines(scenario).items():
            wanted.setdefault(reached, set()).update(programs)
    facts: dict[str, dict[str, Any]] = {}
    failures: list[Problem] = []
    for (backend, machine), programs in wanted.items():
        try:
            if backend == "ssh":
                facts[machine] = ssh.survey(machine, str(work_root), sorted(programs))
            else:
                facts[machine] = libvirt.survey(machine)
                failures += [problem for scenario in scenarios for problem in _unusable_domains(scenario, machine)]
        except CapabilityError as error:
            failures += error.problems
    if failures:
        raise CapabilityError(*dict.fromkeys(failures))
    return facts


def other_machines(scenario: Scenario) -> dict[tuple[str, str], set[str]]:
    """The other machines of a scenario, by backend, with the programs required on each."""
    machines: dict[tuple[str, str], set[str]] = {}
    for _, _, applied in factors.trials(scenario):
        for workload in workloads(applied).values():
            if machine := workload.sandbox.machine:
                programs = [argv[0] for argv in (workload.command, workload.version) if argv]
                needed = {program for program in programs if not brings(workload, program)}
                machines.setdefault((workload.sandbox.backend, machine), set()).update(needed)
    return machines


def victims_machines(scenarios: Sequence[Scenario]) -> tuple[str, ...]:
    """The machines with the victims of the scenarios, by `Sandbox.machine`: what is measured. Empty text: this host."""
    trials = (trial for scenario in scenarios for trial in factors.trials(scenario))
    return tuple(dict.fromkeys(applied.victims[victim].sandbox.machine for victim, _, applied in trials))


def measured_facts(scenarios: Sequence[Scenario], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the machine with all victims of the scenarios, if it is another one; else this host's.

    facts: this host's, with those of the scenarios' machines. Those of all further machines stay under `machines`.
    """
    names, machines = victims_machines(scenarios), dict(facts.get("machines", {}))
    if len(names) != 1 or names[0] not in machines:
        return dict(facts)
    measured = dict(machines.pop(names[0]))
    return measured | ({"machines": machines} if machines else {})


def lacking_for_domains(scenario: Scenario) -> Iterator[Problem]:
    """What prevents this host's libvirt from providing the scenario's domains. Other hosts report this themselves."""
    here = _domains(scenario, "")
    checks: list[Callable[[], object]] = [
        functools.partial(libvirt.reachable, uri) for uri in dict.fromkeys(box.uri for box in here)
    ]
    if any(box.guest and box.boot is None for box in here):
        checks.append(qemu.GuestKernel.prepared)
    for check in checks:
        try:
            check()
        except CapabilityError as error:
            yield from error.problems
    yield from _unusable_domains(scenario, "")


def _domains(scenario: Scenario, machine: str) -> dict[Sandbox, list[str]]:
    """The libvirt sandboxes on a machine, at all levels of factors, with the keys of their workloads."""
    domains: dict[Sandbox, list[str]] = {}
    for _, _, applied in factors.trials(scenario):
        for key, workload in workloads(applied).items():
            if workload.sandbox.backend == "libvirt" and workload.sandbox.machine == machine:
                keys = domains.setdefault(workload.sandbox, [])
                keys += [key] if key not in keys else []
    return domains


def _unusable_domains(scenario: Scenario, machine: str) -> Iterator[Problem]:
    """Existing domains of the user on a machine that cannot be sandboxes, as far as its daemon answers."""
    requested: dict[tuple[str | None, str, bool], list[str]] = {}
    for box, keys in _domains(scenario, machine).items():
        if box.domain is not None:
            requested.setdefault((box.uri, box.domain, box.host is not None), []).extend(keys)
    for (uri, domain, by_ssh), keys in requested.items():
        # A daemon that does not answer is reported elsewhere.
        with contextlib.suppress(CapabilityError):
            if why := libvirt.unusable(uri, domain, by_ssh=by_ssh):
                yield Problem(why, key=", ".join(f"{key}.sandbox.domain" for key in dict.fromkeys(keys)))
