"""Power: readings of meters, the model of a node, and what is derived from a power record.

Times are monotonic nanoseconds of the host, power is in watts, energy in joules. A figure states where it comes from:
`measured` by a meter, `modelled` from a named profile, or `simulated` by a machine that exists only in software.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from partywall.core.stats.estimate import Estimate, Outcome
from partywall.values import Frozen

Origin = Literal["measured", "modelled", "simulated"]
Task = Literal["read", "calibrate", "attribute"]
Array = NDArray[np.float64]
WHOLE_MACHINE = "the whole machine"


# Raw facts


class Reading(Frozen):
    """One reading: power in watts, or a counter of joules that only grows. time_ns: the middle of the request.

    took_ns: how long the meter needed to answer.
    """

    meter: str
    time_ns: int
    watts: float | None = None
    joules: float | None = None
    took_ns: int = 0


FaultKind = Literal["silent", "garbage", "gone", "gap"]


class MeterFault(Frozen):
    """A reading that failed. silent: no answer in time; garbage: an answer without a number; gone: no connection.

    gap: a time without readings.
    """

    meter: str
    time_ns: int
    fault: FaultKind
    text: str


class MeterFacts(Frozen):
    """What is known of a meter before its first reading.

    quantity: what it reads. step: the smallest difference that it can show, in watts or joules; None if unknown.
    covers: which part of the machine it measures; is_whole: whether that is all of it. sends: whether it sends each new
    value itself, once.
    """

    meter: str
    origin: Origin = "measured"
    quantity: Literal["watts", "joules"] = "watts"
    step: float | None = None
    covers: str = WHOLE_MACHINE
    is_whole: bool = True
    sends: bool = False
    about: str = ""


class Activity(Frozen):
    """CPU seconds that were used since the start: by each CPU of the host, and by each consumer."""

    time_ns: int
    cpus_s: tuple[float, ...]
    consumers_s: dict[str, float] = Field(default_factory=dict)


class Slot(Frozen):
    """A time in which the load was constant. level: cores times intensity, such as 2 × 50 %. on: consumers at work."""

    block: int
    begin_ns: int
    end_ns: int
    level: str = ""
    on: tuple[str, ...] = ()


class DisturbedCalibration(Frozen):
    """A worker of a load whose calibration other processes disturbed. warning: how much, and what to do."""

    worker: str
    warning: str


# The model of a node


class NodeModel(Frozen):
    """Watts of a node from its activity.

    points: (busy cores, watts), from idle upwards. per: whether points were taken at whole busy cores, or at shares of
    the load that all cores carry together. band: half-width of the 95 % error band, as a share of the watts.
    off_watts, boot, shutdown: None if unknown. draws: watts at `points` in repetitions of the fit, for intervals.
    covers: the part of the machine whose watts these are, as the meter states it; None in files of earlier versions.
    is_whole: whether that is all of it.
    """

    name: str
    origin: Origin
    source: str = Field(description="the meter, or the publication")
    points: tuple[tuple[float, float], ...] = Field(min_length=2)
    per: Literal["core", "load"] = "core"
    band: float = Field(ge=0)
    off_watts: float | None = None
    boot_s: float | None = None
    boot_joules: float | None = None
    shutdown_s: float | None = None
    shutdown_joules: float | None = None
    draws: tuple[tuple[float, ...], ...] = ()
    covers: str | None = None
    is_whole: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        cores = [core for core, _ in self.points]
        if cores[0] != 0 or any(later <= earlier for earlier, later in itertools.pairwise(cores)):
            raise ValueError("points must begin at 0 busy cores, and the number of cores must rise")
        if any(len(draw) != len(self.points) for draw in self.draws):
            raise ValueError("each draw must have one value for each point")
        return self

    @property
    def states(self) -> Origin:
        """The origin of watts that it states where no meter is read, whatever gave the model."""
        return "simulated" if self.origin == "simulated" else "modelled"

    def fits(self, facts: MeterFacts) -> bool:
        """Whether its watts can be compared with those of a meter: both are of the same part of a machine."""
        return self.covers in (None, facts.covers) or (self.is_whole and facts.is_whole)

    @property
    def cpus(self) -> int:
        """Cores that the model knows."""
        return round(self.points[-1][0])

    @property
    def idle_watts(self) -> float:
        return self.points[0][1]

    def at(self, busy: float) -> float:
        """Watts with this many busy cores, all the time. Beyond the last point the last increment continues."""
        return float(_curve(self, [watts for _, watts in self.points], np.array([float(busy)]))[0])

    def estimate(self, busy: float) -> Estimate:
        """`at` with its interval."""
        value = self.at(busy)
        drawn = [float(_curve(self, draw, np.array([busy]))[0]) for draw in self.draws] or [value]
        low, high = np.quantile(drawn, (0.025, 0.975))
        half = max(self.band * value, value - float(low), float(high) - value)
        return Estimate(value=value, low=value - half, high=value + half, n=len(self.draws), method="error band")

    def watts(self, shares: Sequence[float], cpus: int) -> float:
        """Watts of a node with `cpus` cores. shares: busy share of each core, or of each independent thread."""
        return float(self.levels(cpus) @ chances(shares, cpus)) if self.per == "core" else self.at(sum(shares))

    def levels(self, cpus: int) -> Array:
        """Watts with 0, 1, … `cpus` busy cores."""
        return _curve(self, [watts for _, watts in self.points], np.arange(cpus + 1.0))

    def level_draws(self, cpus: int) -> Array:
        """`levels` in each repetition of the fit, shape (draws, cpus + 1); the band's two ends if there are none."""
        if self.draws:
            return np.array([_curve(self, draw, np.arange(cpus + 1.0)) for draw in self.draws])
        levels = self.levels(cpus)
        return np.array([levels * (1 - self.band), levels, levels * (1 + self.band)])

    @property
    def break_even_s(self) -> float | None:
        """The shortest time for which switching the node off, and on again, saves energy; None if unknown."""
        times = (self.boot_s, self.shutdown_s, self.off_watts, self.boot_joules, self.shutdown_joules)
        if any(value is None for value in times):
            return None
        boot_s, shutdown_s, off, boot, shutdown = (float(value or 0) for value in times)
        saved = self.idle_watts - off
        return max(boot_s + shutdown_s, (boot + shutdown - off * (boot_s + shutdown_s)) / saved)


