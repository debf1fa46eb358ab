"""The board of a study: figures by levels, from the environment down to the cores. The page shows one at a time.

Without a script, the page shows all of them as one table. The figures are chosen in `study.isolation.tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from partywall.core.report import figures, page
from partywall.core.stats.estimate import Estimate
from partywall.study.document import BoardEntry

FIGURES = ("absolute", "of the bare host", "q")


def data(entries: Sequence[BoardEntry]) -> dict[str, Any]:
    """Data for the page's script: names of the levels, and each entry's places, texts and share of the bare host."""
    return {
        "levels": list(entries[0].places) if entries else [],
        "figures": FIGURES,
        "entries": [
            {
                "at": list(entry.places.values()),
                "texts": texts(entry),
                "share": None if entry.relative is None else round(entry.relative.value, 4),
            }
            for entry in entries
        ],
    }


def texts(entry: BoardEntry) -> list[str]:
    """Absolute value, relative value and q, formatted."""
    return [
        entry.absolute + figures.mark(entry.emulated),
        _percent(entry.relative, "no bare host was measured"),
        _percent(entry.q, "no share was set or left"),
    ]


def _percent(estimate: Estimate | None, otherwise: str) -> str:
    return otherwise if estimate is None else figures.percent(estimate)


def section(entries: Sequence[BoardEntry]) -> Markup:
    """A section for a page with the id `board`; empty if there are no entries."""
    if not entries:
        return Markup()
    rows = [(*entry.places.values(), *texts(entry)) for entry in entries]
    columns = (*entries[0].places, *FIGURES)
    template = page.plain().get_template("board.html.j2")
    text = template.render(rows=rows, columns=columns, emulated=figures.EMULATED)
    return Markup(text)  # noqa: S704 - from a template that escapes
