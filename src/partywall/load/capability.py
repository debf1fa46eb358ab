"""Loads: a service under load by virtual users."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from partywall import units
from partywall.agent.memory_check import Checks
from partywall.core import here
from partywall.core.capability import EXITS, NeverContinued, Options, Outline
from partywall.core.control import Control
from partywall.core.record import begun, stamped
from partywall.errors import Exit, RefusalError, UsageError
from partywall.events import Counters, Emit, Left, Note, Second, Started
from partywall.load import check as plans
from partywall.load.compiling import inlined
from partywall.load.document import Generator
from partywall.load.findings import load_run
from partywall.load.measure import GENERATOR, PreparedLoad, Setup, memory_here
from partywall.load.memory import USERS
from partywall.load.record import LoadDirectory, Readings
from partywall.load.values import LoadRun

if TYPE_CHECKING:
    from partywall.core.report.files import Files


@dataclass(frozen=True)
class LoadJob:
    """A load to be carried out. title: its name for people; plan: the plan that its program came from, if any.

    setup: where the generators run. Its name is that of the job.
    """

    title: str
    program: Mapping[str, Any]
    plan: plans.Loaded | None = None
    setup: Setup | None = None

    @property
    def name(self) -> str:
        return "load" if self.plan is None else f"load-{self.plan.plan.name}"

    @property
    def threads(self) -> int:
        return (self.plan.plan.threads if self.plan else None) or 1

    @property
    def generators(self) -> Mapping[str, Generator]:
        """The machines that its plan names."""
        return self.plan.plan.generators if self.plan else {}


class Loads(NeverContinued):
    record = LoadDirectory
    why_not = "a pause would change what its service is measured at"
    adjusts = "level"

    def outline(self, job: LoadJob, options: Options) -> Outline:
        del options
        model, pacing = next(iter(job.program["pacing"].items()))
        return Outline((f"{job.title}: {model} model",), sum(stage["for_ns"] for stage in pacing["stages"]) / 1e9)

    def check(self, job: LoadJob, options: Options) -> None:
        del job
        here.check_folder(options.work_root)

    def measure(self, job: LoadJob, options: Options, emit: Emit) -> LoadDirectory:
        name = stamped(job.name)
        cpus = tuple(options.host.facts["cpus_allowed"])
        setup = replace(job.setup or Setup(name, cpus, job.threads), name=name, work_root=options.work_root)
        if job.generators:
            setup = replace(setup, generators=job.generators)
        if setup.generators:
            job = replace(job, program=inlined(job.program))
        checked: list[dict[str, Any]] = []
        checks = Checks(emit, options.memory_wait_ns, checked.append)
        if needed := memory_here(job.program, setup):
            here.check_free_memory(needed, USERS, checks)
        with _prepared(job, setup, checks) as prepared:
            about = _about(job, setup, prepared) | {"memory_checked": checked, "boot": options.host.boot}
            record = LoadDirectory.create(options.folder(name), about)
            with record.exclusive():
                emit(Started(record.path, prepared.started))
                _follow(prepared, record, emit)
        return record

    def findings(self, record: LoadDirectory) -> LoadRun:
        return load_run(record)

    def outcome(self, findings: LoadRun) -> Exit:
        return Exit.FAILED if findings.failure else EXITS[findings.outcome]

    def files(self) -> Files[LoadRun]:
        from partywall.core.report import rendered
        from partywall.load.report import report

        return rendered.files("load", "seconds", report, {})


def _prepared(job: LoadJob, setup: Setup, checks: Checks) -> PreparedLoad:
    with located_in_plan(job.plan):
        return PreparedLoad(job.program, setup, checks)


@contextlib.contextmanager
def located_in_plan(plan: plans.Loaded | None) -> Iterator[None]:
    """Reports the agent's complaints about a program by the lines of the plan that it came from."""
    try:
        yield
    except UsageError as error:
        # A mistake in an option has no line in the plan.
        if plan is None or any(problem.key.startswith("--") for problem in error.problems):
            raise
        raise UsageError(*(plans.locate(plan, str(problem)) for problem in error.problems)) from None


