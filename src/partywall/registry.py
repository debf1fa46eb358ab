"""The capabilities by name: where each is, as text. Nothing is imported before it is used.

Those of other packages are found by their entry points in the group `partywall.capabilities`, such as
`nap = "partywall_nap.capability:Naps"`.
"""

from __future__ import annotations

from functools import cache

GROUP = "partywall.capabilities"

OWN = {
    "run": "partywall.run.capability:Runs",
    "load": "partywall.load.capability:Loads",
    "guard": "partywall.guard.capability:Guards",
    "trace": "partywall.trace.capability:Traces",
    "migration": "partywall.migrate.capability:Migrations",
    "power": "partywall.power.capability:Powers",
    "consolidation": "partywall.consolidate.capability:Consolidations",
    "watch": "partywall.watch.capability:Watches",
    "blame": "partywall.blame.capability:Blames",
    "fleet": "partywall.fleet.capability:Fleets",
    "study": "partywall.study.capability:Studies",
}
MADE = ("blame", "consolidation", "fleet", "guard", "migration", "power", "trace", "watch")
"""Own capabilities whose commands, functions and forms are made from their jobs."""
COMMANDS = {"consolidation": "consolidate", "migration": "migrate"}
"""The commands of capabilities whose own name is another word."""


@cache
def others() -> dict[str, str]:
    """The capabilities of other packages."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import

    return {entry.name: entry.value for entry in entry_points(group=GROUP) if entry.name not in OWN}


def place(name: str) -> str | None:
    """The module and class of a capability. None if there is none of this name."""
    return OWN.get(name) or others().get(name)


def made() -> tuple[str, ...]:
    """The names of capabilities whose shells are made from their jobs."""
    return (*MADE, *others())


def command(name: str) -> str:
    """The command of a capability."""
    return COMMANDS.get(name, name)


def of_command(word: str) -> str:
    """The capability of a command."""
    return next((name for name, command in COMMANDS.items() if command == word), word)


def all_names() -> tuple[str, ...]:
    """The names of all capabilities."""
    return (*OWN, *others())
