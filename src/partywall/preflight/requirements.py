"""Requirements of a scenario, by workload: backends, commands, and where commands run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partywall import units
from partywall.errors import UsageError
from partywall.model import factors
from partywall.model.scenario import Scenario, Workload
from partywall.sandbox.backends import BACKENDS
from partywall.sandbox.document import Sandbox


def workloads(scenario: Scenario) -> dict[str, Workload]:
    """Every workload of a scenario by its key."""
    victims = {f"victims.{name}": victim for name, victim in scenario.victims.items()}
    return victims | {f"aggressors.{name}": aggressor for name, aggressor in scenario.aggressors.items()}


def backends(scenario: Scenario) -> dict[str, set[str]]:
    """Every backend of a sandbox, including those that are levels of factors, by the workload's key."""
    everyone: dict[str, set[str]] = {key: {workload.sandbox.backend} for key, workload in workloads(scenario).items()}
    for path, levels in scenario.factors.items():
        if path.endswith("sandbox.backend"):
            for kind, name, *_ in factors.targets(scenario, path):
                everyone[f"{kind}.{name}"] = set(map(str, levels))
    return everyone


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
