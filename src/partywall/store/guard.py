"""What a guard saw, as a time series on disk: one JSON line a report while it runs, Parquet when it ends.

A kill loses at most the report in flight; the lines can be read as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from partywall.errors import Problem, UsageError

LINES = "guard.jsonl"
SERIES = "guard.parquet"
POLICY = "policy.yaml"


class GuardLog:
    """A folder being written."""

    def __init__(self, folder: Path, policy: str) -> None:
        _make(folder)
        (folder / POLICY).write_text(policy)
        self.folder = folder
        self._lines: IO[str] = (folder / LINES).open("a")

    def add(self, from_ns: int, at_ns: int, rows: Rows, pools: Rows, notes: object, queue: str = "") -> None:
        """Writes one report, and sees that it is on its way to the disk. queue: what holds packets back."""
        content = {"from_ns": from_ns, "at_ns": at_ns, "rows": rows, "pools": pools, "notes": notes, "queue": queue}
        self._lines.write(json.dumps(content) + "\n")
        self._lines.flush()

    def close(self) -> None:
        """Writes the Parquet file: one row a vif and report."""
        self._lines.close()
        rows = [
            {"from_ns": report["from_ns"], "at_ns": report["at_ns"], "vif": vif, **row}
            for report in reports(self.folder)
            for vif, row in report["rows"].items()
        ]
        if rows:
            pq.write_table(pa.Table.from_pylist(rows), self.folder / SERIES)


def reports(folder: Path) -> list[dict[str, Any]]:
    """The reports in a folder, in order; one that was being written when the guard was killed is left out."""
    return _lines(folder / LINES)


def holds_series(folder: Path) -> bool:
    """Whether a folder is a guard's time series."""
    return (folder / LINES).is_file()


Rows = Mapping[str, Mapping[str, Any]]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        why = "is there already" if isinstance(error, FileExistsError) else str(error.strerror)
        raise UsageError(Problem(f"{folder}: {why}", "give a folder that is not there yet", key="--out")) from None


def _lines(file: Path) -> list[dict[str, Any]]:
    """JSON lines; a last one that was cut off is left out."""
    text = file.read_text() if file.is_file() else ""
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]
