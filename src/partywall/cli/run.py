"""`partywall run`: measure how well this host isolates its tenants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partywall.cli import output
from partywall.cli.arguments import SEED_MOST, Wait, WaitForMemory, WorkDir, memory_wait_ns
from partywall.errors import Exit, UsageError
from partywall.host.label import WORK_ROOT

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.host import Host
    from partywall.run.document.scenario import Scenario

MISSING = "the scenario is missing; try: partywall run demo\nTo list all scenarios: partywall scenario list"


def say_if_kvm_is_tried(scenario: Scenario, host: Host, console: Console) -> None:
    from partywall.run.plan.checks import tries_kvm

    if tries_kvm(scenario, host):
        console.print("checking whether KVM can start a guest; this takes some seconds, once", highlight=False)


def run(
    context: typer.Context,
    scenario: Annotated[
        str | None,
        typer.Argument(help="A scenario file, or the name of one that ships with Partywall, such as demo or full."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory to create. Default: runs/NAME-TIME-CHANCE.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and how long it takes; measure nothing.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue an interrupted run, given its directory. With a larger --budget or a smaller --precision, "
            "a finished run is extended."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of all random orders; default: the scenario's.", min=0, max=SEED_MOST)
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Measuring time, e.g. 5min. Default: the scenario's.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Half-width of the intervals at which a trial ends early, e.g. 0.5%.")
    ] = None,
    allow_commands: Annotated[
        bool, typer.Option("--allow-commands", help="Run the commands that the scenario contains.")
    ] = False,
    wait_for_memory: WaitForMemory = None,
    wait: Wait = False,
    work_dir: WorkDir = WORK_ROOT,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Measure how well this host isolates its tenants.

    Exit code: 0 all goals hold, 1 a goal is violated, 3 inconclusive, 2 bad scenario, 4 the host lacks something, 5 a
    trial failed.
    """
    from partywall.cli import leftovers, show
    from partywall.cli.execution import carry_out, go_on
    from partywall.cli.live import Live
    from partywall.core.capability import Options
    from partywall.run.capability import RunJob, Runs, changes, outlined
    from partywall.run.plan.requirements import commands, sandboxes
    from partywall.run.record import RunDirectory
    from partywall.sandbox.qemu.needs import roots_to_build

    console, document = output.console(format_), output.document("run", format_)
    runs, wait_ns = Runs(), memory_wait_ns(wait_for_memory)
    if resume is not None:
        if scenario is not None:
            raise UsageError(f"--resume continues {resume} with its own scenario; leave out {scenario!r}")
        leftovers.clean_up()
        directory = RunDirectory.open(resume)
        if changed := changes(budget, precision, "--"):
            runs.extend(directory, changed)
        options = Options(context.obj(), out, work_dir, allow_commands, wait_ns, wait)
        return go_on(runs, directory, options, Live(console), console, document)
    if scenario is None:
        raise UsageError(MISSING)
    leftovers.clean_up()
    job = RunJob.read(scenario, changes(budget, precision, "--"), seed)
    options = Options(context.obj(), out, work_dir, allow_commands, wait_ns, wait)
    say_if_kvm_is_tried(job.scenario, options.host, console)
    if dry_run:
        plan, _ = runs.plan(job, options)
        first = list(roots_to_build(sandboxes(plan.scenario), options.host))
        if document:
            more = {"warnings": [*plan.warnings, *first], "commands": commands(plan.scenario)}
            return output.outline(document, outlined(plan), format_, console, **more)
        show.plan(console, plan, first)
        return Exit.HOLDS
    return carry_out(lambda emit: runs.measure(job, options, emit), options, Live(console), console, document=document)
