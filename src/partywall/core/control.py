"""Requests to a running execution: lines in `control.jsonl` of its record, which the execution reads from time to time.

The file is a queue, not a channel: whoever appends learns from the record's journal what became of the request. So the
web page, a terminal and a script can all change an execution that none of them started.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from partywall.core.record import Record
from partywall.errors import Problem, UsageError
from partywall.files import append_whole, decoded

FILE = "control.jsonl"
BYTES_MAX = 8 << 20


class Control:
    """The requests to an execution, read by it."""

    def __init__(self, record: Path) -> None:
        self._file = record / FILE
        self._offset = 0

    def take(self) -> list[dict[str, Any]]:
        """The requests since the last call, in order. Lines that are not JSON objects are ignored."""
        try:
            with self._file.open("rb") as stream:
                stream.seek(self._offset)
                whole, end, _ = stream.read(BYTES_MAX).rpartition(b"\n")
        except OSError:
            return []
        self._offset += len(whole) + len(end)
        return [content for line in whole.split(b"\n") if (content := _object(line)) is not None]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        return decoded(line)
    except (ValueError, RecursionError):
        return None


def ask(record: Record, what: str, **request: Any) -> None:
    """Appends a request to a record that is being written. UsageError if its execution has ended.

    what: what cannot be changed then, such as 'its users'.
    """
    try:
        with record.exclusive():
            running = False
    except UsageError:
        running = True
    if not running:
        message = f"has ended, so {what} cannot be changed"
        raise UsageError(Problem(message, f"start a new {record.KIND}", str(record.path)))
    send(record.path, **request)


def send(record: Path, **request: Any) -> None:
    """Appends a request to a record. UsageError if it cannot be written."""
    try:
        append_whole(record / FILE, json.dumps(request).encode())
    except OSError as error:
        message, remedy = f"cannot be written: {error.strerror}", "use the account that started the measurement"
        raise UsageError(Problem(message, remedy, str(record / FILE))) from None
