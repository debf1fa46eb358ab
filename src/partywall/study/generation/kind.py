"""Studies of load generation: the same users from a process and from sandboxes (`partywall.study.generation.cells`)."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from partywall import units
from partywall.agent.memory_check import Checks
from partywall.core import here
from partywall.core.capability import Outline
from partywall.core.report import figures
from partywall.core.stats.estimate import Estimate
from partywall.errors import CapabilityError, Problem, TrialError, UsageError
from partywall.events import Doing, Emit, Left
from partywall.host import Host
from partywall.host.label import Label
from partywall.load import overhead, tomcat
from partywall.load.second import SECOND_NS
from partywall.run.document.scenario import Scenario
from partywall.run.plan.checks import check_host
from partywall.sandbox import qemu, reaper, slow_disk, ssh
from partywall.sandbox.lab import GUEST_BYTES
from partywall.sandbox.slow_disk import SlowDisk
from partywall.study.document import Machines, Section, StudyReport, StudyRequest
from partywall.study.generation import cells
from partywall.study.generation import machines as elsewhere
from partywall.study.generation.model import COUNTERS, METRICS, OWN, SERVICE, Cell, Form, Observed, SetupItem, Study
from partywall.study.kind import form_of, heading, machines_in_words, memory_checks, refuse_on, refuse_parts
from partywall.study.paper import Place
from partywall.study.record import StudyDirectory

BACKENDS = ("container", "process", "qemu")
ONE_HOST = (
    "service and generator share one host and its loopback; the paper has a machine for each",
    "the host's side is the emulator outside the virtual CPUs, and softirq of generator and service; the paper's is "
    "Dom-0",
    "CPUs kept for the host are those that the sandbox may not use; the service runs on all CPUs",
)
ELSEWHERE = (
    "the sandboxes are machines named by the user, of any kind; the paper's are guests of Xen on one machine",
    "CPU times and disks are those that the generators' machines see; the hosts of sandboxes are not read",
)
DIFFERS = {
    "container": "the sandbox is a container on the host's network, not a Xen guest, so no hypervisor is between "
    "it and disk or network, and disk queues and write times are of the host's disks; the paper read a guest's own",
    "process": "the sandbox is a process like the physical generator, not a Xen guest: the result shows how well "
    "the study repeats itself",
    "qemu": "the sandbox is a guest of QEMU, whose packets pass QEMU's own network stack, not a Xen guest",
}
SANDBOXES = {"container": "containers", "process": "processes", "qemu": "guests of QEMU"}
UNKNOWN = "unknown"
SERVICE_UNREAD = "Tomcat 10 of the distribution, its version was not read"
EMULATED = "a generator's processor is emulated: its overhead says nothing about virtual machines on real processors"
TRANSLATED = "the translator's CPU time counts as the guests', not as the host's side"
DISK = (
    "the generators' disk is a loop device of {}, without a journal and slow enough to be the bottleneck; the paper's "
    "disk is not described"
)
PAPER_COMPRESSES, PAPER_HOLDS = 5_000_000, 7_200 * SECOND_NS
SERVICE_BYTES = 512 << 20
"""Memory that is checked before the first cell: for Tomcat and its users."""
SERVICE_WHAT = "the service and its users"
DOUBTFUL = 0.1
"""Share of doubtful seconds above which the report adds a note."""


HOW = (
    "In each round, every cell was measured once, in a new random order. Each user logs in once, and then does one "
    "iteration after another: it connects, thinks, selects an item, thinks, pays, and compresses a file where the cell "
    "has that. An iteration is timed from its intended start, without the pauses."
)


class Generation:
    """Each cell is measured once in each round, against Debian's Tomcat in its own folder.

    The generators and Tomcat are on this host, or on other machines.
    """

    key = "partywall_load_study"

    def read(self, content: bytes, file: str) -> Study:
        return cells.load(content, file)

    def scenarios(self, study: Study, request: StudyRequest, host: Host) -> tuple[Scenario, ...]:
        del host
        refuse_on(study.name, request)
        if request.machines is not None:
            elsewhere.check(request.machines)
        machines = elsewhere.of(study, request)
        return () if machines is None else (elsewhere.scenario(machines),)

    def outline(self, study: Study, request: StudyRequest, host: Host) -> Outline:
        if len(request.backends) > 1:
            raise UsageError(Problem("its sandboxes have one backend", "give one", key="--backend"))
        refuse_parts(study.name, request)
        machines = elsewhere.of(study, request)
        if machines is not None and request.backends:
            what = "its sandboxes are on the machines that were named for them"
            raise UsageError(Problem(what, "leave it out", key="--backend"))
        if (backend := _backend(request)) not in BACKENDS:
            what = f"its generators need a service on the host's own network, which a {backend} sandbox cannot reach"
            raise UsageError(Problem(what, f"give {' or '.join(BACKENDS)}", key="--backend"))
        form = _form(study, request)
        wanted = cells.possible(study, _cpus(host), machines)
        reasons = {cell.id: cells.why_not(cell, _cpus(host), machines) for cell in study.cells}
        left_out = [f"left out: {cell}: {why}" for cell, why in reasons.items() if why]
        places = elsewhere.in_words(machines).items() if machines else ()
        lines = (
            f"{len(wanted)} cells in {form.rounds} rounds",
            *(f"{part}: {place}" for part, place in places),
            *machines_in_words(host.facts),
            *(cell.id for cell in wanted),
            *left_out,
        )
        return Outline(lines, cells.estimate_s(form, wanted, backend, machines))

    def check(self, study: Study, request: StudyRequest, host: Host, work_root: Path, *, allow_commands: bool) -> None:
        del work_root, allow_commands
        machines = elsewhere.of(study, request)
        if machines is not None:
            check_host(elsewhere.scenario(machines), host)
            return
        if _form(study, request).disk is not None and (said := slow_disk.missing(host)):
            raise CapabilityError(said)
        victim = {"probe": "integer", "sandbox": {"backend": _backend(request)}}
        needs = {"partywall": 1, "name": "study", "victims": {"generator": victim}}
        check_host(Scenario.model_validate(needs), host)

    def measure(self, study: Study, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        request = directory.request
        form = _form(study, request)
        machines = elsewhere.of(study, request)
        done = {(observed.round, observed.cell.id) for observed in _observations(directory)}
        wanted = cells.possible(study, _cpus(host), machines)
        jobs = [job for job in cells.order(wanted, form, request.seed) if (job[0], job[1].id) not in done]
        backend = _backend(request)
        each_s = cells.estimate_s(form, wanted, backend, machines) / (form.rounds * len(wanted))
        accel = qemu.choose("auto", host).name if backend == "qemu" else "tcg"
        checks = memory_checks(directory, emit)
        tests = max((cell.tests for _, cell in jobs), default=1)
        if jobs:
            guests = max(cell.boxes for cell in wanted) if backend == "qemu" and machines is None else 0
            needed = tests * SERVICE_BYTES + guests * GUEST_BYTES
            _check_service_memory(machines, needed, checks, work_root, directory.name)
        label = Label.create(f"tomcat-{secrets.token_hex(4)}", work_root)
        try:
            with _services(machines, label, tests) as services, _disk(form, machines, label) as disk:
                if machines is not None and jobs:
                    emit(Doing("each machine requests all pages once"))
                    cells.warm_up(study, form, services[0], machines, work_root)
                for number, (round_, cell) in enumerate(jobs):
                    emit(Doing(f"round {round_ + 1}: {cell.id}"))
                    emit(Left((len(jobs) - number) * each_s))
                    with _as_failure():
                        observed = cells.observe(
                            study, form, services, cell, round_, work_root, backend, accel, machines, checks, disk
                        )
                    directory.append(observed.model_dump_json())
        finally:
            reaper.clean(label)

    def places(self, study: Study, request: StudyRequest, host: Host) -> Mapping[str, frozenset[Place]]:
        del request, host
        return {paper_table: cells.places(study, paper_table) for paper_table in cells.TABLES}

    def report(self, study: Study, directory: StudyDirectory) -> StudyReport:
        request, observations = directory.request, _observations(directory)
        form, machines = _form(study, request), elsewhere.of(study, request)
        if not any(observed.round for observed in observations):
            raise TrialError(f"{directory.path}: no cell was measured twice, so there is no interval; measure again")
        estimates = {metric: {c.id: e for c, e in cells.estimates(observations, metric)} for metric in METRICS}
        return StudyReport(
            **heading(study, directory),
            comparisons=tuple(cells.comparisons(study, observations, _differs(form, request, observations, machines))),
            notes=(*_left_out(study, observations, machines), *_notes(observations)),
            facts=(
                *_places(machines, observations),
                *_facts(form, request, observations, str(directory.about.get("partywall", ""))),
            ),
            how=HOW,
            rows=tuple({"round": o.round, **o.cell.model_dump(), **o.values} for o in observations),
            sections=(
                *_model_section(cells.pairs(study, observations)),
                *_setup_section(study, form, request, observations, directory.about, machines),
                _service_section(observations, estimates),
                _cells_section(observations, estimates),
                _counters_section(observations, estimates, machines),
            ),
            figures={
                "cells": {
                    metric: {cell: estimate.model_dump() for cell, estimate in by_cell.items()}
                    for metric, by_cell in estimates.items()
                }
            },
        )


def pairs(study: Study, directory: StudyDirectory) -> list[overhead.Pair]:
    """Rounds of a stored study in which the same users were measured both ways."""
    return cells.pairs(study, _observations(directory))


def _form(study: Study, request: StudyRequest) -> Form:
    form = form_of(study.name, study.forms, request)
    return form if request.rounds is None else form.model_copy(update={"rounds": request.rounds})


def _backend(request: StudyRequest) -> str:
    return request.backends[0] if request.backends else "container"


def _observations(directory: StudyDirectory) -> list[Observed]:
    return [Observed.model_validate(line) for line in directory.observations()]


def _cpus(host: Host) -> int:
    return len(host.facts["cpus_allowed"])


def _check_service_memory(machines: Machines | None, needed: int, checks: Checks, work_root: Path, run: str) -> None:
    """The memory check of the application's machine, before the first cell. Generators elsewhere check before each."""
    if machines is None or machines.application is None:
        here.check_free_memory(needed, SERVICE_WHAT, checks)
        return
    with ssh.machine_agent(machines.application, str(work_root), run) as agent:
        checks.require(agent, needed, SERVICE_WHAT, machines.application)


