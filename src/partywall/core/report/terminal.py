"""A report on a terminal. Its tables have texts to the left, figures to the right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from partywall.core.report import value
from partywall.core.report.value import Lines, Report

WIDEST = 10_000
"""Columns of a terminal in which no table is cut."""
BORDER = 3
"""Columns of a terminal beside the text of a column of a table."""


class Rows:
    """A table whose rows become lists of their values, a line each, where the terminal is too narrow for it."""

    def __init__(self, table: Table, rows: Sequence[tuple[str, Sequence[str]]]) -> None:
        """table: whole. rows: the name of each row, and a text for each of the last columns."""
        self.table, self.rows = table, rows

    def natural_width(self, console: Console) -> int:
        """The number of columns that the table takes if nothing of it is folded."""
        return self.table.__rich_measure__(console, console.options.update_width(WIDEST)).maximum

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.natural_width(console) <= options.max_width or self._fold_titles(console, options):
            yield self.table
            return
        titles = [str(column.header) for column in self.table.columns]
        for name, texts in self.rows:
            if not texts:
                yield Text(name, overflow="fold")
                continue
            yield Rule(Text(name), align="left", characters="─", style="default")
            shown = titles[len(titles) - len(texts) :]
            left = max(map(len, shown))
            for title, text in zip(shown, texts, strict=True):
                yield Text(f"{title:<{left}}  {text}", overflow="fold")

    def _fold_titles(self, console: Console, options: ConsoleOptions) -> bool:
        """Makes columns narrower whose titles are wider than their cells. False if that is not enough."""
        wide, columns = options.update_width(WIDEST), self.table.columns
        widths = [
            max(
                *(len(word) for word in str(column.header).split()),
                *(Measurement.get(console, wide, cell).maximum for cell in column.cells),
                0,
                0,
            )
            for column in columns
        ]
        if (room := options.max_width - sum(widths) - BORDER * len(widths) - 1) < 0:
            return False
        for column, width in zip(columns, widths, strict=True):
            column.width = width + max(0, min(room, len(str(column.header)) - width))
            room -= column.width - width
        return True

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(self.natural_width(console), options.max_width))


def listed(columns: Sequence[str], rows: Iterable[Sequence[str]], **look: Any) -> Rows:
    """Rows of texts under their columns, of which the first is a name. look: further arguments of rich's Table."""
    table = Table(*columns, **look)
    if table.columns:
        # Names that differ only at their ends stay different.
        table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify = "right"
    texts = [list(row) for row in rows]
    for row in texts:
        table.add_row(*map(Text, row))
    return Rows(table, [(row[0], row[1:]) for row in texts])


def show(report: Report, console: Console) -> None:
    """Prints a report: tables first, and what is said in sentences at the end, where a reader is."""
    if report.headline:
        console.print(Text(report.headline, style="bold"), soft_wrap=True)
    for table in report.tables:
        show_table(table, console)
    for lines in (section for section in report.sections if isinstance(section, Lines)):
        for line in lines.lines:
            console.print(Text(line), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def show_table(table: value.Table, console: Console) -> None:
    """Prints a table, unless it has no row."""
    columns = table.shown(on_page=False)
    if columns and (cells := table.cells(on_page=False)):
        whole = listed([column.title for column in columns], cells, title=table.title or None, title_justify="left")
        for column, drawn in zip(columns, whole.table.columns, strict=True):
            if column.unit is None and column.text is None:
                drawn.justify = "left"
        console.print(whole)
