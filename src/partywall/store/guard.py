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


class GuardLog:
    """A folder being written."""

    def __init__(self, folder: Path, policy: str) -> None:
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            why = "is there already" if isinstance(error, FileExistsError) else str(error.strerror)
            raise UsageError(Problem(f"{folder}: {why}", "give a folder that is not there yet", key="--out")) from None
        (folder / "policy.yaml").write_text(policy)
        self.folder = folder
        self._lines: IO[str] = (folder / LINES).open("a")

    def add(self, from_ns: int, at_ns: int, rows: Mapping[str, Mapping[str, Any]], notes: object) -> None:
        """Writes one report, and sees that it is on its way to the disk."""
        self._lines.write(json.dumps({"from_ns": from_ns, "at_ns": at_ns, "rows": rows, "notes": notes}) + "\n")
        self._lines.flush()

    def close(self) -> None:
        """Writes the Parquet file: one row a vif and report."""
        self._lines.close()
        found = [json.loads(line) for line in (self.folder / LINES).read_text().splitlines()]
        times = ("from_ns", "at_ns")
        rows = [
            {**{key: report[key] for key in times}, "vif": vif, **row}
            for report in found
            for vif, row in report["rows"].items()
        ]
        if rows:
            pq.write_table(pa.Table.from_pylist(rows), self.folder / SERIES)
