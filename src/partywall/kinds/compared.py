"""Records of one kind side by side. Whether a difference matters is judged for runs alone (`stats.compare`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partywall import kinds
from partywall.errors import Problem, UsageError
from partywall.store.record import Record

ROWS_MAX = 500
COLUMNS_MAX = 8


@dataclass(frozen=True)
class SideBySide:
    """The figures of some records. rows: a label, and for each column the figure of each record.

    hosts: a fact, and its value for each record.
    """

    kind: str
    names: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...] = ()
    hosts: tuple[tuple[str, ...], ...] = ()


def same_kind(*records: Record) -> None:
    """UsageError if records are of different kinds."""
    if len({record.KIND for record in records}) > 1:
        message = ", ".join(f"{record.name} is a {record.KIND}" for record in records)
        raise UsageError(Problem(message, "choose records of one kind"))


def side_by_side(*records: Record) -> SideBySide:
    """The rows that all records have, with their first figures. UsageError if they are of different kinds."""
    same_kind(*records)
    tables: list[dict[str, dict[str, Any]]] = []
    hosts: list[dict[str, str]] = []
    for record in records:
        kind = kinds.of(record)
        files, findings = kind.files(), kind.findings(record)
        rows = (files.compared or files.rows)(findings)
        tables.append({_label(row): row for row in rows[:ROWS_MAX]})
        hosts.append(_host(findings))
    shared = [label for label in tables[0] if all(label in table for table in tables)]
    figures = [key for key, value in next(iter(tables[0].values()), {}).items() if isinstance(value, int | float)]
    columns = tuple(figures[:COLUMNS_MAX])
    compared = tuple(
        (label, tuple(tuple(table[label].get(column) for table in tables) for column in columns)) for label in shared
    )
    facts = dict.fromkeys(fact for host in hosts for fact in host)
    beside = tuple((fact, *(host.get(fact, "unknown") for host in hosts)) for fact in facts)
    return SideBySide(records[0].KIND, tuple(record.name for record in records), columns, compared, beside)


def _host(findings: Any) -> dict[str, str]:
    """The host of a record in a few facts; empty if its findings do not have it."""
    from partywall.report.host import summary  # noqa: PLC0415 - what draws is slow to import

    return dict(summary(getattr(findings, "host", None) or {}))


def _label(row: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in row.values() if isinstance(value, str))[:120] or "all"
