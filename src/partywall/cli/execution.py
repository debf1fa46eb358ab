"""Carries out a job at a terminal: progress, Ctrl-C, the final report, and the exit code."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from partywall import kinds
from partywall.cli.report import show_record
from partywall.core import execution
from partywall.core.capability import EXITS, Kind, Options
from partywall.core.record import Record
from partywall.core.report import terminal
from partywall.core.report.value import Report
from partywall.errors import Exit, Problem, TrialError, UsageError
from partywall.events import Broken, Emit, Event, Seen, Sinks, Started
from partywall.host.label import WORK_ROOT
from partywall.kinds.journal import Journal, Look
from partywall.sandbox.measuring import measuring

WAIT = "--wait begins after it"


class View(contextlib.AbstractContextManager[object], Protocol):
    """Shows a job's progress: a listener that owns the terminal while its `with` block runs."""

    def __call__(self, event: Event) -> None: ...


class _Course:
    """What the exit of a job depends on: its record, and what went wrong."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.broken = False
        self.seen: Any = None

    def exit_of(self, code: int) -> int:
        """The exit code of the job, given that of its findings."""
        return Exit.FAILED if self.broken and code != Exit.VIOLATED else code

    def __call__(self, event: Event) -> None:
        match event:
            case Started(path):
                self.path = path
            case Seen(value):
                self.seen = value
            case Broken(text):
                self.broken = True
                with contextlib.suppress(OSError):
                    sys.stderr.write(f"partywall: warning: {text}\n")


def carry_out(
    measure: Callable[[Emit], Record | None],
    options: Options,
    view: View,
    console: Console,
    keeps: str = "the measurement goes on",
    sinks: Mapping[str, Emit] | None = None,
    document: str = "",
    *,
    measures: bool = True,
    live: Look = lambda _: None,
) -> int:
    """Calls `measure` with a listener, shows the report, and returns the exit code.

    keeps: what continues if a listener fails. sinks: further listeners by name. document: the command whose JSON
    document is printed instead of text. measures: whether it and other measurements of this host disturb each other.
    live: makes a report of what is seen while it goes on. If there is no record, that of the last is the result.
    """
    course, every, journal = _Course(), Sinks(keeps), Journal(live)
    every.add("the course", course)
    every.add("the journal", journal)
    every.add("the terminal", view)
    for name, sink in (sinks or {}).items():
        every.add(name, sink)
    # Held until the report is written, because that takes CPU time too.
    with journal, contextlib.ExitStack() as held:
        try:
            with execution.terminated_as_interrupt(), view:
                if measures:
                    mark = measuring(_command(), every, wait=WAIT, is_waiting=options.waits)
                    every.add("the lock", held.enter_context(mark))
                record = measure(every)
        except KeyboardInterrupt:
            if course.path is not None:
                _interrupted(kinds.opened(course.path), options, console)
            raise
        if record is None:
            journal.exit = course.exit_of(_shown(live(course.seen), console) if course.seen is not None else Exit.HOLDS)
        else:
            journal.exit = show_record(record, console, document=document, exit_of=course.exit_of)
    return journal.exit


def _shown(report: Report | None, console: Console) -> Exit:
    """Shows the last report of a job without a record. Returns its exit code."""
    if report is None:
        return Exit.HOLDS
    terminal.show(report, console)
    return EXITS[report.outcome]


def _command() -> str:
    """The command of this process without its options and paths."""
    words = itertools.takewhile(lambda word: re.fullmatch(r"[a-z][a-z-]*", word), sys.argv[1:4])
    return f"'{' '.join(['partywall', *words])}'"


def go_on(
    kind: Kind[Any, Any, Any],
    record: Record,
    options: Options,
    view: View,
    console: Console,
    document: str = "",
    given: Mapping[str, object] | None = None,
    *,
    measures: bool = True,
) -> int:
    """Continues an interrupted record, as `carry_out` does.

    given: arguments by name that the record defines. UsageError if one of them has a value.
    """
    if extra := [name for name, value in (given or {}).items() if value]:
        said = f"--resume continues {record.path} as it was started"
        raise UsageError(*(Problem(said, f"leave out {name}", key=name) for name in extra))

    def measure(emit: Emit) -> Record:
        kind.resume(record, options, emit)
        return record

    live = getattr(kind, "live", lambda _: None)
    return carry_out(measure, options, view, console, document=document, measures=measures, live=live)


def _interrupted(record: Record, options: Options, console: Console) -> None:
    """Shows what an interrupted job left, and the commands that continue or report it."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if command := kinds.of(record).continued_by(record):
        words = ["partywall", *command]
        words += ["--allow-commands"] if options.allow_commands else []
        words += ["--work-dir", str(options.work_root)] if options.work_root != WORK_ROOT else []
        # Kinds differ in what they start; what a job cannot remove is a warning of its own.
        say("Interrupted. What was measured so far is kept.")
        say(f"Continue with:  {shlex.join(words)}")
        say(f"Or show the findings:  {shlex.join(['partywall', 'report', str(record.path)])}")
        return
    try:
        show_record(record, console)
        say(f"interrupted; kept in {record.path}")
    except TrialError:
        say(f"interrupted before its first figure; its files are in {record.path}")
