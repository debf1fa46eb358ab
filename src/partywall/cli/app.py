"""The list of commands. The module of a command is imported only when the command is used, so that --help is fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from partywall import __version__, registry

if TYPE_CHECKING:
    from partywall.host import Host

# These commands also accept a kernel's parameters as options, which only the catalogue knows.
OPEN_ENDED = {"allow_extra_args": True, "ignore_unknown_options": True}


class Command(NamedTuple):
    """Location of a command or group, and its line in --help, which is the first line of its docstring."""

    place: str
    help: str
    settings: dict[str, Any] | None = None


COMMANDS: dict[str, Command | None] = {
    "run": Command("run:run", "Measure how well this host isolates its tenants."),
    "report": Command(
        "report:report", "Derive findings from a run again, show them, and write them into its directory."
    ),
    "compare": Command(
        "compare:compare",
        "Compare a run with an earlier one, cell by cell; or show two records of another kind side by side.",
    ),
    "sql": Command("report:sql", "Query the raw facts of a record of any kind with DuckDB."),
    "doctor": Command(
        "doctor:doctor", "Show what this host can do, what is missing, what that costs, and how to get it."
    ),
    "reap": Command(
        "leftovers:reap", "Remove what killed runs left on this host. Every 'partywall run' does this first."
    ),
    "kernels": Command(
        "kernel:kernels",
        "List the kernels and their roles, or show one kernel with its parameters.",
    ),
    "probe": Command("kernel:probe", "Measure one resource: run a kernel flat out and show its rate.", OPEN_ENDED),
    "stress": Command(
        "kernel:stress", "Load one resource: run a kernel at an intensity and show the rate achieved.", OPEN_ENDED
    ),
    "load": Command("load:app", "Put a service under load with virtual users."),
    "guard": None,
    "trace": None,
    "watch": None,
    "blame": None,
    "migrate": None,
    "power": None,
    "fleet": None,
    "consolidate": Command(
        "consolidate:app", "Plan which guests share a host and which hosts are off, and simulate policies."
    ),
    "study": Command(
        "study:study",
        "Repeat a published measurement, and compare its tables and figures with the results of this host.",
    ),
    "serve": Command("serve:serve", "Serve a page to start, watch, control and compare measurements in a browser."),
    "publish": Command(
        "serve:publish", "Write the reports of a folder of records as static pages, with a page that lists them."
    ),
    "scenario": Command("scenario:app", "Check, list and describe scenarios."),
    "vm": Command("vm:app", "Virtual machines as sandboxes (backend: qemu)."),
}
"""In the order of --help. None: the command is made from the jobs of its capability."""


def commands() -> dict[str, Command | None]:
    """All commands, with those of other packages last."""
    return COMMANDS | {name: COMMANDS.get(name) for name in map(registry.command, registry.made())}


def summary(name: str) -> str:
    """A command's line in --help. That of a capability is the first line of its package."""
    entry = commands()[name]
    if entry is not None:
        return entry.help
    package = (registry.place(registry.of_command(name)) or "").partition(":")[0].rpartition(".")[0]
    return (importlib.import_module(package).__doc__ or "").partition("\n")[0]


class Commands(TyperGroup):
    """A group that imports a command only to run it, to show its help, or to complete its options."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Names only: for the list, and for suggestions when a name is misspelt.
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            others: dict[str, Any] = dict.fromkeys(registry.others())
            self.commands.update(others)
            if cmd_name not in self.commands:
                return None
        if ctx.resilient_parsing:
            # The shell is waiting for a completion after a key press, so the command is not imported.
            from partywall.cli import completion

            if (light := completion.stand_in(cmd_name)) is not None:
                return light
        return command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(name)) for name in commands()])


def command(name: str) -> Any:
    """A command in the form that Typer runs."""
    entry = commands()[name]
    if entry is None:
        loaded = importlib.import_module("partywall.cli.made").command(registry.of_command(name))
    else:
        module, _, attribute = entry.place.partition(":")
        loaded = getattr(importlib.import_module(f"partywall.cli.{module}"), attribute)
    if not isinstance(loaded, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = entry.settings if entry else None
        kind = importlib.import_module("partywall.cli.kernel").KernelCommand if settings else None
        alone.command(name, cls=kind, context_settings=settings)(loaded)
        loaded = alone
    made = typer.main.get_command(loaded)
    made.name = name
    return made


app = typer.Typer(
    name="partywall",
    cls=Commands,
    help="Measure, explain and enforce performance isolation between neighbours on a shared Linux host.\n\n"
    "Start with: partywall run demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"partywall {__version__}")
        raise typer.Exit


def _this_host() -> Host:
    from partywall.core import here

    return here.this_host()


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Measure, explain and enforce performance isolation between neighbours on a shared Linux host."""
    del version
    # How a command reads its host. A caller of `app` may pass a different host.
    context.obj = context.obj or _this_host
