"""The commands, one function each; each reads as a list of stages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from partywall import __version__, pipeline, preflight, units
from partywall.cli import guard, leftovers, show
from partywall.cli import load as load_group
from partywall.cli.kernel import PARAMETERS, KernelCommand, WorkDir, known, probe, stress
from partywall.cli.live import Live, Steps
from partywall.cli.study import report as report_study
from partywall.cli.study import study
from partywall.cli.trace import report as report_trace
from partywall.cli.trace import trace
from partywall.cli.vm import vm
from partywall.errors import AgentError, CapabilityError, Exit, PartywallError, Problem, UsageError
from partywall.guard import reap as reap_policies
from partywall.host import Host
from partywall.load.store import LoadDirectory
from partywall.model.finding import Outcome
from partywall.model.scenario import Scenario
from partywall.sandbox import WORK_ROOT
from partywall.scenario import changed, expected, find, json_schema, load, located, names, text
from partywall.stats import compare_runs
from partywall.store import RunDirectory
from partywall.store.study import StudyDirectory
from partywall.store.trace import TraceDirectory

app = typer.Typer(
    name="partywall",
    help="Measure, explain and enforce performance isolation between neighbours on a shared Linux host.\n\n"
    "Start with: partywall run demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=True,
    pretty_exceptions_enable=False,
)
scenarios = typer.Typer(help="Check, list and describe scenarios.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(scenarios, name="scenario")
app.add_typer(vm, name="vm")
app.add_typer(guard.app, name="guard")
app.add_typer(load_group.app, name="load")
app.command(cls=KernelCommand, context_settings=PARAMETERS)(probe)
app.command(cls=KernelCommand, context_settings=PARAMETERS)(stress)
app.command()(trace)
app.command()(study)

EXITS = {Outcome.HOLDS: Exit.HOLDS, Outcome.VIOLATED: Exit.VIOLATED, Outcome.INCONCLUSIVE: Exit.INCONCLUSIVE}

T = TypeVar("T")

ScenarioName = Annotated[
    str,
    typer.Argument(
        help="A scenario file, or the name of one that ships with Partywall (see: partywall scenario list)."
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run directory, as 'partywall run' named it.")]


def _version(asked: bool) -> None:
    if asked:
        Console().print(f"partywall {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Measure, explain and enforce performance isolation between neighbours on a shared Linux host."""
    del version
    # How a command reads its host; who calls `app` may give another host.
    context.obj = context.obj or pipeline.this_host


@app.command()
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
    leftovers.clean_up()
    if resume is not None:
        if scenario is not None:
            raise UsageError(f"--resume goes on with {resume} and its own scenario; leave out {scenario!r}")
        directory = RunDirectory.open(resume)
        if directory.ended:
            console.print(f"{resume} has come to its end already; nothing is left to measure", highlight=False)
            return _report(directory, console)
        return _measure_and_report(directory, context.obj(), console, work_dir, allow_commands=allow_commands)
    if scenario is None:
        raise UsageError("no scenario is named; try: partywall run demo")
    path = find(scenario)
    asked = pipeline.with_loads(changed(load(path), _overrides(budget, precision)), path.parent)
    preflight.check_folder(work_dir)
    host: Host = context.obj()
    host = host.with_machines(preflight.machine_facts(asked, work_dir))
    _say_if_kvm_is_tried(asked, host, console)
    with located(path, asked):
        plan = pipeline.plan(asked, host, seed, work_dir)
    if dry_run:
        show.plan(console, plan, list(preflight.roots_to_build(plan.scenario, host)))
        return Exit.HOLDS
    preflight.check_commands(asked, allowed=allow_commands)
    directory = RunDirectory.create(out or Path("runs") / pipeline.new_run_name(asked), text(path), plan, host.facts)
    return _measure_and_report(directory, host, console, work_dir, allow_commands=allow_commands)


def _say_if_kvm_is_tried(asked: Scenario, host: Host, console: Console) -> None:
    if preflight.tries_kvm(asked, host):
        console.print("seeing whether KVM carries a guest here: some seconds, once", highlight=False)


def _overrides(budget: str | None, precision: str | None) -> dict[str, float]:
    found: dict[str, float] = {}
    if budget is not None:
        found["budget"] = _parsed("--budget", budget, units.parse_duration_ns)
    if precision is not None:
        found["precision"] = _parsed("--precision", precision, units.parse_share)
    if not 0 < found.get("precision", 0.5) <= 1:
        raise UsageError(
            Problem(f"{precision} is out of range", "give more than 0 and at most 100%", key="--precision")
        )
    return found


