"""The evidence of a run, read from its directory by `partywall.run.record`, for statistics and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from partywall import units
from partywall.core.stats.estimate import Emulated
from partywall.run.values.observation import Observations
from partywall.run.values.plan import Plan

VICTIM = "victim"
"""The name of the victim's workload and counters, whatever its name in the scenario."""


@dataclass(frozen=True)
class Counter:
    """A monitor's counter: its description from the agent, and the resource that it is evidence of.

    name: SUBJECT.COUNTER, or COUNTER if it is of the whole host. unit: nanoseconds, bytes, count and so on; a total is
    read per second. phrase: a description for people; empty if the agent has none.
    """

    name: str
    unit: str
    kind: str
    resource: str
    phrase: str = ""

    @property
    def base(self) -> str:
        """The name without its subject."""
        return self.name.rpartition(".")[2]

    @property
    def words(self) -> str:
        """A description: 'the victim's wait for its CPU', 'interrupts', 'idle time on CPU 0'; or else its name."""
        subject = self.name.rpartition(".")[0]
        if not self.phrase:
            return self.name
        if not subject:
            return self.phrase
        if subject == VICTIM:
            return f"the victim's {self.phrase}"
        if subject == "cpu":
            return f"{self.phrase} on all CPUs together"
        cpu = subject.removeprefix("cpu")
        return f"{self.phrase} on {f'CPU {cpu}' if cpu.isdigit() else subject}"

    @property
    def title(self) -> str:
        """The description and the name, so that readers can look it up."""
        return f"{self.words} ({self.name})" if self.phrase else self.name

    def scale(self, largest: float) -> tuple[float, str]:
        """A divisor for readings, and their unit, suitable for readings up to `largest`."""
        total = self.kind != "gauge"
        if self.unit == "nanoseconds":
            return _time_scale(self.base) if total else _prefixed_time(largest)
        divisor, prefix = units.decimal_prefix(largest)
        match self.unit:
            case "bytes":
                return divisor, f"{prefix}B/s" if total else f"{prefix}B"
            case "hertz":
                return divisor, f"{prefix}Hz"
            case "millidegrees":
                return 1e3, "°C"
            case "count":
                return 1.0, "/s" if total else ""
            case unit:
                return 1.0, unit

    def change(self, before: float, after: float, joint: str = "→") -> str:
        """Two readings in one unit: '9.3 % → 66 % of a core'."""
        divisor, unit = self.scale(max(abs(before), abs(after)))
        mark, unit = ("\u00a0%", unit.removeprefix("%").strip()) if unit.startswith("%") else ("", unit)
        texts = (units.format_number(reading / divisor, 3) for reading in (before, after))
        return f" {joint} ".join(f"{text}{mark}" for text in texts) + (f" {unit}" if unit else "")


def _time_scale(base: str) -> tuple[float, str]:
    """Scale of nanoseconds a second: a share of a core or of the time, or their number if summed over requests."""
    if base.startswith("disk_") and base != "disk_busy_ns":
        return 1e9, "requests at a time"
    return 1e7, "% of the time" if "pressure" in base or base == "disk_busy_ns" else "% of a core"


def _prefixed_time(largest: float) -> tuple[float, str]:
    power = max(0, min(units.magnitude(largest) // 3, 3))
    return 1000.0**power, ("ns", "µs", "ms", "s")[power]


@dataclass(frozen=True)
class SlicePoint:
    """A victim's slice, for drawing.

    Rate in work per second, the current treatment, and whether it was in the guard time.
    """

    start_ns: int
    end_ns: int
    rate: float
    treatment: str
    block: int
    guard: bool


@dataclass(frozen=True)
class Readings:
    """Counts of a metric's readings.

    unusable: not a number, or a document that does not parse. bunched: arrived at the same instant as the previous one,
    so its time is unknown.
    """

    used: int = 0
    unusable: int = 0
    bunched: int = 0

    def __add__(self, other: Readings) -> Readings:
        return Readings(self.used + other.used, self.unusable + other.unusable, self.bunched + other.bunched)


@dataclass(frozen=True)
class Unread:
    """Counters that a monitor could not read: names, reason, consequence, and how to get them."""

    what: str
    why: str
    cost: str
    remedy: str

    @classmethod
    def of(cls, missing: Mapping[str, Any]) -> Unread:
        """From the agent's message."""
        return cls(*(str(missing.get(key) or "") for key in ("what", "why", "cost", "remedy")))


@dataclass(frozen=True)
class AgentFacts:
    """Facts that agents reported about a trial beside measurements, by workload.

    facts: from each kernel's thread at the end of each turn. dropped: lines of output that arrived too fast, or were
    too long, to be stored. emulated: sandboxes with an emulated processor. disturbed: aggressors whose calibration
    other processes disturbed. versions: what commands said their version is; several texts if it changed between turns.
    """

    facts: dict[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    readings: dict[str, Readings] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    emulated: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()
    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def emulation(self, neighbours: Iterable[str] = ()) -> Emulated | None:
        """What was emulated among a victim and these neighbours. If the victim was, all of its figures are affected."""
        if VICTIM in self.emulated:
            return "victim"
        return "neighbour" if any(name in self.emulated for name in neighbours) else None


@dataclass(frozen=True)
class Evidence:
    """Everything about a run except its findings. observations: in order of time, by trial.

    timeline: slices of some blocks in order of time, by trial. decided: treatments that got no more blocks, by trial.
    kernels: the agent's catalogue entries by name (unit, figure, latency text). missing: facts that the host could not
    provide, as (name, reason, remedy). disturbances: effects of other programs, as (trial, block, text). directory: the
    run's path; empty if it was never stored.
    """

    run: str
    started: str
    plan: Plan
    host: dict[str, Any]
    kernels: dict[str, dict[str, Any]]
    observations: dict[str, Observations]
    counters: dict[str, Counter] = field(default_factory=dict)
    timeline: dict[str, tuple[SlicePoint, ...]] = field(default_factory=dict)
    agent_facts: dict[str, AgentFacts] = field(default_factory=dict)
    decided: Mapping[str, frozenset[str]] = field(default_factory=dict)
    missing: tuple[tuple[str, str, str], ...] = ()
    disturbances: tuple[tuple[str, int, str], ...] = ()
    incomplete: tuple[str, ...] = ()
    interrupted: bool = False
    directory: str = ""

    def of_trial(self, trial: str) -> Observations:
        """The observations of a trial, in order of time."""
        return self.observations.get(trial) or Observations.of(())