def _curve(model: NodeModel, watts: Sequence[float], busy: Array) -> Array:
    cores = [core for core, _ in model.points]
    slope = (watts[-1] - watts[-2]) / (cores[-1] - cores[-2])
    inside = np.interp(busy, cores, watts)
    return np.asarray(inside + slope * np.maximum(0.0, busy - cores[-1]), dtype=np.float64)


def chances(shares: Sequence[float], cpus: int) -> Array:
    """Probability of 0, 1, … `cpus` busy cores, if each of `shares` is busy for its share, independently.

    A share above 1 is that many whole cores, and a rest. More busy threads than cores keep all cores busy.
    """
    distribution = np.zeros(cpus + 1)
    distribution[0] = 1.0
    for share in shares:
        whole = min(math.floor(share), cpus)
        for part in (*[1.0] * whole, min(max(share - whole, 0.0), 1.0)):
            distribution = _one_more(distribution, part)
    return distribution


def _one_more(chance: Array, share: float) -> Array:
    moved = chance * share
    kept = chance - moved
    kept[1:] += moved[:-1]
    kept[-1] += moved[-1]
    return kept


# What is derived


class Timing(Frozen):
    """How a meter follows the power, from a load that was switched.

    refresh_ms: how often its value changes; lag_ms: how old a new value is. None with a reason in `why`.
    """

    refresh_ms: Estimate | None = None
    lag_ms: Estimate | None = None
    why: str = ""


