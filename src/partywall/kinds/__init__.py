"""The kinds of record, as the registry names them. Commands for every kind (`report`, `sql`, clean-up) use it.

A kind is imported when it is used, because some of their libraries are slow to import.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any, cast

from partywall import registry
from partywall.core.capability import Capability, Kind
from partywall.core.document.formats import refuse_document
from partywall.core.record import Record
from partywall.errors import Problem, UsageError

__all__ = ["kind", "made", "names", "of", "opened"]

names = registry.all_names


@cache
def kind(name: str) -> Kind[Any, Any, Any]:
    """A kind by its name. KeyError if there is none."""
    if (place := registry.place(name)) is None:
        raise KeyError(name)
    module, _, attribute = place.partition(":")
    made: Kind[Any, Any, Any] = getattr(importlib.import_module(module), attribute)()
    return made


def made(name: str) -> Capability[Any, Any, Any]:
    """A capability whose shells are made from its jobs. KeyError if there is none of this name."""
    if name not in registry.made():
        raise KeyError(name)
    return cast("Capability[Any, Any, Any]", kind(name))


def of(record: Record) -> Kind[Any, Any, Any]:
    """The kind of a record."""
    return kind(record.KIND)


def opened(path: Path) -> Record:
    """Opens the record at `path` as its own kind. UsageError if there is none, or it is unreadable."""
    # Kinds are imported for a directory alone: the answer to a mistyped path should not wait for them.
    for name in names() if path.is_dir() else ():
        if kind(name).record.is_one(path):
            record: Record = kind(name).record.open(path)
            return record
    refuse_document(path)
    why = "none of their files is in it" if path.is_dir() else "it is a file" if path.exists() else "it does not exist"
    known = names()
    message = f"{path} is not a record of a {', '.join(known[:-1])} or {known[-1]} ({why})"
    raise UsageError(Problem(message, "give a directory as printed, for example, by 'partywall run'"))
