"""What a scenario asks for, by workload: backends, commands, and where these would run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from partywall.errors import UsageError
from partywall.model import factors
from partywall.model.scenario import Scenario, Workload


def workloads(scenario: Scenario) -> dict[str, Workload]:
    """Every workload of a scenario by its key."""
    victims = {f"victims.{name}": victim for name, victim in scenario.victims.items()}
    return victims | {f"aggressors.{name}": aggressor for name, aggressor in scenario.aggressors.items()}


def backends(scenario: Scenario) -> dict[str, set[str]]:
    """Every backend that a sandbox is given, by the workload's key, the levels of factors among them."""
    everyone: dict[str, set[str]] = {key: {workload.sandbox.backend} for key, workload in workloads(scenario).items()}
    for path, levels in scenario.factors.items():
        if path.endswith("sandbox.backend"):
            for kind, name, *_ in factors.targets(scenario, path):
                everyone[f"{kind}.{name}"] = set(map(str, levels))
    return everyone


def commands(scenario: Scenario) -> list[str]:
    """The commands that a scenario holds, as its user may want to read them."""
    used = backends(scenario)
    return [
        f"{key}.command, {_place(workload, used[key])}: {' '.join(workload.command)}"
        for key, workload in workloads(scenario).items()
        if workload.command
    ]


def _place(workload: Workload, used: AbstractSet[str]) -> str:
    """Where its command runs. used: the backends that its sandbox is given."""
    box = workload.sandbox
    places = {
        "process": "on this host",
        "container": "in a container on this host",
        "qemu": "in a guest",
        "ssh": f"on {box.host}",
        "libvirt": f"in domain {box.domain}",
    }
    return " or ".join(places[backend] for backend in places if backend in used)


def check_commands(scenario: Scenario, *, allowed: bool) -> None:
    """UsageError if the scenario holds commands and the user has not allowed them."""
    refuse_commands("scenario", [] if allowed else commands(scenario))


def refuse_commands(what: str, listed: Sequence[str]) -> None:
    """UsageError that shows the commands, if there are any."""
    if listed:
        listing = "\n".join(f"  {command}" for command in listed)
        raise UsageError(
            f"the {what} would run these commands:\n{listing}\nread them, and run again with --allow-commands"
        )
