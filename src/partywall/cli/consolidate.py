"""`partywall consolidate`: which guests share a host, and which hosts can be off."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from partywall.cli import output
from partywall.cli.arguments import SEED_MOST, Wait, duration_ns
from partywall.cli.execution import carry_out, go_on
from partywall.cli.group import group
from partywall.cli.live import Live, wide_console
from partywall.consolidate import check
from partywall.consolidate.capability import Consolidations, PlanJob, SimulationJob, WatchJob, applied, watched
from partywall.consolidate.measure.apply import Timing
from partywall.consolidate.record import ConsolidationDirectory
from partywall.core.capability import Options
from partywall.core.document.explain import did_you_mean
from partywall.core.record import Record
from partywall.errors import Exit, Problem, UsageError
from partywall.events import Emit, Started

app = group("Plan which guests share a host and which hosts are off, and simulate policies.")

ClusterFile = Annotated[
    str,
    typer.Argument(
        help="A cluster file (YAML, see docs/consolidate.md), or the name of a shipped one: cluster, data-centre.",
        metavar="CLUSTER",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Directory to make. Default: runs/consolidation-NAME-TIME-CHANCE.")]


class SolverName(StrEnum):
    AUTO = "auto"
    EXACT = "exact"
    HEURISTIC = "heuristic"


@app.command()
def plan(
    context: typer.Context,
    cluster: ClusterFile,
    solver: Annotated[
        SolverName,
        typer.Option(help="exact: OR-tools; auto: exact for up to 40 hosts and 200 guests, else the heuristic."),
    ] = SolverName.AUTO,
    out: Out = None,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Show what would move and what that saves.

    For each guest and host: the step, its cost and its reason. The whole: energy saved, and what it costs.

    partywall consolidate plan cluster

    Changes nothing. Figures of energy come from power curves, so they are modelled. Each has an interval.
    """
    console = wide_console(format_)
    job = PlanJob.read(check.find(cluster), solver.value)
    options = Options(context.obj(), out)
    document = output.document("consolidate plan", format_)
    return carry_out(
        lambda emit: Consolidations().measure(job, options, emit),
        options,
        Live(console),
        console,
        document=document,
        measures=False,
    )


