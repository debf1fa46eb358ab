"""Runs: how well a host isolates its tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partywall import units
from partywall.core import here
from partywall.core.capability import EXITS, Options, Outline, finished
from partywall.core.document.reading import text
from partywall.core.record import stamped
from partywall.errors import Exit, Problem, UsageError, parsed_above_zero
from partywall.events import Emit, Started
from partywall.host import Host
from partywall.load.lasting import lasting
from partywall.run import stages
from partywall.run.check import changed, find, load, located
from partywall.run.document.scenario import Scenario
from partywall.run.plan import extended
from partywall.run.plan.files import with_files
from partywall.run.plan.requirements import check_commands, sandboxes, workloads
from partywall.run.record import RunDirectory
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Findings
from partywall.run.values.plan import Plan
from partywall.sandbox.elsewhere import machine_facts

if TYPE_CHECKING:
    from partywall.core.report.files import Files

Derived = tuple[Findings, Evidence]


@dataclass(frozen=True)
class RunJob:
    """A scenario with the user's changes. path: its file, for messages."""

    scenario: Scenario
    path: Path
    seed: int | None = None

    @classmethod
    def read(cls, name_or_path: str, changes: Mapping[str, Any] | None = None, seed: int | None = None) -> RunJob:
        """Reads a shipped scenario or a file. UsageError with all mistakes in it."""
        path = find(name_or_path)
        return cls(completed(changed(load(path), dict(changes or {})), path), path, seed)


def changes(budget: str | None, precision: str | None, prefix: str = "") -> dict[str, float | None]:
    """A user's changes of a scenario. UsageError that names the option, its name beginning with `prefix`."""
    changed: dict[str, float | None] = {}
    if budget is not None:
        changed["budget"] = parsed_above_zero(f"{prefix}budget", budget, units.parse_duration_ns, "5min")
        # Who gives a budget means it.
        changed["budget_grows"] = None
    if precision is not None:
        changed["precision"] = parsed_above_zero(f"{prefix}precision", precision, units.parse_share, "1%")
    if (changed.get("precision") or 0) > 1:
        problem = Problem(
            f"must be greater than 0 and at most 100%, not {precision}", "give for example 1%", key=f"{prefix}precision"
        )
        raise UsageError(problem)
    return changed


def outlined(plan: Plan) -> Outline:
    """A plan in words, with its length."""
    return Outline(tuple(f"trial {trial.id}" for trial in plan.trials), plan.estimate_ns / 1e9)


class Runs:
    record = RunDirectory

    def plan(self, job: RunJob, options: Options) -> tuple[Plan, Host]:
        """The plan, and the host with the other machines of the scenario.

        UsageError or CapabilityError, with all reasons at once, if the scenario cannot run.
        """
        here.check_folder(options.work_root)
        host = options.host.with_machines(machine_facts([sandboxes(job.scenario)], options.work_root))
        with located(job.path, job.scenario):
            made = stages.plan(job.scenario, host, job.seed, options.work_root, options.memory_wait_ns)
            return made, host

    def outline(self, job: RunJob, options: Options) -> Outline:
        return outlined(self.plan(job, options)[0])

    def check(self, job: RunJob, options: Options) -> None:
        self.plan(job, options)
        check_commands(job.scenario, allowed=options.allow_commands)

    def measure(self, job: RunJob, options: Options, emit: Emit) -> RunDirectory:
        plan, host = self.plan(job, options)
        check_commands(plan.scenario, allowed=options.allow_commands)
        record = RunDirectory.create(
            options.folder(stamped(job.scenario.name)), text(job.path, "scenario"), plan, host.facts
        )
        emit(Started(record.path))
        stages.measure(record, emit, options.work_root, options.memory_wait_ns)
        return record

    def continued_by(self, record: RunDirectory) -> tuple[str, ...]:
        return ("run", "--resume", str(record.path))

    def resume(self, record: RunDirectory, options: Options, emit: Emit) -> None:
        if record.ended:
            finished(record, emit)
            return
        check_commands(record.plan.scenario, allowed=options.allow_commands)
        here.check_folder(options.work_root)
        # Other machines are as they were planned for.
        host = options.host.with_machines(record.host.get("machines", {}))
        stages.check_again(record.plan, host, options.work_root, options.memory_wait_ns)
        emit(Started(record.path))
        stages.measure(record, emit, options.work_root, options.memory_wait_ns)

    def extend(self, record: RunDirectory, changes: Mapping[str, Any]) -> None:
        """Gives a stopped or finished run more time (budget, ns) or another precision. `resume` then uses it.

        UsageError if nothing would be left to measure.
        """
        scenario = record.plan.scenario
        wanted = changed(scenario, dict(changes))
        if wanted.budget <= scenario.budget and wanted.precision >= scenario.precision:
            spent = f"{units.format_duration(scenario.budget)} and ±{100 * scenario.precision:g}%"
            remedy = "give a larger --budget or a smaller --precision"
            raise UsageError(Problem(f"the run has {spent} already", remedy, str(record.path)))
        record.extend(extended(record.plan, max(wanted.budget, scenario.budget), wanted.precision))

    def findings(self, record: RunDirectory) -> Derived:
        evidence, findings = stages.analyse(record)
        return findings, evidence

    def outcome(self, derived: Derived) -> Exit:
        findings, evidence = derived
        return Exit.FAILED if evidence.incomplete else EXITS[findings.outcome]

    def files(self) -> Files[Derived]:
        from partywall.run.report.export import FILES

        return FILES


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
