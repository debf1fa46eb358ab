"""Reads the files of documents, with a bound on their size."""

from __future__ import annotations

import stat
from pathlib import Path as FilePath
from typing import Final

from partywall.errors import Problem, UsageError

BYTES_MAX: Final = 64 << 10


def text(path: FilePath, what: str) -> str:
    """The text of a file, unchecked. Raises UsageError if it is not text."""
    try:
        return read(path, what).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(Problem("this is not UTF-8 text", "give the path of a YAML file", str(path))) from None


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
