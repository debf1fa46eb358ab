"""The state of a record as its journal tells it, for the page that watches it. Reads only.

The page shows whole states, not single events. So it looks the same whether it was there from the start, was reloaded,
or missed events while the connection was lost.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from partywall.host.label import start_ticks
from partywall.kinds.journal import FILE
from partywall.web.records import event_of, opened

NOTES_SHOWN = 200
SECONDS_SHOWN = 60
MONITORED_SHOWN = 40
CHUNK_BYTES = 1 << 20
TEXT_MAX = 1000
SLOTS_SHOWN = 48
ROWS_SHOWN = 200
FIGURES = ("users", "rate", "p50_ns", "p90_ns", "p99_ns", "raw_p99_ns", "errors")


@dataclass
class Trial:
    """The progress of a trial. cells: isolation factors so far, as (value, low, high) by treatment.

    looks: the number of its events so far.
    """

    done: int = 0
    looks: int = 0
    precision: str = ""
    cells: dict[str, tuple[float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of what was last seen."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass
class State:
    """What the events so far add up to. left_s: the estimate at the time left_at. exit: None until the end.

    slots: the last slots of the current trial, as (treatment, length in µs, work per second of the victim).
    process: the ID and start time of the process that writes the journal. serial: differs between any two states.
    monitored: the last values of each figure of monitors, by group, name and unit.
    figures_count, notes_count, monitored_count: the number of events with figures, of notes, and of readings so far.
    """

    serial: int = field(default_factory=partial(next, itertools.count()))
    figures_count: int = 0
    notes_count: int = 0

    doing: str = ""
    left_s: float | None = None
    left_at: float = 0.0
    process: tuple[int, int] | None = None
    attempts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    ended: bool = False
    exit: int | None = None
    error: str | None = None
    notes: deque[tuple[float, str, bool]] = field(default_factory=lambda: deque(maxlen=NOTES_SHOWN))
    trials: dict[str, Trial] = field(default_factory=dict)
    last_trial: str = ""
    slots: deque[tuple[str, float, float]] = field(default_factory=lambda: deque(maxlen=SLOTS_SHOWN))
    seconds: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=SECONDS_SHOWN))
    seconds_count: int = 0
    monitored: dict[tuple[str, str, str], deque[float]] = field(default_factory=dict)
    monitored_count: int = 0
    tables: tuple[Table, ...] = ()
    headline: str = ""

    def take(self, event: Mapping[str, Any]) -> None:  # noqa: C901 - one case for each event
        """Adds an event. Content of unexpected form is ignored, because a journal may be damaged."""
        at = _time(event.get("at"))
        self.figures_count += event["event"] in ("block", "second", "seen")
        self.notes_count += event["event"] in ("note", "broken")
        match event:
            case {"event": "started"}:
                self.attempts += 1
                self.started_at = at
                self.ended, self.exit, self.error = False, None, None
                self.left_s = None
                pid, ticks = event.get("pid"), event.get("start_ticks")
                self.process = (pid, ticks) if isinstance(pid, int) and isinstance(ticks, int) else None
            case {"event": "doing", "text": str(text)}:
                self.doing = cut(text)
            case {"event": "left", "seconds": int() | float() as seconds}:
                self.left_s, self.left_at = seconds, at
            case {"event": "note", "text": str(text)}:
                self.notes.append((at, cut(text), bool(event.get("is_warning"))))
            case {"event": "broken", "text": str(text)}:
                self.notes.append((at, cut(text), True))
            case {"event": "block", "trial": str(name), "done": int(done)}:
                self._take_block(name, done, event)
            case {"event": "second"}:
                self.seconds.append(_second(event))
                self.seconds_count += 1
            case {"event": "counters", "figures": list(figures)}:
                self._take_figures(figures, event.get("host", ""))
            case {"event": "seen", "tables": list(tables)}:
                self.tables, self.headline = tuple(map(_table, tables)), cut(event.get("headline", ""))
            case {"event": "ended"}:
                self.ended, self.exit, self.error = True, event.get("exit"), event.get("error")
                self.ended_at = at

    def _take_block(self, name: str, done: int, event: Mapping[str, Any]) -> None:
        trial = self.trials.setdefault(name, Trial())
        if done < trial.done:
            # Its slots were lengthened, and it began again.
            trial.cells.clear()
        trial.looks += 1
        trial.done, trial.precision = done, cut(event.get("precision", ""))
        if name != self.last_trial:
            self.slots.clear()
        self.last_trial = name
        self.slots.extend(_slot(*slot) for slot in event.get("slots_us", ()))
        cells = event.get("cells", {})
        trial.cells |= {id_: _cell(*cell) for id_, cell in cells.items()}

    def _take_figures(self, figures: Iterable[tuple[str, str, str, float]], host: object) -> None:
        read = {}
        for group, name, unit, value in figures:
            if not 0 <= float(value) < 1e18:
                raise ValueError("this is not a figure of a monitor")
            place = f"{group}, {host}" if host else group
            read[cut(place)[:80], cut(name)[:80], cut(unit)[:10]] = float(value)
        for key, value in read.items():
            if key in self.monitored or len(self.monitored) < MONITORED_SHOWN:
                self.monitored.setdefault(key, deque(maxlen=SECONDS_SHOWN)).append(value)
        self.monitored_count += 1

    @property
    def running(self) -> bool:
        """True if the process that writes the journal exists."""
        return not self.ended and self.process is not None and start_ticks(self.process[0]) == self.process[1]


def cut(text: object) -> str:
    """A text in a length that a page can show."""
    whole = str(text)
    return whole if len(whole) <= TEXT_MAX else f"{whole[:TEXT_MAX]} …"


def _time(at: Any) -> float:
    """A time that can be shown; 0 if it is none."""
    return float(at) if isinstance(at, int | float) and 0 <= at < 4e9 else 0.0


def _table(table: Mapping[str, Any]) -> Table:
    """A table whose rows are as long as its head. ValueError if they are not."""
    columns = tuple(map(cut, table["columns"]))
    rows = tuple(tuple(map(cut, row)) for row in table["rows"][:ROWS_SHOWN])
    if any(len(row) != len(columns) for row in rows):
        raise ValueError("this is not a table")
    return Table(cut(table["title"]), columns, rows)


def _cell(value: float, low: float, high: float) -> tuple[float, float, float]:
    return float(value), float(low), float(high)


def _slot(treatment: str, length_us: float, rate: float) -> tuple[str, float, float]:
    """A slot that can be drawn. ValueError if its figures are not finite, or negative."""
    figures = float(length_us), float(rate)
    if not all(0 <= figure < 1e18 for figure in figures):
        raise ValueError("this is not a slot")
    return str(treatment), *figures


def _second(event: Mapping[str, Any]) -> dict[str, Any]:
    """A second of a load, with numbers where numbers belong. ValueError if it has none."""
    figures = {name: event.get(name) for name in FIGURES}
    if not all(isinstance(figure, int | float | None) for figure in figures.values()) or figures["rate"] is None:
        raise ValueError("this is not a second of a load")
    reasons = list(event.get("doubts", {}).items())[:20]
    return figures | {"doubts": {cut(reason): cut(figure) for reason, figure in reasons}}


class Watched:
    """A journal that is read as it grows."""

    def __init__(self, record: Path) -> None:
        self._file = record / FILE
        self.offset = 0
        self.state = State()

    def advance(self) -> bool:
        """Takes the lines that are new. True if there were any. A file that was replaced is read from its start."""
        try:
            size = self._file.stat().st_size
        except OSError:
            return False
        if size < self.offset:
            self.offset, self.state = 0, State()
        before = self.offset
        while size > self.offset and self._read():
            pass
        return self.offset != before

    def _read(self) -> bool:
        whole = False
        for offset, event in lines(self._file, self.offset):
            self.offset, whole = offset, True
            if event is not None:
                try:
                    self.state.take(event)
                except (TypeError, ValueError, AttributeError, KeyError, IndexError):
                    continue
        return whole


def lines(file: Path, offset: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Whole lines from an offset on, at most a chunk: the offset after each, and its event if it is one."""
    try:
        with opened(file) as stream:
            stream.seek(offset)
            chunk = stream.read(CHUNK_BYTES)
    except OSError:
        return
    whole, _, _ = chunk.rpartition(b"\n")
    if not whole and len(chunk) == CHUNK_BYTES:
        # A line longer than a chunk is not an event.
        yield offset + len(chunk), None
        return
    for line in whole.split(b"\n") if whole or chunk.startswith(b"\n") else ():
        offset += len(line) + 1
        yield offset, event_of(line)
