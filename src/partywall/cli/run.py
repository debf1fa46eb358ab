"""`partywall run`: measure how well this host isolates its tenants."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from partywall import pipeline, preflight, units
from partywall.cli import leftovers, show
from partywall.cli.arguments import parsed
from partywall.cli.kernel import WorkDir
from partywall.cli.live import Live
from partywall.cli.report import show_record
from partywall.errors import Exit, Problem, UsageError
from partywall.host import Host
from partywall.model.scenario import Scenario
from partywall.sandbox import WORK_ROOT
from partywall.scenario import changed, find, load, located, text
from partywall.store import RunDirectory

MISSING = "the scenario is missing; try: partywall run demo\nTo list all scenarios: partywall scenario list"


def say_if_kvm_is_tried(asked: Scenario, host: Host, console: Console) -> None:
    if preflight.tries_kvm(asked, host):
        console.print("seeing whether KVM carries a guest here: some seconds, once", highlight=False)


def run(
    context: typer.Context,
    scenario: Annotated[
        str | None,
        typer.Argument(help="A scenario file, or the name of one that ships with Partywall: demo, full, real-tools."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory to make. Default: runs/NAME-TIME-CHANCE.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and how long it takes; measure nothing.")
    ] = False,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run, given its directory.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random orders; default: the scenario's.")] = None,
    budget: Annotated[str | None, typer.Option(help="Measuring time, e.g. 5min; default: the scenario's.")] = None,
    precision: Annotated[str | None, typer.Option(help="Half-width at which a trial ends early, e.g. 0.5%.")] = None,
    allow_commands: Annotated[
        bool, typer.Option("--allow-commands", help="Run the commands that the scenario holds.")
    ] = False,
    work_dir: WorkDir = WORK_ROOT,
) -> int:
    """Measure how well this host isolates its tenants.

    Exit code: 0 all goals hold, 1 one is violated, 3 inconclusive, 2 bad scenario, 4 the host lacks something, 5 a
    trial failed.
    """
    console = Console()
    if resume is not None:
        if scenario is not None:
            raise UsageError(f"--resume goes on with {resume} and its own scenario; leave out {scenario!r}")
        leftovers.clean_up()
        directory = RunDirectory.open(resume)
        if directory.ended:
            console.print(f"{resume} is finished; nothing is left to measure", highlight=False)
            return show_record(directory, console)
        return _measure_and_report(directory, context.obj(), console, work_dir, allow_commands=allow_commands)
    if scenario is None:
        raise UsageError(MISSING)
    leftovers.clean_up()
    path = find(scenario)
    asked = pipeline.with_loads(changed(load(path), _overrides(budget, precision)), path.parent)
    preflight.check_folder(work_dir)
    host: Host = context.obj()
    host = host.with_machines(preflight.machine_facts(asked, work_dir))
    say_if_kvm_is_tried(asked, host, console)
    with located(path, asked):
        plan = pipeline.plan(asked, host, seed, work_dir)
    if dry_run:
        show.plan(console, plan, list(preflight.roots_to_build(plan.scenario, host)))
        return Exit.HOLDS
    preflight.check_commands(asked, allowed=allow_commands)
    directory = RunDirectory.create(out or Path("runs") / pipeline.new_run_name(asked), text(path), plan, host.facts)
    return _measure_and_report(directory, host, console, work_dir, allow_commands=allow_commands)


def _overrides(budget: str | None, precision: str | None) -> dict[str, float]:
    found: dict[str, float] = {}
    if budget is not None:
        found["budget"] = parsed("--budget", budget, units.parse_duration_ns)
    if precision is not None:
        found["precision"] = parsed("--precision", precision, units.parse_share)
    if not 0 < found.get("precision", 0.5) <= 1:
        raise UsageError(
            Problem(
                f"must be greater than 0 and at most 100%, got {precision}", "give for example 1%", key="--precision"
            )
        )
    return found


def _measure_and_report(
    directory: RunDirectory, host: Host, console: Console, work_dir: Path, *, allow_commands: bool
) -> int:
    plan = directory.plan
    preflight.check_commands(plan.scenario, allowed=allow_commands)
    preflight.check_host(plan.scenario, host, work_dir)
    preflight.check_guest_memory(plan, host)
    preflight.check_folder(work_dir)
    preflight.check_disk(plan, host, work_dir)
    try:
        with Live(console) as live:
            left = pipeline.measure(directory, live, work_dir)
    except KeyboardInterrupt:
        _interrupted(directory, console, work_dir, allow_commands=allow_commands)
        raise
    outcome = show_record(directory, console)
    leftovers.warn(left)
    return Exit.FAILED if left else outcome


def _interrupted(directory: RunDirectory, console: Console, work_dir: Path, *, allow_commands: bool) -> None:
    """What is left of an interrupted run, and the commands that make something of it."""
    words = ["partywall", "run", "--resume", str(directory.path)]
    words += ["--allow-commands"] if allow_commands else []
    words += ["--work-dir", str(work_dir)] if work_dir != WORK_ROOT else []
    said = (
        "Interrupted. All its processes have ended, and the measurements are kept.",
        f"Continue with:  {shlex.join(words)}",
        f"Or show the findings:  {shlex.join(['partywall', 'report', str(directory.path)])}",
    )
    for line in said:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
