"""The interface of every kind of record: how it is checked, measured, derived and shown."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

from partywall import registry
from partywall.core.job import Action, J, Job
from partywall.core.record import JobRecord, Record, stamped
from partywall.core.stats.estimate import Outcome
from partywall.errors import Exit, Problem, UsageError
from partywall.events import Emit, Note, Started
from partywall.host import Host
from partywall.host.label import WORK_ROOT

if TYPE_CHECKING:
    from partywall.core.report.files import Document, Files
    from partywall.core.report.value import Report, Table

J_contra = TypeVar("J_contra", contravariant=True)
R = TypeVar("R", bound=Record)
F = TypeVar("F")

EXITS = {Outcome.HOLDS: Exit.HOLDS, Outcome.VIOLATED: Exit.VIOLATED, Outcome.INCONCLUSIVE: Exit.INCONCLUSIVE}


@dataclass(frozen=True)
class Outline:
    """What would be measured, one item a line, and how long it takes. tables: what is shown above the lines.

    forecast: what is predicted of the findings; its values are in the document of the command.
    """

    lines: tuple[str, ...]
    seconds: float
    tables: tuple[Table, ...] = ()
    forecast: Report | None = None


@dataclass(frozen=True)
class Options:
    """Where and how a job is carried out.

    out: the record to create; None for runs/NAME-TIME-CHANCE. work_root: the folder for a temporary folder of the job.
    allow_commands: whether commands in a document may run. memory_wait_ns: how long to wait for free memory, if longer
    than usual. waits: whether to wait for other measurements of this host first.
    """

    host: Host
    out: Path | None = None
    work_root: Path = WORK_ROOT
    allow_commands: bool = False
    memory_wait_ns: int = 0
    waits: bool = False

    def folder(self, stamped: str) -> Path:
        """The path of the record to create."""
        return self.out or Path("runs") / stamped


class Metrics(Protocol):
    """What a metrics file says, for node_exporter."""

    def add(self, seen: Any) -> None:
        """Takes what was seen of a job while it goes on."""
        ...

    def text(self) -> str:
        """The whole file."""
        ...


JR = TypeVar("JR", bound=JobRecord[Any])


class Capability(ABC, Generic[J, JR, F]):
    """What one command does. J: its job. JR: the record of it. F: the findings.

    A capability declares jobs and a record, and defines five methods: `outline`, `measure`, `findings`, `report` and,
    to be watched while it goes on, `live`. Everything else is made from these: the command, the Python function, the
    web form, the live view, the page and files, comparisons, and how an interrupted record is continued.

    Modules that draw are imported when they are used.

    jobs: each is a command. actions: commands that measure nothing. rows: what the rows of a report are called; empty
    if its JSON document has them in another form. doing: what it does, for those who watch. keeps: what goes on if a
    listener fails. disturbs: whether it and other measurements of a host disturb each other. cannot_resume: why its
    records cannot be continued. only_with_out: whether it keeps a record only if its path is given, because a job may
    go on for months. adjusts: what of a running job can be changed, as a request to it says (`core.control`); empty if
    nothing. metrics: makes what a metrics file says; None if there is none.
    """

    jobs: ClassVar[tuple[type[Job], ...]]
    actions: ClassVar[tuple[type[Action], ...]] = ()
    record: type[JR]
    rows: ClassVar[str] = "rows"
    doing: ClassVar[str] = "measuring"
    keeps: ClassVar[str] = "the measurement goes on"
    disturbs: ClassVar[bool] = True
    cannot_resume: ClassVar[str] = ""
    only_with_out: ClassVar[bool] = False
    adjusts: ClassVar[str] = ""
    metrics: ClassVar[type[Metrics] | None] = None

    @abstractmethod
    def outline(self, job: J, options: Options) -> Outline:
        """What would be measured on the host, and how long it takes. Changes nothing.

        Raises a UsageError or CapabilityError with everything that prevents the job.
        """

    @abstractmethod
    def measure(self, record: JR, options: Options, emit: Emit) -> None:
        """Measures what a record lacks of its job; a new one lacks everything. Afterwards the host is as before.

        Raises KeyboardInterrupt if it was interrupted.
        """

    @abstractmethod
    def findings(self, record: JR) -> F:
        """Derives the findings from the record alone, at any time. TrialError if there are none yet."""

    @abstractmethod
    def report(self, findings: F) -> Report:
        """What is said of the findings."""

    def live(self, seen: Any) -> Report | None:
        """What is said of something that `measure` emits as `Seen`; None if it is nothing to look at."""
        del seen
        return None

    @property
    def name(self) -> str:
        return self.record.KIND

    def check(self, job: J, options: Options) -> None:
        """Raises a UsageError or CapabilityError with everything that prevents the job."""
        self.outline(job, options)

    def foretell(self, job: J, options: Options, emit: Emit) -> Outline:
        """As `outline`, with what is predicted of the findings, which may take some seconds."""
        del emit
        return self.outline(job, options)

    def adjustable(self, record: JR) -> str:
        """The text of what a running job can be changed to, as it is now; for an editor."""
        del record
        return ""

    def check_adjustment(self, record: JR, wanted: Any) -> None:
        """Raises a UsageError if a running job cannot be changed to this."""
        del record, wanted

    def forget(self) -> list[str]:
        """Forgets what jobs that died have left, if nothing of it exists any more. Returns what is said of it."""
        return []

    def begin(self, job: J, options: Options, emit: Emit) -> JR | None:
        """Checks a job, and carries it out. Returns its record; None if none is kept."""
        if self.only_with_out and options.out is None:
            self.check(job, options)
            emit(Started(None))
            self.measure(self.record.kept_nowhere(job), options, emit)
            return None
        path = options.folder(stamped(self.named(job, job.subject)))
        words = " ".join(self._resuming(job))
        instead = "" if self.why_not(job) else f", or continue it: partywall {words} --resume {path}"
        self.record.expect_none(path, instead)
        self.check(job, options)
        record = self.record.create(path, job, options.host.facts, instead)
        with record.exclusive():
            try:
                self._carry_out(record, job, options, emit)
            except Exception:
                record.drop_if_bare()
                raise
        return record

    def named(self, job: Job | type[Job], subject: str) -> str:
        """What the name of a job's record begins with."""
        return "-".join(filter(None, (self.name, subject or (job.verb if len(self.jobs) > 1 else ""))))

    def _carry_out(self, record: JR, job: Job, options: Options, emit: Emit) -> None:
        emit(Started(record.path))
        try:
            self.measure(record, options, emit)
        except KeyboardInterrupt:
            if job.ends:
                raise
        record.end()

    def continued_by(self, record: JR) -> tuple[str, ...]:
        """The command that continues an interrupted record, without `partywall`; empty if there is none."""
        if self.cannot_resume or record.is_ended or self.why_not(record.job):
            return ()
        return (*self._resuming(record.job), "--resume", str(record.path))

    def why_not(self, job: Job) -> str:
        """Why a record of a job cannot be continued; empty if it can be."""
        return self.cannot_resume or job.cannot_resume

    def _resuming(self, job: Job) -> tuple[str, ...]:
        """The command of a job, without `partywall`."""
        return (registry.command(self.name), *filter(None, [job.verb]))

    def resume(self, record: JR, options: Options, emit: Emit) -> None:
        """Measures the rest of an interrupted record. UsageError that says why if it cannot be continued."""
        if self.cannot_resume:
            refuse_to_resume(record, self.cannot_resume)
        if why := self.why_not(record.job):
            refuse_to_resume(record, why, f"start a new one: partywall {' '.join(self._resuming(record.job))}")
        with record.exclusive():
            if record.is_ended:
                finished(record, emit)
            else:
                self.check(record.job, options)
                self._carry_out(record, record.job, options, emit)

    def outcome(self, findings: F) -> Exit:
        """The exit code for the findings."""
        return EXITS[self.report(findings).outcome]

    def files(self) -> Files[F]:
        """The report in its formats."""
        from partywall.core.report import rendered

        return rendered.files(self.name, self.rows, self.report, self.documents())

    def documents(self) -> Mapping[str, Document[F]]:
        """Further files of a report, by format: a name, and what makes the content. They are written by default."""
        return {}


