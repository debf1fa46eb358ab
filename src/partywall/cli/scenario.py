"""`partywall scenario`: check, list and describe scenarios."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from partywall.cli import output
from partywall.cli.arguments import ScenarioName
from partywall.cli.group import group
from partywall.errors import AgentError, CapabilityError, Exit, UsageError

if TYPE_CHECKING:
    from partywall.host import Host
    from partywall.run.check import Expected

app = group("Check, list and describe scenarios.")


@app.command("check")
def check(context: typer.Context, scenario: ScenarioName, format_: output.FormatOption = output.Format.TEXT) -> int:
    """Check a scenario. All mistakes are reported at once, with line and key.

    Also shows how many blocks fit into its budget, and what prevents it from running on this host. The scenario may be
    intended for another host. 'partywall run SCENARIO --dry-run' shows the whole plan on this host.
    """
    from partywall.agent.catalogue import shipped
    from partywall.cli import show
    from partywall.cli.run import say_if_kvm_is_tried
    from partywall.run import stages
    from partywall.run.capability import completed
    from partywall.run.check import expected, find, load, located
    from partywall.run.plan.requirements import sandboxes
    from partywall.sandbox.elsewhere import other_machines

    console = output.console(format_)
    path = find(scenario)
    checked = load(path)
    completed(checked, path)
    trials_expected = expected(checked, shipped())
    others = sorted({machine for _, machine in other_machines(sandboxes(checked))})
    try:
        host: Host = context.obj()
        if not others:
            say_if_kvm_is_tried(checked, host, console)
        with located(path, checked):
            stages.try_on(checked, host)
        unfit = ""
    except (AgentError, CapabilityError, UsageError) as error:
        unfit = str(error)
    if format_ == output.Format.JSON:
        trials = [_trial(trial) for trial in trials_expected]
        about = {"scenario": scenario, "file": path, "name": checked.name, "trials": trials}
        return output.write("scenario check", about | {"not_asked": others, "unfit": unfit or None})
    show.checked(console, scenario, checked, trials_expected, unfit, others)
    return Exit.HOLDS


def _trial(trial: Expected) -> dict[str, Any]:
    """What a trial will contain, as JSON has it."""
    counts = trial.blocks.blocks(trial.share_ns)
    return {
        "victim": trial.victim,
        "treatments": trial.treatments,
        "time_ns": trial.share_ns,
        "blocks": {
            kind: {"count": counts[kind], "length_ns": took_ns} for kind, took_ns in trial.blocks.took_ns.items()
        },
    }


@app.command("list")
def list_(format_: output.FormatOption = output.Format.TEXT) -> int:
    """List the scenarios that ship with Partywall."""
    from rich.console import Console

    from partywall.cli import show
    from partywall.run.check import find, load, names

    if format_ == output.Format.JSON:
        shipped = {name: load(find(name)) for name in names()}
        listed = [
            {"name": name, "budget_ns": scenario.budget, "description": scenario.description}
            for name, scenario in shipped.items()
        ]
        return output.write("scenario list", {"scenarios": listed})
    show.scenarios(Console(), {name: load(find(name)) for name in names()})
    return Exit.HOLDS


@app.command("show")
def show_(scenario: ScenarioName) -> int:
    """Print the text of a scenario, as a starting point for your own."""
    from partywall.core.document.reading import text
    from partywall.run.check import find

    typer.echo(text(find(scenario), "scenario"), nl=False)
    return Exit.HOLDS


@app.command("schema")
def schema() -> int:
    """Print the JSON Schema of scenario files, for editors."""
    from partywall.run.check import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))
    return Exit.HOLDS
