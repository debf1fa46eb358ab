"""The files of the consolidation manager: the cluster, a plan and the journal of its steps, simulations, or a watch.

A simulation is written as soon as it has ended. A journal line is written before a step begins and after it has ended,
so a killed manager can find out how far it came.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from partywall.consolidate.document import Cluster
from partywall.consolidate.values import Acted, ConsolidationEvidence, ConsolidationPlan, Journal, Seen, Simulation
from partywall.core.record import Record

Mode = Literal["plan", "simulation", "watch"]


class ConsolidationDirectory(Record):
    """The record of a plan, of a simulation, or of a watched cluster."""

    KIND, MARK, MADE_BY = "consolidation", "consolidation.json", "partywall consolidate plan CLUSTER"

    @classmethod
    def create(
        cls,
        path: Path,
        mode: Mode,
        cluster: Cluster,
        host: Mapping[str, Any],
        about: Mapping[str, Any],
        plan: ConsolidationPlan | None = None,
    ) -> Self:
        """A new one. UsageError if something exists at `path`."""
        made = cls.make(path)
        made.put("host.json", json.dumps(host, indent=1))
        content = {
            "mode": mode,
            "about": dict(about),
            "cluster": cluster.model_dump(mode="json", exclude_unset=True),
            "plan": None if plan is None else plan.model_dump(mode="json"),
        }
        made.put(cls.MARK, json.dumps(content, indent=1))
        return made

    def add_simulation(self, simulation: Simulation) -> None:
        """All policies over one trace."""
        self.append_line(json.dumps({"kind": "simulation", **simulation.model_dump(mode="json")}, allow_nan=False))

    def add_journal(self, entry: Journal) -> None:
        """A step's beginning or end, which is on the disk when this returns."""
        self.append_line(json.dumps({"kind": "journal", **entry.model_dump(mode="json")}), durable=True)

    def add_seen(self, seen: Seen) -> None:
        """The cluster as it is now."""
        self.append_line(json.dumps({"kind": "seen", **seen.model_dump(mode="json")}, allow_nan=False))

    def add_acted(self, acted: Acted) -> None:
        """A plan that was carried out."""
        self.append_line(json.dumps({"kind": "acted", **acted.model_dump(mode="json")}, allow_nan=False))

    def end(self) -> None:
        """All is done."""
        self.append_line(json.dumps({"kind": "ended"}))

    def evidence(self) -> ConsolidationEvidence:
        """Everything in the record. UsageError if it is unreadable."""
        content = self.decoded(self.MARK, lambda text: dict(json.loads(text)))
        if missing := {"mode", "about", "cluster", "plan"} - content.keys():
            raise self.damaged(self.MARK, f"it has no {sorted(missing)[0]}")
        lines = self.whole_lines()

        def of(kind: str) -> list[dict[str, Any]]:
            return [
                {key: value for key, value in line.items() if key != "kind"} for line in lines if line["kind"] == kind
            ]

        return self.decoded(
            self.MARK,
            lambda _: ConsolidationEvidence(
                name=self.name,
                mode=content["mode"],
                cluster=Cluster.model_validate(content["cluster"]),
                host=self.host,
                about=content["about"],
                plan=None if content["plan"] is None else ConsolidationPlan.model_validate(content["plan"]),
                simulations=tuple(Simulation.model_validate(line) for line in of("simulation")),
                journal=tuple(Journal.model_validate(line) for line in of("journal")),
                seen=tuple(Seen.model_validate(line) for line in of("seen")),
                acted=tuple(Acted.model_validate(line) for line in of("acted")),
                ended=bool(of("ended")),
            ),
        )
