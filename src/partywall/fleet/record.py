"""The record of a fleet: what became of each host, its figures, and below `hosts/` the files that came home from it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from pydantic import Field

from partywall.core.record import JobRecord, Stream
from partywall.files import sync_below
from partywall.fleet.job import MARK, AdmitJob, FleetJob, RunJob
from partywall.fleet.ledger.lease import Phase, State
from partywall.fleet.ledger.look import Chunk
from partywall.values import Frozen

GROWING = (".jsonl", ".txt")
"""Endings of files that only grow. Others come home once nothing changes them."""


class Began(Frozen):
    """A controller took over. token: larger than that of every controller before."""

    token: int


class Tried(Frozen):
    """An attempt was ordered. Written before its first request. share: of the host's time, when it has ended."""

    host: str
    attempt: int
    share: float = 1.0


class Became(Frozen):
    """What a host said of an attempt. seconds: since the controller began."""

    host: str
    attempt: int
    phase: Phase
    why: str = ""
    seconds: float = 0.0


class Cell(Frozen):
    """A figure of a host with its interval. n: blocks. is_rate: work a second of a victim that is alone.

    is_directed: whether less is worse; of a figure of a study, that is not known.
    """

    name: str
    value: float
    low: float
    high: float
    level: float = 0.95
    n: int
    is_rate: bool = False
    is_directed: bool = True


class Measured(Frozen):
    """A host was measured. exit: of its own command; headline: of its own report; facts: what may tell hosts apart.

    share: of its time that it has measured so far.
    """

    host: str
    exit: int
    share: float = 1.0
    headline: str = ""
    cells: tuple[Cell, ...] = ()
    facts: Mapping[str, str] = Field(default_factory=dict)


class Failed(Frozen):
    """A host could not be measured."""

    host: str
    why: str


class Fleet(Frozen):
    """The fleet that a host is judged by, as its record had it."""

    name: str
    hosts: tuple[Measured, ...]


@dataclass(frozen=True)
class Standing:
    """What is known of a host while the fleet is measured. share: of its time; None if it does not measure."""

    host: str
    state: str
    share: float | None = None
    attempt: int = 0
    why: str = ""


Line = Began | Tried | Became | Measured | Failed | Fleet


class FleetRecord(JobRecord[FleetJob]):
    """The record of a fleet."""

    KIND = "fleet"
    MARK = MARK
    MADE_BY = "partywall fleet run"
    JUDGED_BY = "partywall fleet gate --before"
    JOBS = (RunJob, AdmitJob)
    stream = Stream[Line](began=Began, tried=Tried, became=Became, measured=Measured, failed=Failed, fleet=Fleet)

    def begin(self) -> int:
        """Returns the token of a controller that takes over, once it is on the disk."""
        token = 1 + max((line.token for line in self.stream if isinstance(line, Began)), default=0)
        self.append_line(f'{{"kind": "began", "token": {token}}}', durable=True)
        return token

    def end(self) -> None:
        """Writes that nothing is left to measure. While hosts lack figures, `--resume` measures them."""
        measured = self.measured
        if not self.failed and all(place.name in measured for place in self.job.places):
            super().end()

    @property
    def measured(self) -> dict[str, Measured]:
        """The hosts that were measured, by name, with their latest figures."""
        return {line.host: line for line in self.stream if isinstance(line, Measured)}

    @property
    def failed(self) -> dict[str, str]:
        """Why hosts were not measured, by name."""
        failed: dict[str, str] = {}
        for line in self.stream:
            if isinstance(line, Failed):
                failed[line.host] = line.why
            elif isinstance(line, Measured | Tried):
                failed.pop(line.host, None)
        return failed

    def attempts(self) -> dict[str, Tried]:
        """The last attempt that was ordered, by host."""
        return {line.host: line for line in self.stream if isinstance(line, Tried)}

    def standings(self) -> tuple[Standing, ...]:
        """What is known of each host, as far as lines tell, for those who only read the record."""
        found = {place.name: Standing(place.name, "waits") for place in self.job.places}
        for line in self.stream:
            match line:
                case Tried(host=host, attempt=attempt):
                    found[host] = Standing(host, "asked", attempt=attempt)
                case Became(host=host, attempt=attempt, phase=phase, why=why):
                    found[host] = Standing(host, str(phase), attempt=attempt, why=why)
                case Measured(host=host):
                    found[host] = Standing(host, "measured", 1.0)
                case Failed(host=host, why=why):
                    found[host] = Standing(host, "failed", why=why)
        return tuple(found.values())

    @property
    def fleet(self) -> Fleet | None:
        """The fleet that this record's host is judged by."""
        return next((line for line in self.stream if isinstance(line, Fleet)), None)

    def pages(self) -> dict[str, str]:
        """The page of each host's own report, by host: its address from this record's folder."""
        found = {}
        for name in self.measured:
            of = {page.parent.name: page for page in self.home(name).folder.glob("record-*/report.html")}
            # The last attempt has what the others measured too.
            if of:
                last = max(of, key=lambda folder: (len(folder), folder))
                found[name] = quote(str(of[last].relative_to(self.path)))
        return found

    def home(self, host: str) -> Home:
        """Where the files of a host are kept."""
        return Home(self.path / "hosts" / host)


