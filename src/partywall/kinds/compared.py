"""Records of one kind side by side. Whether a difference matters is judged for runs alone (`run.findings.compare`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partywall import kinds, units
from partywall.core.record import Record, distinct
from partywall.core.report.compared import MISSING, Figure
from partywall.core.stats.quantile import student_reach
from partywall.errors import Problem, UsageError
from partywall.study.capability import StudyJob
from partywall.study.document import Section, StudyReport
from partywall.study.paper import Beside
from partywall.study.record import StudyDirectory

ROWS_MAX = 500
LEVEL = 0.95


@dataclass(frozen=True)
class SideBySide:
    """The figures of some records. rows: what a figure is of, and the figure of each record; None if it lacks it.

    ratios: the first record's figure over the second's, of each row, if there are two records; None if either lacks it.
    hosts: a fact, and its value for each record. left_out: rows that are not shown. judged_by: see `Record.JUDGED_BY`.
    """

    kind: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Figure | None, ...]], ...] = ()
    ratios: tuple[float | None, ...] = ()
    hosts: tuple[tuple[str, ...], ...] = ()
    left_out: int = 0
    judged_by: str = ""

    @property
    def note(self) -> str:
        """What is not shown; empty if all is."""
        return f"only the first {ROWS_MAX} figures are shown, {self.left_out} are left out" if self.left_out else ""

    @property
    def judged(self) -> str:
        """Whether differences are judged, and by what."""
        if self.judged_by:
            return f"whether a difference between two {self.kind}s matters says: {self.judged_by}"
        return "whether a difference matters is judged for runs alone"

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """Each row as texts: what it is of, the figure of each record, and the ratio if there is one."""
        ratios = self.ratios or (None,) * len(self.rows)
        return tuple(
            (of, *(MISSING if figure is None else figure.text for figure in figures), *self._ratio(ratio))
            for (of, figures), ratio in zip(self.rows, ratios, strict=True)
        )

    def _ratio(self, ratio: float | None) -> tuple[str, ...]:
        return () if not self.ratios else (MISSING if ratio is None else units.format_number(ratio, 3),)


def same_kind(*records: Record) -> None:
    """UsageError if records are of different kinds."""
    if len({record.KIND for record in records}) > 1:
        message = ", ".join(f"{record.name} is a {record.KIND}" for record in records)
        raise UsageError(Problem(message, "choose records of one kind"))


def side_by_side(*records: Record) -> SideBySide:
    """The figures of records. UsageError if they are of different kinds, or one is given twice."""
    same_kind(*records)
    distinct(*records)
    every_findings = [kinds.of(record).findings(record) for record in records]
    tables = [
        merged(kinds.of(record).files().compared(findings))
        for record, findings in zip(records, every_findings, strict=True)
    ]
    names = [name for name in dict.fromkeys(name for table in tables for name in table) if _matters(name, tables)]
    rows = tuple((name, tuple(table.get(name) for table in tables)) for name in names[:ROWS_MAX])
    return SideBySide(
        records[0].KIND,
        _distinct_names(*(record.path for record in records)),
        rows,
        tuple(_ratio(*figures) for _, figures in rows) if len(records) == 2 else (),
        _hosts(*every_findings),
        max(0, len(names) - ROWS_MAX),
        records[0].JUDGED_BY,
    )


def _matters(name: str, tables: Sequence[Mapping[str, Figure]]) -> bool:
    """False for a rate, a time or a size that is 0 in all records. Counts and shares, as of errors, matter if 0 too."""
    figures = [table[name] for table in tables if name in table]
    return any(figure.value or figure.unit in ("", "%") for figure in figures)


def merged(figures: Sequence[Figure]) -> dict[str, Figure]:
    """Figures by what they are of. Several of the same, such as of repeated moves, become their mean, with interval."""
    alike: dict[str, list[Figure]] = {}
    for figure in figures:
        alike.setdefault(figure.of, []).append(figure)
    return {of: group[0] if len(group) == 1 else _mean(group) for of, group in alike.items()}


def _mean(figures: Sequence[Figure]) -> Figure:
    values = [figure.value for figure in figures]
    mean, freedom = statistics.fmean(values), len(values) - 1
    half = student_reach(LEVEL, freedom) * statistics.stdev(values) / math.sqrt(len(values))
    return replace(figures[0], value=mean, low=mean - half, high=mean + half, n=len(values))


def _ratio(first: Figure | None, second: Figure | None) -> float | None:
    return first.value / second.value if first and second and second.value else None


def beside(record: Record, other: Record) -> StudyReport:
    """The report of a study with another record of the same study in its figures. UsageError unless it is one."""
    if record.path.resolve() == other.path.resolve():
        raise UsageError(Problem(f"{other.path} is the study itself", "give another record of it", key="--beside"))
    name, other_name = (StudyJob.of(_study(each)).wanted.name for each in (record, other))
    if name != other_name:
        message = f"{other.path} is of the study {other_name}, and {record.path} of {name}"
        raise UsageError(Problem(message, f"give another record of {name}", key="--beside"))
    own: StudyReport = kinds.of(record).findings(record)
    theirs: StudyReport = kinds.of(other).findings(other)
    names = _distinct_names(record.path, other.path)
    measured = {each.table.id: each for each in theirs.comparisons}
    hosts = Section(
        id="hosts",
        title="The two hosts",
        lead=f"The figures show {names[1]} beside {names[0]}. Whether a difference matters is not judged. "
        f"The board, the notes and all other tables are of {names[0]}.",
        columns=("", *names),
        rows=(("form", own.length, theirs.length), *_hosts(own, theirs)),
        short=True,
    )
    return replace(
        own,
        comparisons=tuple(_with(each, measured.get(each.table.id), *names) for each in own.comparisons),
        sections=(hosts, *own.sections),
    )


def _study(record: Record) -> StudyDirectory:
    if not isinstance(record, StudyDirectory):
        remedy = "give two records of one study; 'partywall compare' shows records of other kinds"
        raise UsageError(Problem(f"{record.path} is a {record.KIND}, and no study", remedy, key="--beside"))
    return record


def _with(own: Beside, theirs: Beside | None, name: str, other: str) -> Beside:
    there = theirs or Beside(paper=own.paper, table=own.table)
    return own.model_copy(update={"name": name, "other": there.model_copy(update={"name": other})})


def _distinct_names(*paths: Path) -> tuple[str, ...]:
    """The shortest ends of different paths that differ, such as the names of folders."""
    parts = [path.resolve().parts for path in paths]
    count = next(
        count for count in range(1, 1 + max(map(len, parts))) if len({p[-count:] for p in parts}) == len(parts)
    )
    return tuple("/".join(each[-count:]) for each in parts)


def _hosts(*findings: Any) -> tuple[tuple[str, ...], ...]:
    """A fact in each row, and its value for each record."""
    hosts = [_host(each) for each in findings]
    facts = dict.fromkeys(fact for host in hosts for fact in host)
    return tuple((fact, *(host.get(fact, "unknown") for host in hosts)) for fact in facts)


def _host(findings: Any) -> dict[str, str]:
    """The host of a record in a few facts; empty if its findings do not have it."""
    from partywall.core.report.host import summary  # noqa: PLC0415 - what draws is slow to import

    return dict(summary(getattr(findings, "host", None) or {}))
