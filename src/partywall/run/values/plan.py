"""The plan: trials, the treatments switched inside each, and how long it takes.

Pure data, stored as plan.json. The order of treatments in block *k* of a trial is a function of (seed, trial, k), see
`partywall.run.plan.order`. A resumed run needs only the plan and the list of finished blocks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field, model_validator

from partywall.host.settings.held import HostSettings
from partywall.run.document.scenario import Aggressor, Scenario, Timing, Victim
from partywall.sandbox.document import Limits, Sandbox
from partywall.values import Frozen, Level

Role = Literal["baseline", "null", "aggressor", "limit"]


class Treatment(Frozen):
    """One item that is compared inside a block. `intensities` contains the active aggressors; the baseline has none.

    guard_ns: excluded time between the previous treatment and its own slot. release_ns: least excluded time of its
    successor, for its after-effects. slot_ns: measured time. ceiling_rate: the victim's highest rate under its limits,
    if they determine one.
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
        """The aggressors that apply load, including those together with them, without the null aggressor."""
        return () if self.role == "null" else tuple(self.intensities)


class Trial(Frozen):
    """One victim at one combination of static levels, with all of its treatments.

    aside_cpus: CPUs of the victim's machine that are not the victim's. host: settings of this host. offline_cpus: CPUs
    of this host that these take away.
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
    host: HostSettings = HostSettings()
    offline_cpus: tuple[int, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _stored_before(cls, values: Any) -> Any:
        """Accepts plans of versions that had one setting of the host."""
        if not isinstance(values, dict) or "io_scheduler" not in values:
            return values
        rest = {key: value for key, value in values.items() if key != "io_scheduler"}
        return {"host": {"io_scheduler": values["io_scheduler"]}, **rest}

    @property
    def block_ns(self) -> int:
        """Longest duration of a block: each treatment's guard, slot and release once."""
        return sum(t.guard_ns + t.slot_ns + t.release_ns for t in self.treatments)

    @property
    def sandboxes(self) -> tuple[Sandbox, ...]:
        """The sandboxes of the victim and of every aggressor."""
        return (self.victim.sandbox, *(aggressor.sandbox for aggressor in self.aggressors.values()))

    def shares_cpu(self, aggressor: str) -> bool:
        """True if an aggressor runs on one of the victim's own CPUs."""
        if aggressor not in self.aggressors:
            return False
        theirs = self.aggressor_cpus.get(aggressor, ())
        return meet(self.victim.sandbox, self.victim_cpus, self.aggressors[aggressor].sandbox, theirs)

    def treatment(self, id_: str) -> Treatment:
        """The treatment with this id; KeyError if there is none."""
        return {t.id: t for t in self.treatments}[id_]


def meet(sandbox: Sandbox, cpus: Collection[int | str], other: Sandbox, theirs: Collection[int | str]) -> bool:
    """True if two sandboxes share a CPU. The same number on two machines is not the same CPU.

    CPUs are numbers, or words if the numbers are not yet known.
    """
    return sandbox.machine == other.machine and not set(cpus).isdisjoint(theirs)


def null_cpus(trial: Trial) -> tuple[int, ...]:
    """CPUs of the null aggressor: those of the first aggressor, so that they differ in nothing else."""
    return next(iter(trial.aggressor_cpus.values()), trial.victim_cpus)


class Slot(Frozen):
    """The times of one treatment in one block.

    The treatment is switched on at start_ns. The window from measure_ns to end_ns counts; the time before is guard
    time.
    """

    treatment: str
    start_ns: int
    measure_ns: int
    end_ns: int


class Plan(Frozen):
    """The whole run.

    Trials are measured in random order in each round, so that drift of the host affects all trials alike.
    """

    scenario: Scenario
    seed: int
    trials: tuple[Trial, ...]
    rounds: int
    timing: Timing
    estimate_ns: int
    warnings: tuple[str, ...] = ()
