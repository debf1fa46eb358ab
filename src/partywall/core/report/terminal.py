"""A plain table for a terminal: texts to the left, figures to the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text


def listed(columns: Sequence[str], rows: Iterable[Sequence[str]], **look: Any) -> Table:
    """Rows of texts under their columns, of which the first is a name. look: further arguments of rich's Table."""
    table = Table(*columns, **look)
    if table.columns:
        # Names that differ only at their ends stay different.
        table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*map(Text, row))
    return table
