"""A record: the directory that one execution leaves, with inputs, host facts, append-only lines, and tables.

All kinds of record are created, locked, read and settled in the same way. A kind adds its own files, such as a run's
plan or a load's seconds. Files are replaced atomically or appended to, so a kill loses at most the current line.
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
from partywall.files import decoded, write_whole

T = TypeVar("T")
DAMAGED = "it is damaged or from another version of Partywall; restore it from a copy, or measure again"


def stamped(name: str) -> str:
    """A new unique name for a record, which sorts by local time."""
    return f"{name}-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class Record:
    """One kind of record. Subclasses define its name and its identifying file."""

    KIND: ClassVar[str]
    MARK: ClassVar[str]
    """The file that only directories of this kind have."""
    MADE_BY: ClassVar[str]
    """The command that creates one."""
    LINES: ClassVar[str] = "events.jsonl"

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path, instead: str = "") -> Self:
        """Creates an empty directory. UsageError if something exists there, or it cannot be created.

        instead: an alternative for the message.
        """
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise _exists(path, instead) from None
        except OSError as error:
            raise UsageError(f"{path} cannot be created: {error.strerror}; give another --out") from None
        return cls(path)

    def put(self, name: str, content: str | bytes) -> None:
        """Writes a file of the record whole, so that it is there after a power failure, or not at all.

        The file that identifies a record is written last: a directory with it can be continued.
        """
        write_whole(self.path / name, content, durable=True)

    @staticmethod
    def expect_none(path: Path) -> None:
        """UsageError if something exists where one is to be made later."""
        if path.exists():
            raise _exists(path)

    @classmethod
    def is_one(cls, path: Path) -> bool:
        """True if a directory is of this kind."""
        return (path / cls.MARK).is_file()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens a record. UsageError if there is none at `path`."""
        if not cls.is_one(path):
            why = f"it has no {cls.MARK}" if path.exists() else "it does not exist"
            raise UsageError(Problem(f"{path} is not a record of a {cls.KIND} ({why})", f"make one: {cls.MADE_BY}"))
        return cls(path)

    @property
    def name(self) -> str:
        """The directory's name, which also labels everything that its execution creates on the host."""
        return self.path.resolve().name

    @property
    def host(self) -> dict[str, Any]:
        """The facts of the measured host."""
        return self.decoded("host.json", lambda text: dict(json.loads(text)))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Locks the record for writing. UsageError if another process holds the lock, which ends with its process."""
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
            message = "is in use by another partywall process"
            raise UsageError(Problem(message, "wait until it has ended", str(self.path))) from None

    def append_line(self, line: str, *, durable: bool = False) -> None:
        """Appends a line. An incomplete line from a kill is ended first, so that only that one is lost.

        durable: it is on the disk when this returns. This waits for the disk, so it is for lines that are rare.
        """
        with (self.path / self.LINES).open("ab+") as stream:
            if stream.tell() > 0:
                stream.seek(-1, os.SEEK_END)
                if stream.read(1) != b"\n":
                    line = "\n" + line
            stream.write(line.encode() + b"\n")
            if durable:
                stream.flush()
                os.fsync(stream.fileno())

    def lines(self, name: str = "") -> Iterator[tuple[int, bytes]]:
        """The lines with their numbers, including incomplete ones. name: of another file of lines."""
        file = self.path / (name or self.LINES)
        if file.exists():
            with file.open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    yield number, line.removesuffix(b"\n")

    def whole_lines(self) -> list[dict[str, Any]]:
        """The decoded lines without incomplete ones. UsageError for a line that is not the beginning of JSON."""
        return list(self.each_line())

    def each_line(self, name: str = "") -> Iterator[dict[str, Any]]:
        """As `whole_lines`, one after the other. name: of another file of lines."""
        for number, line in self.lines(name):
            try:
                content = decoded(line)
            except ValueError as error:
                raise self.damaged(name or self.LINES, str(error), number) from None
            if content is not None:
                yield content

    def decoded(self, name: str, decode: Callable[[str], T]) -> T:
        """A file's decoded content. UsageError if it is unreadable or invalid."""
        file = self.path / name
        try:
            return decode(file.read_text(encoding="utf-8"))
        except OSError as error:
            message, remedy = f"cannot be read: {error.strerror}", "check the path and its permissions"
            raise UsageError(Problem(message, remedy, str(file))) from None
        except (ValueError, TypeError) as error:
            raise self.damaged(name, first_line(error)) from None

    def damaged(self, name: str, why: str, line: int | None = None) -> UsageError:
        """The error for a file with invalid content."""
        return UsageError(Problem(f"is invalid: {why}", DAMAGED, str(self.path / name), line))

    def settle(self) -> None:
        """Converts the lines of a killed execution to tables, if there are any."""


def first_line(error: Exception) -> str:
    """The first line of a decoder's error."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
    return str(error).partition("\n")[0]


def _exists(path: Path, instead: str = "") -> UsageError:
    return UsageError(f"{path} exists already; give another --out{instead}")


def distinct(*records: Record) -> None:
    """UsageError if a record is given twice."""
    paths = [record.path.resolve() for record in records]
    if twice := [str(path) for path in dict.fromkeys(paths) if paths.count(path) > 1]:
        which = "both are" if len(paths) == 2 else "two of them are"
        raise UsageError(Problem(f"{which} the same record: {twice[0]}", "choose another one to compare with"))


# The beginning of every event. A killed run leaves the beginning of a line.
BEGIN = b'{"kind": "'


def decode(line: bytes) -> dict[str, Any] | None:
    """Parses an event. None for an empty or incomplete line; ValueError for any other. The content is not checked."""
    try:
        content = decoded(line, BEGIN)
    except ValueError:
        raise ValueError("this is not an event") from None
    if content is not None and not isinstance(content.get("kind"), str):
        raise ValueError("this is not an event")
    return content
