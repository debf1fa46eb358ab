"""The folder of records as a table: cheap to read for thousands of records. Reads only."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from partywall import kinds
from partywall.errors import Exit, PartywallError
from partywall.host.label import start_ticks
from partywall.kinds.journal import FILE, INTERRUPTED
from partywall.web.jobs import Folder

PAGE = 50
TAIL_BYTES = 65536
FILES_SHOWN = 500
OUTCOMES = {
    int(Exit.HOLDS): ("holds", "✓ holds"),
    int(Exit.VIOLATED): ("violated", "✗ violated"),
    int(Exit.INCONCLUSIVE): ("inconclusive", "? inconclusive"),
    int(Exit.USAGE): ("violated", "✗ not accepted"),
    int(Exit.CAPABILITY): ("violated", "✗ host lacks something"),
    int(Exit.FAILED): ("violated", "✗ failed"),
    INTERRUPTED: ("none", "stopped"),
    -9: ("violated", "✗ killed"),
}
"""The class and text of the badge for each exit code."""


@dataclass(frozen=True)
class Named:
    """A record as far as its folder's entry tells. changed: seconds since the epoch."""

    name: str
    kind: str
    changed: float


@dataclass(frozen=True)
class Row:
    """A record in the table. outcome: see OUTCOMES. size: bytes on disk."""

    name: str
    kind: str
    changed: float
    outcome: tuple[str, str]
    headline: str
    size: int
    note: str
    tags: tuple[str, ...]
    running: bool


@lru_cache(maxsize=1)
def marks() -> Mapping[str, str]:
    """The name of each kind by the file that only its records have."""
    return {mark: name for name in kinds.names() for mark in kinds.kind(name).record.marks()}


def kind_of(path: Path) -> str | None:
    """The kind of the record in a folder. None if it is not a record."""
    return next((kind for mark, kind in marks().items() if (path / mark).is_file()), None)


def named(root: Path) -> list[Named]:
    """All records of a folder, newest first."""
    records = []
    with os.scandir(root) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                path = Path(entry.path)
                if (kind := kind_of(path)) is not None:
                    records.append(Named(entry.name, kind, entry.stat().st_mtime))
    return sorted(records, key=lambda named_record: named_record.changed, reverse=True)


def matching(records: Sequence[Named], query: str, folder: Folder) -> list[Named]:
    """Records whose name, kind, tags or note contain every word of a query."""
    words = query.casefold().split()
    if not words:
        return list(records)
    return [named_record for named_record in records if all(word in _searched(named_record, folder) for word in words)]


def _searched(named_record: Named, folder: Folder) -> str:
    note, tags = annotation(folder, named_record.name)
    return f"{named_record.name} {named_record.kind} {' '.join(tags)} {note}".casefold()


def row(folder: Folder, named_record: Named) -> Row:
    """Everything that the table shows of a record."""
    path = folder.root / named_record.name
    note, tags = annotation(folder, named_record.name)
    end = ending(path)
    running = is_running(path, end)
    code = end.get("exit") if end and end["event"] == "ended" else None
    badge = ("running", "running") if running else outcome(path, code) or ("none", "stopped" if end else "")
    size = size_of(path)
    return Row(
        named_record.name, named_record.kind, named_record.changed, badge, summary(path)[0], size, note, tags, running
    )


def outcome(path: Path | None, code: Any) -> tuple[str, str] | None:
    """The class and text of the badge for an exit code. None if the code is not known."""
    if not isinstance(code, int):
        return None
    if code == Exit.HOLDS and not (path and summary(path)[1]):
        return "done", "✓ measured"
    return OUTCOMES.get(code, ("violated", f"✗ exit code {code}"))


def opened(file: Path) -> IO[bytes]:
    """Opens a regular file. OSError for anything else: a link may lead elsewhere, and a FIFO would block."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    return os.fdopen(descriptor, "rb")


def annotation(folder: Folder, name: str) -> tuple[str, tuple[str, ...]]:
    """A record's note and tags."""
    try:
        content = json.loads((folder.notes / f"{name}.json").read_bytes())
        return str(content["note"])[:2000], tuple(str(tag)[:40] for tag in content["tags"][:20])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ()


def summary(path: Path) -> tuple[str, int]:
    """The headline of a record's findings, empty if there is none, and how many goals were judged."""
    try:
        with opened(path / "findings.json") as stream:
            start = stream.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return "", 0
    goals = re.search(r'"goals"\s*:\s*(\d{1,6})\b', start)
    match = re.search(r'"headline"\s*:\s*("(?:[^"\\]|\\.)*")', start)
    try:
        headline = str(json.loads(match.group(1)))[:400] if match else ""
    except ValueError:
        headline = ""
    return headline, int(goals.group(1)) if goals else 0


def ending(path: Path) -> dict[str, Any] | None:
    """The last whole event of a record's journal. None if there is none."""
    try:
        with opened(path / FILE) as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = stream.read().split(b"\n")[:-1]
    except OSError:
        return None
    return next((event for line in reversed(lines) if (event := event_of(line))), None)


def event_of(line: bytes) -> dict[str, Any] | None:
    """An event of a journal. None if the line is not one."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def is_running(path: Path, end: Mapping[str, Any] | None) -> bool:
    """True if a process writes the journal."""
    if end is None or end["event"] == "ended":
        return False
    started = last_start(path)
    return started is not None and start_ticks(started[0]) == started[1]


def last_start(path: Path) -> tuple[int, int] | None:
    """The process that began the latest attempt, as its ID and start time."""
    start = None
    try:
        with opened(path / FILE) as stream:
            for line in stream:
                if b'"event":"started"' in line and (event := event_of(line)):
                    start = event.get("pid"), event.get("start_ticks")
    except OSError:
        return None
    return start if start and all(isinstance(part, int) for part in start) else None  # type: ignore[return-value]


def size_of(path: Path) -> int:
    """The bytes of all files below a folder."""
    return sum(_sizes(path))


def _sizes(path: Path) -> Iterator[int]:
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - of thousands of files
            except OSError:
                continue


def file_in(folder: Folder, name: str, relative: str) -> Path | None:
    """A file of a record. None if it does not exist, is not a regular file, or is reached through a link."""
    record = folder.record(name)
    parts = relative.split("/")
    if record is None or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        return None
    path = record
    for part in parts:
        path = path / part
        if path.is_symlink():
            return None
    return path if path.is_file() else None


def files(folder: Folder, name: str) -> list[tuple[str, int]]:
    """The files of a record with their sizes, at most FILES_SHOWN."""
    record = folder.record(name)
    if record is None:
        return []
    paths = (path for path in sorted(record.rglob("*")) if path.is_file() and not path.is_symlink())
    return [(str(path.relative_to(record)), path.stat().st_size) for path in itertools.islice(paths, FILES_SHOWN)]


def formats(path: Path) -> tuple[str, ...]:
    """The formats for other programs that the report of a record can be written in; none if it cannot be read."""
    with contextlib.suppress(PartywallError):
        written = kinds.of(kinds.opened(path)).files()
        return tuple(name for name in written.formats if name not in written.usual)
    return ()
