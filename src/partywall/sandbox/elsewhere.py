"""Other machines: which of them sandboxes are on, and what their agents report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partywall.errors import CapabilityError, Problem
from partywall.host.label import WORK_ROOT
from partywall.sandbox import libvirt, ssh
from partywall.sandbox.libvirt.needs import unusable_domains
from partywall.sandbox.needs import Sandboxes


def machine_facts(wanted: Sequence[Sandboxes], work_root: Path = WORK_ROOT) -> dict[str, dict[str, Any]]:
    """Facts about every other machine, as its agent reports them, by its name.

    CapabilityError, for all machines at once, if one is unreachable or lacks a required program.
    """
    needed: dict[tuple[str, str], set[str]] = {}
    for sandboxes in wanted:
        for reached, programs in other_machines(sandboxes).items():
            needed.setdefault(reached, set()).update(programs)
    facts: dict[str, dict[str, Any]] = {}
    failures: list[Problem] = []
    for (backend, machine), programs in needed.items():
        try:
            if backend == "ssh":
                facts[machine] = ssh.survey(machine, str(work_root), sorted(programs))
            else:
                facts[machine] = libvirt.survey(machine)
                failures += [problem for sandboxes in wanted for problem in unusable_domains(sandboxes, machine)]
        except CapabilityError as error:
            failures += error.problems
    if failures:
        raise CapabilityError(*dict.fromkeys(failures))
    return facts


def other_machines(wanted: Sandboxes) -> dict[tuple[str, str], set[str]]:
    """The other machines of sandboxes, by backend, with the programs required on each."""
    machines: dict[tuple[str, str], set[str]] = {}
    for one in (one for each in wanted.values() for one in each):
        if machine := one.sandbox.machine:
            machines.setdefault((one.sandbox.backend, machine), set()).update(one.programs)
    return machines
