"""The bin: records that were deleted, each in a folder of its own named by when it was deleted.

A record can therefore be deleted more than once under one name. Whoever empties the bin only hides its entries: the
files are removed while nothing is measured, because that would disturb a measurement.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from partywall.web import records
from partywall.web.jobs import Folder, State

KEPT_DAYS = 30
"""How long deleted records are kept."""
HIDDEN = ".removed-"
ENTRY = r"\d{13}-[0-9a-f]{4}"


@dataclass(frozen=True)
class Deleted:
    """A deleted record. id: that of its entry. at: when it was deleted, in seconds since the epoch."""

    id: str
    name: str
    at: float
    path: Path

    @property
    def kept_until(self) -> float:
        return self.at + KEPT_DAYS * 86400.0


@dataclass(frozen=True)
class Row:
    """A deleted record in the table. size: bytes on disk."""

    id: str
    name: str
    kind: str
    at: float
    kept_until: float
    size: int


def entries(folder: Folder) -> list[Deleted]:
    """All deleted records, the latest deletion first."""
    deletions = []
    for entry in folder.trash.iterdir() if folder.trash.is_dir() else ():
        if entry.name.startswith(".") or entry.is_symlink() or not entry.is_dir():
            continue
        if re.fullmatch(ENTRY, entry.name):
            inside = next((path for path in entry.iterdir() if path.is_dir() and not path.is_symlink()), None)
            if inside is not None:
                deletions.append(Deleted(entry.name, inside.name, int(entry.name[:13]) / 1000, inside))
        else:
            # As earlier versions kept them.
            deletions.append(Deleted(entry.name, entry.name, entry.stat().st_ctime, entry))
    return sorted(deletions, key=lambda each: (each.at, each.id), reverse=True)


def of_name(folder: Folder, name: str, entry: str | None = None) -> Deleted | None:
    """The latest deletion of a record, or the one of an entry. None if there is none."""
    matching = (each for each in entries(folder) if each.name == name and entry in (None, each.id))
    return next(matching, None)


def rows(folder: Folder) -> list[Row]:
    """Everything that the table shows of deleted records."""
    return [
        Row(each.id, each.name, records.kind_of(each.path) or "", each.at, each.kept_until, records.size_of(each.path))
        for each in entries(folder)
    ]


def put(folder: Folder, record: Path) -> None:
    """Moves a record into the bin."""
    latest = max((each.at for each in entries(folder)), default=0.0)
    # Later than all others, so that the order of deletions is kept.
    at_ms = max(time.time_ns() // 10**6, round(latest * 1000) + 1)
    entry = folder.trash / f"{at_ms:013d}-{secrets.token_hex(2)}"
    entry.mkdir(parents=True)
    record.rename(entry / record.name)


def back(folder: Folder, deleted: Deleted) -> None:
    """Returns a deleted record to the records."""
    deleted.path.rename(folder.root / deleted.name)
    if deleted.path.parent != folder.trash:
        deleted.path.parent.rmdir()


def hide(folder: Folder, before: float) -> int:
    """Hides what was deleted before a time, or at it, so that it can be removed. Returns the number of records."""
    gone = [each for each in entries(folder) if each.at <= before]
    for each in gone:
        entry = each.path if each.path.parent == folder.trash else each.path.parent
        entry.rename(folder.trash / f"{HIDDEN}{secrets.token_hex(8)}")
    left = {each.name for each in entries(folder)}
    for name in {each.name for each in gone} - left:
        if folder.record(name) is None:
            (folder.notes / f"{name}.json").unlink(missing_ok=True)
    _forget_jobs(folder, {each.name for each in gone}, left)
    return len(gone)


def expire(folder: Folder) -> None:
    """Hides what was kept long enough, unless nothing in the folder is younger.

    The clock may then be wrong, as on a host that has just booted in another year, and nobody would get them back.
    """
    before = time.time() - KEPT_DAYS * 86400
    if max([*(each.at for each in entries(folder)), *(job.created for job in folder.all())], default=0.0) > before:
        hide(folder, before)


def _forget_jobs(folder: Folder, gone: set[str], left: set[str]) -> None:
    """Forgets jobs whose record was removed for good, and old ones that never left a record."""
    oldest = time.time() - KEPT_DAYS * 86400
    for job in folder.all():
        is_over = job.state in (State.ENDED, State.CANCELLED) and (job.record in gone or job.created < oldest)
        if is_over and job.record not in left and folder.record(job.record) is None:
            folder.forget(job)


def hidden(folder: Folder) -> list[str]:
    """The paths of hidden entries, which can be removed."""
    if not folder.trash.is_dir():
        return []
    return [entry.path for entry in os.scandir(folder.trash) if entry.name.startswith(HIDDEN)]
