"""The documents that ship with Partywall, by name, and the user's, by path."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path as FilePath

from partywall.core.document.explain import did_you_mean
from partywall.core.document.formats import first_key
from partywall.errors import Problem, UsageError

SUFFIXES = (".yaml", ".yml", ".json")
"""Endings of paths. No shipped name has one."""


def shipped_as(wanted: Callable[[str], bool]) -> tuple[str, ...]:
    """Names of shipped files whose first key is wanted."""
    folder = FilePath(str(resources.files("partywall").joinpath("scenarios")))
    files = [*folder.glob("*.yaml"), *folder.glob("papers/*.yaml")]
    matching = [file for file in files if wanted(first_key(file))]
    return tuple(sorted(str(file.relative_to(folder).with_suffix("")) for file in matching))


def shipped_file(name: str) -> FilePath:
    """The file of a shipped name."""
    return FilePath(str(resources.files("partywall").joinpath("scenarios", f"{name}.yaml")))


def find(name_or_path: str, known: tuple[str, ...], what: str) -> FilePath:
    """The file for a path, or for the name of something shipped. known: those names. Raises UsageError."""
    if name_or_path in known:
        return shipped_file(name_or_path)
    if name_or_path.endswith(SUFFIXES) or ("\0" not in name_or_path and _exists(FilePath(name_or_path))):
        return FilePath(name_or_path)
    remedy = did_you_mean(name_or_path, known, f"give a path, or one of {', '.join(known)}")
    raise UsageError(Problem(f"there is no {what} {name_or_path[:200]!r}", remedy))


def _exists(path: FilePath) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
