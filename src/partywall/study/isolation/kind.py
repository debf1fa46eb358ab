"""Studies of isolation: each part is an ordinary scenario, measured and stored as by `partywall run`.

A study's directory contains a run directory for each part, so that every part can be shown, resumed and queried.
"""

from __future__ import annotations

import functools
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from partywall import processor, units
from partywall.agent.catalogue import shipped
from partywall.core import here
from partywall.core.capability import Outline
from partywall.core.design import shuffled
from partywall.core.document.formats import validated
from partywall.core.report import figures
from partywall.core.stats.estimate import Estimate
from partywall.errors import CapabilityError, Problem, TrialError, UsageError
from partywall.events import Block, Broken, Doing, Emit, Event, Left, Note
from partywall.host import Host
from partywall.host.settings import governor, held, idle
from partywall.run import stages
from partywall.run.check import loads
from partywall.run.document import factors
from partywall.run.document.scenario import Scenario
from partywall.run.plan import Topology
from partywall.run.plan import make as make_plan
from partywall.run.plan.files import check_files, with_files
from partywall.run.plan.pace import NULL
from partywall.run.plan.placement import topologies_elsewhere, topology_of
from partywall.run.plan.requirements import (
    commands,
    measured_facts,
    refuse_commands,
    sandboxes,
    victims_machines,
    workloads,
)
from partywall.run.plan.room import check_disk
from partywall.run.record import RunDirectory
from partywall.run.report.figures import scale_of
from partywall.run.report.rows import row_of
from partywall.run.values.finding import BASELINE, Cell
from partywall.run.values.plan import Plan, Trial
from partywall.sandbox.backends import BACKENDS
from partywall.sandbox.elsewhere import other_machines
from partywall.study import paper as model_paper
from partywall.study import papers
from partywall.study.document import BoardEntry, Section, StudyReport, StudyRequest
from partywall.study.isolation import around, elsewhere, resources, tables
from partywall.study.isolation.model import Form, Part, Study
from partywall.study.isolation.tables import BACKEND, PartRun
from partywall.study.kind import form_of, heading, machines_in_words, no_such_part, refuse_machines, requested
from partywall.study.paper import Beside, Measured, Paper, PaperTable
from partywall.study.record import StudyDirectory
from partywall.values import Level

RUNS = "runs"
OWN_BACKEND = "$backend"
GOVERNORS = {None: None, "on": "saving", "off": "performance"}
T = TypeVar("T")
ONLY, REQUESTED, NEEDS = "only", "requested", "needs"

HOW = (
    "Each part is a run of its own, in the folder runs. In a run, the victim works all the time; its neighbours and "
    "its "
    "limit are switched in blocks of short slots in random order and compared within the same block. What cannot be "
    "switched, such as the backend, is compared between alternating trials."
)