@contextlib.contextmanager
def _as_failure() -> Iterator[None]:
    """TrialError for what a load refuses as usage: all was checked before, and a machine was lost since then."""
    try:
        yield
    except UsageError as error:
        raise TrialError("\n".join(str(replace(problem, key="")) for problem in error.problems)) from error


@contextlib.contextmanager
def _services(machines: Machines | None, label: Label, tests: int) -> Iterator[list[tomcat.Service]]:
    """The application, on its machine, once for each of the tests that run at once."""
    with contextlib.ExitStack() as running:
        if machines is not None and machines.application is not None:
            yield [running.enter_context(tomcat.running_on(machines.application, label, machines.address))]
        else:
            address = tomcat.HERE if machines is None else machines.address
            yield [running.enter_context(tomcat.running(label, address)) for _ in range(tests)]


def _disk(form: Form, machines: Machines | None, label: Label) -> contextlib.AbstractContextManager[SlowDisk | None]:
    """The generators' disk on this host; None if they use the host's, or are on other machines."""
    if form.disk is None or machines is not None:
        return contextlib.nullcontext()
    return slow_disk.slow_disk(label, form.disk)


def _left_out(study: Study, observations: Sequence[Observed], machines: Machines | None) -> tuple[str, ...]:
    measured = {observed.cell.id for observed in observations}
    by_reason: dict[str, list[str]] = {}
    for cell in study.cells:
        # A study is reported on any host, so one that was measured is not judged by this host's CPUs.
        why = cells.why_not(cell, 1, machines)
        if why and cell.id not in measured:
            by_reason.setdefault(why, []).append(cell.id)
    return tuple(f"not measured: {'; '.join(missing)}: {why}" for why, missing in by_reason.items())


