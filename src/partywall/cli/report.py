"""`partywall report` and `partywall sql`: derive findings again, or query what was measured."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from partywall import kinds
from partywall.cli import output, show
from partywall.cli.arguments import RunPath
from partywall.cli.live import Steps, wide_console
from partywall.core.record import Record
from partywall.errors import Exit

PAGE = "html"


def show_record(
    record: Record,
    console: Console,
    formats: Sequence[str] | None = None,
    document: str = "",
    exit_of: Callable[[int], int] = int,
    beside: Record | None = None,
) -> int:
    """Derives, writes and shows the findings of a record of any kind. Returns its exit code.

    document: the command whose JSON document is printed instead of text. exit_of: the exit code for that of the
    findings. beside: another record of the same study, shown in its figures.
    """
    kind = kinds.of(record)
    files = kind.files()
    files.chosen(formats)
    with Steps(console) as steps:
        steps.show(f"reading the {record.KIND} and deriving findings", 0, 1)
        record.settle()
        findings = _beside(record, beside) if beside else kind.findings(record)
        written = files.write(findings, record.path, formats, steps.show)
    code = exit_of(kind.outcome(findings))
    if document:
        return output.write(document, files.value(findings), code)
    files.show(findings, console)
    show.written(console, written)
    return code


def _beside(record: Record, beside: Record) -> Any:
    from partywall.kinds import compared

    return compared.beside(record, beside)


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
    beside: Annotated[
        Path | None,
        typer.Option(
            metavar="STUDY", help="Another record of the same study, such as that of another host, in the same figures."
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> int:
    """Derive findings from a run again, show them, and write them into its directory.

    partywall report runs/demo-... -f csv -f parquet

    partywall report runs/demo-... --open

    partywall report runs/vits-... --beside other-host/vits-...

    Measures nothing. Exit code: 0 all goals hold, 1 one is violated, 3 inconclusive, 5 a trial failed or is missing.
    """
    console = wide_console(output.JSON if output.JSON in (formats or ()) else "")
    if open_ and formats and PAGE not in formats:
        formats = [*formats, PAGE]
    document = "report" if output.JSON in (formats or ()) else ""
    other = kinds.opened(beside) if beside else None
    code = show_record(kinds.opened(directory), console, formats, document, beside=other)
    if open_:
        _open(directory / "report.html", console)
    return code


def _open(page: Path, console: Console) -> None:
    """Opens a page in the browser. If there is no browser, prints the page's path."""
    if not webbrowser.open(page.resolve().as_uri()):
        console.print(f"no browser found; open this page: {page}", highlight=False, markup=False, soft_wrap=True)


def sql(
    directory: RunPath,
    query: Annotated[
        str,
        typer.Argument(
            help="SQL over the record's tables. 'show tables' lists them; 'describe slices' lists a table's columns."
        ),
    ],
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Query the raw facts of a record of any kind with DuckDB.

    partywall sql runs/demo-... "select workload, count(*) from slices group by 1"

    A run has the tables slices, samples, output, usage and events, and after 'partywall report RUN -f parquet' also
    observations; a load has seconds, timings, errors, statuses and samples; a guard has guard (a row for each vif and
    report); a trace has events; a study has observations; a watch has disks, tenants and waits.
    """
    from partywall.core.query import table

    kinds.opened(directory).settle()
    columns, rows = table(directory, query)
    if format_ == output.Format.JSON:
        return output.write("sql", {"rows": [dict(zip(columns, row, strict=True)) for row in rows]})
    show.table(Console(), columns, rows)
    return Exit.HOLDS
