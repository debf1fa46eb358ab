"""The kinds of record, in one list. Commands for every kind (`report`, `sql`, clean-up) use it.

A kind is imported when it is used, because some of their libraries are slow to import.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

from partywall.core.capability import Kind
from partywall.core.document.formats import refuse_document
from partywall.core.record import Record
from partywall.errors import Problem, UsageError

__all__ = ["KINDS", "kind", "of", "opened"]

KINDS = {
    "run": "partywall.kinds.run:Runs",
    "load": "partywall.kinds.load:Loads",
    "guard": "partywall.kinds.guard:Guards",
    "trace": "partywall.trace.capability:Traces",
    "migration": "partywall.kinds.migration:Migrations",
    "power": "partywall.kinds.power:Powers",
    "consolidation": "partywall.kinds.consolidation:Consolidations",
    "watch": "partywall.watch.capability:Watches",
    "blame": "partywall.blame.capability:Blames",
    "study": "partywall.kinds.study:Studies",
}
"""The module and class of each kind, by its name."""


@cache
def kind(name: str) -> Kind[Any, Any, Any]:
    """A kind by its name."""
    module, _, attribute = KINDS[name].partition(":")
    made: Kind[Any, Any, Any] = getattr(importlib.import_module(module), attribute)()
    return made


def of(record: Record) -> Kind[Any, Any, Any]:
    """The kind of a record."""
    return kind(record.KIND)


def opened(path: Path) -> Record:
    """Opens the record at `path` as its own kind. UsageError if there is none, or it is unreadable."""
    # Kinds are imported for a directory alone: the answer to a mistyped path should not wait for them.
    for name in KINDS if path.is_dir() else ():
        if kind(name).record.is_one(path):
            record: Record = kind(name).record.open(path)
            return record
    refuse_document(path)
    why = "none of their files is in it" if path.is_dir() else "it is a file" if path.exists() else "it does not exist"
    names = ", ".join(list(KINDS)[:-1])
    message = f"{path} is not a record of a {names} or {list(KINDS)[-1]} ({why})"
    raise UsageError(Problem(message, "give a directory as printed, for example, by 'partywall run'"))
