"""The kinds of record, in one list. What works on every kind goes through here: `report`, `sql`, recovery."""

from __future__ import annotations

from pathlib import Path

from partywall.errors import Problem, UsageError
from partywall.load.store import LoadDirectory
from partywall.store import RunDirectory
from partywall.store.guard import GuardDirectory
from partywall.store.record import Record
from partywall.store.study import StudyDirectory
from partywall.store.trace import TraceDirectory

KINDS: dict[str, type[Record]] = {
    kind.KIND: kind for kind in (RunDirectory, LoadDirectory, GuardDirectory, TraceDirectory, StudyDirectory)
}


def opened(path: Path) -> Record:
    """The record at `path`, as its own kind; UsageError if there is none, or it cannot be understood."""
    for kind in KINDS.values():
        if kind.is_one(path):
            return kind.open(path)
    why = "it holds none of their files" if path.is_dir() else "it is a file" if path.exists() else "nothing is there"
    names = ", ".join(list(KINDS)[:-1])
    message = f"{path} is not a record of a {names} or {list(KINDS)[-1]} ({why})"
    raise UsageError(Problem(message, "give the directory that 'partywall run', for instance, named at its end"))
