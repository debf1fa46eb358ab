"""What an execution says while it goes on: one stream of events, of which every listener takes what it needs.

A terminal, a metrics file and a browser are listeners. An execution does not know who listens; it is given one function
and calls it. Listeners return at once, because some events come between two blocks of a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Doing:
    """What is being done now."""

    text: str


@dataclass(frozen=True, slots=True)
class Left:
    """An estimate of the time left, in seconds. 0: the planned time is over."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Note:
    """Something that stays on the screen. is_warning: it may matter to whoever reads the figures."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a trial is finished. precision: how precise the trial is by now, in words."""

    trial: str
    done: int
    precision: str


@dataclass(frozen=True, slots=True)
class Started:
    """The execution has begun. path: its record, if it keeps one. about: what is known before the first figure."""

    path: Path | None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Broken:
    """Something failed, and the execution goes on. At its end the exit code says so."""

    text: str


@dataclass(frozen=True, slots=True)
class Second:
    """A second of a load, and whether it can be believed (`load.second.Second`, `load.health.Health`)."""

    second: Any
    health: Any


@dataclass(frozen=True, slots=True)
class Report:
    """A report of a guard or a trace. so_far: the sum of all reports, where the kind of record has one."""

    report: Any
    so_far: Any = None


Event = Started | Doing | Left | Note | Broken | Block | Second | Report
Emit = Callable[[Event], None]


def silent(event: Event) -> None:
    """A listener that ignores every event."""
    del event


def reports(take: Callable[[Any], None]) -> Emit:
    """A listener that takes reports alone."""

    def listen(event: Event) -> None:
        if isinstance(event, Report):
            take(event.report)

    return listen


class Sinks:
    """Several listeners as one. A listener that fails with an OSError gets no further events; the others are told.

    keeps: what goes on all the same, for the message.
    """

    def __init__(self, keeps: str = "the measurement goes on") -> None:
        self._keeps = keeps
        self._sinks: dict[str, Emit] = {}

    def add(self, name: str, sink: Emit) -> None:
        """A listener. name: what a message calls it, such as the path that it writes to."""
        self._sinks[name] = sink

    def __call__(self, event: Event) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                sink(event)
            except OSError as error:
                self._sinks.pop(name, None)
                self(Broken(f"{name} cannot be written any more: {error.strerror}; {self._keeps}"))
