"""What a load found, as reports show it: plain values by second, request and counter, and what must be said with them.

Made of a load's directory by `partywall.load.evidence`. Times are in ns, and `at_s` in seconds since the load began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from partywall.model.finding import Outcome

Counts = Mapping[int, int]


@dataclass(frozen=True)
class SecondPoint:
    """One second. quantiles_ns and raw_ns: response times by name, e.g. p99; empty if nothing was answered."""

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
    """All of one request, transaction or compression. Histograms map the agent's buckets to counts."""

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
class Series:
    """One figure of one host over time. group: the chart it belongs to; values are in `unit`."""

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
    """A threshold, what was found, and whether it holds."""

    asked: str
    found: str
    outcome: Outcome


@dataclass(frozen=True)
class LoadRun:
    """A whole load. doubtful: (what, remedy, seconds). facts: how it was carried out, for people."""

    run: str
    title: str
    started: str
    length_s: float
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
    doubtful: tuple[tuple[str, str, int], ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    program: Mapping[str, Any] = field(default_factory=dict)

    @property
    def believed(self) -> str:
        """Whose numbers these are."""
        doubtful = len(self.seconds) - self.good
        if not doubtful:
            return f"The generator was good in all {len(self.seconds)} seconds: these are the service's numbers"
        whose = "the generator's own" if doubtful * 2 > len(self.seconds) else "the service's, but for those seconds"
        return f"The generator was doubtful in {doubtful} of {len(self.seconds)} seconds: these numbers are {whose}"
