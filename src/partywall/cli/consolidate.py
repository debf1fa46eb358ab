"""The commands of `partywall consolidate` that change a cluster. The others are made from their jobs.

`apply` goes on with a record that is there, and asks first. `watch` makes a record for each of its plans.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partywall.cli import made, output
from partywall.cli.arguments import Wait, duration_ns
from partywall.consolidate.job import FILE
from partywall.errors import Exit
from partywall.events import Emit, Started

if TYPE_CHECKING:
    from partywall.core.record import Record

app: typer.Typer = made.command("consolidation")


@app.command()
def apply(
    context: typer.Context,
    record: Annotated[Path, typer.Argument(help="A directory that 'consolidate plan' has made.", metavar="RECORD")],
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
    from partywall.cli.execution import carry_out
    from partywall.cli.live import Live, wide_console
    from partywall.consolidate.capability import Consolidations
    from partywall.consolidate.measure.apply import Timing
    from partywall.consolidate.measure.planning import applied
    from partywall.consolidate.record import ConsolidationDirectory
    from partywall.core.capability import Options

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
    cluster: Annotated[str, typer.Argument(help=FILE.help, metavar=FILE.metavar)],
    every: Annotated[str, typer.Option(help="Time between two looks.")] = "5min",
    for_: Annotated[str | None, typer.Option("--for", help="How long. Default: until Ctrl-C.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the records of its plans.")] = Path("runs"),
) -> int:
    """Consolidate as load rises and falls.

    Looks at the cluster again and again, until Ctrl-C.

    Decides with the policy that 'consolidate simulate' shows. Every plan that it carries out leaves a record.
    """
    from partywall.cli.live import Live, wide_console
    from partywall.consolidate import check
    from partywall.consolidate.job import WatchJob
    from partywall.consolidate.measure.managing import watched
    from partywall.core.capability import Options

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
