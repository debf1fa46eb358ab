"""Studies: repeated published measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partywall import __version__, preflight, study
from partywall.errors import Exit
from partywall.events import Emit, Started
from partywall.kinds.kind import Options
from partywall.model.study import Outline, StudyReport, StudyRequest
from partywall.scenario.load import read
from partywall.store.record import stamped
from partywall.store.study import FILE, StudyDirectory

if TYPE_CHECKING:
    from partywall.report.files import Files


@dataclass(frozen=True)
class StudyJob:
    """A study, and how to carry it out. content: its file."""

    kind: study.Kind[Any]
    wanted: Any
    content: bytes
    request: StudyRequest

    @classmethod
    def read(cls, name_or_path: str, request: StudyRequest) -> StudyJob:
        """Reads a shipped study or a file. UsageError with all mistakes in it."""
        file = study.find(name_or_path)
        kind, content = study.kind_of(file), read(file, "study")
        return cls(kind, kind.read(content, str(file)), content, request)

    @classmethod
    def of(cls, record: StudyDirectory) -> StudyJob:
        """The job that a record was made for."""
        file = record.path / FILE
        kind = study.kind_of(file)
        return cls(kind, kind.read(record.content, str(file)), record.content, record.request)


class Studies:
    record = StudyDirectory

    def outline(self, job: StudyJob, options: Options) -> Outline:
        return job.kind.outline(job.wanted, job.request, options.host)

    def check(self, job: StudyJob, options: Options) -> None:
        preflight.check_folder(options.work_root)
        job.kind.check(job.wanted, job.request, options.host, options.work_root, allow_commands=options.allow_commands)

    def measure(self, job: StudyJob, options: Options, emit: Emit) -> StudyDirectory:
        self.check(job, options)
        facts = {key: value for key, value in options.host.facts.items() if key != "kernels"}
        about = {"partywall": __version__, "host": facts}
        folder = options.folder(stamped(job.wanted.name))
        record = StudyDirectory.create(folder, job.content, job.request, about)
        self._go_on(job, record, options, emit)
        return record

    def continued_by(self, record: StudyDirectory) -> tuple[str, ...]:
        return ("study", "--resume", str(record.path))

    def resume(self, record: StudyDirectory, options: Options, emit: Emit) -> None:
        if options.memory_wait_ns:
            record.wait_for_memory(options.memory_wait_ns)
        job = StudyJob.of(record)
        self.check(job, options)
        self._go_on(job, record, options, emit)

    def _go_on(self, job: StudyJob, record: StudyDirectory, options: Options, emit: Emit) -> None:
        with record.exclusive():
            emit(Started(record.path))
            job.kind.measure(job.wanted, record, options.host, options.work_root, emit)

    def findings(self, record: StudyDirectory) -> StudyReport:
        return study.report(record)

    def outcome(self, findings: StudyReport) -> Exit:
        return Exit.FAILED if findings.incomplete else Exit.HOLDS

    def files(self) -> Files[StudyReport]:
        from partywall.report.study_page import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES
