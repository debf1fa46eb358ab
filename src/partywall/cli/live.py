"""Progress of a run at a terminal: the current step, the precision reached, and the time left."""

from __future__ import annotations

import os
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import Task as RichTask
from rich.text import Text

from partywall import units
from partywall.events import Block, Doing, Event, Left, Note

PIPED_WIDTH = 160


def wide_console() -> Console:
    """A console as wide as the terminal. In a pipe it is as wide as the tables need, unless COLUMNS is set."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPED_WIDTH)


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


class Live:
    """A listener that shows a bar on a terminal, and elsewhere a line from time to time."""

    EVERY_S = 5.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0.0
        self._doing = "starting"
        self._text = ""
        self._whole_s = 0.0
        # Twice a second is enough to read, and takes little CPU time of the measured host.
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), _Left(""))
        self._bar = Progress(*columns, console=console, transient=True, refresh_per_second=2)
        self._task = self._bar.add_task(self._doing, total=None, left_s=None)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Without a terminal, this would print an empty line.
        if self._console.is_terminal:
            self._bar.stop()

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
            case Note(text, is_warning):
                self._console.print(text, style="yellow" if is_warning else "", highlight=False, markup=False)

    def _show(self, *, force: bool = False) -> None:
        description = ", ".join(part for part in (self._doing, self._text) if part)
        self._bar.update(self._task, description=description)
        if self._console.is_terminal or not (force or time.monotonic() - self._printed > self.EVERY_S):
            return
        self._printed = time.monotonic()
        left_s = self._bar.tasks[0].fields["left_s"]
        left = "" if left_s is None else f" · {_left(left_s)}"
        self._console.print(f"{description}{left}", highlight=False, markup=False, soft_wrap=True)


class Steps:
    """Progress of a job with several steps: a bar on a terminal, elsewhere a line from time to time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = time.monotonic()
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24))
        self._bar = Progress(*columns, MofNCompleteColumn(), console=console, transient=True, refresh_per_second=4)
        self._task = self._bar.add_task("")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Without a terminal, this would print an empty line.
        if self._console.is_terminal:
            self._bar.stop()

    def show(self, doing: str, done: int, of: int) -> None:
        """Shows the current step, the number of steps done, and their total."""
        self._bar.update(self._task, description=doing, completed=done, total=of)
        if not self._console.is_terminal and time.monotonic() - self._printed > Live.EVERY_S:
            self._printed = time.monotonic()
            self._console.print(f"{doing}: {done} of {of}", highlight=False, markup=False)
