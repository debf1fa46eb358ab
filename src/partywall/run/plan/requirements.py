"""Requirements of a scenario, by workload: sandboxes, commands, and where commands run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partywall import units
from partywall.errors import UsageError
from partywall.run.document import factors
from partywall.run.document.scenario import Scenario, Workload
from partywall.sandbox.backends import BACKENDS
from partywall.sandbox.document import Sandbox
from partywall.sandbox.needs import Wanted


def workloads(scenario: Scenario) -> dict[str, Workload]:
    """Every workload of a scenario by its key."""
    victims = {f"victims.{name}": victim for name, victim in scenario.victims.items()}
    return victims | {f"aggressors.{name}": aggressor for name, aggressor in scenario.aggressors.items()}


def sandboxes(scenario: Scenario) -> dict[str, tuple[Wanted, ...]]:
    """The sandboxes that each workload gets, by its key: at all levels of factors, those switched by slot too."""
    found: dict[str, dict[Wanted, None]] = {}
    for applied in _at_all_levels(scenario):
        for key, workload in workloads(applied).items():
            found.setdefault(key, {})[_wanted(workload)] = None
    return {key: tuple(each) for key, each in found.items()}


def _at_all_levels(scenario: Scenario) -> Iterator[Scenario]:
    live, _ = factors.split(scenario)
    for _, _, applied in factors.trials(scenario):
        yield from (factors.apply(applied, path, level) for path, levels in live.items() for level in levels)
        if not live:
            yield applied


def _wanted(workload: Workload) -> Wanted:
    commands = [argv[0] for argv in (workload.command, workload.version) if argv]
    needed = tuple(sorted({program for program in commands if not brings(workload, program)}))
    return Wanted(workload.sandbox, workload.command[0] if workload.command else "", needed)


def commands(scenario: Scenario) -> list[str]:
    """The commands in a scenario, with the files that they get, as text for its user to review."""
    places: dict[tuple[str, str], list[str]] = {}
    for _, _, applied in factors.trials(scenario):
        for key, workload in workloads(applied).items():
            for name, words in _given(workload):
                sandboxes = places.setdefault((f"{key}.{name}", words), [])
                sandboxes += [place] if (place := _place(workload.sandbox)) not in sandboxes else []
    return [f"{key}, {' or '.join(sandboxes)}: {words}" for (key, words), sandboxes in places.items()]


def _given(workload: Workload) -> Iterator[tuple[str, str]]:
    """The commands of a workload, and the files that they get, with their keys."""
    for index, text in enumerate(described(workload)):
        yield f"files[{index}]", text
    for key, argv in (("version", workload.version), ("command", workload.command)):
        if argv:
            yield key, " ".join(argv)


def brings(workload: Workload, program: str) -> bool:
    """True if a workload's program is one of its own files, so that its machine need not have it."""
    return program.removeprefix("./") in {file.name for file in workload.files} and program.startswith("./")


def described(workload: Workload) -> Iterator[str]:
    """Each of a workload's files as text: its path, its name in the sandbox, and its size and hash."""
    for file in workload.files:
        about = f" ({units.format_bytes(file.size or 0)}, SHA-256 {file.sha256})" if file.sha256 else ""
        yield f"{file.origin} as {file.name}{about}"


def _place(box: Sandbox) -> str:
    """Where a command runs, as text."""
    return BACKENDS[box.backend].place.format(host=box.host, domain=box.domain)


def check_commands(scenario: Scenario, *, allowed: bool) -> None:
    """UsageError if the scenario contains commands and the user has not allowed them."""
    refuse_commands("scenario", [] if allowed else commands(scenario))


def refuse_commands(what: str, listed: Sequence[str]) -> None:
    """UsageError that lists the commands, if there are any."""
    if listed:
        listing = "\n".join(f"  {command}" for command in listed)
        raise UsageError(
            f"the {what} would run these commands:\n{listing}\nread them, and run again with --allow-commands"
        )


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
