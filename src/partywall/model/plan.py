"""What will be done: trials, the treatments switched inside each, and how long it takes.

Pure data, written as plan.json. The order of treatments in block *k* of a trial is a function of (seed, trial, k), see
`partywall.plan.order`, so a resumed run needs nothing but the plan and the list of finished blocks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field

from partywall.model.scenario import Aggressor, Frozen, Level, Sandbox, Scenario, Throttle, Timing, Victim

Role = Literal["baseline", "null", "aggressor", "limit"]


class Limits(Frozen):
    """Settings that can be switched live, by slot; None leaves what the sandbox was made with."""

    cpu_limit: float | None = None
    cpu_weight: float | None = None
    memory: int | None = None
    disk: Throttle | None = None

    def over(self, made: Limits) -> Limits:
        """What is in force: these, and where they say nothing what the sandbox was made with."""
        below, disk = made.disk or Throttle(), self.disk or Throttle()
        return Limits(**_said(made) | _said(self) | {"disk": Throttle(**_said(below) | _said(disk))})


def _said(values: Limits | Throttle) -> dict[str, Any]:
    return {key: value for key, value in values if value is not None}


class Treatment(Frozen):
    """One thing compared inside a block. `intensities` holds the aggressors that are on; none is on in the baseline.

    guard_ns: left out between what was measured before and its own slot. release_ns: what its successor leaves out at
    the least, for what it leaves behind. slot_ns: what is measured. ceiling_rate: work a second of the victim that its
    limits let through at the most, where that follows from them.
    """

    id: str
    label: str
    role: Role
    aggressor: str | None = None
    intensities: dict[str, float] = Field(default_factory=dict)
    victim_limits: Limits | None = None
    ceiling_rate: float | None = None
    guard_ns: int
    slot_ns: int
    release_ns: int = 0

    @property
    def pressing(self) -> tuple[str, ...]:
        """The aggressors that press, those that do so together among them; the null one does nothing."""
        return () if self.role == "null" else tuple(self.intensities)


class Trial(Frozen):
    """One victim at one combination of the levels that cannot be switched live, with all treatments it is given.

    aside_cpus: those of the victim's machine that are not the victim's.
    """

    id: str
    victim_name: str
    victim: Victim
    victim_cpus: tuple[int, ...]
    aggressors: dict[str, Aggressor]
    aggressor_cpus: dict[str, tuple[int, ...]]
    levels: dict[str, Level] = Field(default_factory=dict)
    treatments: tuple[Treatment, ...]
    aside_cpus: tuple[int, ...] = ()

    @property
    def block_ns(self) -> int:
        """Longest that one block can take: each treatment's guard, slot and release once."""
        return sum(t.guard_ns + t.slot_ns + t.release_ns for t in self.treatments)

    @property
    def sandboxes(self) -> tuple[Sandbox, ...]:
        """The victim's and every aggressor's."""
        return (self.victim.sandbox, *(aggressor.sandbox for aggressor in self.aggressors.values()))

    def shares_cpu(self, aggressor: str) -> bool:
        """Whether an aggressor is on one of the victim's own CPUs."""
        if aggressor not in self.aggressors:
            return False
        theirs = self.aggressor_cpus.get(aggressor, ())
        return meet(self.victim.sandbox, self.victim_cpus, self.aggressors[aggressor].sandbox, theirs)

    def treatment(self, id_: str) -> Treatment:
        """The treatment of that id; KeyError if there is none."""
        return {t.id: t for t in self.treatments}[id_]


def meet(one: Sandbox, cpus: Collection[int | str], other: Sandbox, theirs: Collection[int | str]) -> bool:
    """Whether two sandboxes have a CPU in common. The same number on two machines is not the same CPU.

    CPUs are numbers, or where these are not known yet, words.
    """
    return one.machine == other.machine and not set(cpus).isdisjoint(theirs)


def null_cpus(trial: Trial) -> tuple[int, ...]:
    """Where the null aggressor runs: where the first aggressor does, so that it differs from it in nothing else."""
    return next(iter(trial.aggressor_cpus.values()), trial.victim_cpus)


class Slot(Frozen):
    """Where one treatment of one block lies in time.

    The treatment is switched on at start_ns. The window from measure_ns to end_ns counts; before it is guard.
    """

    treatment: str
    start_ns: int
    measure_ns: int
    end_ns: int


class Plan(Frozen):
    """The whole run: visits go round the trials in random order, so that no trial owns a stretch of the host's time."""

    scenario: Scenario
    seed: int
    trials: tuple[Trial, ...]
    rounds: int
    timing: Timing
    estimate_ns: int
    warnings: tuple[str, ...] = ()
