"""SQL over a run's files. The one home of DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb

from partywall.errors import UsageError
from partywall.store.directory import RunDirectory

VIEWS = {
    "slices": "slices/*.parquet",
    "samples": "samples/*.parquet",
    "output": "output/*.parquet",
    "usage": "usage/*.parquet",
    "observations": "observations.parquet",
}


def table(run: RunDirectory, query: str) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Column names and rows of `query`; UsageError with DuckDB's own words if it cannot be answered."""
    with run.exclusive():
        run.compact()
    if not query.strip():
        raise UsageError("the query is empty; try: select * from events limit 5")
    database = duckdb.connect()
    try:
        for view in _views(run):
            database.execute(view)
        result = database.execute(query)
        return [column[0] for column in result.description or []], result.fetchall()
    except duckdb.Error as error:
        raise UsageError(f"the query cannot be answered: {error}") from None


def _views(run: RunDirectory) -> Iterator[str]:
    for name, pattern in VIEWS.items():
        if any(run.path.glob(pattern)):
            yield f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{_quoted(run)}/{pattern}')"  # noqa: S608
    if (run.path / "events.jsonl").exists():
        options = "format='newline_delimited', union_by_name=true, ignore_errors=true"
        yield f"CREATE VIEW events AS SELECT * FROM read_json('{_quoted(run)}/events.jsonl', {options})"  # noqa: S608


def _quoted(run: RunDirectory) -> str:
    return str(run.path).replace("'", "''")
