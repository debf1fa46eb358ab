"""`partywall migrate`: live migrations, what they cost, and which settings to use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from partywall.cli import leftovers, output
from partywall.cli.arguments import Wait
from partywall.cli.execution import carry_out, go_on
from partywall.cli.live import Live, wide_console
from partywall.core.capability import Options
from partywall.errors import Exit, Problem, UsageError
from partywall.host.label import WORK_ROOT
from partywall.migrate import check as plans
from partywall.migrate.capability import RUNS, Forecast, MigrationJob, Migrations
from partywall.migrate.record import MigrationDirectory


def migrate(
    context: typer.Context,
    plan: Annotated[
        str | None,
        typer.Argument(
            help="A migration plan (YAML, see docs/migrate.md), or the name of a shipped one: migration.",
            metavar="PLAN",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check the plan, say what would be done and what it would cost, and do nothing. Rests on an earlier "
            "record; a guest of your own is watched for some seconds.",
        ),
    ] = False,
    known: Annotated[
        Path | None,
        typer.Option(
            "--known",
            help="Record that predictions of --dry-run rest on, and for a guest of your own all predictions. Default: "
            "those in runs/ with the same guest, link and workloads, the newest first.",
            metavar="DIR",
        ),
    ] = None,
    advise: Annotated[
        bool,
        typer.Option(
            "--advise",
            help="Watch the guest and move it idle a few times, then say what each method would cost. A guest of your "
            "own is only watched.",
        ),
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Continue an interrupted record with the moves that it lacks.", metavar="DIR")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory to make. Default: runs/migration-NAME-TIME-CHANCE.")
    ] = None,
    wait: Wait = False,
    work_dir: Annotated[Path, typer.Option(help="Folder for temporary files.")] = WORK_ROOT,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Move a guest between hosts while it works, and measure what that does to its users.

    \b
      partywall migrate migration --advise     say what each method would cost
      partywall migrate migration --dry-run    predict the moves, change nothing
      partywall migrate migration              move, and judge the predictions

    Without `hosts` in the plan, both hosts are network namespaces on this machine, joined by a link of the rate that
    the plan states. With `hosts`, a guest of your own moves between two hosts with libvirt or QEMU. It is watched for
    some seconds first, and the prediction is shown before it moves.

    Clients send requests on a fixed schedule during each move. The report shows three blackouts of each move: as the
    hypervisor states it, by the guest's clock, and as clients saw it. Methods are compared within rounds, in random
    order.

    Needs root and QEMU, or hosts of your own. Exit code: 0 all moves done and the goal reached, 1 a guest was lost or
    no method reaches the goal, 2 bad plan or option, 3 inconclusive, 4 a host lacks something.
    """  # noqa: D301 - Click keeps the lines after a backspace
    console, document = wide_console(format_), output.document("migrate", format_)
    kind, options = Migrations(), Options(context.obj(), out, work_dir, waits=wait)
    if resume is not None:
        record = MigrationDirectory.open(resume)
        leftovers.clean_up()
        given = {"PLAN": plan, "--dry-run": dry_run, "--known": known, "--advise": advise, "--out": out}
        return go_on(kind, record, options, Live(console), console, document, given)
    if plan is None:
        raise UsageError("the plan is missing; try: partywall migrate migration --dry-run")
    job = MigrationJob.read(plans.find(plan), only_advise=advise, known=known)
    is_own = job.plan.hosts is not None
    if dry_run:
        forecast, outline = _forecast(kind, job, options, console), kind.outline(job, options)
        if document:
            return output.write(document, {"outline": outline, "forecast": forecast})
        output.outline("migrate", outline, format_, console)
        _show_forecast(forecast, console, is_own=is_own)
        return Exit.HOLDS
    if known is not None and not is_own:
        raise UsageError(Problem("--known is for --dry-run", "add --dry-run, or leave it out"))
    leftovers.clean_up()
    return carry_out(lambda emit: kind.measure(job, options, emit), options, Live(console), console, document=document)


def _forecast(kind: Migrations, job: MigrationJob, options: Options, console: Console) -> Forecast | None:
    """From an earlier record, or from a look at a guest of the user's own."""
    if job.plan.hosts is None:
        kind.check(job, options)
        return kind.forecast(job, job.known, RUNS)
    with Live(console) as view:
        return kind.look(job, options, view)


def _show_forecast(forecast: Forecast | None, console: Console, *, is_own: bool) -> None:
    """What is predicted, and what that rests on."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if forecast is None:
        if not is_own:
            say("no prediction: no record in runs/ has the same guest, link and workloads; --advise makes one")
        return
    from partywall.migrate.report import show_predictions

    for text in (*forecast.said, forecast.lacking):
        if text:
            say(text)
    if not forecast.predictions:
        return
    when = f" of {forecast.started}" if forecast.started else ""
    say(f"predicted from {forecast.record}{when}:" if forecast.record else f"predictions rest on {forecast.rests_on}:")
    show_predictions(forecast.predictions, console)
