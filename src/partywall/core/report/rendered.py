"""A `Report` for a terminal, as a page, and as files for other programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from partywall.core.report import page
from partywall.core.report.charts import titled
from partywall.core.report.files import Document, Files, parquet
from partywall.core.report.terminal import show
from partywall.core.report.value import Lines, Report, Table
from partywall.plain import plain

F = TypeVar("F")
JSON_SHOWN = 500_000
"""The longest JSON document, in characters, that a page contains. That of a load has every second."""


def files(kind: str, rows: str, made: Callable[[F], Report], more: Mapping[str, Document[F]]) -> Files[F]:
    """The formats of a kind of record. rows: what its rows are called; empty if its JSON document has none.

    made: makes the report of findings. more: further files by format, which are written by default too.
    """
    last: list[tuple[F, Report]] = []

    def report(findings: F) -> Report:
        # Several formats are written one after the other.
        if not last or last[0][0] is not findings:
            last[:] = [(findings, made(findings))]
        return last[0][1]

    return Files(
        of=f"a {kind}",
        show=lambda findings, console: show(report(findings), console),
        documents={
            "html": ("report.html", lambda findings: render(kind, rows, report(findings))),
            "json": ("findings.json", lambda findings: _json(rows, report(findings))),
            "parquet": ("findings.parquet", lambda findings: _parquet(report(findings))),
            **more,
        },
        usual=("html", "json", *more),
        rows=lambda findings: report(findings).flat_rows(),
        table=f"{rows or 'rows'}.csv",
        charts=lambda findings: {chart.id: titled(chart.draw(), chart.title) for chart in report(findings).charts},
        headline=lambda findings: report(findings).headline,
        goals=lambda findings: report(findings).goals,
        compared=lambda findings: report(findings).figures(),
    )


def render(kind: str, rows: str, report: Report) -> str:
    """The whole page."""
    document = _json(rows, report)
    return page.framed(
        "record.html.j2",
        {chart.id: page.fluid(chart.draw()) for chart in report.charts},
        kind=kind,
        report=report,
        sections=[(type(section).__name__, section) for section in report.sections if _is_there(section)],
        badge=report.badge or page.badge(report.outcome, report.goals),
        host=page.facts(report.host),
        json=document if len(document) <= JSON_SHOWN else "",
    )


def _is_there(section: Any) -> bool:
    match section:
        case Table():
            return bool(section.rows and section.shown(on_page=True))
        case Lines():
            return bool(section.lines)
        case _:
            return True


def _json(rows: str, report: Report) -> str:
    # A capability may give the same figures in another form.
    content: dict[str, Any] = plain(dict(report.values))
    if rows:
        content.setdefault(rows, plain(report.flat_rows()))
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _parquet(report: Report) -> bytes:
    rows = report.flat_rows()
    keys = dict.fromkeys(key for row in rows for key in row)
    return parquet(pa.table({key: [row.get(key) for row in rows] for key in keys}))
