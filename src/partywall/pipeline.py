"""The stages of a run, one function each, in the order of the data flow: plan → measure → analyse.

A scenario is read before by `partywall.scenario`, and findings are drawn afterwards by `partywall.report`. The host is
read once, and planning uses that value. Only `measure` changes anything on the host.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from partywall import processor, units
from partywall.agent import binary, memory_check
from partywall.agent.agents import Agents
from partywall.agent.catalogue import Catalogue, shipped
from partywall.agent.client import AgentClient
from partywall.agent.memory_check import Checks
from partywall.errors import (
    CapabilityError,
    Failures,
    PartywallError,
    Problem,
    UsageError,
)
from partywall.events import Broken, Doing, Emit
from partywall.host import Host, cpus_of
from partywall.load.lasting import lasting
from partywall.model.evidence import Evidence
from partywall.model.finding import Findings, Precision
from partywall.model.observation import Observations
from partywall.model.plan import Plan, Trial
from partywall.model.scenario import Scenario
from partywall.plan import Topology
from partywall.plan import make as make_plan
from partywall.preflight import (
    build_roots,
    check_disk,
    check_guest_memory,
    check_host,
    check_kernels,
    check_node_memory,
    guest_memory,
    memory_needed,
    other_machines,
    try_kvm,
    with_accelerators,
    with_files,
    with_rings,
    with_room,
    workloads,
)
from partywall.run import LOOKS_FROM, PILOTS, Decisions, execute, governor, idle, ledger, settings, smt
from partywall.sandbox import WORK_ROOT, Label, Reaped, privileges, reap, reaper, remedies, ssh
from partywall.scenario import located
from partywall.store import RunDirectory
from partywall.store import evidence as read_evidence
from partywall.store.record import Record

if TYPE_CHECKING:
    from partywall.model.comparison import Comparison


def catalogue() -> Catalogue:
    """The kernels of this version and their parameters."""
    return shipped()


@contextlib.contextmanager
def host_agent() -> Iterator[AgentClient]:
    """An agent on the host, outside any sandbox, for facts and checks."""
    with Agents() as agents:
        yield agents.attach("host", [str(binary.find()), "serve", "--die-with-parent", "--only", "memory"])


def this_host() -> Host:
    """The host of this process, with the facts that the agent reports."""
    with host_agent() as agent:
        facts = dict(agent.call("facts"))
    return Host(described(facts, Host.here()), try_kvm=try_kvm)


def described(facts: dict[str, Any], host: Host) -> dict[str, Any]:
    """An agent's facts, extended with each kernel's entry in the catalogue and what the host lacks or refuses."""
    kernels = catalogue()
    entries = {name: info.model_dump(mode="json") for name in kernels.names() if (info := kernels.kernel(name))}
    refused = {
        "governors_refused": governor.refused(host),
        "settings_refused": settings.refused(host),
        "instructions_lacking": processor.lacking(host.root / "proc/cpuinfo"),
    }
    return facts | {"kernels": entries} | refused


def host_facts() -> dict[str, Any]:
    """The facts that the agent reports of this host."""
    return this_host().facts


def topology(facts: dict[str, Any]) -> Topology:
    """The usable CPUs, and what they share, from the facts of a host. CapabilityError if they are not known."""
    cpu = facts.get("cpu", {})
    places = cpu.get("places", [])
    packages = (
        [place["cpu"] for place in places if place["package"] == package]
        for package in dict.fromkeys(place["package"] for place in places if place["package"] is not None)
    )
    groups = (
        *(place["siblings"] for place in places),
        *(cache["shared_by"] for cache in cpu.get("caches", [])),
        *(node["cpus"] for node in facts.get("memory", {}).get("nodes", [])),
        *packages,
    )
    cores = dict.fromkeys(tuple(place["siblings"]) for place in places if len(place["siblings"]) > 1)
    return Topology(cpus_of(facts), tuple(dict.fromkeys(tuple(group) for group in groups)), tuple(cores))


def topologies_elsewhere(facts: dict[str, Any]) -> dict[str, Topology]:
    """The topologies of the other machines in a host's facts, by `Sandbox.machine`."""
    return {machine: topology(machine_facts) for machine, machine_facts in facts.get("machines", {}).items()}


