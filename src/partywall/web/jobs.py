"""Jobs and their queue: one JSON file for each job, replaced atomically.

A job's identity is the idempotency key of the request that made it, so a repeated request makes no second job. The
queue is the jobs that are queued, in order of their creation. Only the runner writes these files.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from partywall import registry
from partywall.files import write_whole

KEY = r"[A-Za-z0-9_-]{8,64}"
OWN = ".partywall"
"""The folder of the queue, notes and deleted records, inside the folder of records."""

Key = Annotated[str, StringConstraints(pattern=rf"^{KEY}$")]
Plain = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ %/-]{0,63}$")]
"""A duration, share or name. It cannot be taken for an option, and leaves no folder."""
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s]{1,2000}$")]

Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]{1,1000}$")]

DOCUMENT_BYTES_MAX = 512 * 1024
HAND_MADE = ("run", "load", "study")
"""Kinds whose forms and commands are written by hand."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Order(Frozen):
    """What to measure. document: the text of a file; shipped: the name of one that ships with Partywall.

    verb, options: of a job that is made from its fields (`partywall.web.made`), by their names.
    """

    kind: Annotated[str, Field(max_length=64, json_schema_extra={"enum": [*HAND_MADE, *registry.made()]})]
    document: Annotated[str, StringConstraints(max_length=DOCUMENT_BYTES_MAX)] | None = None
    shipped: Plain | None = None
    budget: Plain | None = None
    precision: Plain | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    url: Url | None = None
    users: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    rate: Annotated[float, Field(gt=0, le=1e7)] | None = None
    duration: Plain | None = None
    long: bool = False
    verb: Plain | None = None
    options: Annotated[dict[str, bool | Text | tuple[Text, ...]], Field(max_length=64)] = {}

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in (*HAND_MADE, *registry.made()):
            raise ValueError("there is no such kind")
        return kind


SETTLED_NS = 50_000_000
"""Of a folder's time: older than this, any later change gives it another one."""


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"
    CANCELLED = "cancelled"


class Want(StrEnum):
    """What a running job was requested to do."""

    PAUSE = "pause"
    STOP = "stop"
    EXTEND = "extend"


class Force(StrEnum):
    """How a job that does not end is ended: by SIGTERM, then by SIGKILL."""

    TERMINATE = "terminate"
    KILL = "kill"


class Job(Frozen):
    """One job. record: the name of its record. attempt: how often it was started.

    changes: options of the next attempt. force, forced_at: the last signal to a job that did not end by itself, and
    when it was sent, in seconds since the epoch. done: the keys of requests about it that were carried out. exit: the
    exit code of the last attempt.
    """

    id: Key
    order: Order
    record: str
    created: float
    state: State = State.QUEUED
    want: Want | None = None
    force: Force | None = None
    forced_at: float = 0.0
    attempt: int = 0
    pid: int | None = None
    start_ticks: int | None = None
    exit: int | None = None
    changes: tuple[str, ...] = ()
    done: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it measures, in a few words."""
        order = self.order
        written = re.sub(r"-\d{8}-\d{6}-[0-9a-f]{4}$", "", self.record)
        return order.shipped or order.url or written


class Folder:
    """The places inside a folder of records."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.own = self.root / OWN
        self.jobs = self.own / "jobs"
        self.notes = self.own / "notes"
        self.trash = self.own / "deleted"
        self.socket = self.own / "runner.sock"
        self.stalled = self.own / "stalled.txt"
        self._made_by: dict[str, str] = {}
        self._known: dict[str, tuple[tuple[int, int], Job]] = {}
        self._all: tuple[int, Sequence[Job]] | None = None

    def make(self) -> None:
        """Creates the folders that do not exist."""
        for folder in (self.jobs, self.notes, self.trash, self.own / "output", self.own / "documents"):
            folder.mkdir(parents=True, exist_ok=True)

    def record(self, name: str) -> Path | None:
        """The folder of a record. None if the name is not that of a folder directly in the folder of records."""
        if not re.fullmatch(r"[^/\0]{1,255}", name) or name.startswith("."):
            return None
        path = self.root / name
        return path if path.is_dir() and not path.is_symlink() else None

    def output(self, job: str) -> Path:
        """What the job's process printed."""
        return self.own / "output" / f"{job}.txt"

    def exit_file(self, job: Job) -> Path:
        """The file with the exit code of the job's current attempt."""
        return self.own / "output" / f"{job.id}.{job.attempt}.exit"

    def document(self, job: str) -> Path:
        """The document that the job was started with."""
        return self.own / "documents" / f"{job}.yaml"

    def put(self, job: Job) -> Job:
        """Stores a job."""
        write_whole(self.jobs / f"{job.id}.json", job.model_dump_json(), durable=True)
        return job

    def forget(self, job: Job) -> None:
        """Removes everything that is kept of a job: its document and output too, which only its record could need."""
        (self.jobs / f"{job.id}.json").unlink(missing_ok=True)
        self.document(job.id).unlink(missing_ok=True)
        self.output(job.id).unlink(missing_ok=True)
        for file in (self.own / "output").glob(f"{job.id}.*.exit"):
            file.unlink(missing_ok=True)
        self._known.pop(job.id, None)
        self._made_by.pop(job.record, None)

    def job(self, id_: str) -> Job | None:
        """A job by its identity. None if there is none, or its file is damaged. Unchanged files are not read again."""
        if not re.fullmatch(KEY, id_):
            return None
        file = self.jobs / f"{id_}.json"
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            known = self._known.get(id_)
            if known is None or known[0] != stamp:
                known = self._known[id_] = stamp, Job.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            return None
        return known[1]

    def all(self) -> Sequence[Job]:
        """All jobs, oldest first. Files are looked at only if one was stored since the last time."""
        try:
            changed = self.jobs.stat().st_mtime_ns
        except OSError:
            return []
        if self._all is not None and self._all[0] == changed:
            return self._all[1]
        # A file that is stored in the same tick of the clock does not change the folder's time.
        settled = time.time_ns() - changed > SETTLED_NS
        stored = [job for file in self.jobs.glob("*.json") if (job := self.job(file.stem))]
        jobs = sorted(stored, key=lambda job: (job.created, job.id))
        self._all = (changed, jobs) if settled else None
        return jobs

    def why_stalled(self) -> str:
        """Why the runner cannot go on with the queue; empty if it can."""
        with contextlib.suppress(OSError):
            return self.stalled.read_bytes().decode("utf-8", "replace").strip()
        return ""

    def waiting(self) -> Sequence[Job]:
        """The jobs that run or are next, oldest first."""
        return [job for job in self.all() if job.state in (State.QUEUED, State.RUNNING)]

    def of_record(self, name: str) -> Job | None:
        """The job that made a record, if a page started it."""
        known = self.job(self._made_by.get(name, ""))
        if known is None:
            known = next((job for job in reversed(self.all()) if job.record == name), None)
            if known is not None:
                self._made_by[name] = known.id
        return known
