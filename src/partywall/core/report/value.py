"""A report as a value: what is said of findings, before it is decided how and where it is shown.

A capability makes one `Report` of its findings. The terminal, the page, the files for other programs, comparisons and
live views are all rendered from it (`rendered`, `live`), so that a column is defined once. Pure.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from partywall import units
from partywall.core.report.compared import MISSING, Figure
from partywall.core.stats.estimate import Outcome, Span

Row = Mapping[str, Any]


class On(enum.Enum):
    """Where a column is shown to people. Programs get every key of a row."""

    EVERYWHERE = "everywhere"
    COMPARISON = "comparison"
    """Only beside another record."""
    PAGE = "page"
    """Not on a terminal, which is narrow."""


@dataclass(frozen=True)
class Column:
    """One figure of a row. key: of the row, and the name for programs: snake case, unit last.

    unit: ns, s, B, B/s, bit/s, p/s, %, for which the value is a share, another one, or empty for a mere number; None
    for text. is_key: the column names what the row is about; rows of two records are put side by side by these. text:
    writes the cell of a row, if the value and its unit do not say enough. name: of the figure in a comparison, where no
    other columns stand beside it; by default the title.
    """

    key: str
    title: str
    unit: str | None = None
    on: On = On.EVERYWHERE
    is_key: bool = False
    text: Callable[[Row], str] | None = None
    name: str = ""

    def cell(self, row: Row) -> str:
        """The value of a row for people."""
        return self.text(row) if self.text else shown(row.get(self.key), self.unit)


@dataclass(frozen=True)
class Table:
    """Rows under columns. brief: rows on a terminal; most: on a page. keeps: rows that are always among them.

    in_rows: whether its rows are among those for other programs. sums: rows below them, for people alone. pages: where
    the first cell of a row leads on a page, by its text: addresses of files beside it.
    """

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    lead: str = ""
    brief: int | None = None
    most: int | None = None
    keeps: Callable[[Row], bool] = lambda _: False
    in_rows: bool = True
    sums: Sequence[Row] = ()
    pages: Mapping[str, str] = field(default_factory=dict)

    def shown(self, *, on_page: bool) -> tuple[Column, ...]:
        """The columns that are shown there."""
        where = (On.EVERYWHERE, On.PAGE) if on_page else (On.EVERYWHERE,)
        return tuple(column for column in self.columns if column.on in where)

    def cells(self, *, on_page: bool) -> list[list[str]]:
        """The rows that are shown there, as texts."""
        most = self.most if on_page else self.brief
        chosen = [row for place, row in enumerate(self.rows) if most is None or place < most or self.keeps(row)]
        every = [*chosen, *self.sums] if chosen else []
        return [[column.cell(row) for column in self.shown(on_page=on_page)] for row in every]


def of_texts(
    identity: str,
    title: str,
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    only_page: Container[str] = (),
    **more: Any,
) -> Table:
    """A table of texts for people alone, of which the first column is a name.

    only_page: titles of columns that a terminal does not show. more: further arguments of the table.
    """
    columns = tuple(
        Column(each, each, on=On.PAGE if each in only_page else On.EVERYWHERE, text=itemgetter(each) if place else None)
        for place, each in enumerate(titles)
    )
    return Table(identity, title, columns, [dict(zip(titles, row, strict=True)) for row in rows], in_rows=False, **more)


@dataclass(frozen=True)
class Lines:
    """Sentences, such as one for each event. more: how many there are beyond these."""

    id: str
    title: str
    lines: Sequence[str]
    more: int = 0


@dataclass(frozen=True)
class Chart:
    """A chart. draw: makes it, with Altair, when somebody looks."""

    id: str
    title: str
    caption: str
    draw: Callable[[], Any]


Section = Table | Lines | Chart


@dataclass(frozen=True)
class Report:
    """What is said of the findings of a record.

    outcome: decides the exit code. goals: how many stated goals were judged; without one, nothing holds or is violated.
    badge: what the outcome means here, on a page; empty: its usual words.
    name, about, started_at, host: of the record; about stands beside its name. warnings: a few words each, beside the
    headline of a page. notes: what a reader must know about the figures. terms: what words mean.
    values: further values for programs, by their keys in the JSON document.
    """

    headline: str
    outcome: Outcome = Outcome.HOLDS
    goals: int = 0
    badge: str = ""
    sections: tuple[Section, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    terms: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    about: str = ""
    started_at: str = ""
    host: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> Iterator[Table]:
        return (section for section in self.sections if isinstance(section, Table))

    @property
    def charts(self) -> Iterator[Chart]:
        return (section for section in self.sections if isinstance(section, Chart))

    def flat_rows(self) -> list[dict[str, Any]]:
        """The rows for other programs."""
        return [dict(row) for table in self.tables if table.in_rows for row in table.rows]

    def figures(self) -> list[Figure]:
        """Every number with what it is of, to be put beside that of another record. Rows without a key have none."""
        tables = [table for table in self.tables if any(column.is_key for column in table.columns)]
        return [figure for table in tables for row in table.rows for figure in _figures(table, row)]


def _figures(table: Table, row: Row) -> Iterator[Figure]:
    about = ", ".join(column.cell(row) for column in table.columns if column.is_key)
    for column in table.columns:
        value = row.get(column.key)
        if column.unit is not None and value is not None and math.isfinite(value):
            of = ": ".join(filter(None, (about, column.name or column.title)))
            yield Figure(of, float(value), column.unit, row.get(f"{column.key}_low"), row.get(f"{column.key}_high"))


def spread(span: Span, unit: str) -> str:
    """A figure with its interval, such as 1.2 s (0.9 to 1.4 s). The ends have their unit in common if they can."""
    value, low, high = (
        shown(each, unit).replace(" ", "\N{NO-BREAK SPACE}") for each in (span.value, span.low, span.high)
    )
    unit = high[high.rindex("\N{NO-BREAK SPACE}") :]
    return f"{value} ({low.removesuffix(unit)} to {high})"


def shown(value: Any, unit: str | None) -> str:  # noqa: PLR0911 - one for each unit
    """A value for people, with its unit, in as many digits as one reads in a table."""
    if value is None:
        return MISSING
    match unit:
        case None:
            return str(value)
        case "ns":
            return units.format_duration(value)
        case "s":
            return units.format_duration(value * 1e9)
        case "%":
            return f"{100 * value:.0f} %"
        case "B" | "B/s":
            return units.format_bytes(value) + unit[1:]
        case "bit/s":
            return units.format_bit_rate(value)
        case "p/s":
            return units.format_packet_rate(value)
        case "":
            return units.format_decimals(value, 0) if isinstance(value, int) else units.format_number(value, 2)
        case _:
            return f"{units.format_number(value, 3)}{'' if unit.startswith('/') else ' '}{unit}"
