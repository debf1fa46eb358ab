"""What a guard saw, as a time series on disk: one JSON line a report while it runs, Parquet when it ends.

A kill loses at most the report in flight; the lines can be read as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from partywall.store.record import Record

SERIES = "guard.parquet"
POLICY = "policy.yaml"
Rows = Mapping[str, Mapping[str, Any]]


class GuardDirectory(Record):
    """The record of a guard."""

    KIND, MARK, MADE_BY = "guard", "guard.jsonl", "partywall guard run --out"
    LINES = MARK

    @classmethod
    def create(cls, path: Path, policy: str) -> GuardDirectory:
        """A new one; UsageError if there is something at `path` already. policy: the text of its file."""
        guard = cls.make(path)
        (path / POLICY).write_text(policy, encoding="utf-8")
        (path / cls.MARK).touch()
        return guard

    def add(self, from_ns: int, at_ns: int, rows: Rows, pools: Rows, notes: object, queue: str = "") -> None:
        """Writes one report. queue: what holds packets back."""
        content = {"from_ns": from_ns, "at_ns": at_ns, "rows": rows, "pools": pools, "notes": notes, "queue": queue}
        self.append_line(json.dumps(content))

    def reports(self) -> list[dict[str, Any]]:
        """The reports in order; one that was being written when the guard was killed is left out."""
        return self.whole_lines()

    def settle(self) -> None:
        """Writes the Parquet file: one row a vif and report."""
        rows = [
            {"from_ns": report["from_ns"], "at_ns": report["at_ns"], "vif": vif, **row}
            for report in self.reports()
            for vif, row in report["rows"].items()
        ]
        if rows:
            # Read and written at any time, so put in its place whole.
            fresh = self.path / f".{SERIES}"
            pq.write_table(pa.Table.from_pylist(rows), fresh)
            fresh.replace(self.path / SERIES)
