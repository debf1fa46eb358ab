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
import shutil
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, Union, cast, get_args, get_origin, overload

from pydantic import BaseModel, ValidationError

from partywall import __version__
from partywall.core.job import J, Job
from partywall.errors import Problem, UsageError
from partywall.files import decoded, replace_durably, write_whole

T = TypeVar("T")
DAMAGED = "it is damaged or from another version of Partywall; restore it from a copy, or measure again"


def stamped(name: str) -> str:
    """A new unique name for a record, which sorts by local time."""
    return f"{name}-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def begun() -> dict[str, Any]:
    """What every record says of its beginning: the version, and the local time."""
    return {"partywall": __version__, "started_at": datetime.datetime.now().astimezone().isoformat(timespec="seconds")}


class Record:
    """One kind of record. Subclasses define its name and its identifying file."""

    KIND: ClassVar[str]
    MARK: ClassVar[str]
    """The file that only directories of this kind have."""
    EARLIER_MARK: ClassVar[str] = ""
    """The same in records of earlier versions, which have no other; empty if it is the same file."""
    MADE_BY: ClassVar[str]
    """The command that creates one."""
    JUDGED_BY: ClassVar[str] = ""
    """The command that judges whether two of them differ; empty if none does."""
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
    def expect_none(path: Path, instead: str = "") -> None:
        """UsageError if something exists where one is to be made later. instead: an alternative for the message."""
        if path.exists():
            raise _exists(path, instead)

    @classmethod
    def is_one(cls, path: Path) -> bool:
        """True if a directory is of this kind."""
        return any((path / mark).is_file() for mark in cls.marks())

    @classmethod
    def marks(cls) -> tuple[str, ...]:
        """The files of which only directories of this kind have one."""
        return tuple(filter(None, (cls.MARK, cls.EARLIER_MARK)))

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

    def is_written(self) -> bool:
        """True while a process holds the lock for writing."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            # A shared one, so that others who only ask do not see each other.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

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


E = TypeVar("E", bound=BaseModel)
LINES_BYTES = b"lines_bytes"
"""The key in a table of how many bytes of lines it was made of."""
ROWS = 50_000
"""The most rows of a table that are converted at a time."""


class Stream(Generic[E]):
    """The lines of a record as values. Declared in a class of records, with the model of each kind of line.

    A line has its kind under `kind`. Lines of other kinds, and what a kill tore off, are not read.
    """

    def __init__(self, **models: type[E]) -> None:
        self._models = models
        self._kinds = {model: kind for kind, model in models.items()}

    @overload
    def __get__(self, record: None, owner: type[Record]) -> Self: ...

    @overload
    def __get__(self, record: Record, owner: type[Record]) -> Lines[E]: ...

    def __get__(self, record: Record | None, owner: type[Record]) -> Self | Lines[E]:
        return self if record is None else Lines(record, self._models, self._kinds)


class Lines(Generic[E]):
    """The stream of one record."""

    def __init__(self, record: Record, models: Mapping[str, type[E]], kinds: Mapping[type[E], str]) -> None:
        self._record, self._models, self._kinds = record, models, kinds

    def append(self, value: E, *, durable: bool = False) -> None:
        """Writes a line. durable: it is on the disk when this returns."""
        content = {"kind": self._kinds[type(value)], **value.model_dump(mode="json", exclude_defaults=True)}
        self._record.append_line(json.dumps(content, allow_nan=False), durable=durable)

    def __iter__(self) -> Iterator[E]:
        """The lines in order, one at a time. UsageError for a line that is damaged."""
        for number, line in self._record.lines():
            try:
                if (content := decoded(line)) is None or (model := self._models.get(content.pop("kind", ""))) is None:
                    continue
                value = model.model_validate(content)
            except (ValueError, ValidationError) as error:
                raise self._record.damaged(self._record.LINES, first_line(error), number) from None
            yield value


@dataclass(frozen=True)
class Tabled:
    """A table of a record. row: the model of its rows; rows: those that a line of a model becomes."""

    name: str
    line: type[BaseModel]
    row: type[BaseModel]
    rows: Callable[[Any], Iterable[BaseModel]]


class JobRecord(Record, Generic[J]):
    """The record of a job. The file that identifies it contains the job, the version and the time of its start.

    TABLES: what `settle` makes of the lines.
    """

    JOBS: ClassVar[tuple[type[Job], ...]]
    TABLES: ClassVar[tuple[Tabled, ...]] = ()
    stream: ClassVar[Stream[Any]]
    is_kept = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if kind := cls.__dict__.get("KIND"):
            cls.MARK = cls.__dict__.get("MARK", f"{kind}.json")
            cls.MADE_BY = cls.__dict__.get("MADE_BY", f"partywall {kind}")

    @classmethod
    def create(cls, path: Path, job: J, host: Mapping[str, Any], instead: str = "") -> Self:
        """Creates a record. UsageError if something exists at `path`. instead: an alternative for the message."""
        made = cls.make(path, instead)
        verb = {"verb": job.verb} if job.verb else {}
        about = {**begun(), **verb, **job.model_dump(mode="json")}
        made.put("host.json", json.dumps(host, indent=1))
        made.put(cls.MARK, json.dumps(about, indent=1))
        return made

    @classmethod
    def kept_nowhere(cls, job: J) -> Self:
        """What stands for a record if none is kept: it has a job, and forgets every line."""
        nowhere = cls(Path(os.devnull))
        nowhere.is_kept, nowhere.job = False, job
        return nowhere

    def append_line(self, line: str, *, durable: bool = False) -> None:
        if self.is_kept:
            super().append_line(line, durable=durable)

    @property
    def about(self) -> dict[str, Any]:
        """The file that identifies the record."""
        return self.decoded(self.MARK, lambda text: dict(json.loads(text)))

    def learn(self, **facts: Any) -> None:
        """Adds facts that are known after the start to that file, from which the job is read anew."""
        self.put(self.MARK, json.dumps(self.about | facts, indent=1))
        self.__dict__.pop("job", None)

    @cached_property
    def job(self) -> J:
        """The job that it is of. Values that an older version did not write are the defaults."""
        return self.decoded(self.MARK, lambda _: self._job(self.about))

    def _job(self, about: Mapping[str, Any]) -> J:
        kind = next(job for job in self.JOBS if job.verb == about.get("verb", ""))
        return cast("J", kind.model_validate({name: about[name] for name in kind.model_fields if name in about}))

    @property
    def is_ended(self) -> bool:
        """True if its job came to its end, so that nothing is left to measure."""
        return any(line.get("kind") == "ended" for line in self.each_line())

    def end(self) -> None:
        """Writes that the job came to its end."""
        self.append_line(json.dumps({"kind": "ended"}))

    def drop_if_bare(self) -> None:
        """Removes the directory if it has no line: a job that cannot start leaves none."""
        if not (self.path / self.LINES).exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def settle(self) -> None:
        """Writes the tables, if there are newer lines."""
        lines = self.path / self.LINES
        if not self.TABLES or not lines.exists():
            return
        first, size = self.path / f"{self.TABLES[0].name}.parquet", lines.stat().st_size
        if first.exists() and _made_of(first, lines) == size:
            return
        import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

        # The first one is written last, because it says that all are there.
        for tabled in reversed(self.TABLES):
            fresh, schema = self.path / f".{tabled.name}.parquet", _schema(tabled.row, size)
            with pq.ParquetWriter(fresh, schema, compression="zstd") as writer:
                for table in _tables((line for line in self.stream if isinstance(line, tabled.line)), tabled, schema):
                    writer.write_table(table)
            replace_durably(fresh, self.path / f"{tabled.name}.parquet")


def _tables(lines: Iterable[Any], tabled: Tabled, schema: Any) -> Iterator[Any]:
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    held: list[dict[str, Any]] = []
    for line in lines:
        held += [row.model_dump() for row in tabled.rows(line)]
        if len(held) >= ROWS:
            yield pa.Table.from_pylist(held, schema)
            held = []
    yield pa.Table.from_pylist(held, schema)


def _made_of(table: Path, lines: Path) -> int | None:
    """The bytes of lines that a table was made of; None if there are newer ones.

    Times do not tell, because the clock may have been set back since; but earlier versions wrote nothing else.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    known = pq.read_schema(table).metadata or {}
    if LINES_BYTES in known:
        return int(known[LINES_BYTES])
    is_newer = table.stat().st_mtime_ns > lines.stat().st_mtime_ns
    return lines.stat().st_size if is_newer else None


def _schema(model: type[BaseModel], lines_bytes: int) -> Any:
    """The columns of a table whose rows are of a model, and of how many bytes of lines it is made."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    columns = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    fields = [(name, columns[_plain(info.annotation)]) for name, info in model.model_fields.items()]
    return pa.schema(fields, {LINES_BYTES: str(lines_bytes)})


def _plain(annotation: Any) -> Any:
    """The type of a column that may lack values."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation


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
