"""What will be done: trials, the treatments switched inside each, and how long it takes. Pure data, written as plan.json.

The order of treatments in block *k* of a trial is a function of (seed, trial, k), see `partywall.plan.order`, so a
resumed run needs nothing but the plan and the list of finished blocks.
"""

from __future__ import annotations

from typing import Literal

from partywall.model.scenario import Aggressor, Frozen, Level, Scenario, Timing, Victim

Role = Literal["baseline", "null", "aggressor", "limit"]


class Limits(Frozen):
    """Settings that can be switched live, by slot; None leaves what the sandbox was made with."""

    cpu_limit: float | None = None
    cpu_weight: int | None = None


class Treatment(Frozen):
    """One thing compared inside a block. `intensities` holds the aggressors that are on; none is on in the baseline."""

    id: str
    label: str
    role: Role
    aggressor: str | None = None
    intensities: dict[str, float] = {}
    victim_limits: Limits | None = None
    guard_ns: int
    slot_ns: int


class Trial(Frozen):
    """One victim at one combination of the levels that cannot be switched live, with all treatments it is given."""

    id: str
    victim_name: str
    victim: Victim
    victim_cpus: tuple[int, ...]
    aggressors: dict[str, Aggressor]
    aggressor_cpus: dict[str, tuple[int, ...]]
    levels: dict[str, Level] = {}
    treatments: tuple[Treatment, ...]

    @property
    def block_ns(self) -> int:
        """Length of one block: each treatment's guard and slot once."""
        return sum(t.guard_ns + t.slot_ns for t in self.treatments)


class Plan(Frozen):
    """The whole run: visits go round the trials in random order, so that no trial owns a stretch of the host's time."""

    scenario: Scenario
    seed: int
    trials: tuple[Trial, ...]
    rounds: int
    timing: Timing
    estimate_ns: int
    warnings: tuple[str, ...] = ()