class Kind(Protocol[J_contra, R, F]):
    """One kind of record. J_contra: a job, as its documents define it. R: its record. F: the findings.

    Modules that draw are imported when they are used.
    """

    @property
    def record(self) -> type[R]:
        """The class of the record."""
        ...

    def outline(self, job: J_contra, options: Options) -> Outline:
        """What would be measured on the host, and how long it takes. Changes nothing."""
        ...

    def check(self, job: J_contra, options: Options) -> None:
        """Raises a UsageError or CapabilityError with everything that prevents the job.

        For callers that measure nothing: `measure` plans and checks the job itself.
        """
        ...

    def measure(self, job: J_contra, options: Options, emit: Emit) -> R | None:
        """Plans, checks and carries out a job. Afterwards the host is as before, even after an error.

        Returns None if the job keeps no record. Raises KeyboardInterrupt if it was interrupted before its end.
        """
        ...

    def continued_by(self, record: R) -> tuple[str, ...]:
        """The command that continues an interrupted record, without `partywall`; empty if `resume` refuses."""
        ...

    def resume(self, record: R, options: Options, emit: Emit) -> None:
        """Measures the rest of an interrupted record. UsageError that says why if it cannot be continued."""
        ...

    def findings(self, record: R) -> F:
        """Derives the findings from the record alone, at any time. TrialError if there are none yet."""
        ...

    def outcome(self, findings: F) -> Exit:
        """The exit code for the findings."""
        ...

    def files(self) -> Files[F]:
        """The report: as text, as rows, as the page, and in formats for other programs."""
        ...


def refuse_to_resume(record: Record, why: str, remedy: str = "") -> NoReturn:
    """UsageError for a record that cannot be continued. remedy: by default, the command that makes a new one."""
    message = f"{record.path}: a {record.KIND} record cannot be continued: {why}"
    raise UsageError(Problem(message, remedy or f"start a new one: {record.MADE_BY}"))


class NeverContinued:
    """Of kinds whose records cannot be continued. why_not: why, for people."""

    why_not: str

    def continued_by(self, record: Record) -> tuple[str, ...]:
        del record
        return ()

    def resume(self, record: Record, options: Options, emit: Emit) -> None:
        del options, emit
        refuse_to_resume(record, self.why_not)


def finished(record: Record, emit: Emit) -> None:
    """Tells that nothing of a record is left to measure."""
    emit(Started(record.path))
    emit(Note(f"{record.path} is finished; nothing is left to measure"))


def expect_same(record: Record, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """UsageError if a fact of a record that its figures depend on has changed since it was interrupted."""
    changed = [
        Problem(
            f"{key} was {before[key]} and is {value} now", "measure as before, or start a new record", str(record.path)
        )
        for key, value in now.items()
        if key in before and json.loads(json.dumps(value)) != before[key]
    ]
    if changed:
        raise UsageError(*changed)
