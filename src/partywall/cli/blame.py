"""`partywall blame`: finds out by experiment which neighbour slows a victim down."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from partywall import units
from partywall.blame.capability import Blames
from partywall.blame.job import BlameJob
from partywall.cli import output
from partywall.cli.arguments import SEED_MOST, duration_ns
from partywall.cli.execution import carry_out
from partywall.cli.live import Drawn, show_note, wide_console
from partywall.core.capability import Options
from partywall.errors import parsed
from partywall.events import Doing, Event, Note, Started

USUAL = BlameJob()


def blame(
    context: typer.Context,
    suspect: Annotated[
        list[str] | None,
        typer.Argument(
            help="A cgroup such as /docker/4f2…, or pid:NUMBER for that process's group. Default: the busiest groups.",
            metavar="SUSPECT...",
        ),
    ] = None,
    victim: Annotated[
        str, typer.Option(help="A command to start. Each line that it prints is one unit of work.", metavar="COMMAND")
    ] = "",
    pid: Annotated[int | None, typer.Option(help="A process: how much of its runnable time it runs.")] = None,
    group: Annotated[str, typer.Option(help="A cgroup: how much of its runnable time it runs.")] = "",
    log: Annotated[str, typer.Option(help="A log to follow. Each new line is one request.", metavar="FILE")] = "",
    latency: Annotated[
        str, typer.Option(help="The latency in a line of the log: a regular expression with one group.")
    ] = "",
    lever: Annotated[str, typer.Option(help="What pulses act on: cpu, disk, or freeze to stop suspects.")] = "cpu",
    device: Annotated[str, typer.Option(help="The disk of --lever disk, such as 8:0.")] = "",
    depth: Annotated[str, typer.Option(help="What a pulse takes off a suspect's use.")] = "30%",
    deepest: Annotated[str, typer.Option(help="The same after a quarter of the budget.")] = "60%",
    pulse: Annotated[str, typer.Option(help="Length of a pulse.")] = "100ms",
    budget: Annotated[str, typer.Option(help="The longest time.")] = "5min",
    harm: Annotated[str, typer.Option(help="The share of its work in the budget that a suspect may lose.")] = "2%",
    least: Annotated[str, typer.Option(help="The smallest effect that matters.")] = "5%",
    most: Annotated[int, typer.Option(help="The most suspects.", min=1, max=63)] = USUAL.most,
    never: Annotated[
        list[str] | None, typer.Option(help="A name that is never touched, in addition to system services.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the code.", min=0, max=SEED_MOST)] = USUAL.seed,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be touched, how deep, and for how long.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Directory to create. Default: runs/blame-TIME-CHANCE.")] = None,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Find out by experiment which neighbour slows a program down, by how much, and what would help.

    \b
      partywall blame --log /var/log/nginx/access.log --latency 'rt=([0-9.]+)'
      partywall blame --victim './my-benchmark' /docker/4f2… /docker/9ab… --dry-run
      partywall blame --group /docker/4f2… --budget 2min --harm 5%

    Each suspect is throttled a little, in short pulses, along a random code of its own. If the victim is faster
    whenever a suspect is pulsed, that suspect is guilty: this is an experiment, not a correlation. All suspects are
    tested at once. A dummy suspect that is never touched shows whether the method holds (A/A check).

    It writes limits of the suspects' cgroups, and puts each back exactly as it was, also if it is killed. Groups of
    system services, the victim and this command are never touched. Every pulse is written to the record first.

    Exit code: 0 no neighbour is guilty, 1 a neighbour is guilty, 2 bad option, victim or suspect, 3 not known yet,
    4 a suspect cannot be held here, 5 the victim or a suspect ended, 130 interrupted.
    """  # noqa: D301 - Click keeps the lines after a backspace
    console = wide_console(format_)
    options = Options(context.obj(), out)
    job = BlameJob(
        command=victim,
        pid=pid,
        group=group,
        log=log,
        latency=latency,
        suspects=tuple(suspect or ()),
        never=(*USUAL.never, *(never or ())),
        lever=lever,
        device=device,
        pulse_ns=duration_ns("--pulse", pulse, "100ms"),
        depth=parsed("--depth", depth, units.parse_share),
        deepest=parsed("--deepest", deepest, units.parse_share),
        budget_ns=duration_ns("--budget", budget, "5min"),
        harm=parsed("--harm", harm, units.parse_share),
        least=parsed("--least", least, units.parse_share),
        most=most,
        seed=seed,
    )
    if dry_run:
        return output.outline("blame", Blames().outline(job, options), format_, console)
    document = output.document("blame", format_)
    return carry_out(
        lambda emit: Blames().measure(job, options, emit), options, _View(console), console, document=document
    )


class _View(Drawn):
    """Shows the most suspicious neighbour so far. Notes stay."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        super().__init__(console, self._live)

    def __call__(self, event: Event) -> None:
        match event:
            case Started(path):
                self._console.print(f"Ctrl-C ends it; record: {path}", highlight=False, soft_wrap=True)
            case Note():
                show_note(self._console, event)
            case Doing(text):
                if self._console.is_terminal:
                    self._live.update(Text(text), refresh=True)
                else:
                    self.line(lambda: text)
