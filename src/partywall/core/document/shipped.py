"""Files of documents: those that ship with Partywall, by name, and the user's, read with a bound on their size."""

from __future__ import annotations

import stat
from collections.abc import Callable
from importlib import resources
from pathlib import Path as FilePath

from partywall.core.document.decode import BYTES_MAX
from partywall.core.document.explain import did_you_mean
from partywall.core.document.formats import first_key
from partywall.errors import Problem, UsageError

SUFFIXES = (".yaml", ".yml", ".json")
"""Endings of paths. No shipped name has one."""


def text(path: FilePath, what: str) -> str:
    """The text of a file, unchecked. Raises UsageError if it is not text."""
    try:
        return read(path, what).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(Problem("this is not UTF-8 text", "give the path of a YAML file", str(path))) from None


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


def read(path: FilePath, what: str, *, larger: int = 1) -> bytes:
    """Reads a file. At most one byte more than allowed is read, because a FIFO or device may be endless."""
    remedy = f"give the path of a {what} file"
    try:
        if path.is_dir():
            raise UsageError(Problem("this is a directory", f"{remedy}; partywall report shows a record", str(path)))
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(Problem("this is not a regular file", remedy, str(path)))
        with path.open("rb") as file:
            return file.read(larger * BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(
            Problem(f"cannot be read: {error.strerror or error}", "check the path and its permissions", str(path))
        ) from None
    except ValueError as error:
        raise UsageError(Problem(f"cannot be read: {error}", remedy, repr(str(path))[:200])) from None
