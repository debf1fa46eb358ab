"""The files of the consolidation manager: the cluster, a plan and the journal of its steps, simulations, or a watch.

A simulation is written as soon as it has ended. A journal line is written before a step begins and after it has ended,
so a killed manager can find out how far it came.
"""

from __future__ import annotations

from typing import Any, ClassVar

from partywall.consolidate.document import Cluster
from partywall.consolidate.job import ConsolidationJob, PlanJob, SimulationJob, WatchJob
from partywall.consolidate.values import Acted, ConsolidationEvidence, ConsolidationPlan, Journal, Seen, Simulation
from partywall.core.record import JobRecord, Stream

Line = Simulation | Journal | Seen | Acted
ELSEWHERE = ("verb", "cluster", "plan")
"""Of what identifies a record, parts that evidence has under their own names."""
VERBS = {"plan": PlanJob.verb, "simulation": SimulationJob.verb, "watch": WatchJob.verb}


class ConsolidationDirectory(JobRecord[ConsolidationJob]):
    """The record of a plan, of a simulation, or of a watched cluster."""

    KIND, MADE_BY = "consolidation", "partywall consolidate plan CLUSTER"
    JOBS = (PlanJob, SimulationJob, WatchJob)
    stream: ClassVar[Stream[Line]] = Stream(simulation=Simulation, journal=Journal, seen=Seen, acted=Acted)

    @property
    def about(self) -> dict[str, Any]:
        """The file that identifies the record. An earlier version had facts and the traces under keys of their own."""
        kept = super().about
        if "verb" in kept:
            return kept
        if missing := {"mode", "about", "cluster", "plan"} - kept.keys():
            raise self.damaged(self.MARK, f"it has no {sorted(missing)[0]}")
        facts = dict(kept["about"])
        if (simulated := facts.pop("simulation", None)) is not None:
            digests = simulated.pop("traces")
            facts |= {**simulated, "traces": simulated.pop("paths"), "days": len(digests), "digests": digests}
        return {"verb": VERBS[kept["mode"]], "cluster": kept["cluster"], "plan": kept["plan"], **facts}

    def add_journal(self, entry: Journal) -> None:
        """Writes a step's beginning or end, which is on the disk when this returns."""
        self.stream.append(entry, durable=True)

    def carried_out(self) -> None:
        """Writes that all steps of the plan are done, or were undone."""
        super().end()

    def end(self) -> None:
        """Writes that the job came to its end. A plan has another one: when it is carried out."""
        if not isinstance(self.job, PlanJob):
            super().end()

    def evidence(self) -> ConsolidationEvidence:
        """Everything in the record. UsageError if it is unreadable."""
        about, lines = self.about, list(self.stream)

        def of(kind: type[Any]) -> tuple[Any, ...]:
            return tuple(line for line in lines if isinstance(line, kind))

        return self.decoded(
            self.MARK,
            lambda _: ConsolidationEvidence(
                name=self.name,
                mode=next(mode for mode, verb in VERBS.items() if verb == about["verb"]),
                cluster=Cluster.model_validate(about["cluster"]),
                host=self.host,
                about={name: fact for name, fact in about.items() if name not in ELSEWHERE},
                plan=None if about.get("plan") is None else ConsolidationPlan.model_validate(about["plan"]),
                simulations=of(Simulation),
                journal=of(Journal),
                seen=of(Seen),
                acted=of(Acted),
                ended=self.is_ended,
            ),
        )
