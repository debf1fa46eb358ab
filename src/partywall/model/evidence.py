"""What a run left behind, read from its directory by `partywall.store` and handed to statistics and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from partywall import units
from partywall.model.observation import Observation
from partywall.model.plan import Plan

VICTIM = "victim"
"""What the victim's workload and its counters are called, whatever its name in the scenario."""


@dataclass(frozen=True)
class Counter:
    """A monitor's counter: what it counts, in the agent's words, and the resource it is evidence of.

    name: SUBJECT.COUNTER, or COUNTER where it is of the whole host. unit: nanoseconds, bytes, count and so on; a total
    is read per second. phrase: what it counts, for people; empty where the agent has no words for it.
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
        """'the victim's wait for its CPU', 'interrupts', 'idle time on CPU 0'; its name for want of words."""
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
        """Its words, and its name for who wants to look it up."""
        return f"{self.words} ({self.name})" if self.phrase else self.name

    def scale(self, largest: float) -> tuple[float, str]:
        """What readings are divided by, and the unit they then have, fit for readings up to `largest`."""
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
    """Nanoseconds in a second: a share of a core, of the time, or, summed over requests, how many there are at once."""
    if base.startswith("disk_") and base != "disk_busy_ns":
        return 1e9, "requests at a time"
    return 1e7, "% of the time" if "pressure" in base or base == "disk_busy_ns" else "% of a core"


def _prefixed_time(largest: float) -> tuple[float, str]:
    power = max(0, min(units.magnitude(largest) // 3, 3))
    return 1000.0**power, ("ns", "µs", "ms", "s")[power]


@dataclass(frozen=True)
class SlicePoint:
    """A victim's slice, for drawing.

    Rate in work per second, the treatment that held, and whether it was in the guard.
    """

    start_ns: int
    end_ns: int
    rate: float
    treatment: str
    block: int
    guard: bool


@dataclass(frozen=True)
class Readings:
    """What became of a metric's readings.

    unusable: no number, or a document that does not parse. bunched: came at the instant of the one before, so that
    their time is not known.
    """

    used: int = 0
    unusable: int = 0
    bunched: int = 0

    def __add__(self, other: Readings) -> Readings:
        return Readings(self.used + other.used, self.unusable + other.unusable, self.bunched + other.bunched)


@dataclass(frozen=True)
class Unread:
    """Counters that a monitor could not read: which, why, what that costs, and how to get them."""

    what: str
    why: str
    cost: str
    remedy: str

    @classmethod
    def of(cls, missing: Mapping[str, Any]) -> Unread:
        """As the agent tells it."""
        return cls(*(str(missing.get(key) or "") for key in ("what", "why", "cost", "remedy")))


Emulated = Literal["victim", "neighbour"]
"""Of a figure: its victim was emulated, so an absolute figure is the emulator's; or a neighbour alone."""


@dataclass(frozen=True)
class Witness:
    """What agents said of a trial beside their measurements, by name of workload.

    facts: of each kernel's thread at the end of each visit. dropped: lines of output that came too fast to be kept.
    emulated: sandboxes whose processor was emulated.
    """

    facts: dict[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    readings: dict[str, Readings] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    emulated: tuple[str, ...] = ()

    def emulation(self, neighbours: Iterable[str] = ()) -> Emulated | None:
        """What of a victim beside these neighbours was emulated: with the victim all of its figures are."""
        if VICTIM in self.emulated:
            return "victim"
        return "neighbour" if any(name in self.emulated for name in neighbours) else None


@dataclass(frozen=True)
class Evidence:
    """All of a run but its findings. By trial: timeline, the slices of some blocks in order of time; and witness.

    kernels: the agent's catalogue entries by name (unit, figure, latency text). missing: what the host could not tell,
    as (what, why, remedy). disturbances: what was seen of others, as (trial, block, text). directory: where the run
    lies, empty where it never lay anywhere.
    """

    run: str
    started: str
    plan: Plan
    host: dict[str, Any]
    kernels: dict[str, dict[str, Any]]
    observations: tuple[Observation, ...]
    counters: dict[str, Counter] = field(default_factory=dict)
    timeline: dict[str, tuple[SlicePoint, ...]] = field(default_factory=dict)
    witness: dict[str, Witness] = field(default_factory=dict)
    missing: tuple[tuple[str, str, str], ...] = ()
    disturbances: tuple[tuple[str, int, str], ...] = ()
    incomplete: tuple[str, ...] = ()
    interrupted: bool = False
    directory: str = ""
