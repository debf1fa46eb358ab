"""Studies: repeated published measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from partywall import __version__, study
from partywall.core import here
from partywall.core.capability import Options, Outline
from partywall.core.document.reading import read
from partywall.core.record import stamped
from partywall.errors import Exit
from partywall.events import Emit, Started
from partywall.run.plan.requirements import measured_facts, sandboxes
from partywall.sandbox.elsewhere import machine_facts
from partywall.study.document import StudyReport, StudyRequest
from partywall.study.record import FILE, StudyDirectory

if TYPE_CHECKING:
    from partywall.core.report.files import Files


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
        request = request.model_copy(update={"folder": str(file.parent.absolute())})
        return cls(kind, kind.read(content, str(file)), content, request)

    @classmethod
    def of(cls, record: StudyDirectory) -> StudyJob:
        """The job that a record was made for."""
        file = record.path / FILE
        kind = study.kind_of(file)
        return cls(kind, kind.read(record.content, str(file)), record.content, record.request)


def _with_machines(job: StudyJob, options: Options) -> Options:
    """The options with the facts of the study's other machines. CapabilityError, for all at once, if one is unfit."""
    scenarios = job.kind.scenarios(job.wanted, job.request, options.host)
    machines = machine_facts([*map(sandboxes, scenarios)], options.work_root)
    return replace(options, host=options.host.with_machines(machines))


class Studies:
    record = StudyDirectory

    def outline(self, job: StudyJob, options: Options) -> Outline:
        return job.kind.outline(job.wanted, job.request, _with_machines(job, options).host)

    def check(self, job: StudyJob, options: Options) -> None:
        self._checked(job, options)

    def measure(self, job: StudyJob, options: Options, emit: Emit) -> StudyDirectory:
        options = self._checked(job, options)
        scenarios = job.kind.scenarios(job.wanted, job.request, options.host)
        measured = measured_facts(scenarios, options.host.facts)
        facts = {key: value for key, value in measured.items() if key != "kernels"}
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
        self._go_on(job, record, self._checked(job, options), emit)

    def _checked(self, job: StudyJob, options: Options) -> Options:
        """The options with the facts of the study's other machines, once all is there that it needs."""
        here.check_folder(options.work_root)
        options = _with_machines(job, options)
        job.kind.check(job.wanted, job.request, options.host, options.work_root, allow_commands=options.allow_commands)
        return options

    def _go_on(self, job: StudyJob, record: StudyDirectory, options: Options, emit: Emit) -> None:
        with record.exclusive():
            emit(Started(record.path))
            job.kind.measure(job.wanted, record, options.host, options.work_root, emit)

    def findings(self, record: StudyDirectory) -> StudyReport:
        return study.report(record)

    def outcome(self, findings: StudyReport) -> Exit:
        return Exit.FAILED if findings.incomplete else Exit.HOLDS

    def files(self) -> Files[StudyReport]:
        from partywall.study.page import FILES

        return FILES
