"""`partywall compare`: compares a run with an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partywall import units
from partywall.cli import output
from partywall.cli.arguments import RunPath
from partywall.errors import Exit, Problem, UsageError, parsed

if TYPE_CHECKING:
    from partywall.kinds.compared import SideBySide
    from partywall.run.record import RunDirectory


def compare(
    run: RunPath,
    reference: Annotated[Path, typer.Argument(help="The earlier run to compare with.")],
    tolerance: Annotated[
        str, typer.Option(help="Changes of the isolation factor up to this size do not matter, e.g. 2%.")
    ] = "2%",
    latency_tolerance: Annotated[
        str, typer.Option(help="The same for the p99 latency, e.g. 25%. off: show latencies without judging them.")
    ] = "25%",
    also: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="A further run on the side of RUN; may be repeated.")
    ] = None,
    also_reference: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="A further run on the side of REFERENCE; may be repeated.")
    ] = None,
    chance: Annotated[
        str, typer.Option(help="How often any cell may be called worse or better though nothing changed, e.g. 1%.")
    ] = "5%",
    in_turn: Annotated[
        bool,
        typer.Option("--in-turn", help="The runs of both sides were made in turn, and their workloads may differ."),
    ] = False,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Compare a run with an earlier one, cell by cell; or show two records of another kind side by side.

    Two runs of the same scenario differ by more than the interval of one run shows. Other finished runs of the scenario
    on this host, in the folders of the given ones, show by how much; so do several runs a side. All cells together are
    called worse or better by chance in at most 5 % of comparisons (--chance). Cells with different kernels or
    parameters are not compared. Differences between the hosts are named.

    With several runs a side that were made in turn (--in-turn), the variation between them contains what disturbed
    single runs, so a disturbed cell is judged too, and workloads may differ: two commits, or two images.

    Exit code: 0 no cell got worse; 1 a cell got worse; 3 inconclusive: it is unknown how much runs vary, an interval is
    too wide, a cell of REFERENCE is missing or has other parameters, a run is incomplete, a cell was disturbed or
    carries another warning, or the records are no runs.
    """
    from rich.console import Console

    from partywall import kinds
    from partywall.core.capability import EXITS
    from partywall.kinds.compared import side_by_side
    from partywall.run import stages
    from partywall.run.record import RunDirectory
    from partywall.run.report import compare_view

    share = _share("--tolerance", tolerance, "2%")
    wrong = _share("--chance", chance, "1%")
    latency = (
        None if latency_tolerance == "off" else parsed("--latency-tolerance", latency_tolerance, units.parse_share)
    )
    if latency is not None and latency < 0:
        raise UsageError(
            Problem(
                f"must be 0 or more, not {latency_tolerance}", "give for example 25%, or off", key="--latency-tolerance"
            )
        )
    if in_turn and not (also and also_reference):
        message = "each side has one run, and needs at least two"
        raise UsageError(Problem(message, "give the others with --also and --also-reference", key="--in-turn"))
    if not also and not also_reference and not RunDirectory.is_one(run):
        return _side_by_side(side_by_side(kinds.opened(run), kinds.opened(reference)), format_)
    opened = _opened([run, reference, *(also or ()), *(also_reference or ())])
    sides = 2 + len(also or ())
    comparison = stages.compared(
        opened[0],
        opened[1],
        share,
        latency_tolerance=latency,
        also=opened[2:sides],
        also_reference=opened[sides:],
        chance=wrong,
        in_turn=in_turn,
    )
    if format_ == output.Format.JSON:
        about = {"outcome": comparison.outcome} | output.plain(comparison)
        return output.write("compare", about, EXITS[comparison.outcome])
    compare_view.show(comparison, Console())
    return EXITS[comparison.outcome]


def _share(option: str, text: str, example: str) -> float:
    share = parsed(option, text, units.parse_share)
    if not 0 <= share < 1:
        message = f"must be at least 0 and less than 100%, not {text}"
        raise UsageError(Problem(message, f"give for example {example}", key=option))
    return share


def _side_by_side(both: SideBySide, format_: output.Format) -> int:
    """Shows the figures of two records. Exit code 3: whether a difference matters is not judged."""
    from rich.table import Table

    from partywall.cli.live import wide_console

    if format_ == output.Format.JSON:
        return output.write("compare", both, Exit.INCONCLUSIVE)
    console = wide_console()
    if both.hosts:
        hosts = Table(title="The hosts", title_justify="left")
        for heading in ("", *both.names):
            hosts.add_column(heading)
        for fact in both.hosts:
            hosts.add_row(*fact)
        console.print(hosts)
    table = Table(title="The figures", title_justify="left")
    table.add_column("", overflow="fold")
    for heading in (*both.names, "ratio"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in both.texts:
        table.add_row(*row)
    console.print(table)
    for note in filter(None, (both.note, both.judged)):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    return Exit.INCONCLUSIVE


def _opened(paths: Sequence[Path]) -> list[RunDirectory]:
    """Opens the run directories. Reports all paths that are not run directories at once."""
    from partywall.run.record import RunDirectory

    opened: list[RunDirectory] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            opened.append(RunDirectory.open(path))
        except UsageError as error:
            problems += error.problems
    if problems:
        raise UsageError(*problems)
    return opened
