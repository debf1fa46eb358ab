"""Records of one kind side by side. Whether a difference matters is judged for runs alone (`stats.compare`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partywall import kinds
from partywall.errors import Problem, UsageError
from partywall.kinds.study import StudyJob
from partywall.model.paper import Beside
from partywall.model.study import Section, StudyReport
from partywall.store.record import Record
from partywall.store.study import StudyDirectory

ROWS_MAX = 500
COLUMNS_MAX = 8


@dataclass(frozen=True)
class SideBySide:
    """The figures of some records. rows: a label, and for each column the figure of each record.

    hosts: a fact, and its value for each record. left_out: rows of the longest record that are not shown.
    """

    kind: str
    names: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...] = ()
    hosts: tuple[tuple[str, ...], ...] = ()
    left_out: int = 0

    @property
    def note(self) -> str:
        """What is not shown; empty if all is."""
        if not self.left_out:
            return ""
        return f"only the first {ROWS_MAX} rows of each record are compared, {self.left_out} are left out"


def same_kind(*records: Record) -> None:
    """UsageError if records are of different kinds."""
    if len({record.KIND for record in records}) > 1:
        message = ", ".join(f"{record.name} is a {record.KIND}" for record in records)
        raise UsageError(Problem(message, "choose records of one kind"))


def side_by_side(*records: Record) -> SideBySide:
    """The rows that all records have, with their first figures. UsageError if they are of different kinds."""
    same_kind(*records)
    tables: list[dict[str, dict[str, Any]]] = []
    every_findings = []
    most = 0
    for record in records:
        kind = kinds.of(record)
        files, findings = kind.files(), kind.findings(record)
        rows = (files.compared or files.rows)(findings)
        tables.append({_label(row): row for row in rows[:ROWS_MAX]})
        every_findings.append(findings)
        most = max(most, len(rows))
    shared = [label for label in tables[0] if all(label in table for table in tables)]
    figures = [key for key, value in next(iter(tables[0].values()), {}).items() if isinstance(value, int | float)]
    columns = tuple(figures[:COLUMNS_MAX])
    compared = tuple(
        (label, tuple(tuple(table[label].get(column) for table in tables) for column in columns)) for label in shared
    )
    names = tuple(record.name for record in records)
    return SideBySide(records[0].KIND, names, columns, compared, _hosts(*every_findings), max(0, most - ROWS_MAX))


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
    from partywall.report.host import summary  # noqa: PLC0415 - what draws is slow to import

    return dict(summary(getattr(findings, "host", None) or {}))


def _label(row: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in row.values() if isinstance(value, str))[:120] or "all"