class Isolation:
    """Parts in random order. Open choices of a part are factors of its scenario."""

    key = "partywall_study"

    def read(self, content: bytes, file: str) -> Study:
        study = validated(Study, content, file)
        problems = [*_unknown(study), *_unsound(study)]
        if problems:
            raise UsageError(*(Problem(p.message, p.remedy, file, None, p.key) for p in problems))
        return study

    def scenarios(self, study: Study, request: StudyRequest, host: Host) -> tuple[Scenario, ...]:
        refuse_machines(study.name, request)
        return tuple(job.scenario for job in _on(study, request, host))

    def outline(self, study: Study, request: StudyRequest, host: Host) -> Outline:
        if request.rounds is not None:
            remedy = "leave it out; --long measures longer"
            raise UsageError(
                Problem(f"{study.name} is controlled by precision and time, not rounds", remedy, key="--rounds")
            )
        jobs, refused = _with_files(study, request, host), Refused.by(host)
        seconds = {job.name: _estimate_s(job, host) for job in jobs if not _why_not(job, refused)}
        backends = ", ".join(_backends(study, request))
        lines = [f"{units.counted(len(seconds), 'part')} in {backends}{_where(jobs)}"]
        lines += [f"{name}: {units.format_duration(round(s) * 10**9)}" for name, s in seconds.items()]
        lines += [f"{job.name}: left out: {why}" for job in jobs if (why := _why_not(job, refused))]
        lines += [command for job in jobs for command in around.listed(job.name, job.before, job.after)]
        lines += _offline(jobs, host)
        lines += machines_in_words(host.facts)
        return Outline(tuple(lines), sum(seconds.values()))

    def check(self, study: Study, request: StudyRequest, host: Host, work_root: Path, *, allow_commands: bool) -> None:
        jobs = _with_files(study, request, host)
        if not allow_commands:
            listing = [f"part {job.name}, {command}" for job in jobs for command in commands(job.scenario)]
            listing += [command for job in jobs for command in around.listed(job.name, job.before, job.after)]
            refuse_commands("study", listing)
        # All parts at once: an unsuitable part must not be found after hours of others.
        refused = Refused.by(host)
        going = [job for job in jobs if not _why_not(job, refused)]
        if not going:
            raise CapabilityError(*_by_cause(study.name, {job.name: _lack(job, refused) for job in jobs}))
        errors = {job.name: error for job in going if (error := _unplannable(job, request, host, work_root))}
        if errors:
            is_usage = any(isinstance(error, UsageError) for error in errors.values())
            raise (UsageError if is_usage else CapabilityError)(*_by_cause(study.name, errors))

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        request = directory.request
        jobs = shuffled(_with_files(study, request, host), request.seed)
        refused = Refused.by(host)
        going = [job for job in jobs if not _ended(directory, job) and not _why_not(job, refused)]
        if going:
            _check_files(study, directory, jobs)
        seconds = [_estimate_s(job, host) for job in going]
        for number, job in enumerate(going):
            emit(Doing(f"{job.name}: planning"))
            emit(Left(sum(seconds[number:])))
            # The command may also start what the part needs, so the part is planned after it.
            with around.held(job.name, job.before, job.after, emit):
                run = _run(directory, job, host, work_root)
                check_disk(run.plan, host, work_root)
                with governor.held(None if job.machines else GOVERNORS[job.energy_saving], host):
                    listener = _of_part(emit, job.name, sum(seconds[number + 1 :]))
                    left = stages.measure(run, listener, work_root, request.memory_wait_ns)
            if left:
                again = "the measurements are kept; fix the causes, then continue with --resume"
                raise TrialError(f"{job.name}: could not be removed or restored: {', '.join(left)}; {again}")

    def places(self, study: Study, request: StudyRequest, host: Host) -> Mapping[str, frozenset[model_paper.Place]]:
        topology = Topology(host.cpus, tuple((cpu,) for cpu in host.cpus))
        jobs = [(job, _plan_on(job, topology)) for job in _on(study, request, host)]
        listed = {
            paper_table: frozenset(
                at
                for rule in rules
                for job, plan in jobs
                if job.part == rule.part
                for at in tables.places(rule, job.values, plan.trials)
            )
            for paper_table, rules in study.exhibits.items()
        }
        return {**listed, study.overview: resources.places(study.resources)} if study.overview else listed

    def report(self, study: Study, directory: StudyDirectory) -> StudyReport:
        request = directory.request
        place = Place.measured(directory)
        runs = list(_measured(study, directory, place))
        if not any(run.findings.cells for run in runs):
            raise TrialError(f"{directory.path}: no part has enough blocks yet for an interval; continue with --resume")
        first = _backends(study, request)[0]
        facts = directory.about.get("host", {})
        # Earlier versions knew one setting.
        earlier = {"io_scheduler": facts.get("schedulers_refused", {})}
        refused = Refused(
            facts.get("governors_refused", {}),
            facts.get("settings_refused", earlier),
            facts.get("instructions_lacking", {}),
        )
        measured_on = _measured_on(runs, facts)
        notes = (
            *(
                f"Measured on {machine}. Its clock, idle CPUs and disks were left as they are"
                for machine in measured_on
            ),
            *_notes(study, request, place, runs, refused),
        )
        board = tuple(_board(study, runs))
        comparisons = tuple(_comparisons(study, runs, first))
        kept = resources.measured(study.resources, {beside.table.id: beside for beside in comparisons})
        return StudyReport(
            **heading(study, directory),
            comparisons=comparisons,
            notes=notes,
            facts=(
                *(("measured on", machine) for machine in measured_on),
                *_facts(study, request, runs, str(directory.about.get("partywall", ""))),
            ),
            how=HOW,
            rows=tuple(_row(run, cell) for run in runs for cell in run.findings.cells),
            incomplete=_incomplete(runs),
            sections=(
                *([resources.section(study.resources, kept)] if study.resources else []),
                _by_backend(runs),
            ),
            board=board,
            figures={"board": [_plain(entry) for entry in board]} if study.board else {},
        )


def overview(study: Study, points: Mapping[str, Sequence[Measured]]) -> Section | None:
    """The resources of a study with their expected and measured grades; None if it grades none, or none was measured.

    points: measured points by table or figure, such as those of a recorded result.
    """
    kept = points.get(study.overview, ()) if study.overview else ()
    return resources.section(study.resources, kept) if kept else None


