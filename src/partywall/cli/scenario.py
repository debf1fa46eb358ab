"""`partywall scenario`: check, list and describe scenarios."""

from __future__ import annotations

import typer
from rich.console import Console

from partywall import pipeline, preflight
from partywall.cli import show
from partywall.cli.arguments import ScenarioName
from partywall.cli.run import say_if_kvm_is_tried
from partywall.errors import AgentError, CapabilityError, Exit, UsageError
from partywall.host import Host
from partywall.scenario import expected, find, json_schema, load, located, names, text

app = typer.Typer(help="Check, list and describe scenarios.", no_args_is_help=True, rich_markup_mode=None)


@app.command("check")
def check(context: typer.Context, scenario: ScenarioName) -> int:
    """Check a scenario; all mistakes are reported at once, with line and key.

    Says how many blocks its time holds, and what keeps it from this host: a scenario may be meant for another.
    'partywall run SCENARIO --dry-run' shows the whole plan on this host.
    """
    console = Console()
    path = find(scenario)
    asked = load(path)
    pipeline.with_loads(asked, path.parent)
    found = expected(asked, pipeline.catalogue())
    others = sorted({machine for _, machine in preflight.other_machines(asked)})
    try:
        host: Host = context.obj()
        if not others:
            say_if_kvm_is_tried(asked, host, console)
        with located(path, asked):
            pipeline.try_on(asked, host)
        unfit = ""
    except (AgentError, CapabilityError, UsageError) as error:
        unfit = str(error)
    show.checked(console, scenario, asked, found, unfit, others)
    return Exit.HOLDS


@app.command("list")
def list_() -> int:
    """List the scenarios that ship with Partywall."""
    show.scenarios(Console(), {name: load(find(name)) for name in names()})
    return Exit.HOLDS


@app.command("show")
def show_(scenario: ScenarioName) -> int:
    """Print a scenario's text, to copy and change."""
    typer.echo(text(find(scenario)), nl=False)
    return Exit.HOLDS


@app.command("schema")
def schema() -> int:
    """Print the JSON Schema of scenario files, for editors."""
    import json  # noqa: PLC0415

    typer.echo(json.dumps(json_schema(), indent=1))
    return Exit.HOLDS
