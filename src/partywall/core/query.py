"""SQL over the tables of a record. The only module that uses DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from partywall import processor
from partywall.errors import CapabilityError, UsageError

# DuckDB's wheels for x86-64 use it from version 2.0 on, and end with an illegal instruction where it is missing.
NEEDED = "avx2"
NEEDED_FROM = (2, 0)


def table(folder: Path, query: str) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Column names and rows of `query` over the views of a folder. UsageError with DuckDB's message if it fails.

    A view is a Parquet file, a folder of them, or a file of lines, by its name.
    """
    if not query.strip():
        raise UsageError("the query is empty; try 'show tables'")
    check_processor(processor.CPU_INFO, version("duckdb"))
    import duckdb  # noqa: PLC0415 - only once the processor is known to carry it

    database = duckdb.connect()
    try:
        for name, source in dict(_views(folder)).items():
            database.execute(f'CREATE VIEW "{name}" AS SELECT * FROM {source}')  # noqa: S608
        result = database.execute(query)
        return [column[0] for column in result.description or []], result.fetchall()
    except duckdb.Error as error:
        raise UsageError(f"the query cannot be answered: {error}") from None


def check_processor(cpu_info: Path, duckdb: str) -> None:
    """CapabilityError on a processor that ends DuckDB, such as that of a guest with an old CPU model."""
    if tuple(int(part) for part in duckdb.split(".")[:2] if part.isdecimal()) < NEEDED_FROM:
        return
    flags = processor.flags(cpu_info)
    if flags is not None and NEEDED not in flags:
        raise CapabilityError(
            f"DuckDB {duckdb} needs a processor with {NEEDED}, which this one lacks; query the record's Parquet files "
            "on another machine, give this virtual machine a newer CPU model, or pip install 'duckdb<2'"
        )


def _views(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, SQL source) of each view."""
    for file in folder.glob("*.parquet"):
        yield file.stem, f"read_parquet({_quoted(file)})"
    for below in {file.parent for file in folder.glob("*/*.parquet")}:
        yield below.name, f"read_parquet({_quoted(below / '*.parquet')})"
    options = "format='newline_delimited', union_by_name=true, ignore_errors=true"
    for name in ("events", "observations"):
        if (file := folder / f"{name}.jsonl").exists():
            yield name, f"read_json({_quoted(file)}, {options})"


def _quoted(path: Path) -> str:
    text = str(path).replace("'", "''")
    return f"'{text}'"
