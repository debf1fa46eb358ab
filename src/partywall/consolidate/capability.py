"""Consolidation: plans for a cluster, and simulations of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partywall.consolidate.actions import Explain
from partywall.consolidate.job import ConsolidationJob, PlanJob, SimulationJob
from partywall.consolidate.record import ConsolidationDirectory
from partywall.core.capability import Capability, Options, Outline
from partywall.errors import TrialError
from partywall.events import Doing, Emit

if TYPE_CHECKING:
    from partywall.consolidate.values import ConsolidationFindings
    from partywall.core.report.value import Report


class Consolidations(Capability[ConsolidationJob, ConsolidationDirectory, "ConsolidationFindings"]):
    """Plan which guests share a host and which hosts are off, and simulate policies."""

    jobs, record, actions = (PlanJob, SimulationJob), ConsolidationDirectory, (Explain,)
    rows, doing, disturbs = "", "planning", False

    def outline(self, job: ConsolidationJob, options: Options) -> Outline:
        del options
        size = f"{len(job.cluster.host_names())} hosts, {len(job.cluster.guest_names())} guests"
        if not isinstance(job, SimulationJob):
            return Outline((size,), job.cluster.limits.solver / 1e9)
        from partywall.consolidate.measure.simulating import Simulating

        whole = Simulating.of(job)
        lines = (size, f"traces: {', '.join(name for name, _ in whole.days)}", f"policies: {', '.join(whole.policies)}")
        return Outline(lines, whole.seconds)

    def measure(self, record: ConsolidationDirectory, options: Options, emit: Emit) -> None:
        """Makes a plan, or simulates what the record lacks with the same traces."""
        del options
        from partywall.consolidate.measure import connect, planning, simulating

        if isinstance(record.job, SimulationJob):
            simulating.fill(record, record.job, emit)
        elif isinstance(record.job, PlanJob):
            emit(Doing("reading the cluster's state"))
            cluster = connect.observed(record.job.cluster)
            emit(Doing("making a plan"))
            planning.keep(record, cluster, planning.planned(cluster, record.job.solver))

    def continued_by(self, record: ConsolidationDirectory) -> tuple[str, ...]:
        if isinstance(record.job, PlanJob) and not record.is_ended:
            return ("consolidate", "apply", str(record.path))
        return super().continued_by(record)

    def findings(self, record: ConsolidationDirectory) -> ConsolidationFindings:
        from partywall.consolidate.findings import findings

        evidence = record.evidence()
        if evidence.mode == "plan" and evidence.plan is None:
            raise TrialError(f"{record.path}: no plan was made; make one: partywall consolidate plan CLUSTER")
        return findings(evidence)

    def report(self, findings: ConsolidationFindings) -> Report:
        from partywall.consolidate.report import report

        return report(findings)