def plan(
    scenario: Scenario,
    host: Host,
    seed: int | None = None,
    work_root: Path = WORK_ROOT,
    memory_wait_ns: int = 0,
) -> Plan:
    """The plan of a scenario on a host. memory_wait_ns: how long the run will wait for free memory.

    UsageError or CapabilityError, with all reasons at once, if it cannot run there.
    """
    failures, notes, facts = Failures(), tuple[str, ...](), host.facts
    with failures.kept():
        check_host(scenario, host, work_root)
        scenario, notes = with_accelerators(scenario, host)
    notes += tuple(
        f"CPUs of {machine} are its own: {in_words(machine_facts)}"
        for machine, machine_facts in facts.get("machines", {}).items()
    )
    with failures.kept():
        made = make_plan(scenario, topology(facts), catalogue(), seed, topologies_elsewhere(facts))
        made = made.model_copy(update={"trials": tuple(with_room(with_rings(t, facts), facts) for t in made.trials)})
        with failures.kept():
            check_guest_memory(made, host, waits=memory_check.waits(memory_wait_ns))
        with failures.kept():
            check_node_memory(made, host)
        with failures.kept():
            check_kernels(made, facts)
        with failures.kept():
            check_disk(made, host, work_root)
        if any(trial.host.smt == "on" for trial in made.trials) and smt.now(host) == "off":
            notes += ("host.smt: on brings CPUs online that no sandbox gets; switch SMT on before the run to use them",)
    failures.tell()
    return made.model_copy(update={"warnings": (*made.warnings, *notes)})


def in_words(facts: Mapping[str, Any]) -> str:
    """A machine's CPUs and kernel, from its facts."""
    cpus = units.counted(len(facts["cpus_allowed"]), "CPU")
    return f"{cpus} ({facts['cpu'].get('model') or 'unknown model'}), Linux {facts['kernel'].get('release')}"


def completed(scenario: Scenario, path: Path) -> Scenario:
    """The scenario of a file with the programs of its virtual users, and hashes of the files for its commands.

    UsageError with all mistakes of all load plans, or else of all files.
    """
    with_users = with_loads(scenario, path.parent)
    with located(path, scenario):
        return with_files(with_users, path.parent)


def with_loads(scenario: Scenario, folder: Path) -> Scenario:
    """The scenario with the programs of its virtual users. Their plan files are relative to `folder`.

    Raises UsageError with all mistakes of all plans.
    """
    changed: dict[str, dict[str, Any]] = {"victims": dict(scenario.victims), "aggressors": dict(scenario.aggressors)}
    problems: list[Problem] = []
    for key, workload in workloads(scenario).items():
        kind, _, name = key.partition(".")
        if workload.load is None:
            continue
        try:
            program = lasting(workload.load, folder)
        except UsageError as error:
            problems += error.problems
            continue
        load = workload.load.model_copy(update={"program": program})
        changed[kind][name] = workload.model_copy(update={"load": load})
    if problems:
        raise UsageError(*problems)
    return scenario.model_copy(update=changed)


def try_on(scenario: Scenario, host: Host) -> None:
    """Plans the scenario for a host as far as possible without contacting other machines.

    UsageError or CapabilityError.
    """
    if other_machines(scenario):
        check_host(scenario, host)
    else:
        plan(scenario, host)


