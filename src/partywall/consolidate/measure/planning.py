"""Makes plans, keeps them, and carries them out."""

from __future__ import annotations

import datetime

from partywall.consolidate.document import Cluster
from partywall.consolidate.measure import connect
from partywall.consolidate.measure.apply import Applying, Timing
from partywall.consolidate.placement import plan as plans
from partywall.consolidate.record import ConsolidationDirectory
from partywall.consolidate.values import ConsolidationPlan
from partywall.errors import Problem, UsageError
from partywall.events import Emit


def keep(record: ConsolidationDirectory, cluster: Cluster, plan: ConsolidationPlan) -> None:
    """Writes a plan, and the cluster as it was seen for it."""
    written = cluster.model_dump(mode="json", exclude_unset=True)
    record.learn(cluster=written, plan=plan.model_dump(mode="json"))


def planned(cluster: Cluster, solver: str = "auto") -> ConsolidationPlan:
    """The plan for a cluster whose state is that of its file."""
    empty = connect.may_empty(cluster.limits.hours, datetime.datetime.now().astimezone().time())
    return plans.make(plans.known(cluster, may_empty=empty), solver=solver)


def applied(record: ConsolidationDirectory, emit: Emit, timing: Timing | None = None) -> bool:
    """Carries the plan of a record out, or goes on with it. False if a step failed and the others were undone.

    UsageError if it was ended before, or if the cluster is not as it was when the plan was made.
    """
    evidence = record.evidence()
    if evidence.plan is None:
        raise UsageError(
            Problem(f"{record.path} holds a simulation", "make a plan: partywall consolidate plan CLUSTER")
        )
    if evidence.ended:
        raise UsageError(Problem(f"the plan in {record.path} has been carried out", "make a new plan"))
    hypervisor = connect.hypervisor_of(evidence.cluster)
    if not evidence.journal:
        _expect_unchanged(evidence.cluster, connect.observed(evidence.cluster), evidence.plan.digest)
    powers = connect.powers_of(evidence.cluster, hypervisor)
    with record.exclusive():
        at = {name: spec.host for name, spec in evidence.cluster.guests.items() if spec.host is not None}
        done = Applying(evidence.plan, hypervisor, powers, evidence.journal, record, emit, timing, at).carry_out()
        record.carried_out()
    return done


def _expect_unchanged(planned: Cluster, now: Cluster, digest: str) -> None:
    """UsageError that names what has changed since the plan was made, or that the plan was changed by hand."""
    problems = [
        f"guest {name} was on {spec.host} and is on {now.guests[name].host} now"
        for name, spec in planned.guests.items()
        if spec.host != now.guests[name].host
    ]
    problems += [
        f"host {name} was {spec.state} and is {now.hosts[name].state} now"
        for name, spec in planned.hosts.items()
        if spec.state != now.hosts[name].state
    ]
    if not problems and plans.digest(now, plans.known(now).state) != digest:
        problems = ["the cluster in the record is not the one that the plan was made for"]
    if problems:
        raise UsageError(*(Problem(text, "make a new plan: partywall consolidate plan CLUSTER") for text in problems))
