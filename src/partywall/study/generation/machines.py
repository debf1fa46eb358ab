"""The machines of a study of load generation: those that a request names, or its file, or this host for all. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from partywall.core.document.decode import key_text
from partywall.core.document.explain import Mistake
from partywall.errors import Problem, UsageError
from partywall.load import tomcat
from partywall.load.check import wrong_generator
from partywall.load.document import Generator
from partywall.run.document.scenario import Scenario
from partywall.sandbox.addresses import wrong_address
from partywall.study.document import Machines, StudyRequest
from partywall.study.generation.model import Cell, Study

KEY = "machines"
PHYSICAL, SANDBOX = "physical", "sandbox"
ONE_TEST = "several tests at once are measured on this host alone"
KEPT = "CPUs can be kept from a sandbox on this host alone; a guest on another machine has those that it was given"


def of(study: Study, request: StudyRequest) -> Machines | None:
    """The other machines of a study; None if all is on this host."""
    return request.machines or study.machines


def check(machines: Machines, file: str = "") -> None:
    """UsageError, with all mistakes, if they cannot be the machines of a study. file: where they are named."""
    if wrong := list(_mistakes(machines)):
        problems = (Problem(each.message, each.remedy, file, None, key_text((KEY, *each.path))) for each in wrong)
        raise UsageError(*problems)


def _mistakes(machines: Machines) -> Iterator[Mistake]:
    yield from wrong_generator(("physical",), machines.physical)
    for number, sandbox in enumerate(machines.sandboxes):
        yield from wrong_generator(("sandboxes", number), sandbox)
    places = [sandbox.place for sandbox in machines.sandboxes]
    for number, place in enumerate(places):
        if place in places[:number]:
            message, remedy = f"{place!r} is given twice", "name a machine for each sandbox"
            yield Mistake(("sandboxes", number), message, remedy)
    if machines.application is not None and wrong_address(machines.application):
        remedy = "give a Host of ~/.ssh/config, user@name or ssh://user@name:port"
        yield Mistake(("application",), f"{machines.application[:60]!r} is not a host for ssh", remedy)
    if not re.fullmatch(r"[\w.:-]+", machines.address):
        yield Mistake(("address",), f"{machines.address[:60]!r} is not an address", "give for example 10.0.0.7")


def generators(machines: Machines, cell: Cell) -> dict[str, Generator]:
    """The generators of a cell, by name."""
    if cell.generator == "physical":
        return {PHYSICAL: machines.physical}
    return sandboxes(machines, cell.sandboxes)


def sandboxes(machines: Machines, number: int) -> dict[str, Generator]:
    """The first generators in sandboxes, by name."""
    return {f"{SANDBOX}-{n}": machine for n, machine in enumerate(machines.sandboxes[:number], 1)}


def every(machines: Machines) -> dict[str, Generator]:
    """All generators, by name."""
    return {PHYSICAL: machines.physical, **sandboxes(machines, len(machines.sandboxes))}


def why_not(machines: Machines, cell: Cell) -> str:
    """Why a cell cannot be measured on these machines; empty if it can."""
    if cell.kept:
        return KEPT
    if cell.tests > 1:
        return ONE_TEST
    if cell.generator == "sandbox" and cell.sandboxes > len(machines.sandboxes):
        return f"it needs {cell.sandboxes} machines for sandboxes, and {len(machines.sandboxes)} are named"
    return ""


def scenario(machines: Machines) -> Scenario:
    """What has to be there, as a scenario: each machine with what it needs. The victim is a process of this host."""
    needed = {name: {"stressor": "integer", "sandbox": _box(there)} for name, there in every(machines).items()}
    if machines.application is not None:
        box = {"backend": "ssh", "host": machines.application}
        needed |= {
            f"{tomcat.APPLICATION}-{number}": {"command": [program], "sandbox": box}
            for number, program in enumerate(tomcat.PROGRAMS)
        }
    controller = {"probe": "integer", "sandbox": {"backend": "process"}}
    return Scenario.model_validate(
        {"partywall": 1, "name": "study", "victims": {"controller": controller}, "aggressors": needed}
    )


def _box(there: Generator) -> dict[str, Any]:
    given = there.model_dump(exclude_none=True, exclude={"cpus"})
    return {"backend": "libvirt" if there.domain else "ssh", **given}


def in_words(machines: Machines) -> dict[str, str]:
    """Where the parts of the study run, by part."""
    return {
        "application": f"{machines.application or 'this host'}, at {machines.address}",
        "physical generator": machines.physical.place,
        "virtual generators": ", ".join(sandbox.place for sandbox in machines.sandboxes),
        "controller": "this host",
    }
