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

from partywall import __version__, units
from partywall.errors import Problem, UsageError
from partywall.model.finding import Estimate
from partywall.model.load_study import METRICS, Observed, Study
from partywall.model.paper import Beside, judge
from partywall.report import charts, figures, html, page, paper


@dataclass(frozen=True)
class LevelReport:
    """One number of users held out: what was foretold of the bare host, with its interval, and what was measured."""

    users: int
    sandbox_s: float
    forecast_s: tuple[float, float, float]
    physical_s: float | None
    forecast_rate: tuple[float, float, float]
    physical_rate: float | None


@dataclass(frozen=True)
class ModelReport:
    """The overhead model: each level foretold by a model that has not seen it. formula: of all levels, in words."""

    levels: tuple[LevelReport, ...]
    mean_error: float
    covered: int
    rounds: int
    formula: str


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
    model: ModelReport | None = None


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
        model=report.model and (model_summary(report.model), model_rows(report.model)),
        metrics=METRICS,
        rows=[(cell, [_figure(report, metric, cell) for metric in METRICS]) for cell in cells],
        host=tuple(html.flat({k: v for k, v in report.host.items() if k not in html.SHOWN_ELSEWHERE})),
        version=__version__,
        assets={name: page.asset(name) for name in ("report.css", "report.js")},
        data=page.embedded(page.pack(specs) | {"trials": {}}),
        vega=page.vega(),
    )  # fmt: skip


def model_rows(model: ModelReport) -> list[tuple[str, ...]]:
    """(users, in the sandbox, foretold, measured; iterations a second foretold, measured)."""
    return [
        (
            f"{level.users}",
            units.format_duration(level.sandbox_s * 1e9),
            _span(level.forecast_s, lambda s: units.format_duration(s * 1e9)),
            "not measured" if level.physical_s is None else units.format_duration(level.physical_s * 1e9),
            _span(level.forecast_rate, units.format_number),
            "not measured" if level.physical_rate is None else units.format_number(level.physical_rate),
        )
        for level in model.levels
    ]


def _span(value: tuple[float, float, float], shown: Callable[[float], str]) -> str:
    return f"{shown(value[0])} ({shown(value[1])} to {shown(value[2])})"


def model_summary(model: ModelReport) -> str:
    return (
        f"Each number of users foretold by a model that has not seen it: mean error {model.mean_error:.1%}, "
        f"{model.covered} of {model.rounds} rounds inside their 90 % intervals. {model.formula}"
    )


def _figure(report: StudyReport, metric: str, cell: str) -> str:
    estimate = report.estimates.get(metric, {}).get(cell)
    return "not measured" if estimate is None else figures.ratio(estimate)


def _html(report: StudyReport, folder: Path) -> list[Path]:
    return [page.written(folder / "report.html", render(report).encode())]


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
    return [page.written(folder / "findings.json", json.dumps(found, indent=1).encode())]


def _csv(report: StudyReport, folder: Path) -> list[Path]:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["round", "generator", "users", "compress", "kept", "sandboxes", *METRICS])
    for o in report.observations:
        own = [o.round, o.cell.generator, o.cell.users, o.cell.compress, o.cell.kept, o.cell.sandboxes]
        writer.writerow([*own, *(o.values.get(metric) for metric in METRICS)])
    return [page.written(folder / "observations.csv", out.getvalue().encode())]


def _image(kind: str, draw: Callable[[str], bytes]) -> Callable[[StudyReport, Path], list[Path]]:
    def write(report: StudyReport, folder: Path) -> list[Path]:
        return [
            page.written(
                folder / "charts" / f"{paper.slug(beside)}.{kind}",
                draw(json.dumps(charts.titled(paper.chart(beside), paper.title(beside), judge(beside).likeness))),
            )
            for beside in report.besides
            if beside.measured or beside.exhibit.published
        ]

    return write


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