def measure(run: RunDirectory, emit: Emit, work_root: Path = WORK_ROOT, memory_wait_ns: int = 0) -> tuple[str, ...]:
    """Carries out the rest of a run's plan. Afterwards nothing of it is left on the host, even after an error.

    Anything that could not be removed or restored is reported as an event and returned. memory_wait_ns: see
    `check_memory`.
    """
    label = Label.create(f"{run.name}-{secrets.token_hex(2)}", work_root)
    with terminated_as_interrupt():
        try:
            with run.exclusive():
                build_roots(run.plan.scenario, lambda text: emit(Doing(text)), Host.here())
                check_memory(run, emit, work_root, memory_wait_ns)
                with idle.polled() if run.plan.scenario.idle == "poll" else contextlib.nullcontext():
                    execute(run, label, decisions(run.plan), emit, memory_wait_ns=memory_wait_ns)
        except OSError as error:
            raise PartywallError(_stopped_by(error, run)) from error
        finally:
            left = reaper.clean(label).left
            if left:
                emit(Broken(f"could not be removed or restored: {', '.join(left)}"))
    return left


def _stopped_by(error: OSError, run: RunDirectory) -> str:
    """Names what the host refused, where, and how to continue. Freeing space only helps if the disk is full."""
    first = "free some space, then " if error.errno in (errno.ENOSPC, errno.EDQUOT) else "once that is fixed, "
    place = error.filename if error.filename is not None else run.path
    return f"{place}: {error.strerror or error}; {first}continue with: partywall run --resume {run.path}"


def check_memory(run: RunDirectory, emit: Emit, work_root: Path = WORK_ROOT, memory_wait_ns: int = 0) -> None:
    """Touches as much memory as the largest trial will use, and times it (VITS, section 4.1).

    memory_wait_ns: how long to wait for free memory. If it is set, planning has not checked whether the guests' memory
    is free, so this waits for all of it. CapabilityError if the host has less; a note, stored with the run, if the
    memory may not be physically present.
    """
    machines = run.host.get("machines", {})
    checks = Checks(emit, memory_wait_ns, lambda stored: run.append("memory_checked", **stored))
    remedy = f"then continue with: partywall run --resume {run.path}"
    for machine in ("", *(name for name, machine_facts in machines.items() if machine_facts.get("agent", True))):
        needed = max(memory_needed(trial, run.host, machine) for trial in run.plan.trials)
        if memory_check.waits(memory_wait_ns) and not machine:
            needed = max(needed, *(guest_memory(trial) for trial in run.plan.trials))
        with ssh.machine_agent(machine, str(work_root), run.name) if machine else host_agent() as agent:
            checks.require(agent, needed, "the run's workloads", machine, remedy)


def check_free_memory(needed: int, what: str, checks: Checks) -> None:
    """The same check for what has no plan, such as a load. what: what needs the memory, for messages.

    CapabilityError if the host has less; a warning if it may not be physically present.
    """
    with host_agent() as agent:
        checks.require(agent, needed, what)


def decisions(plan: Plan) -> Decisions:
    """The statistical decisions that a run needs while it is in progress."""
    from partywall import stats  # noqa: PLC0415 - slow to import, and planning does without

    def enough(trial: Trial, observations: Observations, decided: Collection[str]) -> Precision:
        return stats.enough(observations, trial.treatments, plan.scenario.precision, LOOKS_FROM, decided)

    def carries_over(trial: Trial, observations: Observations) -> bool:
        tests = stats.carry_over(observations, trial.treatments, looks=len(PILOTS))
        return any(test.present for test in tests.values())

    return Decisions(enough, carries_over)