ZEROS_BYTES = 1 << 16
"""Read at once when the end of a file is looked for."""


@dataclass(frozen=True)
class Home:
    """Files that came from a host. They grow to the size that they have there, whatever comes twice or late."""

    folder: Path

    def since(self, state: State) -> dict[str, int]:
        """The offsets of files that the host has more of."""
        offsets = {}
        for name, size in state.files.items():
            if not _is_inside(name) or (state.phase.is_going and not name.endswith(GROWING)):
                continue
            if (have := self._size(name)) < size:
                offsets[name] = have
        return offsets

    def take(self, chunks: Sequence[Chunk]) -> None:
        """Stores what came. A part that would leave a gap, or that is there already, is left out."""
        for chunk in chunks:
            have = self._size(chunk.name)
            if not _is_inside(chunk.name) or not chunk.offset <= have < chunk.offset + len(chunk.content):
                continue
            file = self.folder / chunk.name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as stream:
                stream.write(chunk.content[have - chunk.offset :])

    def forget_unwritten(self) -> None:
        """Cuts off what a file system reserved for a file and never wrote, because its power failed.

        No file of a record ends in a zero byte: lines end at their end, and a table with a name.
        """
        for file in self._files():
            with file.open("rb") as stream:
                left = stream.seek(0, os.SEEK_END)
                while left:
                    start = max(0, left - ZEROS_BYTES)
                    stream.seek(start)
                    written = len(stream.read(left - start).rstrip(b"\0"))
                    left = start + written
                    if written:
                        break
            os.truncate(file, left)

    def forget_whole(self) -> None:
        """Forgets the files that the next attempt writes again."""
        for file in self._files():
            if not file.name.endswith(GROWING):
                file.unlink()

    def settle(self, state: State) -> None:
        """Forgets what the host no longer has, such as lines that it made tables of. state: of a run that is over.

        All that it has is on this disk then, also after a power failure: nobody asks the host for it again.
        """
        for file in self._files():
            if str(file.relative_to(self.folder)) not in state.files:
                file.unlink()
        if self.folder.exists():
            sync_below(self.folder)

    def text(self, name: str) -> str:
        """The text of a file; empty if it has not come."""
        try:
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _files(self) -> Iterator[Path]:
        return iter([file for file in self.folder.rglob("*") if file.is_file()])

    def _size(self, name: str) -> int:
        try:
            return (self.folder / name).stat().st_size
        except OSError:
            return 0


def _is_inside(name: str) -> bool:
    """Whether a name that a host gave leads to a file below its own folder."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