def _notes(observations: Sequence[Observed]) -> tuple[str, ...]:
    share = sum(observed.values["doubtful"] or 0.0 for observed in observations) / len(observations)
    if share <= DOUBTFUL:
        return ()
    return (
        f"{share:.0%} of the seconds were doubtful: the measurement includes the generator's own work, "
        "which is the subject of this study",
    )


def _differs(
    form: Form, request: StudyRequest, observations: Sequence[Observed], machines: Machines | None
) -> tuple[str, ...]:
    sandbox: tuple[str, ...] = ELSEWHERE if machines else (*ONE_HOST, DIFFERS[_backend(request)])
    if any(observed.emulated for observed in observations):
        sandbox += (EMULATED, TRANSLATED) if not machines and _backend(request) == "qemu" else (EMULATED,)
    size, hold = units.format_bytes(form.compress), units.format_duration(form.hold)
    said = [f"compresses {size}, not 5 MB"] if form.compress != PAPER_COMPRESSES else []
    said += [f"holds each cell for {hold}, not two hours"] if form.hold != PAPER_HOLDS else []
    if form.disk is not None and machines is None:
        sandbox += (DISK.format(f"{units.format_bytes(form.disk)}/s"),)
    return (*sandbox, f"the {request.length} form {', and '.join(said)}") if said else sandbox


