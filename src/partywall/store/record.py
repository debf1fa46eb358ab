"""A record: the directory that one execution leaves. It holds inputs, host facts, lines that only grow, and tables.

All kinds of record are made, locked, read and settled alike. A kind adds its own files: a run its plan, a load its
seconds. Files are replaced whole or appended to, so a kill loses at most the line in flight.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ValidationError

from partywall.errors import Problem, UsageError
from partywall.store.lines import decoded

T = TypeVar("T")
DAMAGED = "it is damaged or of another version of Partywall; bring it back from a copy, or measure again"


def stamped(name: str) -> str:
    """A new name for a record: sorts by local time, and never meets another."""
    return f"{name}-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class Record:
    """One kind of record. Subclasses say what it is called, and which file tells it from other kinds."""

    KIND: ClassVar[str]
    MARK: ClassVar[str]
    """The file that a directory of this kind holds, and no other does."""
    MADE_BY: ClassVar[str]
    """The command that makes one."""
    LINES: ClassVar[str] = "events.jsonl"

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path, instead: str = "") -> Self:
        """An empty directory; UsageError if something is there already, or it cannot be made.

        instead: what else the user may want, for the message.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(f"{path} exists already; give another --out{instead}") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be made: {error.strerror}; give another --out") from None
        return cls(path)

    @classmethod
    def is_one(cls, path: Path) -> bool:
        """Whether a directory is of this kind."""
        return (path / cls.MARK).is_file()

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing one; UsageError if there is none at `path`."""
        if not cls.is_one(path):
            why = f"it has no {cls.MARK}" if path.exists() else "nothing is there"
            raise UsageError(Problem(f"{path} is not a record of a {cls.KIND} ({why})", f"make one: {cls.MADE_BY}"))
        return cls(path)

    @property
    def name(self) -> str:
        """The directory's name, which also labels what its execution makes on the host."""
        return self.path.resolve().name

    @property
    def host(self) -> dict[str, Any]:
        """The facts of the host that was measured."""
        return self.decoded("host.json", lambda text: dict(json.loads(text)))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps other processes from writing here; UsageError if one does. Ends with the process, however that ends."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "is being measured or read by another partywall at this moment"
            raise UsageError(Problem(message, "wait until that has ended", str(self.path))) from None

    def append_line(self, line: str) -> None:
        """Appends a line; one that a kill tore off is closed first, so that it spoils no other."""
        with (self.path / self.LINES).open("ab+") as stream:
            if stream.tell() > 0:
                stream.seek(-1, os.SEEK_END)
                if stream.read(1) != b"\n":
                    line = "\n" + line
            stream.write(line.encode() + b"\n")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines with their numbers, torn ones included."""
        file = self.path / self.LINES
        return enumerate(file.read_bytes().split(b"\n") if file.exists() else [], start=1)

    def whole_lines(self) -> list[dict[str, Any]]:
        """The lines, decoded; torn ones are left out. UsageError for a line that is not even the beginning of JSON."""
        found = []
        for number, line in self.lines():
            try:
                found.append(decoded(line))
            except ValueError as error:
                raise self.damaged(self.LINES, str(error), number) from None
        return [one for one in found if one is not None]

    def decoded(self, name: str, decode: Callable[[str], T]) -> T:
        """A file's content; UsageError if it cannot be read or understood."""
        file = self.path / name
        try:
            return decode(file.read_text(encoding="utf-8"))
        except OSError as error:
            message, remedy = f"cannot be read: {error.strerror}", "check the path and its permissions"
            raise UsageError(Problem(message, remedy, str(file))) from None
        except (ValueError, TypeError) as error:
            raise self.damaged(name, first_line(error)) from None

    def damaged(self, name: str, why: str, line: int | None = None) -> UsageError:
        """The error for a file that cannot be understood."""
        return UsageError(Problem(f"cannot be understood: {why}", DAMAGED, str(self.path / name), line))

    def settle(self) -> None:
        """Turns what a killed execution left into tables. Does nothing where there is nothing to do."""


def first_line(error: Exception) -> str:
    """One line of a decoder's complaint."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
    return str(error).partition("\n")[0]