@app.command()
def simulate(
    context: typer.Context,
    cluster: Annotated[
        str | None,
        typer.Argument(
            help="A cluster file (YAML, see docs/consolidate.md), or the name of a shipped one: cluster, data-centre.",
            metavar="CLUSTER",
        ),
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            help="Load of guests: a folder or tar archive in PlanetLab's format; may be repeated. Default: generated.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy; may be repeated. Default: all, published ones included.")
    ] = None,
    days: Annotated[int, typer.Option(help="Number of generated days.", min=1, max=100)] = 1,
    orders: Annotated[
        int, typer.Option(help="Random assignments of traces to guests, for intervals.", min=1, max=100)
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.", min=0, max=SEED_MOST)] = 1,
    resume: Annotated[
        Path | None, typer.Option(help="Continue an interrupted simulation, given its directory.", metavar="DIR")
    ] = None,
    out: Out = None,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Simulate policies over load traces.

    Shows energy, violations and moves side by side.

    partywall consolidate simulate data-centre

    partywall consolidate simulate data-centre --traces 20110303.tar.gz --orders 3

    Every policy starts from the same placement. Exit code: 1 if a published policy takes less energy, or violates
    less, than Partywall's by more than 1 %.
    """
    console, document = wide_console(format_), output.document("consolidate simulate", format_)
    if resume is not None:
        kept = ConsolidationDirectory.open(resume)
        given = {"CLUSTER": cluster, "--traces": traces, "--policy": policy, "--out": out}
        options = Options(context.obj())
        return go_on(Consolidations(), kept, options, Live(console), console, document, given, measures=False)
    if cluster is None:
        raise UsageError("the cluster is missing; give a file, or for example data-centre")
    if absent := [path for path in traces or () if not path.exists()]:
        remedy = "give a folder or a tar archive of traces"
        raise UsageError(*(Problem(f"{str(path)!r} does not exist", remedy, key="--traces") for path in absent))
    job = SimulationJob.read(check.find(cluster), tuple(traces or ()), tuple(policy or ()), days, orders, seed)
    options = Options(context.obj(), out)
    return carry_out(
        lambda emit: Consolidations().measure(job, options, emit),
        options,
        Live(console),
        console,
        document=document,
        measures=False,
    )


Record_ = Annotated[Path, typer.Argument(help="A directory that 'consolidate plan' has made.", metavar="RECORD")]


@app.command()
def apply(
    context: typer.Context,
    record: Record_,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the first step.")] = False,
    settle: Annotated[str, typer.Option(help="Longest time for a host to start or to end.")] = "5min",
    wait: Wait = False,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Carry out a plan, step by step.

    RECORD is what 'consolidate plan' has made. Refuses if the cluster has changed since. After each step it checks
    where guests run and which hosts answer. If a step fails, what was done is undone, as far as that is safe. If the
    manager is killed, the same command goes on.

    Exit code: 0 all steps are done; 1 a step failed, and the others were undone; 2 the plan does not fit the cluster;
    5 a guest is lost, runs twice or was moved by somebody else, and nothing more was done.
    """
    console = wide_console(format_)
    timing = Timing(settle_s=duration_ns("--settle", settle, "1s") / 1e9)
    kept = ConsolidationDirectory.open(record)
    options = Options(context.obj(), waits=wait)
    evidence = kept.evidence()
    if evidence.plan is not None and not yes:
        Consolidations().files().show(Consolidations().findings(kept), console)
        question = f"Carry out {len(evidence.plan.steps)} steps"
        typer.confirm(f"Go on with {question.lower()}?" if evidence.journal else f"{question}?", abort=True)

    def carry(emit: Emit) -> Record:
        emit(Started(kept.path))
        applied(kept, emit, timing)
        return kept

    document = output.document("consolidate apply", format_)
    return carry_out(carry, options, Live(console), console, "the plan goes on", document=document)


@app.command()
def watch(
    context: typer.Context,
    cluster: ClusterFile,
    every: Annotated[str, typer.Option(help="Time between two looks.")] = "5min",
    for_: Annotated[str | None, typer.Option("--for", help="How long. Default: until Ctrl-C.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the records of its plans.")] = Path("runs"),
) -> int:
    """Consolidate as load rises and falls.

    Looks at the cluster again and again, until Ctrl-C.

    Decides with the policy that 'consolidate simulate' shows. Every plan that it carries out leaves a record.
    """
    console = wide_console()
    document = check.load(check.find(cluster))
    job = WatchJob(
        cluster=document,
        every_s=duration_ns("--every", every, "1s") / 1e9,
        for_s=None if for_ is None else duration_ns("--for", for_, "1s") / 1e9,
        dry_run=dry_run,
        out=out,
    )
    options = Options(context.obj(), out)
    with Live(console) as view:
        return Exit.HOLDS if watched(job, options, view) else Exit.VIOLATED


@app.command()
def explain(
    record: Record_,
    guest: Annotated[str | None, typer.Option(help="Only this guest.")] = None,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Say why a plan is as it is.

    Lists the reason of each step, the next best place of each guest, and other plans.
    """
    from partywall.consolidate.report import explained

    evidence = ConsolidationDirectory.open(record).evidence()
    if evidence.plan is None:
        raise UsageError(f"{record} holds a simulation; make a plan: partywall consolidate plan CLUSTER")
    known = evidence.cluster.guest_names()
    if guest is not None and guest not in known:
        raise UsageError(Problem(f"there is no guest {guest!r}", did_you_mean(guest, known), key="--guest"))
    lines = list(explained(evidence.plan, evidence.cluster, guest))
    if format_ == output.Format.JSON:
        return output.write("consolidate explain", {"lines": lines})
    console = wide_console()
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return Exit.HOLDS