def _places(machines: Machines | None, observations: Sequence[Observed]) -> tuple[tuple[str, str], ...]:
    """Where the parts of the study ran, and what the generators there did."""
    if machines is None:
        return ()
    sent: Counter[str] = Counter()
    for observed in observations:
        sent.update(observed.sent)
    errors = [observed.clock_error_ns for observed in observations if observed.clock_error_ns is not None]
    return (
        *elsewhere.in_words(machines).items(),
        ("requests sent", ", ".join(f"{count} from {place}" for place, count in sent.items())),
        ("clocks", f"within {units.format_duration(max(errors))} of the controller's" if errors else UNKNOWN),
    )


def _facts(
    form: Form, request: StudyRequest, observations: Sequence[Observed], version: str
) -> tuple[tuple[str, str], ...]:
    hold, settle = units.format_duration(form.hold), units.format_duration(form.settle)
    return (
        ("rounds", f"{1 + max(observed.round for observed in observations)} of {form.rounds}"),
        ("each cell", f"held for {hold}, the first {settle} left out"),
        ("compression", units.format_bytes(form.compress)),
        ("seed", str(request.seed)),
        ("Partywall", version),
    )


def _setup_section(
    study: Study,
    form: Form,
    request: StudyRequest,
    observations: Sequence[Observed],
    about: Mapping[str, Any],
    machines: Machines | None,
) -> tuple[Section, ...]:
    """The paper's set-up and the one here, item by item; none if the study does not state the paper's."""
    if not study.setup:
        return ()
    here = _setup(form, request, observations, about)
    if machines is not None:
        here |= _setup_of_machines(machines, about.get("host", {}))
    return (
        Section(
            id="setup",
            title="Set-up",
            lead="The paper's machines, software and parameters (table I, figure 3, section IV.A), and those here.",
            columns=("", "in the paper", "here"),
            rows=tuple((item, stated, here[item]) for item, stated in study.setup.items()),
        ),
    )