# Parts as scenarios


@dataclass(frozen=True)
class Place:
    """Properties of the measured machine that parts depend on.

    polls: whether its idle CPUs can poll. without_smt: the CPUs that stay if SMT is switched off; empty if it cannot
    be.
    """

    cpus: tuple[int, ...]
    polls: bool
    without_smt: tuple[int, ...] = ()

    @classmethod
    def of(cls, host: Host) -> Place:
        refused = "off" in held.refused(host)["smt"]
        without_smt = () if refused else topology_of(host.facts).without_smt().cpus
        # A part has at least two sandboxes, on CPUs of their own.
        enough = len(without_smt) >= min(2, len(host.cpus))
        return cls(host.cpus, polls=not idle.why_not(host), without_smt=without_smt if enough else ())

    @classmethod
    def described(cls, facts: Mapping[str, Any]) -> Place:
        """A machine, from its facts alone. Reports do not depend on `polls`, and other machines never poll."""
        known = facts.get("cpus_allowed") or facts.get("cpu", {}).get("online")
        return cls(tuple(sorted(known or (0,))), polls=False)

    @classmethod
    def measured(cls, directory: StudyDirectory) -> Place:
        """The measured machine of a stored study."""
        return cls.described(directory.about.get("host", {}))

    def values(self, *, smt_off: bool) -> dict[str, Any]:
        """Values of `$all_cpus` and `$cpu_count`."""
        cpus = self.without_smt if smt_off else self.cpus
        return {"all_cpus": ",".join(map(str, cpus)), "cpu_count": len(cpus)}


@dataclass(frozen=True)
class Refused:
    """What a host cannot have, with reasons: governors by kind, levels of its settings by setting, instruction sets."""

    governors: Mapping[str, str]
    settings: Mapping[str, Mapping[str, str]]
    instructions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def by(cls, host: Host) -> Refused:
        return cls(governor.refused(host), held.refused(host), processor.lacking(host.root / "proc/cpuinfo"))


@dataclass(frozen=True)
class Job:
    """One run of a part. backend: of all its sandboxes, or empty if it is a factor."""

    name: str
    part: str
    values: Mapping[str, Any]
    backend: str
    reference: str | None
    energy_saving: str | None
    scenario: Scenario
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def machines(self) -> tuple[str, ...]:
        """The other machines with its victims."""
        return tuple(filter(None, victims_machines([self.scenario])))


def _on(study: Study, request: StudyRequest, host: Host) -> list[Job]:
    """The runs of the requested parts, on a host that has the facts of the study's other machines, or not yet."""
    jobs = list(_jobs(study, request, Place.of(host)))
    measured = measured_facts([job.scenario for job in jobs], host.facts)
    if "machines" not in host.facts or measured == host.facts:
        return jobs
    return list(_jobs(study, request, Place.described(measured)))


def _with_files(study: Study, request: StudyRequest, host: Host) -> list[Job]:
    """The runs with path, size and hash of each of the user's own files. UsageError with all that cannot be copied."""
    folder = Path(request.folder)
    return _each(study, _on(study, request, host), lambda job: replace(job, scenario=with_files(job.scenario, folder)))


def _each(study: Study, jobs: Sequence[Job], act: Callable[[Job], T]) -> list[T]:
    """The results of `act` for each run. UsageError with the problems of all runs."""
    results: list[T] = []
    errors: dict[str, UsageError] = {}
    for job in jobs:
        try:
            results.append(act(job))
        except UsageError as error:
            errors[job.name] = error
    if errors:
        raise UsageError(*_by_cause(study.name, errors))
    return results


def _backends(study: Study, request: StudyRequest) -> tuple[str, ...]:
    """The backends of the request, or else of the study's file. The first gets the paper's names."""
    return (elsewhere.BACKEND,) if request.on else request.backends or study.backends


def _where(jobs: Sequence[Job]) -> str:
    machines = dict.fromkeys(machine for job in jobs for machine in job.machines)
    return f" on {', '.join(machines)}" if machines else ""


