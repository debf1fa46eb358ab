"""What is planned, simulated or watched: the jobs, from which the commands and the Python functions are made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from partywall.consolidate import check
from partywall.consolidate.document import Cluster
from partywall.core.document.textfile import Document
from partywall.core.job import Job, Option

FILE = Option(
    "A cluster file (YAML, see docs/consolidate.md), or the name of a shipped one: cluster, data-centre.",
    metavar="CLUSTER",
    example="cluster",
    page="",
)
PLACED = Document(Cluster, check.load, check.find, check.names)
UNPLACED = Document(Cluster, lambda file: check.load(file, placed=False), check.find, check.names)


class ConsolidationJob(Job):
    """What all jobs have: a cluster, with its hosts and guests."""

    cluster: Annotated[Cluster, PLACED, FILE]

    @property
    def subject(self) -> str:
        return self.cluster.name


class PlanJob(ConsolidationJob):
    """Show what would move and what that saves.

    For each guest and host: the step, its cost and its reason. The whole: energy saved, and what it costs.

    partywall consolidate plan cluster

    Changes nothing. Figures of energy come from power curves, so they are modelled. Each has an interval.
    """

    verb: ClassVar[str] = "plan"
    function: ClassVar[str] = "plan_consolidation"
    cannot_resume: ClassVar[str] = "a plan is made at once"

    solver: Annotated[
        Literal["auto", "exact", "heuristic"],
        Option("exact: OR-tools; auto: exact for up to 40 hosts and 200 guests, else the heuristic."),
    ] = "auto"


class SimulationJob(ConsolidationJob):
    """Simulate policies over load traces.

    Shows energy, violations and moves side by side.

    partywall consolidate simulate data-centre

    partywall consolidate simulate data-centre --traces 20110303.tar.gz --orders 3

    Every policy starts from the same placement. Exit code: 1 if a published policy takes less energy, or violates
    less, than Partywall's by more than 1 %.
    """

    verb: ClassVar[str] = "simulate"
    function: ClassVar[str] = "simulate_consolidation"

    cluster: Annotated[Cluster, UNPLACED, FILE]
    traces: Annotated[
        tuple[Path, ...],
        Option(
            "Load of guests: a folder or tar archive in PlanetLab's format; may be repeated. Default: generated.",
            page="",
        ),
    ] = ()
    policies: Annotated[
        tuple[str, ...],
        Option(
            "A policy; may be repeated. Default: all, published ones included.", flag="--policy", keyword="policies"
        ),
    ] = ()
    days: Annotated[int, Field(ge=1, le=100), Option("Number of generated days.")] = 1
    orders: Annotated[int, Field(ge=1, le=100), Option("Random assignments of traces to guests, for intervals.")] = 1
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), Option("Seed of all random choices.")] = 1


class WatchJob(ConsolidationJob):
    """A cluster to watch. for_s: None for until it is interrupted; out: the folder for the records of plans."""

    verb: ClassVar[str] = "watch"
    cannot_resume: ClassVar[str] = "what was not watched is gone"

    every_s: float
    for_s: float | None = None
    dry_run: bool = False
    out: Path = Path("runs")