def _setup(
    form: Form, request: StudyRequest, observations: Sequence[Observed], about: Mapping[str, Any]
) -> dict[SetupItem, str]:
    host = about.get("host", {})
    cpus = host.get("cpus_allowed", ())
    total = host.get("memory", {}).get("total_bytes")
    measured = [observed.cell for observed in observations]
    emulated = ", emulated" if any(observed.emulated for observed in observations) else ""
    return {
        "machines": "one host for all",
        "processors": _processor(host),
        "memory": units.format_bytes(total) if total else UNKNOWN,
        "load generator": f"Partywall {about.get('partywall', '')}".strip(),
        "sandboxes": f"{SANDBOXES[_backend(request)]}{emulated}",
        "operating system": f"Linux {_kernel(host)}",
        "service": ", ".join(dict.fromkeys(o.service for o in observations if o.service)) or SERVICE_UNREAD,
        "users": _listed(cell.users for cell in measured),
        "numbers of sandboxes": _listed(cell.sandboxes for cell in measured if cell.generator == "sandbox"),
        "CPUs kept for the host": ", ".join(
            f"{cells.kept_of(Cell(generator='sandbox', users=1, kept=kept), len(cpus))} of {len(cpus)}"
            for kept in sorted({cell.kept for cell in measured})
        ),
        "compressed file": f"{form.compress / 1e6:g} MB",
        "duration of a cell": f"{units.format_duration(form.hold)}, in each of {form.rounds} rounds",
    }


def _setup_of_machines(machines: Machines, host: Mapping[str, Any]) -> dict[SetupItem, str]:
    """The items of the set-up that differ if the generators are on other machines. host: facts of this one."""
    known = {"controller": host, **host.get("machines", {})}
    sizes = {name: facts.get("memory", {}).get("total_bytes") for name, facts in known.items()}
    return {
        "machines": "; ".join(f"{part}: {place}" for part, place in elsewhere.in_words(machines).items()),
        "processors": _by_machine({name: _processor(facts) for name, facts in known.items()}),
        "memory": _by_machine({name: units.format_bytes(size) if size else UNKNOWN for name, size in sizes.items()}),
        "operating system": _by_machine({name: f"Linux {_kernel(facts)}" for name, facts in known.items()}),
        "sandboxes": "machines named by the user",
        "CPUs kept for the host": "none",
    }


def _by_machine(texts: Mapping[str, str]) -> str:
    """One text if it is the same for all machines, and otherwise that of each."""
    alike = set(texts.values())
    return alike.pop() if len(alike) == 1 else "; ".join(f"{name}: {text}" for name, text in texts.items())


def _processor(facts: Mapping[str, Any]) -> str:
    model = facts.get("cpu", {}).get("model") or UNKNOWN
    return f"{model}, {units.counted(len(facts.get('cpus_allowed', ())), 'CPU')}"


def _kernel(facts: Mapping[str, Any]) -> str:
    return str(facts.get("kernel", {}).get("release", UNKNOWN))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers)))) or "none"


def _names(observations: Sequence[Observed]) -> dict[str, str]:
    """The cells as tables name them, by ID: marked if emulated."""
    emulated = {observed.cell.id for observed in observations if observed.emulated}
    ids = dict.fromkeys(observed.cell.id for observed in observations)
    return {cell: cell + figures.mark("victim" if cell in emulated else None) for cell in ids}


def _lead(text: str, of: Sequence[Observed] | Sequence[overhead.Pair]) -> str:
    return f"{text} {figures.EMULATED}" if any(each.emulated for each in of) else text


def _service_section(observations: Sequence[Observed], estimates: dict[str, dict[str, Estimate]]) -> Section:
    names = _names(observations)
    return Section(
        id="service",
        title="The system under test",
        lead=_lead(
            "A probe beside the service read its process, as the paper's probes do (figure 1): means over rounds with "
            "95 % intervals.",
            observations,
        ),
        columns=("cell", *(f"{what} ({unit})" for what, unit in SERVICE.values())),
        rows=tuple(
            (name, *(_figure(estimates[metric].get(cell)) for metric in SERVICE)) for cell, name in names.items()
        ),
    )