def _parsed(option: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(Problem(str(error), key=option)) from None


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
        with Live(console, plan.estimate_ns, plan.scenario.budget) as live:
            left = pipeline.measure(directory, live, work_dir)
    except KeyboardInterrupt:
        _interrupted(directory, console, work_dir, allow_commands=allow_commands)
        raise
    outcome = _report(directory, console)
    leftovers.warn(left)
    return Exit.FAILED if left else outcome


def _interrupted(directory: RunDirectory, console: Console, work_dir: Path, *, allow_commands: bool) -> None:
    """What is left of an interrupted run, and the commands that make something of it."""
    words = ["partywall", "run", "--resume", str(directory.path)]
    words += ["--allow-commands"] if allow_commands else []
    words += ["--work-dir", str(work_dir)] if work_dir != WORK_ROOT else []
    said = (
        "Interrupted; nothing of it runs on, and what was measured is kept.",
        f"Go on with:  {shlex.join(words)}",
        f"Or see what was found:  {shlex.join(['partywall', 'report', str(directory.path)])}",
    )
    for line in said:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _report(directory: RunDirectory, console: Console, formats: Sequence[str] | None = None) -> int:
    from partywall.report import terminal  # noqa: PLC0415 - what draws is slow to import
    from partywall.report.export import export_all  # noqa: PLC0415

    with Steps(console) as steps:
        steps.show("reading the run and deriving findings", 0, 1)
        evidence, findings = pipeline.analyse(directory)
        written = export_all(findings, evidence, directory.path, formats, steps.show)
    terminal.show(findings, evidence, console, next((file for file in written if file.suffix == ".html"), None))
    show.written(console, [file for file in written if file.suffix != ".html"])
    if evidence.incomplete:
        return Exit.FAILED
    return EXITS[findings.outcome]


@app.command()
def report(
    directory: RunPath,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format", "-f", help="html, json, csv, parquet, png or svg; may be repeated. Default: html and json."
        ),
    ] = None,
) -> int:
    """Derive findings from a run again, show them, and write them into its directory.

    partywall report runs/demo-... -f csv -f parquet

    Measures nothing. Exit code: 0 all goals hold, 1 one is violated, 3 inconclusive, 5 a trial failed or is missing.
    """
    if TraceDirectory.is_one(directory):
        return report_trace(TraceDirectory(directory), Console(), formats)
    if StudyDirectory.is_one(directory):
        return report_study(StudyDirectory(directory), Console(), formats)
    if LoadDirectory.is_one(directory):
        return load_group.report(LoadDirectory(directory), Console(), formats)
    from partywall.report.export import FILES  # noqa: PLC0415 - what draws is slow to import

    chosen = FILES.chosen(formats)
    return _report(RunDirectory.open(directory), Console(), chosen)


@app.command()
def compare(
    run: RunPath,
    reference: Annotated[Path, typer.Argument(help="The earlier run to compare with.")],
    tolerance: Annotated[
        str, typer.Option(help="A change of the isolation factor this small does not matter, e.g. 2%.")
    ] = "2%",
    latency_tolerance: Annotated[
        str, typer.Option(help="The same of the p99 latency, e.g. 25%; off: show latencies, do not judge them.")
    ] = "25%",
    also: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="One more run beside RUN; may be repeated.")
    ] = None,
    also_reference: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="One more run beside REFERENCE; may be repeated.")
    ] = None,
) -> int:
    """Compare a run with an earlier one, cell by cell.

    Two runs of the same thing differ by more than each run's own interval tells. Give several runs a side, and the
    run is the unit; else finished runs of the same scenario and host beside REFERENCE show how much runs differ. Cells
    whose kernels or parameters differ are not compared; differing hosts are named.

    Exit code: 0 no cell got worse; 1 one got worse; 3 none did as far as can be told, but not all can: an interval is
    too wide, a cell of REFERENCE is missing or does something else, a run is not complete, or a warning of either side
    (too few blocks, an aggressor that did nothing …) leaves the figure in doubt.
    """
    from partywall.report import compare_view  # noqa: PLC0415 - what draws is slow to import

    share = _parsed("--tolerance", tolerance, units.parse_share)
    if not 0 <= share < 1:
        raise UsageError(
            Problem(f"{tolerance} is out of range", "give 0 or more and less than 100%", key="--tolerance")
        )
    latency = (
        None if latency_tolerance == "off" else _parsed("--latency-tolerance", latency_tolerance, units.parse_share)
    )
    if latency is not None and latency < 0:
        raise UsageError(
            Problem(f"{latency_tolerance} is below nothing", "give 0 or more, or off", key="--latency-tolerance")
        )
    given = [run, reference, *(also or ()), *(also_reference or ())]
    measured = {path: pipeline.analyse(directory) for path, directory in _opened(given).items()}
    comparison = compare_runs(
        measured[run],
        measured[reference],
        share,
        latency_tolerance=latency,
        also=[measured[path][1] for path in also or ()],
        also_reference=[measured[path][1] for path in also_reference or ()],
        earlier=pipeline.earlier_runs(RunDirectory(reference), given),
    )
    compare_view.show(comparison, Console())
    return EXITS[comparison.outcome]


