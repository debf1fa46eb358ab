"""The report of a study: the paper's tables and figures beside ours, further results, and the method."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from partywall.core.report import page
from partywall.core.report.charts import titled
from partywall.core.report.compared import Figure
from partywall.core.report.files import Files
from partywall.study import board, exhibits
from partywall.study.agreement import Likeness, best_text, judge
from partywall.study.document import Section, StudyReport
from partywall.study.paper import Beside


def headline(report: StudyReport) -> str:
    """How many tables and figures came out as in the paper."""
    likenesses = [judge(beside).likeness for beside in report.comparisons]
    counted = {likeness: likenesses.count(likeness) for likeness in dict.fromkeys(likenesses)}
    return f"Of {len(likenesses)} tables and figures: " + ", ".join(
        f"{n} {_plural(likeness, n)}" for likeness, n in counted.items()
    )


def _plural(likeness: Likeness, count: int) -> str:
    return "differ" if likeness is Likeness.DIFFERS and count > 1 else likeness


def show(report: StudyReport, console: Console) -> None:
    """Shows the whole report on a terminal, with the headline last."""
    exhibits.show(report.comparisons, console)
    for section in report.sections:
        if section.short:
            console.print(_table(section))
            console.print(Text(section.lead, style="dim"))
    console.print(Text(f"\n{headline(report)}", style="bold"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _table(section: Section) -> Table:
    table = Table(title=f"\n{section.title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in section.columns:
        table.add_column(column)
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table


def render(report: StudyReport) -> str:
    """The whole page."""
    specs: dict[str, Any] = {}
    tables = exhibits.section(report.comparisons, specs)
    return page.framed(
        "study.html.j2",
        specs,
        data={"board": board.data(report.board)},
        scripts=("board.js",),
        report=report,
        headline=headline(report),
        tables=tables,
        board=board.section(report.board),
        host=page.facts(report.host),
    )


def _json(report: StudyReport) -> str:
    tables = [
        {
            "exhibit": beside.table.id,
            "likeness": judge(beside).likeness,
            "reason": judge(beside).reason,
            **({"best": best_text(beside)} if beside.table.best else {}),
            "published": [
                {**place._asdict(), **number.model_dump(exclude_defaults=True)}
                for place, number in beside.table.values.items()
            ],
            "measured": [point.model_dump() for point in beside.measured],
            **_other(beside),
        }
        for beside in report.comparisons
    ]
    about = {
        "run": report.run,
        "study": report.name,
        "form": report.length,
        "notes": report.notes,
    }
    return json.dumps({**about, **report.figures, "exhibits": tables}, indent=1)


def _other(beside: Beside) -> dict[str, Any]:
    """The other record's points, if one is shown beside this."""
    if beside.other is None:
        return {}
    measured = [point.model_dump() for point in beside.other.measured]
    return {"beside": {"run": beside.other.name, "likeness": judge(beside.other).likeness, "measured": measured}}


def _charts(report: StudyReport) -> dict[str, dict[str, Any]]:
    return {
        exhibits.slug(beside): titled(exhibits.chart(beside), exhibits.title(beside), judge(beside).likeness)
        for beside in report.comparisons
        if exhibits.has_chart(beside)
    }


def _compared(report: StudyReport) -> list[Figure]:
    """Every measured point of a table or figure, then the isolation factor of every cell."""
    points = [
        (f"{beside.table.id}: {point.place}", point.value, point.low, point.high)
        for beside in report.comparisons
        for point in beside.measured
    ]
    cells = [
        (_cell(row), *(row[key] for key in CELL)) for row in report.rows if row.keys() >= {"victim", "treatment", *CELL}
    ]
    return [
        Figure(of, float(value), "", low, high)
        for of, value, low, high in points + cells
        if value is not None and math.isfinite(value)
    ]


CELL = ("isolation_factor", "isolation_factor_low", "isolation_factor_high")


def _cell(row: Mapping[str, Any]) -> str:
    where = [row.get("run") or row.get("part"), row["victim"]]
    levels = [f"{key.removeprefix('level ')} {value}" for key, value in row.items() if key.startswith("level ")]
    return f"isolation factor: {', '.join(map(str, [*where, *levels]))} beside {row['treatment']}"


FILES: Files[StudyReport] = Files(
    of="a study",
    show=show,
    documents={
        "html": ("report.html", render),
        "json": ("findings.json", _json),
    },
    rows=lambda report: [dict(row) for row in report.rows],
    table="observations.csv",
    charts=_charts,
    headline=headline,
    usual=("html", "json", "csv"),
    compared=_compared,
)
"""The formats. A new one needs one function and one entry."""