@contextlib.contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end a run as Ctrl-C does: sandboxes are removed first.

    A signal that is ignored, such as SIGHUP under nohup, stays ignored. A program's own handler is called first.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if callable(own := before[number]):
            own(number, frame)
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {int(number): handler for number, handler in handlers.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def analyse(run: RunDirectory) -> tuple[Evidence, Findings]:
    """The evidence and findings of a run. Only reads its directory, so it can be repeated at any time."""
    from partywall import stats  # noqa: PLC0415 - slow to import, and planning does without

    evidence = read_evidence(run)
    return evidence, stats.analyse(evidence)


def compared(
    run: RunDirectory, reference: RunDirectory, tolerance: float = 0.02, *,
    latency_tolerance: float | None = 0.25, also: Sequence[RunDirectory] = (),
    also_reference: Sequence[RunDirectory] = (),
) -> Comparison:  # fmt: skip
    """Compares runs, with what earlier ones beside them show of the variation between runs. Only reads directories.

    also, also_reference: further runs on either side. UsageError if a run is given twice.
    """
    from partywall import stats  # noqa: PLC0415 - slow to import, and planning does without

    given = [run, reference, *also, *also_reference]
    distinct(*given)
    measured = [analyse(each) for each in given]
    findings = [each for _, each in measured[2:]]
    earlier, unread = earlier_runs(reference, given)
    return stats.compare_runs(
        measured[0],
        measured[1],
        tolerance,
        latency_tolerance=latency_tolerance,
        also=findings[: len(also)],
        also_reference=findings[len(also) :],
        earlier=earlier,
        unread=unread,
    )


def distinct(*records: Record) -> None:
    """UsageError if a record is given twice."""
    paths = [record.path.resolve() for record in records]
    if twice := [str(path) for path in dict.fromkeys(paths) if paths.count(path) > 1]:
        which = "both are" if len(paths) == 2 else "two of them are"
        raise UsageError(Problem(f"{which} the same record: {twice[0]}", "choose another one to compare with"))


def earlier_runs(reference: RunDirectory, given: Sequence[RunDirectory] = ()) -> tuple[list[Findings], int]:
    """Findings of other finished runs of the same scenario and host, in the folders of the given ones.

    They show how much runs vary. The second value counts runs there whose record or findings cannot be read. A run
    without findings is ignored.
    """
    apart = {run.path.resolve() for run in (reference, *given)}
    runs, unread = list[Findings](), 0
    for file in sorted(file for folder in {path.parent for path in apart} for file in folder.glob("*/findings.json")):
        if file.parent in apart or not RunDirectory.is_one(file.parent):
            continue
        try:
            run = RunDirectory(file.parent)
            if run.ended and _same_kind(run, reference):
                runs.append(Findings.model_validate_json(file.read_text(encoding="utf-8")))
        except (PartywallError, ValueError, OSError):
            unread += 1
    return runs, unread


def _same_kind(run: RunDirectory, reference: RunDirectory) -> bool:
    """True if scenario and host are the same in everything that affects a figure."""
    from partywall import stats  # noqa: PLC0415 - slow to import, and planning does without

    contents = [
        run_here.plan.scenario.model_dump(exclude={"description", "goals", "seed", "budget", "budget_grows"})
        for run_here in (run, reference)
    ]
    differ = stats.hosts_differ(run.host, reference.host) or stats.workloads_differ(run.plan, reference.plan)
    return contents[0] == contents[1] and not differ


def check_programs(host: Host) -> None:
    """CapabilityError if a host's agent has no eBPF programs, which guard and trace need."""
    lacking = next((missing for missing in host.facts["missing"] if missing["what"] == "eBPF programs"), None)
    if lacking is not None:
        raise CapabilityError(f"no eBPF programs: {lacking['why']}; {lacking['remedy']}")


def check_hooks(what: str) -> None:
    """CapabilityError if the agent may not attach eBPF programs to interfaces. what: the command that needs it."""
    with host_agent() as agent:
        missing = privileges.lacking(agent.process.pid)
    if missing:
        raise CapabilityError(remedies.lacking_hooks(what, missing, Host.here()))


def clean_up(*, forget: bool = False) -> list[Reaped]:
    """Removes what dead runs left on this host. forget: also forgets what can no longer be reached."""
    ledger.put_back()
    return reap(forget=forget)
