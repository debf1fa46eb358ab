"""A guard's reports as a time series: one JSON line for each report while it runs, Parquet when it ends.

A kill loses at most the current report. The lines can be read directly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from partywall.core.record import Record
from partywall.files import append_whole, decoded, replace_durably

SERIES = "guard.parquet"
POLICY = "policy.yaml"
POLICIES = "policies.jsonl"
STORED = ("from_ns", "at_ns", "rows", "pools", "notes", "queue")


class Stored(Protocol):
    """The stored parts of a report: times in ns, figures by vif and pool, notes, and the queue that delays packets."""

    @property
    def from_ns(self) -> int: ...
    @property
    def at_ns(self) -> int: ...
    @property
    def rows(self) -> Mapping[str, Mapping[str, Any]]: ...
    @property
    def pools(self) -> Mapping[str, Mapping[str, Any]]: ...
    @property
    def notes(self) -> Sequence[tuple[str, str, str]]: ...
    @property
    def queue(self) -> str: ...


class GuardDirectory(Record):
    """The record of a guard."""

    KIND, MARK, MADE_BY = "guard", "guard.jsonl", "partywall guard run --out"
    LINES = MARK

    @classmethod
    def create(cls, path: Path, policy: str) -> GuardDirectory:
        """Creates a record. UsageError if something exists at `path`. policy: the text of its file."""
        guard = cls.make(path)
        guard.put(POLICY, policy)
        (path / cls.MARK).touch()
        return guard

    def add(self, report: Stored) -> None:
        """Appends one report."""
        content = {name: getattr(report, name) for name in STORED}
        self.append_line(json.dumps(content))

    def reports(self) -> list[dict[str, Any]]:
        """The reports in order, without an incomplete last one."""
        return self.whole_lines()

    def adjusted(self, at_ns: int, policy: str, changes: Sequence[str]) -> None:
        """Stores a policy that replaced the current one, the time from which it holds, and what differs."""
        append_whole(
            self.path / POLICIES, json.dumps({"at_ns": at_ns, "changes": list(changes), "policy": policy}).encode()
        )

    def adjustments(self) -> list[dict[str, Any]]:
        """The policies that replaced the first one, in order, without an incomplete last one."""
        try:
            lines = (self.path / POLICIES).read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [content for line in lines if line and (content := decoded(line)) is not None]

    def policy(self) -> str:
        """The text of the policy that holds now, or held last."""
        if later := self.adjustments():
            return str(later[-1]["policy"])
        return self.decoded(POLICY, str)

    def settle(self) -> None:
        """Writes the Parquet file: one row for each vif and report."""
        rows = [
            {"from_ns": report["from_ns"], "at_ns": report["at_ns"], "vif": vif, **row}
            for report in self.reports()
            for vif, row in report["rows"].items()
        ]
        if rows:
            # Replaced atomically, because it may be read or written at any time.
            fresh = self.path / f".{SERIES}"
            pq.write_table(pa.Table.from_pylist(rows), fresh)
            replace_durably(fresh, self.path / SERIES)