def _cells_section(observations: Sequence[Observed], estimates: dict[str, dict[str, Estimate]]) -> Section:
    names = _names(observations)
    return Section(
        id="cells",
        title="All cells",
        lead=_lead("Means over rounds with 95 % intervals (Student); a round is the unit.", observations),
        columns=("cell", *(f"{what} ({unit})" if unit else what for what, unit in OWN.values())),
        rows=tuple((name, *(_figure(estimates[metric].get(cell)) for metric in OWN)) for cell, name in names.items()),
    )


def _counters_section(
    observations: Sequence[Observed], estimates: dict[str, dict[str, Estimate]], machines: Machines | None
) -> Section:
    whose = (
        "Generator and service share the host, so these are counters of both."
        if machines is None
        else "These are counters of the generators' machines, means over them."
    )
    names = _names(observations)
    known = [metric for metric in COUNTERS if estimates[metric]]
    return Section(
        id="counters",
        title="The host's counters" if machines is None else "The machines' counters",
        lead=_lead(f"Means over rounds with 95 % intervals, for each cell. {whose}", observations),
        columns=("counter", *names.values()),
        rows=tuple(
            (f"{metric} ({METRICS[metric][1]})", *(_figure(estimates[metric].get(cell)) for cell in names))
            for metric in known
        ),
    )


def _figure(estimate: Estimate | None) -> str:
    return "not measured" if estimate is None else figures.ratio(estimate)


# The overhead model

MODEL_COLUMNS = (
    "users",
    "response in the sandbox",
    "predicted for the bare host (90 %)",
    "measured there",
    "iterations/s predicted (90 %)",
    "measured there",
)


def model_section(pairs: Sequence[overhead.Pair]) -> Section | None:
    """The overhead model of a study's rounds, with each level held out in turn; None with too few levels."""
    if len({pair.users for pair in pairs}) <= overhead.LEVELS_LEAST:
        return None
    judged = overhead.held_out(pairs)
    time_error, rate_error = overhead.mean_errors(judged)
    covered, rounds = sum(level.covered for level in judged), sum(level.rounds for level in judged)
    return Section(
        id="model",
        title="What the bare host would have measured",
        lead=_lead(
            f"Each number of users is predicted by a model fitted without it: mean error "
            f"{time_error:.1%} of response times and {rate_error:.1%} of throughputs, {covered} of {rounds} rounds "
            f"inside their 90 % intervals. {_formula(overhead.fit(pairs))}.",
            pairs,
        ),
        columns=MODEL_COLUMNS,
        rows=tuple(_model_row(pairs, level) for level in judged),
        short=True,
    )


def _model_section(pairs: Sequence[overhead.Pair]) -> tuple[Section, ...]:
    section = model_section(pairs)
    return () if section is None else (section,)


def _model_row(pairs: Sequence[overhead.Pair], level: overhead.HeldOut) -> tuple[str, ...]:
    rest = overhead.fit([pair for pair in pairs if pair.users != level.users])
    own = overhead.mean_pair([pair for pair in pairs if pair.users == level.users])
    forecast = rest.forecast(own)
    return (
        f"{level.users}",
        _time(own.sandbox_s) + figures.mark("victim" if own.emulated else None),
        time_span(forecast),
        "not measured" if level.physical_s is None else _time(level.physical_s),
        rate_span(forecast),
        "not measured" if level.physical_rate is None else units.format_number(level.physical_rate),
    )


def _formula(model: overhead.Model) -> str:
    line = model.line
    return (
        f"Service demand there is {math.exp(line.a):.3g} · C^{line.weight:.2f} · D^{1 - line.weight:.2f}, "
        "C: the CPU time of an iteration in the sandbox (used share of its CPUs over throughput), "
        "D: the service demand derived from its response times"
    )


def time_span(forecast: overhead.Forecast) -> str:
    value, low, high = map(_time, forecast.response_s)
    return f"{value} ({low} to {high})"


def rate_span(forecast: overhead.Forecast) -> str:
    value, low, high = map(units.format_number, forecast.rate)
    return f"{value} ({low} to {high})"


def _time(seconds: float) -> str:
    return units.format_duration(seconds * 1e9)
