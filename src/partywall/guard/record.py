"""A guard's record: one JSON line for each report while it runs, Parquet when it ends.

A kill loses at most the current report. The lines can be read directly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from partywall.core.record import JobRecord
from partywall.files import append_whole, decoded, replace_durably
from partywall.guard.job import GuardJob

SERIES = "guard.parquet"
POLICY = "policy.yaml"
POLICIES = "policies.jsonl"
STORED = ("from_ns", "at_ns", "rows", "pools", "notes", "queue")


@dataclass(frozen=True)
class GuardInterval:
    """What happened since the previous report. Times are in ns.

    rows and pools: as sent by the agent, by leaf and by direction of each link. A row also has the promises that held
    then, and its link if links have names. notes: (leaf or service class, kind, text). queue: the queue that delays
    packets, fq or tbf.
    """

    from_ns: int
    at_ns: int
    rows: Mapping[str, Mapping[str, Any]]
    pools: Mapping[str, Mapping[str, Any]]
    notes: tuple[tuple[str, str, str], ...]
    round_ns_max: int
    decide_ns_max: int
    queue: str = ""


class GuardRecord(JobRecord[GuardJob]):
    """The record of a guard. One of an earlier version has no file with its job."""

    KIND, MADE_BY = "guard", "partywall guard run --out"
    EARLIER_MARK = LINES = "guard.jsonl"
    JOBS = (GuardJob,)

    @classmethod
    def create(cls, path: Path, job: GuardJob, host: Mapping[str, Any], instead: str = "") -> Self:
        made = super().create(path, job, host, instead)
        made.put(POLICY, job.policy.text)
        return made

    def add(self, report: GuardInterval) -> None:
        """Appends one report."""
        self.append_line(json.dumps({name: getattr(report, name) for name in STORED}))

    def end(self) -> None:
        """Writes nothing: each line is a report."""

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
        import pyarrow as pa  # noqa: PLC0415 - slow to import
        import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

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
