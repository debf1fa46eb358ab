"""Plans of the consolidation manager, what became of them, and results of its simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from partywall.consolidate.document import Cluster
from partywall.core.stats.estimate import Outcome, Span
from partywall.power.address import Address
from partywall.values import Frozen

# Simulation


class Sample(Frozen):
    """One interval of a simulation. demand, unserved: cores."""

    at_s: float
    hosts_on: int
    moves: int
    boots: int
    demand: float
    unserved: float
    watts: float


class PolicyResult(Frozen):
    """A policy over one trace.

    slatah: mean over hosts of the share of their active time at 100 % CPU. pdm: mean over guests of the share of their
    CPU lost to moves (both Beloglazov and Buyya 2012). unserved: share of the demand that found no CPU. ping_pongs:
    guests that came back within an hour. short_cycles: hosts woken before their break-even time. Energy includes that
    of boots and moves.
    """

    policy: str
    energy_kwh: float
    boots_kwh: float
    moves_kwh: float
    moves: int
    boots: int
    slatah: float
    pdm: float
    unserved: float
    ping_pongs: int
    short_cycles: int
    hosts_on: float
    samples: tuple[Sample, ...] = Field((), repr=False)

    @property
    def slav(self) -> float:
        """SLA violation of the literature: the product of both."""
        return self.slatah * self.pdm


# Plans

Action = Literal["wake", "move", "sleep"]


class Choice(Frozen):
    """A place for a guest that was considered. refused: why it is not possible; empty if it is only worse."""

    host: str
    watts: float | None = None
    refused: str = ""


class Step(Frozen):
    """One step of a plan. batch: steps of one batch run at the same time.

    time_s, blackout_s, energy_j, p99_s: predicted, of a move. choices: other places for its guest, the best first.
    """

    number: int
    batch: int
    action: Action
    host: str = Field(description="the host to switch, or where the guest goes")
    guest: str | None = None
    source: str | None = None
    reason: str = ""
    limit_ms: int | None = Field(None, description="QEMU's downtime limit for this move")
    time_s: Span | None = None
    blackout_s: Span | None = None
    energy_j: Span | None = None
    p99_s: Span | None = None
    choices: tuple[Choice, ...] = ()

    @property
    def title(self) -> str:
        """What it does, in words."""
        if self.action == "move":
            return f"move {self.guest} from {self.source} to {self.host}"
        return f"switch {self.host} {'on' if self.action == 'wake' else 'off'}"


class Alternative(Frozen):
    """A whole plan that was considered, the chosen one included."""

    name: str
    net_j: float
    moves: int
    hosts_on: int


class Solver(Frozen):
    """How good the placement is. bound_j: no placement takes less, if the exact solver was used."""

    name: Literal["exact", "heuristic", "policy"]
    objective_j: float
    bound_j: float | None = None
    seconds: float = 0.0

    @property
    def gap(self) -> float | None:
        """How far above the bound, as a share. None without a bound, or if the bound is no energy at all."""
        if self.bound_j is None or self.objective_j <= self.bound_j:
            return None if self.bound_j is None else 0.0
        return self.objective_j / self.bound_j - 1.0 if self.bound_j > 0 else None


class ConsolidationPlan(Frozen):
    """What the manager would do. digest: of the state that it was made for; watts: modelled.

    net_j: energy saved within the horizon, beyond what moves and switching cost. pays_after_s: when the saving exceeds
    what it cost; None if it never does.
    """

    digest: str
    horizon_s: float
    steps: tuple[Step, ...]
    before_w: Span
    after_w: Span
    hosts_on_before: int
    hosts_on_after: int
    saved_j: Span
    moves_j: Span
    switching_j: Span
    net_j: Span
    pays_after_s: float | None
    solver: Solver
    alternatives: tuple[Alternative, ...]
    notes: tuple[str, ...] = ()

    @property
    def moves(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.action == "move")


class Simulation(Frozen):
    """Policies over the same traces. bound_kwh: less than any placement takes; reference: the policy without moves."""

    trace: str
    seed: int
    order: int
    interval_s: float
    hosts: int
    guests: int
    bound_kwh: float
    results: tuple[PolicyResult, ...]

    def result(self, name: str) -> PolicyResult | None:
        return next((each for each in self.results if each.policy == name), None)


class Journal(Frozen):
    """What became of a plan's step. outcome: begun, done, failed, undone."""

    number: int
    outcome: Literal["begun", "done", "failed", "undone"]
    at: str
    seconds: float | None = None
    reason: str = ""


class Seen(Frozen):
    """A cluster as `watch` saw it. at_s: since it began; watts: of each host, None if its meter did not answer.

    metered: hosts whose watts come from their meter; those of others are modelled. p99_s: of guests with virtual users.
    """

    at_s: float
    on: tuple[str, ...]
    places: Mapping[str, str]
    demand: Mapping[str, float] = {}
    watts: Mapping[str, float | None] = {}
    metered: tuple[str, ...] = ()
    p99_s: Mapping[str, float] = {}


class Acted(Frozen):
    """A plan that `watch` carried out. at_s: since it began; record: its folder."""

    at_s: float
    ended_s: float
    done: bool
    record: str
    steps: tuple[str, ...]
    net_j: Span


WattsAre = Literal["metered", "modelled", "simulated"]


class ConsolidationEvidence(Frozen):
    """All that a record of the manager holds."""

    name: str
    mode: Literal["plan", "simulation", "watch"]
    cluster: Cluster
    host: dict[str, Any]
    about: dict[str, Any]
    plan: ConsolidationPlan | None = None
    simulations: tuple[Simulation, ...] = ()
    journal: tuple[Journal, ...] = ()
    seen: tuple[Seen, ...] = ()
    acted: tuple[Acted, ...] = ()
    ended: bool = False

    @property
    def watts_are(self) -> WattsAre:
        """Where the watts of a watch come from: metered only if each host has a meter that is not simulated."""
        sources = {self.watts_of(host) for host in self.cluster.hosts}
        return "simulated" if "simulated" in sources else "modelled" if "modelled" in sources else "metered"

    def watts_of(self, host: str) -> WattsAre:
        """Where the watts of one host come from."""
        meter = self.cluster.hosts[host].meter
        if meter is None:
            return "modelled"
        return "simulated" if Address.parse(meter).origin == "simulated" else "metered"


class Compared(Frozen):
    """A policy over all traces. Each figure: its mean and its 95 % interval over traces; None with one trace."""

    policy: str
    figures: Mapping[str, Span]


class ConsolidationFindings(Frozen):
    """What is known from a record of the manager."""

    name: str
    headline: str
    outcome: Outcome
    evidence: ConsolidationEvidence
    compared: tuple[Compared, ...] = ()
    share_of_bound: Span | None = None
    notes: tuple[str, ...] = ()