class MeterFinding(Frozen):
    """One meter of a record. watts, joules: of the time that it covers; missing_s: the rest of the record."""

    facts: MeterFacts
    readings: int
    watts: Estimate | None = None
    joules: float | None = None
    missing_s: float = 0.0
    timing: Timing = Timing()
    faults: tuple[MeterFault, ...] = ()
    took_ms: float | None = None


class Rung(Frozen):
    """One level of a load ladder: busy cores and watts, as measured, and as predicted without this level."""

    level: str
    busy: float
    watts: Estimate | None
    mean_watts: float
    slots: int
    predicted: float | None = None

    @property
    def error(self) -> float | None:
        """The prediction's error as a share of the measured value."""
        return None if self.predicted is None else self.predicted / self.mean_watts - 1


class Fit(Frozen):
    """A model fitted on a load ladder. left_out_error: mean error of the levels, each predicted from all others."""

    model: NodeModel
    rungs: tuple[Rung, ...]
    left_out_error: float
    worst_error: float


class Share(Frozen):
    """Watts of one consumer: those of its activity, and with its share of the idle power by each rule.

    cpu_s: CPU time. common: by the rule that many tools use (see `power.findings.node`).
    """

    name: str
    cpu_s: float
    active: Estimate
    by_use: Estimate
    evenly: Estimate
    common: float


class Attribution(Frozen):
    """Watts of each consumer. total, idle, active: means over the record. Shares by each rule add up to the total.

    measured: whether the total comes from a meter, or from the model too. model_error: how far the model alone is off.
    cpus: of the host. cut_s: time that was left out, because only the CPU time was read, and not the meter.
    """

    model: NodeModel
    total: Estimate
    idle: float
    shares: tuple[Share, ...]
    measured: bool
    cpus: int
    model_error: float | None = None
    cut_s: float = 0.0


class MoveEnergy(Frozen):
    """Energy of the moves of one workload by one method, in joules for one move.

    parts: source, destination, and stretch (the service's work that is done later). busy: cores that the guest uses
    when it does not move. own_known: whether the guest's own work was taken off; if not, the source's figure is an
    upper bound.
    """

    workload: str
    method: str
    moves: int
    busy: float
    own_known: bool
    seconds: float
    parts: dict[str, Estimate]
    total: Estimate
    model: str
    origin: Origin


class CoreTime(Frozen):
    """Core-seconds by the number of busy cores: what can be said without a meter."""

    states: dict[str, float]


class PowerPoint(Frozen):
    """One moment of a time line. at_s: from the start. meter: the series."""

    at_s: float
    meter: str
    watts: float


class PowerFindings(Frozen):
    """What a power record shows."""

    name: str
    task: Task
    headline: str
    outcome: Outcome
    origin: Origin
    meters: tuple[MeterFinding, ...] = ()
    core_time: CoreTime | None = None
    fit: Fit | None = None
    attribution: Attribution | None = None
    timeline: tuple[PowerPoint, ...] = ()
    busy: tuple[tuple[float, float], ...] = Field((), description="(s, busy cores)")
    notes: tuple[str, ...] = ()


class PowerReport(Frozen):
    """Findings, and what a page shows beside them."""

    findings: PowerFindings
    host: dict[str, Any]
    about: dict[str, Any]


class PowerEvidence(Frozen):
    """All that a power record holds. model: the model that attribution uses, if any."""

    name: str
    task: Task
    host: dict[str, Any]
    about: dict[str, Any]
    meters: tuple[MeterFacts, ...]
    readings: tuple[Reading, ...]
    faults: tuple[MeterFault, ...]
    activity: tuple[Activity, ...]
    slots: tuple[Slot, ...]
    model: NodeModel | None = None
    interrupted: bool = False
    disturbed: tuple[DisturbedCalibration, ...] = ()
