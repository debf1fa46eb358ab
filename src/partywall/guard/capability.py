"""The capability: a policy is enforced on this host, and what became of it is derived and reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partywall.core.capability import Capability, Options, Outline
from partywall.events import Emit, Event, Seen, Sinks
from partywall.guard import actions
from partywall.guard.job import GuardJob
from partywall.guard.prometheus import Totals
from partywall.guard.record import GuardRecord

if TYPE_CHECKING:
    from partywall.core.report.value import Report
    from partywall.guard.findings import GuardRun, SoFar

KEEPS = "the policy is still enforced"


class Guards(Capability[GuardJob, GuardRecord, "GuardRun"]):
    """Enforce guaranteed bit/s and packets/s for each vif, and show that they are kept.

    A policy is a YAML file; see docs/guard.md. Start with: partywall guard check POLICY
    """

    jobs, record, metrics = (GuardJob,), GuardRecord, Totals
    actions = (actions.Check, actions.Adjust, actions.Status, actions.Remove)
    rows, doing, keeps = "vifs", "guarding", KEEPS
    cannot_resume = "a guard keeps bandwidths and has no end of its own"
    only_with_out, adjusts = True, "policy"

    def outline(self, job: GuardJob, options: Options) -> Outline:
        from partywall.guard import promised
        from partywall.guard.measure import guarding

        del options
        return Outline(tuple(guarding.hooked(job)), (job.for_ns or 0) / 1e9, (promised.table(job.wanted),))

    def check(self, job: GuardJob, options: Options) -> None:
        from partywall.core import here
        from partywall.guard.measure import guarding

        del options
        here.check_hooks("a guard")
        guarding.check(job)

    def measure(self, record: GuardRecord, options: Options, emit: Emit) -> None:
        """Enforces the policy until the time is up or Ctrl-C, the normal end."""
        from partywall.guard.findings import SoFar
        from partywall.guard.measure import guarding

        del options
        sinks = Sinks(KEEPS)

        def keep_report(event: Event) -> None:
            match event:
                case Seen(SoFar(is_over=False) as seen):
                    record.add(seen.last)

        sinks.add(str(record.path), keep_report)
        sinks.add("the listener", emit)
        guarding.enforce(record.job, record, sinks)

    def adjustable(self, record: GuardRecord) -> str:
        return record.policy()

    def check_adjustment(self, record: GuardRecord, wanted: str) -> None:
        from partywall.guard.change import refuse
        from partywall.guard.check import loads

        refuse(loads(record.policy()), loads(wanted, ""), text=wanted)

    def forget(self) -> list[str]:
        from partywall.guard.measure.left import reap

        said = "its process and its namespaces no longer exist; forgotten"
        return [f"policy {policy}: {said}" for policy in reap()]

    def findings(self, record: GuardRecord) -> GuardRun:
        from partywall.guard.findings import GuardRun

        host = record.host if (record.path / "host.json").is_file() else {}
        return GuardRun(record.name, tuple(record.reports()), tuple(record.adjustments()), host)

    def report(self, findings: GuardRun) -> Report:
        from partywall.guard import report

        return report.report(findings)

    def live(self, seen: SoFar) -> Report:
        from partywall.guard import report

        return report.live(seen)
