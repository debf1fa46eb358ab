"""What a whole load found, from its seconds: pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from partywall.load.health import Doubt, Health, Lateness, lateness
from partywall.load.second import Error, Second, Timing, add_pairs, merged

SHARES = (0.5, 0.9, 0.99, 0.999)
# The first second of a load, and its last, are only parts of one.
FULL_S = 0.9

Key = TypeVar("Key")


@dataclass(frozen=True)
class Summary:
    """rate: responses a second over the stages, with the deviation of its full seconds (None with fewer than two).

    doubtful: in how many seconds each doubt was; good: seconds with none. late_effects: what leaving late does to
    percentiles of the whole.
    """

    length_s: float
    requests: int
    responses: int
    rate: float
    rate_deviation: float | None
    sent_bytes: int
    received_bytes: int
    timings: Mapping[int, Timing]
    connect: Mapping[int, int]
    tls: Mapping[int, int]
    lateness: Mapping[int, int]
    timed: int
    late: int
    statuses: Mapping[int, int]
    errors: Mapping[Error, int]
    seconds: int
    good: int
    doubtful: Mapping[Doubt, int]
    late_effects: Sequence[Lateness]

    @property
    def failed(self) -> int:
        """Requests and other steps that went wrong."""
        return sum(self.errors.values())


def summarise(seconds: Sequence[Second], healths: Sequence[Health], begin_ns: int, stages_ns: int) -> Summary:
    """The sum of all seconds; its rate is over the stages only, for what comes after is but the tail."""
    counted: Counter[Doubt] = Counter(doubt for health in healths for doubt in health.doubts)
    connect: dict[int, int] = {}
    tls: dict[int, int] = {}
    late: dict[int, int] = {}
    for second in seconds:
        add_pairs(connect, second.connect.items())
        add_pairs(tls, second.tls.items())
        add_pairs(late, second.lateness.items())
    end_ns = begin_ns + stages_ns
    inside = [second for second in seconds if second.start_ns < end_ns]
    full = [s for s in inside if s.start_ns > begin_ns and s.end_ns <= end_ns and s.length_s > FULL_S]
    # The last second reaches into the time after the stages, in which little is answered.
    length_s = stages_ns / 1e9
    rates = [_responses(second) / second.length_s for second in full]
    return Summary(
        length_s=length_s,
        requests=sum(second.requests for second in seconds),
        responses=sum(map(_responses, seconds)),
        rate=sum(map(_responses, inside)) / length_s,
        rate_deviation=statistics.stdev(rates) if len(rates) > 1 else None,
        sent_bytes=sum(second.sent_bytes for second in seconds),
        received_bytes=sum(second.received_bytes for second in seconds),
        timings=merged(seconds),
        connect=connect,
        tls=tls,
        lateness=late,
        timed=sum(thread["timed"] for second in seconds for thread in second.threads),
        late=sum(thread["late"] for second in seconds for thread in second.threads),
        statuses=_total(second.statuses for second in seconds),
        errors=_total(second.errors for second in seconds),
        seconds=len(seconds),
        good=sum(health.good for health in healths),
        doubtful=dict(counted),
        late_effects=lateness(seconds),
    )


def _responses(second: Second) -> int:
    return sum(second.statuses.values())


def _total(counts: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    total: Counter[Key] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)
