"""Findings of naps, and what is said of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partywall import units
from partywall.core.report.value import Chart, Column, Report, Table
from partywall.core.stats.estimate import Outcome
from partywall.errors import TrialError
from partywall_nap.record import Nap, NapRecord

COLUMNS = (
    Column("wanted_ns", "sleep", is_key=True, text=lambda row: units.format_duration(row["wanted_ns"])),
    Column("count", "times", ""),
    Column("late_ns_p50", "late, median", "ns"),
    Column("late_ns_max", "late, at most", "ns"),
)


@dataclass(frozen=True)
class NapFindings:
    """The sleeps, and the limit that they were held to."""

    name: str
    host: dict[str, Any]
    naps: tuple[Nap, ...]
    limit_ns: int | None


def findings(record: NapRecord) -> NapFindings:
    if not (naps := tuple(record.stream)):
        raise TrialError(f"{record.path}: it ended before its first sleep")
    return NapFindings(record.name, record.host, naps, record.job.limit_ns)


def table(naps: Sequence[Nap]) -> Table:
    late: dict[int, list[int]] = {}
    for nap in naps:
        late.setdefault(nap.wanted_ns, []).append(nap.late_ns)
    rows = [
        {"wanted_ns": wanted, "count": len(all_), "late_ns_p50": statistics.median(all_), "late_ns_max": max(all_)}
        for wanted, all_ in late.items()
    ]
    return Table("naps", "How late a sleep ends", COLUMNS, rows)


def report(found: NapFindings) -> Report:
    worst = max(nap.late_ns for nap in found.naps)
    is_violated = found.limit_ns is not None and worst > found.limit_ns
    return Report(
        f"{len(found.naps)} sleeps were at most {units.format_duration(worst)} late",
        Outcome.VIOLATED if is_violated else Outcome.HOLDS,
        goals=int(found.limit_ns is not None),
        sections=(table(found.naps), Chart("late", "Each sleep", "In order.", lambda: chart(found.naps))),
        terms={"Late": "How much longer a sleep took than it should."},
        name=found.name,
        host=found.host,
    )


def chart(naps: Sequence[Nap]) -> Any:
    from partywall.core.report.charts import WIDTH, inlined

    rows = [{"number": number, "late_us": nap.late_ns / 1e3} for number, nap in enumerate(naps)]
    return inlined(rows).mark_point().encode(x="number:Q", y="late_us:Q").properties(width=WIDTH)
