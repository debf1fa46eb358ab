"""The journal of an execution: its events as JSON lines in the record, so that others can watch it.

A journal only grows, and each line is written at once, so a reader can continue at any byte offset, and a kill loses
at most the current line. Lines contain what a person watches, not what findings are derived from: of a second of a
load, for example, the rate and percentiles, not the histograms.

An event is an object with `at` (seconds since the epoch) and `event`, which is one of started, doing, left, note,
broken, block, second, counters, seen and ended. The other keys are those of `partywall.events`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Self

from partywall.core.report import value
from partywall.errors import Exit, PartywallError
from partywall.events import Block, Broken, Counters, Doing, Event, Left, Note, Second, Seen, Started
from partywall.files import whole_lines
from partywall.host.label import start_ticks
from partywall.plain import plain

FILE = "journal.jsonl"
Look = Callable[[Any], value.Report | None]
INTERRUPTED = 130
BEFORE_MAX = 1000
"""The most events kept before there is a record."""


class Journal:
    """A listener that writes the journal. Used as a context manager, it also writes how the execution ended.

    Events before `Started` are written with it. If there is no record, nothing is written. live: makes a report of what
    was seen.
    """

    def __init__(self, live: Look = lambda _: None) -> None:
        self._before: list[bytes] = []
        self._stream: IO[bytes] | None = None
        self._content = _Content(live)
        self.exit: int | None = None
        """The exit code, if the execution ends without an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        with contextlib.suppress(OSError):
            code = self.exit if error is None else _code(error)
            self._write("ended", {"exit": code, "error": str(error) if error else None})
        if self._stream is not None:
            self._stream.close()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started) and event.path is not None and self._stream is None:
            # Unbuffered, so that each line is one write.
            self._stream = whole_lines(event.path / FILE)
            for line in self._before:
                self._stream.write(line)
            self._before.clear()
        if (content := self._content.of(event)) is not None:
            self._write(type(event).__name__.lower(), content)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        line = json.dumps({"at": round(time.time(), 3), "event": name} | plain(content), separators=(",", ":"))
        if self._stream is not None:
            self._stream.write(line.encode() + b"\n")
        elif len(self._before) < BEFORE_MAX:
            self._before.append(line.encode() + b"\n")


def _code(error: BaseException) -> int:
    """The exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return int(error.exit) if isinstance(error, PartywallError) else int(Exit.BUG)


class _Content:
    """The content of an event's line. Remembers which labels of a load are requests."""

    def __init__(self, live: Look) -> None:
        self._live = live
        self._requests: set[int] = set()

    def of(self, event: Event) -> Mapping[str, Any] | None:  # noqa: PLR0911 - one for each event
        match event:
            case Started(path, about):
                labels = enumerate(about.get("labels", ()))
                self._requests = {number for number, label in labels if label["sort"] == "http"}
                pid = os.getpid()
                return {"path": str(path) if path else None, "pid": pid, "start_ticks": start_ticks(pid)}
            case Block():
                cells = {id_: [round(figure, 6) for figure in cell] for id_, cell in event.cells.items()}
                slots = [[id_, length_ns // 1000, float(f"{rate:.4g}")] for id_, length_ns, rate in event.slots]
                block = {"trial": event.trial, "done": event.done, "precision": event.precision}
                return block | ({"cells": cells} if cells else {}) | ({"slots_us": slots} if slots else {})
            case Second():
                return _second(event, self._requests)
            case Seen(seen, is_kept):
                return _seen(self._live(seen)) if is_kept else None
            case Counters():
                from partywall.kinds.monitored import figures  # noqa: PLC0415 - of runs and loads alone

                return {"figures": list(figures(event))} | ({"host": event.host} if event.host else {})
            case Left(seconds):
                return {"seconds": round(seconds, 1)}
            case Doing() | Note() | Broken():
                return {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}


def _second(event: Second, requests: set[int]) -> dict[str, Any]:
    """A second of a load, and the reasons why its generator may be wrong, with their figures."""
    from partywall.core.report.latency import quantiles  # noqa: PLC0415
    from partywall.load.second import Timing, histogram  # noqa: PLC0415 - of loads alone

    second, total = event.second, Timing()
    for label, timing in second.timings.items():
        # Transactions contain requests, which would count twice.
        if label in requests:
            total.merge(timing)
    tops = quantiles(histogram(total.corrected), (0.5, 0.9, 0.99)) or (None,) * 3
    raw = quantiles(histogram(total.raw), (0.99,)) or (None,)
    return {
        "users": second.users,
        "rate": round(sum(second.statuses.values()) / second.length_s, 3),
        **dict(zip(("p50_ns", "p90_ns", "p99_ns"), tops, strict=True)),
        "raw_p99_ns": raw[0],
        "errors": sum(second.errors.values()),
        "doubts": {str(reason): figure for reason, figure in event.health.doubts.items()},
    }


def _seen(report: value.Report | None) -> dict[str, Any] | None:
    """What a terminal shows of what was seen, as texts."""
    if report is None:
        return None
    tables = [
        {
            "title": table.title,
            "columns": [column.title for column in table.shown(on_page=False)],
            "rows": table.cells(on_page=False),
        }
        for table in report.tables
    ]
    return {"headline": report.headline, "tables": tables}
