"""What a person sees while a run goes on: what is being done, what is found by now, and how long is left."""

from __future__ import annotations

import os
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import Task as RichTask
from rich.text import Text

from partywall import units

PIPED_WIDTH = 160


def wide_console() -> Console:
    """As wide as the terminal; read from a pipe, and unless COLUMNS says otherwise, as wide as figures need."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPED_WIDTH)


class _Left(TextColumn):
    """Time left by what has been measured, not by the clock: a trial that is precise enough gives its time back."""

    def render(self, task: RichTask) -> Text:
        left = task.fields["left_ns"]
        return Text("" if left is None else _left(left), style="cyan")


def _left(ns: float) -> str:
    """An estimate to whole seconds: tenths of one are not known. Nothing is left of a budget that is spent."""
    if ns <= 0:
        return "the budget is spent; trials with too few blocks go on a little"
    return f"about {units.format_duration(max(1, round(ns / 1e9)) * 10**9)} left"


class Live:
    """Shows a bar on a terminal; elsewhere prints a line now and then, so that a log shows progress too."""

    EVERY_S = 5.0

    def __init__(self, console: Console, estimate_ns: int, budget_ns: int) -> None:
        self._console = console
        self._overhead_ns = max(0, estimate_ns - budget_ns)
        self._budget_ns = budget_ns
        self._printed = 0.0
        self._doing = "starting"
        self._text = ""
        # Four times a second is enough to read, and costs a measured host little.
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), _Left(""))
        self._bar = Progress(*columns, console=console, transient=True, refresh_per_second=2)
        self._task = self._bar.add_task(self._doing, total=budget_ns, left_ns=estimate_ns)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def doing(self, text: str) -> None:
        # What was found of the trial before says nothing about this one.
        self._doing, self._text = text, ""
        self._show(force=True)

    def block(self, trial: str, done: int, text: str) -> None:
        self._doing = f"{trial}: {units.counted(done, 'block')}"
        self._text = text
        self._show()

    def spent(self, measured_ns: int, budget_ns: int) -> None:
        share = min(1.0, measured_ns / budget_ns) if budget_ns else 1.0
        left_ns = (budget_ns - measured_ns) + self._overhead_ns * (1 - share)
        self._bar.update(self._task, completed=measured_ns, left_ns=max(0, left_ns))
        self._show()

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def _show(self, *, force: bool = False) -> None:
        description = ", ".join(part for part in (self._doing, self._text) if part)
        self._bar.update(self._task, description=description)
        if self._console.is_terminal or not (force or time.monotonic() - self._printed > self.EVERY_S):
            return
        self._printed = time.monotonic()
        left_ns = self._bar.tasks[0].fields["left_ns"]
        self._console.print(f"{description} · {_left(left_ns)}", highlight=False, markup=False, soft_wrap=True)


class Steps:
    """Progress of a job of several steps: a bar on a terminal, gone at the end; elsewhere a line now and then."""

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
        self._bar.stop()

    def show(self, doing: str, done: int, of: int) -> None:
        """What is being done, how much of it is done, and of how much."""
        self._bar.update(self._task, description=doing, completed=done, total=of)
        if not self._console.is_terminal and time.monotonic() - self._printed > Live.EVERY_S:
            self._printed = time.monotonic()
            self._console.print(f"{doing}: {done} of {of}", highlight=False, markup=False)
