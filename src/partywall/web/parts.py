"""The parts of a record's page, each with what decides whether it has to be rendered again. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import UndefinedError

from partywall.run.report.matrix import Severity
from partywall.run.values.plan import Plan, Trial
from partywall.web import pages, records, strip
from partywall.web.jobs import Job, State
from partywall.web.live import State as Live
from partywall.web.live import Trial as Seen
from partywall.web.shown import Part


@dataclass(frozen=True)
class Matrix:
    """The frame of the live matrix of a run. columns: labels of treatments by ID. rows: the parts of its trials."""

    plan: Plan
    columns: dict[str, str]
    rows: tuple[str, ...]
    levels: tuple[Severity, ...] = tuple(Severity)

    @staticmethod
    def of(plan: Plan) -> Matrix:
        return Matrix(plan, pages.treatments(plan), tuple(f"row-{number}" for number in range(len(plan.trials))))


CONTROLS = "controls"
"""The part that only those see who may change something."""


REDRAWN = 5
"""Readings of monitors after which their charts are drawn again. To draw all of them takes some 10 ms."""


@dataclass(frozen=True)
class Facts:
    """What the page of a record shows. path: None before the record exists. waiting: gives the jobs that run or wait.

    stalled: gives why the queue stands still. output: the file with what the job printed. key: makes the idempotency
    key of an action from its name.
    """

    name: str
    path: Path | None
    job: Job | None
    live: Live
    matrix: Matrix | None
    may_change: bool
    waiting: Callable[[], Sequence[Job]]
    stalled: Callable[[], str]
    output: Path | None
    key: Callable[..., str]


def parts(facts: Facts) -> dict[str, Part]:
    """The parts by their names, in the order in which they are sent."""
    job, live = facts.job, facts.live
    running = live.running
    ended = not running and (job is None or job.state in (State.ENDED, State.CANCELLED))
    output = pages.tail_of(facts.output) if facts.output and (facts.path is None or not running) else ""
    status = {
        "state": "measuring" if running else job.state if job else "stopped",
        "running": running,
        "ended": ended,
        "status": pages.status(job, live, facts.waiting, running=running, stalled=facts.stalled),
        "left": pages.left(live, running=running),
        "outcome": records.outcome(facts.path, job.exit if job and job.exit is not None else live.exit),
        "has_page": facts.path is not None and (facts.path / "report.html").is_file(),
    }
    controls = {
        "name": facts.name,
        "job": job,
        "buttons": pages.buttons(job) if facts.may_change else pages.Buttons(),
        "notes": live.notes_count,
    }
    failed = output if ended and job and job.exit not in (0, 1, 3, 130, None) else ""
    figures = (live.serial, live.figures_count, running, facts.matrix, output)
    return {
        "status": _part("status", status),
        CONTROLS: _part("controls", controls, key=facts.key),
        "output": _part("output", {"output": failed}),
        **dict(_matrix(facts.matrix, live)),
        "figures": Part(figures, partial(_figures, facts, output, running=running)),
        "monitors": Part((live.serial, -(-live.monitored_count // REDRAWN), ended), partial(_monitors, live)),
        "notes": Part((live.serial, live.notes_count), partial(rendered, "live_notes.html.j2", live=live)),
    }


def _matrix(matrix: Matrix | None, live: Live) -> Iterator[tuple[str, Part]]:
    """The whole matrix, then its rows. A row without a new block is not rendered again."""
    if matrix is None:
        return
    rows = {}
    for name, trial in zip(matrix.rows, matrix.plan.trials, strict=True):
        seen = live.trials.get(trial.id)
        current = live.last_trial == trial.id and not live.ended
        stamp = (live.serial, seen.looks if seen else 0, current)
        rows[name] = Part(stamp, partial(_row, matrix, trial, seen, current=current))
    yield "matrix", Part(id(matrix), partial(_frame, matrix, rows))
    yield from rows.items()


def _frame(matrix: Matrix, rows: dict[str, Part]) -> str:
    """The matrix with its rows as they are now: a new frame takes the place of the rows of the one before."""
    return rendered("live_matrix.html.j2", matrix=matrix, parts={name: row.render() for name, row in rows.items()})


def _row(matrix: Matrix, trial: Trial, seen: Seen | None, *, current: bool) -> str:
    return rendered(
        "live_row.html.j2", row=pages.row_of(matrix.plan.scenario, trial, seen, matrix.columns, current=current)
    )


def _figures(facts: Facts, output: str, *, running: bool) -> str:
    live, matrix = facts.live, facts.matrix
    return rendered(
        "live_figures.html.j2", live=live, has_matrix=matrix is not None, output=output,
        strip=strip.strip(matrix.plan, live) if matrix and running else None,
        seconds=list(pages.seconds_of(live))[:10], chart=pages.chart(live),
    )  # fmt: skip


def _monitors(live: Live) -> str:
    return rendered("live_monitors.html.j2", monitors=pages.monitors(live))


def _part(name: str, content: dict[str, Any], **more: Any) -> Part:
    """A part that depends on its content. more: what the template needs too, and what does not decide."""
    return Part(tuple(content.values()), partial(rendered, f"live_{name}.html.j2", **content, **more))


def rendered(template: str, **content: Any) -> str:
    """A part of a page. A journal with values of unexpected types does not make the rest of the page unusable."""
    try:
        return pages.render(template, **content)
    except (TypeError, ValueError, KeyError, ArithmeticError, UndefinedError):
        return '<p class="empty">The journal contains values that cannot be shown.</p>'