def _jobs(study: Study, request: StudyRequest, place: Place) -> Iterator[Job]:
    """The runs of the requested parts. UsageError for unknown parts and invalid scenarios."""
    elsewhere.check_request(request)
    backends = _backends(study, request)
    if unknown := [name for name in backends if name not in BACKENDS]:
        raise UsageError(Problem(f"no backend {unknown[0]!r}", f"there are {', '.join(BACKENDS)}", key="--backend"))
    jobs: list[Job] = []
    errors: dict[str, UsageError] = {}
    for name, values, backend in _variants(study, request, backends):
        try:
            jobs.append(_job(study, request, place, name, values, backend))
        except UsageError as error:
            errors[_job_name(name, study.parts[name], values, backend)] = error
    if errors:
        raise UsageError(*(elsewhere.explained(problem, request) for problem in _by_cause(study.name, errors)))
    if not jobs:
        raise no_such_part(request, study.parts)
    yield from jobs


def _offline(jobs: Sequence[Job], host: Host) -> Iterator[str]:
    """A line about the CPUs that parts take offline, if any."""
    gone = sorted(topology_of(host.facts).without_smt().offline)
    names = [job.name for job in jobs if job.scenario.host.smt == "off"]
    if gone and names:
        offline = f"CPU {', '.join(map(str, gone))} {'is' if len(gone) == 1 else 'are'} offline"
        yield f"SMT is switched off while {units.counted(len(names), 'part')} measure: {offline}"


