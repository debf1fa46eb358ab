"""Records beside each other: those that were selected, and the history of a scenario. Reads only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall import kinds, units
from partywall.core.record import Record, distinct
from partywall.core.report import figures
from partywall.errors import PartywallError, Problem, UsageError
from partywall.kinds.compared import SideBySide, same_kind, side_by_side
from partywall.run import stages
from partywall.run.record import RunDirectory
from partywall.run.report import compare_view
from partywall.run.values.comparison import Change, ComparedCell, Comparison
from partywall.run.values.finding import Findings
from partywall.web import records
from partywall.web.jobs import Folder

TOLERANCE = 0.02
NOTED = (Change.WORSE, Change.BETTER)
RECORDS_MAX = 8
"""The most records that are compared at once."""
RUNS_MAX = 60
"""The most runs in a history."""


@dataclass(frozen=True)
class Row:
    """A cell of several runs. compared: the cell of each run with that of the reference; None if the run lacks it."""

    first: ComparedCell
    compared: tuple[ComparedCell | None, ...]

    @property
    def is_changed(self) -> bool:
        """Whether a run differs from the reference beyond noise."""
        return any(cell is not None and cell.change in NOTED for cell in self.compared)


@dataclass(frozen=True)
class Compared:
    """Records of one kind; the last is the reference. comparisons: of the other runs with it, if they are runs.

    figures: of all records, if they are of another kind.
    """

    names: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()
    headline: str = ""
    mark: str = ""
    rows: tuple[Row, ...] = ()
    figures: SideBySide | None = None

    @property
    def notes(self) -> tuple[tuple[str, str], ...]:
        """Notes on the comparisons as (run, text); the run is empty for a text that holds for all."""
        by_run = [
            [f"The hosts differ: {text}. A change may be due to the host." for text in each.host]
            + [f"{text[:1].upper()}{text[1:]}." for text in each.notes]
            for each in self.comparisons
        ]
        pairs = (
            ("" if all(text in texts for texts in by_run) else name, text)
            for name, own in zip(self.names, by_run, strict=False)  # The reference has none.
            for text in own
        )
        return tuple(dict.fromkeys(pairs))


def several(*paths: Path) -> Compared:
    """Compares records with the last of them. UsageError if they are of different kinds, or too many."""
    if len(paths) > RECORDS_MAX:
        message = f"{len(paths)} records are too many to compare"
        raise UsageError(Problem(message, f"select at most {RECORDS_MAX}"))
    opened = [kinds.opened(path) for path in paths]
    same_kind(*opened)
    runs = [record for record in opened if isinstance(record, RunDirectory)]
    # Pages only read. Whoever may look may not have the right to write.
    if unsettled := [record for record in opened if not all(run.is_settled for run in _runs_of(record))]:
        message = f"{unsettled[0].name} is being measured, or was killed and has no report yet"
        raise UsageError(Problem(message, f"wait for it, or write one: partywall report {unsettled[0].path}"))
    names = tuple(record.name for record in opened)
    return _runs(names, *runs) if runs else Compared(names, figures=side_by_side(*opened))


def _runs_of(record: Record) -> Sequence[RunDirectory]:
    """A run, or the runs of a study."""
    paths = [record.path, *(record.path / "runs").glob("*")]
    return [RunDirectory(path) for path in paths if RunDirectory.is_one(path)]


def _runs(names: tuple[str, ...], *runs: RunDirectory) -> Compared:
    from partywall.run.findings.compare import compare_runs  # noqa: PLC0415 - slow to import

    distinct(*runs)
    *others, reference = runs
    base, (earlier, unread) = stages.analyse(reference), stages.earlier_runs(reference, runs)
    comparisons = tuple(
        compare_runs(stages.analyse(run), base, TOLERANCE, earlier=earlier, unread=unread) for run in others
    )
    by_run = [{(cell.victim, cell.label): cell for cell in comparison.cells} for comparison in comparisons]
    cells = {key: cell for by_key in reversed(by_run) for key, cell in by_key.items()}
    rows = tuple(Row(cell, tuple(by_key.get(key) for by_key in by_run)) for key, cell in cells.items())
    worst = min((compare_view.worst(comparison) for comparison in comparisons), key=compare_view.ORDER.index)
    headline = compare_view.headline(comparisons[0])
    if len(comparisons) > 1:
        changed = sum(row.is_changed for row in rows)
        headline = f"{changed} of {units.counted(len(rows), 'cell')} differ in at least one of {len(others)} runs"
    return Compared(names, comparisons, headline, compare_view.MARKS[worst], rows)


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
