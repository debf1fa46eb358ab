"""The report of a load generation study: the paper's exhibits beside ours, every cell, and how it was measured."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vl_convert

from partywall import __version__
from partywall.errors import Problem, UsageError
from partywall.model.finding import Estimate
from partywall.model.load_study import METRICS, Observed, Study
from partywall.model.paper import Beside, judge
from partywall.report import charts, figures, html, page, paper


@dataclass(frozen=True)
class StudyReport:
    """estimates: by metric, of each cell. notes: what must be said with all figures; facts: how it was measured."""

    run: str
    study: Study
    form: str
    observations: tuple[Observed, ...]
    estimates: Mapping[str, Mapping[str, Estimate]]
    besides: tuple[Beside, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    host: Mapping[str, Any]


def headline(report: StudyReport) -> str:
    """How many exhibits came out as in the paper."""
    found = [judge(beside).likeness for beside in report.besides]
    counted = {likeness: found.count(likeness) for likeness in dict.fromkeys(found)}
    return f"Of {len(found)} tables and figures: " + ", ".join(f"{n} {likeness}" for likeness, n in counted.items())


def render(report: StudyReport) -> str:
    """The whole page."""
    specs: dict[str, Any] = {}
    section = paper.section(report.besides, specs)
    cells = list({observed.cell.id: observed.cell for observed in report.observations})
    return html.environment().get_template("study.html.j2").render(
        report=report,
        headline=headline(report),
        section=section,
        metrics=METRICS,
        rows=[(cell, [_figure(report, metric, cell) for metric in METRICS]) for cell in cells],
        host=tuple(html.flat({k: v for k, v in report.host.items() if k not in html.SHOWN_ELSEWHERE})),
        version=__version__,
        assets={name: page.asset(name) for name in ("report.css", "report.js")},
        data=page.embedded(page.pack(specs) | {"trials": {}}),
        vega=page.vega(),
    )  # fmt: skip


def _figure(report: StudyReport, metric: str, cell: str) -> str:
    estimate = report.estimates.get(metric, {}).get(cell)
    return "not measured" if estimate is None else figures.ratio(estimate)


def _html(report: StudyReport, folder: Path) -> list[Path]:
    return [_written(folder / "report.html", render(report).encode())]


def _json(report: StudyReport, folder: Path) -> list[Path]:
    found = {
        "run": report.run,
        "form": report.form,
        "cells": {
            metric: {cell: estimate.model_dump() for cell, estimate in cells.items()}
            for metric, cells in report.estimates.items()
        },
        "exhibits": [
            {
                "exhibit": beside.exhibit.id,
                "likeness": judge(beside).likeness,
                "reason": judge(beside).reason,
                "published": [(*place, value) for place, value in beside.exhibit.values.items()],
                "measured": [point.model_dump() for point in beside.measured],
            }
            for beside in report.besides
        ],
        "notes": report.notes,
    }
    return [_written(folder / "findings.json", json.dumps(found, indent=1).encode())]


def _csv(report: StudyReport, folder: Path) -> list[Path]:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["round", "generator", "users", "compress", "kept", "sandboxes", *METRICS])
    for o in report.observations:
        own = [o.round, o.cell.generator, o.cell.users, o.cell.compress, o.cell.kept, o.cell.sandboxes]
        writer.writerow([*own, *(o.values.get(metric) for metric in METRICS)])
    return [_written(folder / "observations.csv", out.getvalue().encode())]


def _image(kind: str, draw: Callable[[str], bytes]) -> Callable[[StudyReport, Path], list[Path]]:
    def write(report: StudyReport, folder: Path) -> list[Path]:
        return [
            _written(
                folder / "charts" / f"{paper.slug(beside)}.{kind}",
                draw(json.dumps(charts.titled(paper.chart(beside), paper.title(beside), judge(beside).likeness))),
            )
            for beside in report.besides
            if beside.measured or beside.exhibit.published
        ]

    return write


def _written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


WRITERS: Mapping[str, Callable[[StudyReport, Path], list[Path]]] = {
    "html": _html,
    "json": _json,
    "csv": _csv,
    "png": _image("png", lambda spec: vl_convert.vegalite_to_png(spec, scale=2.0)),
    "svg": _image("svg", lambda spec: vl_convert.vegalite_to_svg(spec).encode()),
}
"""Formats; adding one is one function and one entry."""

DEFAULT_FORMATS = ("html", "json", "csv")


def export(report: StudyReport, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Writes the report in each of `formats`; UsageError for an unknown one, or a folder that cannot be written."""
    wanted = list(dict.fromkeys(formats))
    if unknown := [name for name in wanted if name not in WRITERS]:
        raise UsageError(f"--format {unknown[0]}: of a study there are {', '.join(WRITERS)}")
    try:
        return [path for name in wanted for path in WRITERS[name](report, folder)]
    except OSError as error:
        place = str(error.filename or folder)
        raise UsageError(Problem(f"cannot be written: {error.strerror}", "check its permissions", place)) from None