def _variants(
    study: Study, request: StudyRequest, backends: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(part, its values, backend) of the requested parts."""
    for name, part in study.parts.items():
        each_apart = backends if _is_apart(part) else ("",)
        for own, other, backend in itertools.product(part.each, part.across, each_apart):
            values = {key: value for key, value in {**own, **other}.items() if key != ONLY}
            called = (name, _job_name(name, part, values, ""), _job_name(name, part, values, backend))
            # A part that is named in full is measured in any form; a pattern selects among those of the form.
            in_form = all(_in_form(each.get(ONLY), request) for each in (own, other))
            if (in_form or not {*called[1:]}.isdisjoint(request.parts)) and requested(request, *called):
                yield name, values, backend


def _is_apart(part: Part) -> bool:
    """True if a part is a run of its own for each backend."""
    if OWN_BACKEND in json.dumps(part.scenario):
        return True
    return elsewhere.names_backend(part.scenario) and not elsewhere.names_all_backends(part.scenario)


def _in_form(only: str | None, request: StudyRequest) -> bool:
    """True if a member of `each` with this `only` belongs to the request, if its name does."""
    if only == REQUESTED:
        return bool(request.parts)
    return only in (None, request.length)


def _job_name(name: str, part: Part, values: Mapping[str, Any], backend: str) -> str:
    """A name from the first value of `each`, the second if needed to distinguish them, and the first of `across`."""
    first = [str(next(iter(choice.values()), "")) for choice in part.each]
    count = 1 if len(set(first)) == len(first) else 2
    keys = [*list(part.each[0])[:count], *list(part.across[0])[:1]]
    labels = [str(values[key]).replace(" ", "-") for key in keys if key in values]
    return "-".join([name, *labels, *([backend] if backend else [])])


def _job(study: Study, request: StudyRequest, place: Place, name: str, values: Mapping[str, Any], backend: str) -> Job:
    form, part, job_name = _form(study, request), study.parts[name], _job_name(name, study.parts[name], values, backend)
    own = elsewhere.names_backend(part.scenario)
    smt_off = part.smt == "off" and bool(place.without_smt) and not own and not request.on
    known = {**place.values(smt_off=smt_off), **form.values, "backend": backend}
    known |= {key: _filled(value, known) for key, value in values.items()}
    fills = backend if own and OWN_BACKEND not in json.dumps(part.scenario) else ""
    content = elsewhere.placed(_filled(part.scenario, known), request, fills)
    polls = place.polls and not elsewhere.names_backend(content)
    varied = dict(content.get("factors", {}))
    if not backend and not own:
        varied[BACKEND] = list(_backends(study, request))
    whole = {
        "partywall": 1,
        "name": f"{study.name}-{job_name}",
        "min_blocks": form.min_blocks,
        "precision": form.precision,
        "budget": f"{part.budget[request.length]}ns",
        **content,
        **({"idle": "poll"} if part.energy_saving == "off" and polls else {}),
        **({"host": {**content.get("host", {}), "smt": "off"}} if smt_off else {}),
        "factors": varied,
    }
    text = json.dumps(whole, indent=1)
    scenario = loads(text, f"{study.name}, part {job_name}")
    if problems := list(dict.fromkeys(_beyond_a_study(scenario))):
        raise UsageError(*problems)
    before, after = (tuple(map(str, _filled(argv, known))) for argv in (part.before, part.after))
    return Job(job_name, name, known, backend, part.reference, part.energy_saving, scenario, text, before, after)


def _beyond_a_study(scenario: Scenario) -> Iterator[Problem]:
    """Virtual users, whose plans and thresholds belong to other studies."""
    for _, _, applied in factors.trials(scenario):
        for key, workload in workloads(applied).items():
            if workload.load is not None:
                remedy = "measure them with 'partywall run', or with a study that begins with partywall_load_study"
                yield Problem("a study of isolation cannot have virtual users", remedy, key=f"{key}.load")


def _why_not(job: Job, refused: Refused) -> str:
    """Why a part cannot be measured on a host that can measure all others; empty if it can."""
    if job.machines and (what := _set_here(job)):
        return f"{what} can be set on this host alone, and not on {', '.join(job.machines)}"
    if job.energy_saving == "on" and "saving" in refused.governors:
        return refused.governors["saving"]
    if not job.machines and (why := refused.instructions.get(job.values.get(NEEDS, ""))):
        return why
    wanted = held.wanted(job.scenario.host).items()
    return next((why for name, level in wanted if (why := refused.settings.get(name, {}).get(level))), "")


def _lack(job: Job, refused: Refused) -> CapabilityError:
    """The reason as an error, for a study of which nothing else is left."""
    return CapabilityError(
        Problem(_why_not(job, refused), "request other parts with --only, or measure on another host")
    )


def _set_here(job: Job) -> str:
    """What a part needs that only the host of the controller can have set; empty if nothing."""
    if job.energy_saving == "on":
        return "the processor's clock"
    return next((held.SETTINGS[name].what for name in held.wanted(job.scenario.host)), "")


def _filled(value: Any, known: Mapping[str, Any]) -> Any:
    """A copy with `$name` replaced: by the value if it is the whole text, or else by the value as text."""
    if isinstance(value, dict):
        return {_filled(key, known): _filled(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(item, known) for item in value]
    if isinstance(value, str) and value.startswith("$") and value[1:] in known:
        return known[value[1:]]
    return tables.named(value, known) if isinstance(value, str) else value


def _form(study: Study, request: StudyRequest) -> Form:
    return form_of(study.name, study.forms, request)


def _unknown(study: Study) -> Iterator[Problem]:
    """References to tables, figures, parts and victims that do not exist."""
    paper = papers.load(study.paper)
    published = {paper_table.id for paper_table in paper.exhibits}
    for name, rules in study.exhibits.items():
        if name not in published:
            yield Problem(f"the paper has no {name!r}", f"there are {', '.join(published)}", key=f"exhibits.{name}")
        for number, rule in enumerate(rules):
            if rule.part not in study.parts:
                remedy = f"there are {', '.join(study.parts)}"
                yield Problem(f"there is no part {rule.part!r}", remedy, key=f"exhibits.{name}[{number}].part")
            if rule.value == "seconds" and rule.task is None:
                yield Problem("seconds needs the size of a task", "add task", key=f"exhibits.{name}[{number}].task")
    for number, board in enumerate(study.board):
        if board.part not in study.parts:
            yield Problem(
                f"there is no part {board.part!r}", f"there are {', '.join(study.parts)}", key=f"board[{number}].part"
            )


def _unsound(study: Study) -> Iterator[Problem]:
    for name, part in study.parts.items():
        for length in study.forms:
            if length not in part.budget:
                yield Problem(f"there is no budget for the {length} form", "add it", key=f"parts.{name}.budget")
        for axis in ("each", "across"):
            for number, member in enumerate(getattr(part, axis)):
                if (needs := member.get(NEEDS)) is not None and needs not in processor.EXTENSIONS:
                    remedy = f"give {' or '.join(processor.EXTENSIONS)}, or leave it out"
                    key = f"parts.{name}.{axis}[{number}].{NEEDS}"
                    yield Problem(f"there is no instruction set {needs!r}", remedy, key=key)


def _unplannable(job: Job, request: StudyRequest, host: Host, work_root: Path) -> UsageError | CapabilityError | None:
    """The problems of a part on a host."""
    try:
        stages.plan(job.scenario, host, work_root=work_root, memory_wait_ns=request.memory_wait_ns)
    except (UsageError, CapabilityError) as error:
        return error
    return None


def _by_cause(study: str, errors: Mapping[str, UsageError | CapabilityError]) -> Iterator[Problem]:
    """Each problem once, with all parts that it concerns."""
    parts: dict[Problem, list[str]] = {}
    for part, error in errors.items():
        for problem in error.problems:
            cause = Problem(problem.message, problem.remedy, key=problem.key)
            parts.setdefault(cause, []).append(part)
    for cause, names in parts.items():
        where = f"{study}, {'part' if len(names) == 1 else 'parts'} {', '.join(names)}"
        yield Problem(cause.message, cause.remedy, where, None, cause.key)


# Measuring


def _estimate_s(job: Job, host: Host) -> float:
    return _plan_on(job, topology_of(host.facts), topologies_elsewhere(host.facts)).estimate_ns / 1e9


def _plan_on(job: Job, topology: Topology, others: Mapping[str, Topology] = MappingProxyType({})) -> Plan:
    """A part's plan. others: topologies of other machines; those that are not known are taken to be like this host."""
    alike = {machine: topology for _, machine in other_machines(sandboxes(job.scenario))}
    return make_plan(job.scenario, topology, shipped(), elsewhere=alike | dict(others))


def _folder(directory: StudyDirectory, job: Job) -> Path:
    return directory.path / RUNS / job.name


def _ended(directory: StudyDirectory, job: Job) -> bool:
    return RunDirectory(_folder(directory, job)).ended if (_folder(directory, job) / "plan.json").is_file() else False


def _check_files(study: Study, directory: StudyDirectory, jobs: Sequence[Job]) -> None:
    """UsageError if a file of the user's has changed since a part was planned: parts would measure different things."""
    planned = [job for job in jobs if (_folder(directory, job) / "plan.json").is_file()]
    _each(study, planned, lambda job: check_files(RunDirectory.open(_folder(directory, job)).plan.scenario))


def _run(directory: StudyDirectory, job: Job, host: Host, work_root: Path) -> RunDirectory:
    """A part's run: a new one, or the existing one."""
    folder = _folder(directory, job)
    if (folder / "plan.json").is_file():
        return RunDirectory.open(folder)
    # Without a plan, nothing has been measured yet.
    shutil.rmtree(folder, ignore_errors=True)
    request = directory.request
    plan = stages.plan(job.scenario, host, request.seed, work_root, request.memory_wait_ns)
    return RunDirectory.create(folder, job.text, plan, host.facts)


def _of_part(emit: Emit, name: str, rest_s: float) -> Emit:
    """A listener for a run that is a part of a study. rest_s: the time of the following parts."""

    def tell(event: Event) -> None:
        match event:
            case Doing(text):
                emit(Doing(f"{name}: {text}"))
            case Note(text) | Broken(text):
                emit(replace(event, text=f"{name}: {text}"))
            case Left(seconds):
                emit(Left(seconds + rest_s))
            case Block(trial):
                emit(replace(event, trial=f"{name}: {trial}"))

    return tell


# Results


def _measured(study: Study, directory: StudyDirectory, place: Place) -> Iterator[PartRun]:
    """Every part that has been started, in the study's order."""
    for job in _jobs(study, directory.request, place):
        if (_folder(directory, job) / "events.jsonl").is_file():
            evidence, findings = stages.analyse(RunDirectory.open(_folder(directory, job)))
            name = job.name.removesuffix(f"-{job.backend}")
            yield PartRun(name, job.part, job.values, job.reference, evidence, findings)


def _comparisons(study: Study, runs: Sequence[PartRun], first: str) -> Iterator[Beside]:
    paper = papers.load(study.paper)
    made = {paper_table.id: _beside(study, paper, paper_table, runs, first) for paper_table in paper.exhibits}
    if study.overview in made:
        graded = tuple(resources.measured(study.resources, made))
        made[study.overview] = made[study.overview].model_copy(update={"measured": graded})
    yield from made.values()


def _beside(study: Study, paper: Paper, paper_table: PaperTable, runs: Sequence[PartRun], first: str) -> Beside:
    rules = study.exhibits.get(paper_table.id, ())
    points = [point for rule in rules for point in tables.points(rule, runs, first, _shown)]
    why = {point.place: text for point in points if (text := tables.reason(point))}
    return Beside(
        paper=paper,
        table=paper_table,
        measured=tuple(point.measured for point in points),
        differs=study.differs,
        paired=tuple(tables.paired(paper_table, points)),
        why=why,
    )


def _shown(trial: Trial, rate: Estimate) -> tuple[Estimate, int]:
    scale = scale_of(trial.victim, _kernels())
    return scale.show_estimate(rate), -1 if scale.inverse else 1


@functools.cache
def _kernels() -> Mapping[str, Mapping[str, Any]]:
    # Read once, because each figure of a page needs it.
    catalogue = shipped()
    return {name: info.model_dump() for name in catalogue.names() if (info := catalogue.kernel(name))}


def _measured_on(runs: Sequence[PartRun], facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The other machines on which victims ran, in words. facts: those of the measured machine or machines."""
    machines = dict.fromkeys(trial.victim.sandbox.machine for run in runs for trial in run.evidence.plan.trials)
    known = {machine: facts.get("machines", {}).get(machine, facts) for machine in machines if machine}
    return tuple(f"{machine}: {here.in_words(of)}" for machine, of in known.items())


def _notes(
    study: Study, request: StudyRequest, place: Place, runs: Sequence[PartRun], refused: Refused
) -> tuple[str, ...]:
    """refused: what the measured host cannot have."""
    backends = _backends(study, request)
    notes = []
    if len(backends) > 1:
        notes.append(f"Verdicts compare the paper with {backends[0]}; other backends are shown by name.")
    if emulated := sorted(_emulated(runs)):
        notes.append(
            f"Emulated, and marked E: {', '.join(emulated)}. Their absolute figures reflect the emulator. Marked (E): "
            "beside an emulated neighbour, so that the load comes from the emulator."
        )
    jobs = list(_jobs(study, request, place))
    begun = {(run.part, run.values.get("backend")) for run in runs}
    missed = [job for job in jobs if (job.part, job.backend) not in begun]
    notes += [f"{job.name} was not measured: {why}" for job in missed if (why := _why_not(job, refused))]
    notes += _smt_notes(study, runs, refused)
    spent = [run for run in runs if study.parts[run.part].energy_saving == "off"]
    if spent and (why := refused.governors.get("performance", "")):
        notes.append(f"The processor's clock could not be kept at full speed, and was left unchanged: {why}")
    if asleep := [run.name for run in spent if run.evidence.plan.scenario.idle != "poll"]:
        notes.append(f"Idle CPUs slept and may have woken up slower, because they could not poll: {', '.join(asleep)}")
    clocked = {rule.part for rules in study.exhibits.values() for rule in rules if rule.value == "clock"}
    if silent := [run.name for run in runs if run.part in clocked and not run.has_clock]:
        notes.append(f"The clock is unavailable, because this host's monitors give none: {', '.join(silent)}")
    notes += [_scaling_text(*each) for each in tables.scaling(list(tables.entries(study.board, runs)))]
    left = _incomplete(runs)
    if left:
        notes.append(f"Some parts were not measured: {'; '.join(left[:3])}{'; …' if len(left) > 3 else ''}")
    return tuple(notes)


def _smt_notes(study: Study, runs: Sequence[PartRun], refused: Refused) -> Iterator[str]:
    """What became of SMT in the parts that are to be measured without it, on a host that had it."""
    here = [run for run in runs if not any(trial.victim.sandbox.machine for trial in run.evidence.plan.trials)]
    parts = [run for run in here if study.parts[run.part].smt == "off" and run.evidence.host.get("cpu", {}).get("smt")]
    off = [run for run in parts if run.evidence.plan.scenario.host.smt == "off"]
    if off:
        yield f"SMT was switched off during {_all_of(off, parts)}, so each CPU was a core."
    if len(off) < len(parts):
        why = refused.settings.get("smt", {}).get("off") or "fewer than two CPUs would have stayed, or it was not tried"
        left_on = [run for run in parts if run not in off]
        yield f"SMT was on during {_all_of(left_on, parts)}, so CPUs shared cores: {why}"


def _all_of(some: Sequence[PartRun], every: Sequence[PartRun]) -> str:
    return "all parts" if len(some) == len(every) else ", ".join(run.name for run in some)


def _emulated(runs: Sequence[PartRun]) -> set[str]:
    """The backends with emulated sandboxes, as victims or as neighbours."""
    everyone = [(run.evidence.agent_facts.get(trial.id), trial) for run in runs for trial in run.evidence.plan.trials]
    own = {trial.victim.sandbox.backend for agent_facts, trial in everyone if agent_facts and agent_facts.emulation()}
    return own | {
        trial.aggressors[name].sandbox.backend
        for agent_facts, trial in everyone
        if agent_facts
        for name in agent_facts.emulated
        if name in trial.aggressors
    }


SCALES = 0.75
"""Share of the ideal speed-up on all CPUs. Below it, the CPUs share a resource."""


def _scaling_text(benchmark: str, ratio: Estimate, cpus: int) -> str:
    times = figures.ratio(ratio)
    text = f"On {cpus} CPUs, the bare host reaches {times} times the {benchmark} rate of one CPU"
    if ratio.high >= SCALES * cpus:
        return text
    return (
        f"{text}: the CPUs share cores, or other hosts use them too. A share of their time is therefore not the same "
        "share of "
        "their work, and on all CPUs the remaining share may be larger than set"
    )


def _incomplete(runs: Sequence[PartRun]) -> tuple[str, ...]:
    return tuple(f"{run.name}: {text}" for run in runs for text in run.findings.incomplete)


def _facts(study: Study, request: StudyRequest, runs: Sequence[PartRun], version: str) -> tuple[tuple[str, str], ...]:
    form = _form(study, request)
    cells = [cell for run in runs for cell in run.findings.cells]
    blocks = [cell.isolation.n for cell in cells] or [0]
    return (
        ("parts", f"{len(runs)}, with {len(cells)} cells"),
        ("blocks a cell", f"{min(blocks)} to {max(blocks)}"),
        ("requested precision", f"± {figures.bare_percent(form.precision, 2)}"),
        *((name, str(value)) for name, value in form.values.items()),
        ("seed", str(request.seed)),
        ("Partywall", version),
    )


def _row(run: PartRun, cell: Cell) -> dict[str, Any]:
    trial = next(trial for trial in run.evidence.plan.trials if trial.id == cell.trial)
    treatment = next(treatment for treatment in trial.treatments if treatment.id == cell.treatment)
    emulated = {"emulated": run.emulated(trial, treatment) or ""}
    return {"part": run.part, "backend": run.backend_of(trial), **row_of(cell, run.findings), **emulated}


def _board(study: Study, runs: Sequence[PartRun]) -> Iterator[BoardEntry]:
    for entry in tables.entries(study.board, runs):
        absolute = figures.rate(entry.absolute, scale_of(entry.trial.victim, _kernels()))
        yield BoardEntry(entry.places, absolute, entry.relative, entry.q, entry.emulated)


def _plain(entry: BoardEntry) -> dict[str, Any]:
    shares = {"relative": entry.relative, "q": entry.q}
    shares_json = {name: None if share is None else share.model_dump() for name, share in shares.items()}
    return {**entry.places, "absolute": entry.absolute, **shares_json, "emulated": entry.emulated}


# Backends in one table

Texts = dict[tuple[str, ...], dict[str, str]]
"""By (part, victim, neighbour), then by backend."""


def _by_backend(runs: Sequence[PartRun]) -> Section:
    filled: Texts = {}
    for run in runs:
        for trial in run.evidence.plan.trials:
            _fill(filled, run, trial)
    backends = list(dict.fromkeys(name for texts in filled.values() for name in texts))
    return Section(
        id="backends",
        title="Every cell, by backend",
        lead="Without a neighbour: the victim's rate, and its share of a bare process's if measured in the same run. "
        "Beside a neighbour: the isolation factor, 1 is unharmed. Under a limit: its share of the rate without. "
        + figures.EMULATED,
        columns=("part", "victim", "beside", *backends),
        rows=tuple((*key, *(texts.get(name, "not measured") for name in backends)) for key, texts in filled.items()),
        short=len(backends) > 1,
    )


def _fill(texts: Texts, run: PartRun, trial: Trial) -> None:
    backend = run.backend_of(trial)
    levels = [_level_text(path, level) for path, level in trial.levels.items() if path != BACKEND]
    victim = " ".join([trial.victim_name, *levels])
    cells = run.cells(trial)
    for treatment in trial.treatments:
        if treatment.id == BASELINE:
            beside, text = "nobody", _alone(run, trial)
        elif treatment.id in cells:
            cell = cells[treatment.id]
            beside, text = _beside_whom(cell), figures.ratio(cell.isolation)
        else:
            continue
        text += figures.mark(run.emulated(trial, treatment))
        # If the bare host was measured in the run of each backend, the first result is shown.
        texts.setdefault((run.name, victim, beside), {}).setdefault(backend, text)


def _level_text(path: str, level: Level) -> str:
    """'aggressor cpu_limit=cpu_reservation=0.25'."""
    keys = path.rpartition(".")[2].strip("{}").replace(",", "=")
    return f"{path.partition('.')[0]} {keys}={level}"


def _beside_whom(cell: Cell) -> str:
    return "a neighbour that loads nothing" if cell.treatment == NULL else cell.label


def _alone(run: PartRun, trial: Trial) -> str:
    own, bare = run.baseline(trial), run.bare(trial)
    if own is None:
        return "not measured"
    text = figures.rate(own, scale_of(trial.victim, _kernels()))
    if bare is None or run.backend_of(trial) == "process":
        return text
    return f"{text}, {figures.percent(tables.over(own, bare))} of a bare process"
