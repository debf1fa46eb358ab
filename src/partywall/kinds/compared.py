"""Two records of one kind side by side. Whether a difference matters is judged for runs alone (`stats.compare`)."""

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
    """The figures of two records. rows: by label, a pair for each column. hosts: (fact, first, second)."""

    kind: str
    names: tuple[str, str]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[tuple[Any, Any], ...]], ...] = ()
    hosts: tuple[tuple[str, str, str], ...] = ()


def same_kind(first: Record, second: Record) -> None:
    """UsageError if two records are of different kinds."""
    if first.KIND != second.KIND:
        message = f"{first.name} is a {first.KIND}, {second.name} is a {second.KIND}"
        raise UsageError(Problem(message, "choose two records of one kind"))


def side_by_side(first: Record, second: Record) -> SideBySide:
    """The rows that both records have, with their first figures. UsageError if they are of different kinds."""
    same_kind(first, second)
    tables: list[dict[str, dict[str, Any]]] = []
    hosts: list[dict[str, str]] = []
    for record in (first, second):
        kind = kinds.of(record)
        files, findings = kind.files(), kind.findings(record)
        rows = (files.compared or files.rows)(findings)
        tables.append({_label(row): row for row in rows[:ROWS_MAX]})
        hosts.append(_host(findings))
    shared = [label for label in tables[0] if label in tables[1]]
    figures = [key for key, value in next(iter(tables[0].values()), {}).items() if isinstance(value, int | float)]
    columns = tuple(figures[:COLUMNS_MAX])
    pairs = tuple(
        (label, tuple((tables[0][label].get(c), tables[1][label].get(c)) for c in columns)) for label in shared
    )
    left, right = hosts
    facts = tuple((name, left.get(name, "unknown"), right.get(name, "unknown")) for name in {**left, **right})
    return SideBySide(first.KIND, (first.name, second.name), columns, pairs, facts)


def _host(findings: Any) -> dict[str, str]:
    """The host of a record in a few facts; empty if its findings do not have it."""
    from partywall.report.host import summary  # noqa: PLC0415 - what draws is slow to import

    return dict(summary(getattr(findings, "host", None) or {}))


def _label(row: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in row.values() if isinstance(value, str))[:120] or "all"