def _about(job: LoadJob, setup: Setup, prepared: PreparedLoad) -> dict[str, Any]:
    plan = job.plan.plan if job.plan else None
    return {
        **begun(),
        "title": job.title,
        "plan": plan.model_dump(mode="json", by_alias=True, exclude_defaults=True) if plan else None,
        "program": job.program,
        "started": prepared.started,
        "cpus": setup.cpus,
        "generator": _generator_text(setup, prepared.emulated),
        "generators": [
            {
                "name": name,
                "place": there.place,
                "clock_error_ns": prepared.clock_errors_ns[name],
                "emulated": name in prepared.emulated,
            }
            for name, there in setup.generators.items()
        ],
        "threads": setup.threads,
        "seed": setup.seed,
    }


def _generator_text(setup: Setup, emulated: Collection[str]) -> str:
    if setup.generators:
        places = ", ".join(
            (name if name == there.place else f"{name} on {there.place}") + (" (emulated)" if name in emulated else "")
            for name, there in setup.generators.items()
        )
        return f"{places}; {units.counted(setup.threads, 'thread')} each"
    guest = f"a guest of QEMU{', emulated,' if setup.accel == 'tcg' else ''}"
    where = {"process": "a process", "container": "a container", "qemu": guest}[setup.backend]
    count = f"{setup.sandboxes} of them sharing the users, each " if setup.sandboxes > 1 else ""
    limit = f", at most {setup.cpu_limit:.3g} of their time" if setup.cpu_limit else ""
    cpus = ", ".join(map(str, setup.cpus))
    return f"{where}, {count}{units.counted(setup.threads, 'thread')} on CPU {cpus}{limit}"


def _adjust(prepared: PreparedLoad, record: LoadDirectory, emit: Emit, request: Mapping[str, Any]) -> None:
    """Carries out a request to change the level. Says in the record and to all listeners what became of it."""
    level = request.get("level")
    if not isinstance(level, int | float):
        emit(Note("a request to this load has no level; give a number of users", is_warning=True))
        return
    of = "users" if "closed" in record.about()["program"]["pacing"] else "arrivals a second"
    try:
        prepared.set_level(level)
    except RefusalError as error:
        emit(Note(f"{level:,.10g} {of} are not possible: {error.why}", is_warning=True))
        return
    spent_s = prepared.stages_ns / 1e9 - prepared.left_s
    said = f"the load was changed to {level:,.10g} {of} after {spent_s:.0f} s; it keeps them until its end"
    record.add_note(said)
    emit(Note(said))


def _tell_counters(prepared: PreparedLoad, emit: Emit) -> None:
    """Reports what the monitors read in the last second."""
    for host, monitor in prepared.monitors.items():
        latest = next(reversed(monitor.readings), 0)
        if latest - 1 in monitor.readings:
            columns = tuple((info["subject"] or "", info["name"]) for info in monitor.counters)
            before, after = monitor.readings[latest - 1], monitor.readings[latest]
            emit(Counters(columns, before, after, 1.0, "" if host == GENERATOR else host))


def _store_counters(prepared: PreparedLoad, record: LoadDirectory) -> None:
    for host, monitor in prepared.monitors.items():
        record.add_readings(Readings(host, monitor.counters, monitor.take()))


def _follow(prepared: PreparedLoad, record: LoadDirectory, emit: Emit) -> None:
    """Stores and reports every second as it comes, also those before an interruption."""
    begun = False
    control = Control(record.path)
    try:
        for second in prepared.run():
            if prepared.begin_ns is not None and not begun:
                record.begin(prepared.begin_ns)
                begun = True
            if second is not None:
                health = prepared.judge(second)
                record.append(second, health)
                emit(Second(second, health))
                _tell_counters(prepared, emit)
                _store_counters(prepared, record)
                for request in control.take():
                    _adjust(prepared, record, emit, request)
            emit(Left(prepared.left_s))
    finally:
        _store_counters(prepared, record)
        record.finish(prepared.started["labels"], prepared.begin_ns)
