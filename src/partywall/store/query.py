"""SQL over the tables of a record. The only module that uses DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from partywall.errors import UsageError


def table(folder: Path, query: str) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Column names and rows of `query` over the views of a folder. UsageError with DuckDB's message if it fails.

    A view is a Parquet file, a folder of them, or a file of lines, by its name.
    """
    if not query.strip():
        raise UsageError("the query is empty; try: show tables")
    database = duckdb.connect()
    try:
        for name, source in dict(_views(folder)).items():
            database.execute(f'CREATE VIEW "{name}" AS SELECT * FROM {source}')  # noqa: S608
        result = database.execute(query)
        return [column[0] for column in result.description or []], result.fetchall()
    except duckdb.Error as error:
        raise UsageError(f"the query cannot be answered: {error}") from None


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
