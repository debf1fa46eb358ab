"""Progress of a run at a terminal: the current step, the precision reached, and the time left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from rich.console import Console
from rich.live import Live as RichLive
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import Task as RichTask
from rich.text import Text

from partywall import units
from partywall.cli import output
from partywall.core.report.value import Report, Table
from partywall.events import Block, Doing, Event, Left, Note, Seen, Started

PIPED_WIDTH = 160


def wide_console(format_: str = "") -> Console:
    """The console for text, as `output.console`. In a pipe it is as wide as the tables need, unless COLUMNS is set."""
    console = output.console(format_)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    return console


class _Left(TextColumn):
    """Time left according to measured blocks. A trial that ends early, being precise enough, shortens it."""

    def render(self, task: RichTask) -> Text:
        left = task.fields["left_s"]
        return Text("" if left is None else _left(left), style="cyan")


def _left(seconds: float) -> str:
    """An estimate in whole seconds, because it is not more precise."""
    if seconds <= 0:
        return "the planned time is over; trials with too few blocks continue briefly"
    return f"about {units.format_duration(max(1, round(seconds)) * 10**9)} left"


def show_note(console: Console, note: Note) -> None:
    """Prints a note above what is drawn."""
    style = "yellow" if note.is_warning else ""
    console.print(note.text, style=style, highlight=False, markup=False, soft_wrap=True)


class Drawn:
    """Draws on a terminal while its `with` block runs. In a pipe, a line from time to time takes its place."""

    EVERY_S = 5.0

    def __init__(self, console: Console, drawing: RichLive | Progress) -> None:
        self._console, self._drawing = console, drawing
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._drawing.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Without a terminal, this would print an empty line.
        if self._console.is_terminal:
            self._drawing.stop()

    def __call__(self, event: Event) -> None:
        """Shows a note, which stays on the screen."""
        if isinstance(event, Note):
            show_note(self._console, event)

    def line(self, text: Callable[[], str], *, force: bool = False) -> None:
        """Prints a line if there is no terminal and it is time for one."""
        if not self._console.is_terminal and (force or time.monotonic() - self._printed >= self.EVERY_S):
            self._printed = time.monotonic()
            self._console.print(text(), highlight=False, markup=False, soft_wrap=True)


def _whole(seconds: float) -> str:
    return units.format_duration(round(seconds) * 10**9)


class Watching(Drawn):
    """Shows what was last seen: its tables on a terminal, elsewhere a line from time to time. Notes stay.

    live: makes a report of what was seen. doing: what goes on. ends: False if only Ctrl-C ends it.
    """

    EVERY_S = 60.0
    DRAW_S = 1.9
    """Tables are drawn again after this time, because drawing may cost half as much as reading counters."""

    def __init__(self, console: Console, live: Callable[[Any], Report | None], doing: str, *, ends: bool) -> None:
        self._report, self._doing = live, doing
        self._end = None if ends else "Ctrl-C ends it"
        self._begun, self._drawn = time.monotonic(), 0.0
        self._live = RichLive(console=console, auto_refresh=False, transient=True)
        super().__init__(console, self._live)

    def __call__(self, event: Event) -> None:
        match event:
            case Started(path):
                self._begun = time.monotonic()
                end = "" if self._end is None else f"; {self._end}"
                kept = f"; record: {path}" if path is not None else ""
                self._console.print(f"{self._doing}{end}{kept}", highlight=False, soft_wrap=True)
            case Left(seconds):
                self._end = f"{_whole(seconds)} left"
            case Seen(value):
                self._show(value)
            case _:
                super().__call__(event)

    def _show(self, seen: Any) -> None:
        now = time.monotonic()
        if now - (self._drawn if self._console.is_terminal else self._printed) < self._pause_s:
            return
        if (report := self._report(seen)) is None:
            return
        if self._console.is_terminal:
            self._drawn = now
            tables = [line for table in report.tables for line in (*padded(table), "")]
            lines = Text("\n".join([*tables, *report.notes, self._status]), no_wrap=True, overflow="crop")
            self._live.update(lines, refresh=True)
        self.line(lambda: f"{self._status}: {report.headline}")

    @property
    def _pause_s(self) -> float:
        return self.DRAW_S if self._console.is_terminal else self.EVERY_S

    @property
    def _status(self) -> str:
        parts = (f"{self._doing} for {_whole(time.monotonic() - self._begun)}", self._end)
        return ", ".join(filter(None, parts))


NAME = 32
"""The longest name in a table that is drawn again and again."""


def short(name: str) -> str:
    """A name without its middle: the names of containers often differ at the end, or only in it."""
    return name if len(name) <= NAME else f"{name[: NAME // 2]}…{name[1 - NAME // 2 :]}"


def padded(table: Table) -> Iterator[str]:
    """A table as lines. Rich's own takes ten times as long, which is more than reading the counters."""
    titles: Sequence[str] = [column.title for column in table.shown(on_page=False)]
    every = [titles, *([short(row[0]), *row[1:]] for row in table.cells(on_page=False))]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    for row in every:
        figures = (text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *figures])


class Live(Drawn):
    """A listener that shows a bar on a terminal, and elsewhere a line from time to time."""

    def __init__(self, console: Console) -> None:
        self._doing = "starting"
        self._text = ""
        self._whole_s = 0.0
        # Twice a second is enough to read, and takes little CPU time of the measured host.
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), _Left(""))
        self._bar = Progress(*columns, console=console, transient=True, refresh_per_second=2)
        self._task = self._bar.add_task(self._doing, total=None, left_s=None)
        super().__init__(console, self._bar)

    def __call__(self, event: Event) -> None:
        match event:
            case Doing(text):
                # The precision of the previous trial says nothing about this one.
                self._doing, self._text = text, ""
                self._show(force=True)
            case Block(trial, done, precision):
                self._doing, self._text = f"{trial}: {units.counted(done, 'block')}", precision
                self._show()
            case Left(seconds):
                self._whole_s = max(self._whole_s, seconds)
                self._bar.update(
                    self._task, total=self._whole_s or 1.0, completed=self._whole_s - seconds, left_s=seconds
                )
                self._show()
            case _:
                super().__call__(event)

    def _show(self, *, force: bool = False) -> None:
        description = ", ".join(part for part in (self._doing, self._text) if part)
        self._bar.update(self._task, description=description)
        left_s = self._bar.tasks[0].fields["left_s"]
        self.line(lambda: description + ("" if left_s is None else f" · {_left(left_s)}"), force=force)


class _StepsLeft(TextColumn):
    """Time left, if the remaining steps take as long as those that are done."""

    def render(self, task: RichTask) -> Text:
        if not task.completed or task.total is None or task.finished or not task.elapsed:
            return Text("")
        return Text(_left(task.elapsed * (task.total - task.completed) / task.completed), style="cyan")


class Steps(Drawn):
    """Progress of a job with several steps: a bar on a terminal, elsewhere a line from time to time."""

    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24))
        more = (MofNCompleteColumn(), _StepsLeft(""))
        self._bar = Progress(*columns, *more, console=console, transient=True, refresh_per_second=4)
        self._task = self._bar.add_task("")
        super().__init__(console, self._bar)

    def show(self, doing: str, done: int, of: int) -> None:
        """Shows the current step, the number of steps done, and their total."""
        self._bar.update(self._task, description=doing, completed=done, total=of)
        self.line(lambda: f"{doing}: {done} of {of}")