def _opened(paths: Sequence[Path]) -> dict[Path, RunDirectory]:
    """Run directories by path; all that are none are told at once."""
    found: dict[Path, RunDirectory] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            found[path] = RunDirectory.open(path)
        except UsageError as error:
            problems += error.problems
    if problems:
        raise UsageError(*problems)
    return found


@app.command()
def doctor(context: typer.Context) -> int:
    """Say what this host can do, what is missing, what that costs, and how to get it."""
    from partywall.cli.doctor import examine  # noqa: PLC0415 - reads much that other commands do not need

    return examine(Console(), context.obj)


@app.command()
def reap(
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Forget domains whose libvirt daemon can't be reached: nobody looks for them again."
        ),
    ] = False,
) -> int:
    """Remove what killed runs left on this host; every 'partywall run' does so too."""
    console = Console()
    reaped = pipeline.clean_up(forget=forget)
    for one in reaped:
        console.print(f"run {one.run}: removed {'' if one.removed else 'nothing'}", highlight=False)
        for thing in one.removed:
            console.print(f"  {thing}", highlight=False)
    over = reap_policies()
    for policy in over:
        console.print(f"policy {policy}: its keeper and its namespaces are gone; forgotten", highlight=False)
    left = [thing for one in reaped for thing in one.left]
    if left and forget:
        console.print(f"forgotten: {', '.join(left)}", highlight=False)
    elif left:
        remedy = "remove them by hand; 'partywall reap --forget' stops looking for what can't be reached"
        raise PartywallError(f"could not be removed: {', '.join(left)}; {remedy}")
    if not reaped and not over:
        console.print("nothing was left")
    return Exit.HOLDS


@app.command()
def kernels(
    name: Annotated[str | None, typer.Argument(help="Only this kernel, with its parameters.", metavar="NAME")] = None,
) -> int:
    """List the kernels: what they use, and what they can be used as; or one kernel with its parameters."""
    if name is None:
        show.kernels(Console(), pipeline.catalogue())
    else:
        show.kernel(Console(), known(name))
    return Exit.HOLDS


@app.command()
def sql(
    directory: RunPath,
    query: Annotated[
        str, typer.Argument(help="SQL over its tables; 'show tables' lists them, 'describe slices' a table's columns.")
    ],
) -> int:
    """Query a run's or a load's raw facts with DuckDB.

    partywall sql runs/demo-... "select workload, count(*) from slices group by 1"

    A run has the tables slices, samples, output, usage and events, and after 'partywall report RUN -f parquet' also
    observations; a load has seconds, timings, errors, statuses and samples.
    """
    from partywall.store.query import table  # noqa: PLC0415 - DuckDB is slow to import

    if LoadDirectory.is_one(directory):
        LoadDirectory(directory).recover()
    else:
        run = RunDirectory.open(directory)
        with run.exclusive():
            run.compact()
    show.table(Console(), *table(directory, query))
    return Exit.HOLDS


@scenarios.command("check")
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
            _say_if_kvm_is_tried(asked, host, console)
        with located(path, asked):
            pipeline.try_on(asked, host)
        unfit = ""
    except (AgentError, CapabilityError, UsageError) as error:
        unfit = str(error)
    show.checked(console, scenario, asked, found, unfit, others)
    return Exit.HOLDS


@scenarios.command("list")
def list_() -> int:
    """List the scenarios that ship with Partywall."""
    show.scenarios(Console(), {name: load(find(name)) for name in names()})
    return Exit.HOLDS


@scenarios.command("show")
def show_(scenario: ScenarioName) -> int:
    """Print a scenario's text, to copy and change."""
    typer.echo(text(find(scenario)), nl=False)
    return Exit.HOLDS


@scenarios.command("schema")
def schema() -> int:
    """Print the JSON Schema of scenario files, for editors."""
    import json  # noqa: PLC0415

    typer.echo(json.dumps(json_schema(), indent=1))
    return Exit.HOLDS
