"""Events of an execution while it runs. Each listener takes those that it needs.

A terminal, a metrics file and a browser are listeners. An execution does not know its listeners: it calls one function
with every event. Listeners must return at once, because some events come between two blocks of a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Doing:
    """The current step of the execution."""

    text: str


@dataclass(frozen=True, slots=True)
class Left:
    """An estimate of the time left, in seconds. 0: the planned time is over."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Note:
    """A message that stays on the screen. is_warning: it may affect how figures are to be read."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a trial has finished. precision: the trial's precision so far, as text.

    cells: the isolation factors so far, by treatment, as (value, low, high). Empty if none is new since the last block.
    slots: the slots of the block in order, as (treatment, length in ns, work per second of the victim).
    """

    trial: str
    done: int
    precision: str
    cells: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    slots: Sequence[tuple[str, int, float]] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The execution has begun. path: its record, if any. about: facts known before the first figure."""

    path: Path | None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Broken:
    """Something failed, but the execution continues. The exit code will report it."""

    text: str


@dataclass(frozen=True, slots=True)
class Second:
    """A second of a load and its validity (`load.second.Second`, `load.health.Health`)."""

    second: Any
    health: Any


@dataclass(frozen=True, slots=True)
class Seen:
    """Something that was seen of a job, for those who watch: its capability makes a report of it (`Capability.live`).

    is_kept: whether it is worth a line of the journal, which keeps everything.
    """

    value: Any
    is_kept: bool = True


@dataclass(frozen=True, slots=True)
class Counters:
    """What a monitor read at two times about a second apart, for those who watch. At most one a second.

    columns: subject and name of each counter; the subject is empty for one of the whole host. before, after: the
    values; None if the kernel gave none. host: where it was read, if not on the measured host.
    """

    columns: Sequence[tuple[str, str]]
    before: Sequence[float | None]
    after: Sequence[float | None]
    length_s: float
    host: str = ""


Event = Started | Doing | Left | Note | Broken | Block | Second | Seen | Counters
Emit = Callable[[Event], None]


def silent(event: Event) -> None:
    """A listener that ignores every event."""
    del event


def reports(take: Callable[[Any], None]) -> Emit:
    """A listener that only takes what was seen."""

    def listen(event: Event) -> None:
        match event:
            case Seen(value):
                take(value)

    return listen


class Sinks:
    """Several listeners as one. A listener that raises an OSError is removed, and the others receive a `Broken` event.

    keeps: what continues in spite of the failure, for the message.
    """

    def __init__(self, keeps: str = "the measurement goes on") -> None:
        self._keeps = keeps
        self._sinks: dict[str, Emit] = {}

    def add(self, name: str, sink: Emit) -> None:
        """Adds a listener. name: its name in messages, such as the path that it writes to."""
        self._sinks[name] = sink

    def __call__(self, event: Event) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                sink(event)
            except OSError as error:
                self._sinks.pop(name, None)
                self(Broken(f"{name} can no longer be written: {error.strerror}; {self._keeps}"))
