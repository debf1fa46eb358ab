"""Records beside each other: two of them, and the history of a scenario. Reads only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall import kinds, pipeline
from partywall.errors import PartywallError
from partywall.kinds.compared import same_kind, side_by_side
from partywall.model.comparison import Change, ComparedCell, Comparison
from partywall.model.finding import Findings
from partywall.report import compare_view, figures
from partywall.store import RunDirectory
from partywall.web import records
from partywall.web.jobs import Folder

TOLERANCE = 0.02
RUNS_MAX = 60
"""The most runs in a history."""


@dataclass(frozen=True)
class Two:
    """Two records. comparison: of two runs. changed and others: its cells, and those that did not change.

    tables: for other kinds, the figures of both, by title.
    """

    kind: str
    names: tuple[str, str]
    comparison: Comparison | None = None
    headline: str = ""
    mark: str = ""
    changed: tuple[ComparedCell, ...] = ()
    others: tuple[ComparedCell, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[tuple[Any, Any], ...]], ...] = ()
    hosts: tuple[tuple[str, str, str], ...] = ()


def two(run: Path, reference: Path) -> Two:
    """Compares the first record with the second. UsageError if they are of different kinds."""
    first, second = kinds.opened(run), kinds.opened(reference)
    same_kind(first, second)
    if isinstance(first, RunDirectory) and isinstance(second, RunDirectory):
        return _runs(first, second)
    return Two(**vars(side_by_side(first, second)))


def _runs(run: RunDirectory, reference: RunDirectory) -> Two:
    from partywall.stats import compare_runs  # noqa: PLC0415 - slow to import

    earlier = pipeline.earlier_runs(reference, [run.path, reference.path])
    comparison = compare_runs(pipeline.analyse(run), pipeline.analyse(reference), TOLERANCE, earlier=earlier)
    noted = (Change.WORSE, Change.BETTER)
    return Two(
        kind="run",
        names=(run.name, reference.name),
        comparison=comparison,
        headline=compare_view.headline(comparison),
        mark=compare_view.MARKS[compare_view.worst(comparison)],
        changed=tuple(cell for cell in comparison.cells if cell.change in noted),
        others=tuple(cell for cell in comparison.cells if cell.change not in noted),
    )


def histories(folder: Folder) -> dict[str, list[Path]]:
    """The finished runs of each scenario, oldest first."""
    by_scenario: dict[str, list[Path]] = {}
    for named in reversed(records.named(folder.root)):
        file = folder.root / named.name / "findings.json"
        if named.kind == "run" and file.is_file() and (name := _scenario(file)):
            by_scenario.setdefault(name, []).append(file.parent)
    return dict(sorted(by_scenario.items(), key=lambda pair: -len(pair[1])))


def _scenario(file: Path) -> str:
    """The name of a run's scenario, from the start of its findings."""
    try:
        with records.opened(file) as stream:
            start = stream.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""
    match = re.search(r'"scenario"\s*:\s*"([^"\\]{1,200})"', start)
    return match.group(1) if match else ""


@dataclass(frozen=True)
class Point:
    """One run's isolation factor, at its place in the chart."""

    run: str
    x: float
    y: float
    top: float
    bottom: float
    text: str


@dataclass(frozen=True)
class Line:
    """The history of a cell. shift: the run from which on all later intervals exclude the median before it.

    unity, low, high: positions of the isolation factor 1 and of both ends of the axis.
    """

    title: str
    points: tuple[Point, ...]
    unity: float
    low: float
    high: float
    shift: str


WIDTH, HEIGHT, MARGIN, STEP_MAX = 560.0, 110.0, 10.0, 36.0


def lines(paths: Sequence[Path]) -> list[Line]:
    """The history of every cell over the latest runs."""
    measured: dict[str, list[tuple[str, float, float, float]]] = {}
    for path in paths[-RUNS_MAX:]:
        try:
            findings = _findings(path / "findings.json")
        except (OSError, ValueError, PartywallError):
            continue
        for cell in findings.cells:
            title = f"{cell.victim} · {cell.label}{''.join(f', {k} {v}' for k, v in cell.levels.items())}"
            factor = cell.isolation
            measured.setdefault(title, []).append((path.name, factor.value, factor.low, factor.high))
    return [_line(title, values) for title, values in measured.items()]


def _findings(file: Path) -> Findings:
    with records.opened(file) as stream:
        return Findings.model_validate_json(stream.read())


def _line(title: str, values: Sequence[tuple[str, float, float, float]]) -> Line:
    low = min(0.95, *(each[2] for each in values))
    high = max(1.05, *(each[3] for each in values))

    def y(value: float) -> float:
        return round(MARGIN + (HEIGHT - 2 * MARGIN) * (high - value) / (high - low), 1)

    step = min(STEP_MAX, (WIDTH - 2 * MARGIN) / max(1, len(values) - 1))
    points = tuple(
        Point(name, round(MARGIN + i * step, 1), y(value), y(top), y(bottom), figures.span(bottom, top))
        for i, (name, value, bottom, top) in enumerate(values)
    )
    return Line(title, points, y(1.0), low, high, _shift(values))


def _shift(values: Sequence[tuple[str, float, float, float]]) -> str:
    """The first run whose interval, and that of every later one, excludes the median of those before it.

    At least three runs on each side are needed. Empty if there is no such run.
    """
    for at in range(3, len(values) - 2):
        before = sorted(value for _, value, _, _ in values[:at])[at // 2]
        after = values[at:]
        if all(low > before for _, _, low, _ in after) or all(high < before for _, _, _, high in after):
            return values[at][0]
    return ""
