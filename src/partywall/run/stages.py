"""The stages of a run, one function each, in the order of the data flow: plan → measure → analyse.

A scenario is read before by `partywall.run.check`, and findings are drawn afterwards by `report`. The host is
read once, and planning uses that value. Only `measure` changes anything on the host.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from partywall.agent import memory_check
from partywall.agent.catalogue import shipped
from partywall.agent.memory_check import Checks
from partywall.core.execution import terminated_as_interrupt
from partywall.core.here import host_agent, in_words
from partywall.core.record import distinct
from partywall.errors import (
    Failures,
    PartywallError,
)
from partywall.events import Broken, Doing, Emit
from partywall.host import Host
from partywall.host.label import WORK_ROOT, Label
from partywall.host.settings import idle, smt
from partywall.run.document.scenario import Scenario
from partywall.run.measure.execute import LOOKS_FROM, PILOTS, Decisions, execute
from partywall.run.plan import make as make_plan
from partywall.run.plan.checks import check_host, check_plan, with_accelerators
from partywall.run.plan.files import check_files
from partywall.run.plan.placement import topologies_elsewhere, topology_of
from partywall.run.plan.requirements import sandboxes
from partywall.run.plan.room import guest_memory, memory_needed, with_rings, with_room
from partywall.run.record import RunDirectory
from partywall.run.record import evidence as read_evidence
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Findings, Precision
from partywall.run.values.observation import Observations
from partywall.run.values.plan import Plan, Trial
from partywall.sandbox import reaper, ssh
from partywall.sandbox.elsewhere import other_machines
from partywall.sandbox.qemu.needs import build_roots

if TYPE_CHECKING:
    from partywall.run.values.comparison import Comparison


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
        made = make_plan(scenario, topology_of(facts), shipped(), seed, topologies_elsewhere(facts))
        made = made.model_copy(update={"trials": tuple(with_room(with_rings(t, facts), facts) for t in made.trials)})
        with failures.kept():
            check_plan(made, host, work_root, waits=memory_check.waits(memory_wait_ns))
        if any(trial.host.smt == "on" for trial in made.trials) and smt.now(host) == "off":
            notes += ("host.smt: on brings CPUs online that no sandbox gets; switch SMT on before the run to use them",)
    failures.tell()
    return made.model_copy(update={"warnings": (*made.warnings, *notes)})


def check_again(plan: Plan, host: Host, work_root: Path = WORK_ROOT, memory_wait_ns: int = 0) -> None:
    """Checks a plan before it goes on: as a new one, and that the files of its commands are the same.

    UsageError or CapabilityError with all reasons at once.
    """
    failures = Failures()
    with failures.kept():
        check_files(plan.scenario)
    with failures.kept():
        check_host(plan.scenario, host, work_root)
    with failures.kept():
        check_plan(plan, host, work_root, waits=memory_check.waits(memory_wait_ns))
    failures.tell()


def try_on(scenario: Scenario, host: Host) -> None:
    """Plans the scenario for a host as far as possible without contacting other machines.

    UsageError or CapabilityError.
    """
    if other_machines(sandboxes(scenario)):
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
                build_roots(sandboxes(run.plan.scenario), lambda text: emit(Doing(text)), Host.here())
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


def decisions(plan: Plan) -> Decisions:
    """The statistical decisions that a run needs while it is in progress."""
    from partywall.run.findings import analysis  # noqa: PLC0415 - slow to import, and planning does without

    scenario = plan.scenario
    neighbours = [t for trial in plan.trials for t in trial.treatments if t.role == "aggressor"]
    family = len(neighbours) if scenario.aim == "decision" else 0

    def enough(trial: Trial, observations: Observations, left_out: Collection[str]) -> Precision:
        return analysis.enough(observations, trial.treatments, scenario.precision, LOOKS_FROM, left_out, family)

    def carries_over(trial: Trial, observations: Observations) -> bool:
        tests = analysis.carry_over(observations, trial.treatments, looks=len(PILOTS))
        return any(test.present for test in tests.values())

    return Decisions(enough, carries_over)


def analyse(run: RunDirectory) -> tuple[Evidence, Findings]:
    """The evidence and findings of a run. Only reads its directory, so it can be repeated at any time."""
    from partywall.run.findings import analysis  # noqa: PLC0415 - slow to import, and planning does without

    evidence = read_evidence(run)
    return evidence, analysis.analyse(evidence)


def compared(
    run: RunDirectory, reference: RunDirectory, tolerance: float = 0.02, *,
    latency_tolerance: float | None = 0.25, also: Sequence[RunDirectory] = (),
    also_reference: Sequence[RunDirectory] = (), chance: float = 0.05, in_turn: bool = False,
) -> Comparison:  # fmt: skip
    """Compares runs, with what earlier ones beside them show of the variation between runs. Only reads directories.

    also, also_reference: further runs on either side. chance: of calling any cell worse or better if nothing changed.
    in_turn: the runs of both sides were made in turn. UsageError if a run is given twice.
    """
    from partywall.run.findings.compare import Rule, compare_runs  # noqa: PLC0415 - slow to import, as above

    given = [run, reference, *also, *also_reference]
    distinct(*given)
    measured = [analyse(each) for each in given]
    findings = [each for _, each in measured[2:]]
    earlier, unread = earlier_runs(reference, given)
    return compare_runs(
        measured[0],
        measured[1],
        tolerance,
        latency_tolerance=latency_tolerance,
        also=findings[: len(also)],
        also_reference=findings[len(also) :],
        earlier=earlier,
        unread=unread,
        rule=Rule(chance, in_turn),
    )


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
    from partywall.run.findings.sameness import hosts_differ, workloads_differ  # noqa: PLC0415 - as above

    contents = [
        run_here.plan.scenario.model_dump(exclude={"description", "goals", "seed", "budget", "budget_grows"})
        for run_here in (run, reference)
    ]
    differ = hosts_differ(run.host, reference.host) or workloads_differ(run.plan, reference.plan)
    return contents[0] == contents[1] and not differ
