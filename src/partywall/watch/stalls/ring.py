"""The last hour on disk: a folder of one file a minute, each replaced an hour later. Bounded.

A line is what happened in some seconds: `pairs` of victim, suspect, resource and ms, or a `stall` that began or ended.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partywall.files import decoded, whole_lines

MINUTES = 60
FILE_MAX = 65536
"""Bytes of a file. What would be more is left out, and the last line says so."""


class Ring:
    """Writes lines into a folder, which it makes. Each method raises OSError if that is not possible now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._minute, self._size = -1, 0

    def make(self) -> None:
        """Makes the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def add(self, at_ns: int, line: dict[str, Any]) -> None:
        """Adds a line. at_ns: since the epoch."""
        minute = at_ns // (60 * 10**9)
        file = self._folder / f"{minute % MINUTES:02}.jsonl"
        if minute != self._minute:
            self.make()
            is_ours = _minute_of(file) == minute
            if not is_ours:
                file.write_bytes(b"")
            self._minute, self._size = minute, file.stat().st_size
        text = json.dumps({"at_ns": at_ns} | line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        if self._size + len(text) > FILE_MAX:
            if self._size <= FILE_MAX:
                self._append(file, json.dumps({"at_ns": at_ns, "full": True}).encode() + b"\n")
                self._size = FILE_MAX + 1
            return
        self._append(file, text)

    def _append(self, file: Path, text: bytes) -> None:
        with whole_lines(file) as stream:
            written = stream.write(text)
        self._size += written
        if written < len(text):
            # The disk is full. Readers skip half a line.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))


def _minute_of(file: Path) -> int | None:
    """The minute of a file's first line; None if it has none."""
    with contextlib.suppress(OSError, ValueError), file.open("rb") as stream:
        line = decoded(stream.readline(FILE_MAX))
        if line is not None and isinstance(line.get("at_ns"), int):
            return int(line["at_ns"]) // (60 * 10**9)
    return None


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    """All lines of a ring, the oldest first. An incomplete one is skipped."""
    files = sorted(folder.glob("[0-5][0-9].jsonl"), key=lambda file: _minute_of(file) or 0)
    for file in files:
        for text in file.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                if (line := decoded(text)) is not None:
                    yield line
