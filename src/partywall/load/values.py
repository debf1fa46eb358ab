"""The findings of a load for reports: plain values by second, request and counter, with the necessary notes.

Made from a load's directory by `partywall.load.findings`. Times are in ns; `at_s` is in seconds since the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from partywall.core.stats.estimate import Outcome

Counts = Mapping[int, int]


@dataclass(frozen=True)
class SecondPoint:
    """One second.

    quantiles_ns and raw_ns: response times by name, e.g. p99 (the longest if there are few responses); empty if there
    were none.
    """

    at_s: float
    length_s: float
    users: int
    in_flight: int
    waiting: int
    rate: float
    transactions: float
    errors: int
    received_bytes: int
    sent_bytes: int
    quantiles_ns: Mapping[str, float]
    raw_ns: Mapping[str, float]
    busy: float | None
    doubts: Mapping[str, str]


@dataclass(frozen=True)
class LabelRow:
    """Totals of one request, transaction or compression. Histograms map the agent's buckets to counts."""

    name: str
    sort: str
    done: int
    failed: int
    mean_ns: float | None
    deviation_ns: float | None
    corrected: Counts
    raw: Counts
    first_byte: Counts
    body: Counts


@dataclass(frozen=True)
class GeneratorRow:
    """One of several generators. place: its machine, empty for a sandbox here.

    busy: time that its threads worked, in cores. good: seconds of the stages without a warning, of `judged`.
    clock_error_ns: the largest error of its clock, by readings before the start; None on this host. emulated: of
    another machine, whether its processor is.
    """

    name: str
    place: str
    requests: int
    responses: int
    failed: int
    corrected: Counts
    busy: float
    good: int
    judged: int
    clock_error_ns: int | None
    emulated: bool = False


@dataclass(frozen=True)
class Series:
    """One figure of one host over time. group: its chart; values are in `unit`."""

    host: str
    group: str
    name: str
    unit: str
    points: tuple[tuple[float, float], ...]

    @property
    def mean(self) -> float | None:
        values = [value for _, value in self.points]
        return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class Bound:
    """A threshold, the measured value, and whether it holds."""

    asked: str
    found: str
    outcome: Outcome


@dataclass(frozen=True)
class Late:
    """Effect of late sending on a percentile of response times. share: 0.99 for p99. Times are in ns."""

    share: float
    measured_ns: float
    on_time_ns: float


@dataclass(frozen=True)
class LoadRun:
    """A whole load. facts: how it was carried out, for people. late_effects: those that matter.

    length_s: how much of its stages was carried out; less than all if it ended early. judged: seconds in the stages;
    good, of these; doubtful: (what, remedy, seconds), of these. available: the share of full seconds in which at least
    half of the requests that ended succeeded. intervals: 95 % intervals of the rate (per s) and of response times (ns)
    of the whole load, by name: rate, p50, p90, p99; those that are known.
    """

    run: str
    title: str
    started: str
    length_s: float
    ended_early: bool
    responses: int
    requests: int
    rate: float
    rate_deviation: float | None
    received_bytes: int
    sent_bytes: int
    seconds: tuple[SecondPoint, ...]
    labels: tuple[LabelRow, ...]
    connect: Counts
    tls: Counts
    lateness: Counts
    timed: int
    late: int
    errors: tuple[tuple[str, str, int], ...]
    statuses: Mapping[int, int]
    monitors: tuple[Series, ...]
    bounds: tuple[Bound, ...]
    outcome: Outcome
    good: int
    judged: int
    doubtful: tuple[tuple[str, str, int], ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    program: Mapping[str, Any] = field(default_factory=dict)
    late_effects: tuple[Late, ...] = ()
    available: float | None = None
    generators: tuple[GeneratorRow, ...] = ()
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def failure(self) -> str:
        """Why there are no figures; empty if there are."""
        if not self.responses:
            return "no request was answered; see the errors"
        if not any(label.done for label in self.labels):
            return "every request failed; see the errors"
        return ""

    @property
    def believed(self) -> str:
        """Whether the figures are the service's or the generator's."""
        doubtful = self.judged - self.good
        if not doubtful:
            return f"The generator was good in all {self.judged} seconds: the figures are the service's"
        most = doubtful * 2 > self.judged
        figures = "include the generator's own delays" if most else "are the service's, except in those seconds"
        return f"The generator was doubtful in {doubtful} of {self.judged} seconds: the figures {figures}"
