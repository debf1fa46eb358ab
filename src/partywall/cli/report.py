"""`partywall report` and `partywall sql`: what was measured, derived again or queried."""

from __future__ import annotations

import importlib
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from partywall import kinds, pipeline
from partywall.cli import output, show
from partywall.cli.arguments import RunPath
from partywall.cli.live import Steps
from partywall.errors import Exit
from partywall.model.finding import Outcome
from partywall.store import RunDirectory
from partywall.store.record import Record

PAGE = "html"
EXITS = {Outcome.HOLDS: Exit.HOLDS, Outcome.VIOLATED: Exit.VIOLATED, Outcome.INCONCLUSIVE: Exit.INCONCLUSIVE}


# How each kind of record is reported: imported only for a record of that kind.
REPORTS = {
    "run": "report:report_run",
    "load": "load:report",
    "guard": "guard:report_record",
    "trace": "trace:report",
    "study": "study:report",
}


def report_run(directory: RunDirectory, console: Console, formats: Sequence[str] | None = None) -> int:
    """Derives, shows and writes what a run found; its exit code."""
    from partywall.report import terminal  # noqa: PLC0415 - what draws is slow to import
    from partywall.report.export import FILES, export_all  # noqa: PLC0415

    FILES.chosen(formats)

    with Steps(console) as steps:
        steps.show("reading the run and deriving findings", 0, 1)
        evidence, findings = pipeline.analyse(directory)
        written = export_all(findings, evidence, directory.path, formats, steps.show)
    code = Exit.FAILED if evidence.incomplete else EXITS[findings.outcome]
    if output.JSON in (formats or ()):
        return output.write("report", FILES.value((findings, evidence)), code)
    terminal.show(findings, evidence, console, next((file for file in written if file.suffix == ".html"), None))
    show.written(console, [file for file in written if file.suffix != ".html"])
    return code


def report(
    directory: RunPath,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            "-f",
            help="html, json, csv, parquet, png or svg; may be repeated. Default: html and json. json: also prints the "
            "findings as one JSON document on standard output (docs/report.md), and no text.",
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> int:
    """Derive findings from a run again, show them, and write them into its directory.

    partywall report runs/demo-... -f csv -f parquet

    partywall report runs/demo-... --open

    Measures nothing. Exit code: 0 all goals hold, 1 one is violated, 3 inconclusive, 5 a trial failed or is missing.
    """
    console = output.console(output.JSON if output.JSON in (formats or ()) else "")
    if open_ and formats and PAGE not in formats:
        formats = [*formats, PAGE]
    record = kinds.opened(directory)
    module, _, name = REPORTS[record.KIND].partition(":")
    shown: Callable[[Record, Console, list[str] | None], int]
    shown = getattr(importlib.import_module(f"partywall.cli.{module}"), name)
    code = shown(record, console, formats)
    if open_:
        _open(directory / "report.html", console)
    return code


def _open(page: Path, console: Console) -> None:
    """Opens a page in the browser. If there is no browser, prints the page's path."""
    if not webbrowser.open(page.resolve().as_uri()):
        console.print(f"no browser was found; open this page: {page}", highlight=False, markup=False, soft_wrap=True)


def sql(
    directory: RunPath,
    query: Annotated[
        str, typer.Argument(help="SQL over its tables; 'show tables' lists them, 'describe slices' a table's columns.")
    ],
) -> int:
    """Query the raw facts of a run, load, guard, trace or study with DuckDB.

    partywall sql runs/demo-... "select workload, count(*) from slices group by 1"

    A run has the tables slices, samples, output, usage and events, and after 'partywall report RUN -f parquet' also
    observations; a load has seconds, timings, errors, statuses and samples; a guard has guard (a row for each vif and
    report); a trace has events; a study has observations.
    """
    from partywall.store.query import table  # noqa: PLC0415 - DuckDB is slow to import

    kinds.opened(directory).settle()
    show.table(Console(), *table(directory, query))
    return Exit.HOLDS
