"""Summary of a whole load, from its seconds. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from partywall.load.health import Health, Lateness, Reason, lateness
from partywall.load.second import FULL_S, Error, Second, Timing, add_pairs, merged

SHARES = (0.5, 0.9, 0.99, 0.999)
# A load that completed less of its stages was ended from outside. Threads end theirs within microseconds of each other.
EARLY_SHARE = 0.999

Key = TypeVar("Key")


@dataclass(frozen=True)
class Summary:
    """rate: responses a second within the stages, with the deviation between full seconds (None with fewer than two).

    length_s: completed part of the stages, of planned_s; less if the load was ended from outside. seconds: number of
    seconds within the stages. Only these are judged, because a generator is almost idle afterwards. doubtful: number of
    seconds with each reason for a warning; good: number without any. resent and rerouted: see `Second`.
    within: responses within the stages, by label; all
    other counts are of the whole load. late_effects: the effect of late sending on percentiles of the whole load. full:
    the full seconds within the stages.
    """

    length_s: float
    planned_s: float
    requests: int
    resent: int
    rerouted: int
    responses: int
    rate: float
    rate_deviation: float | None
    sent_bytes: int
    received_bytes: int
    timings: Mapping[int, Timing]
    within: Mapping[int, int]
    connect: Mapping[int, int]
    tls: Mapping[int, int]
    lateness: Mapping[int, int]
    timed: int
    late: int
    statuses: Mapping[int, int]
    errors: Mapping[Error, int]
    seconds: int
    good: int
    doubtful: Mapping[Reason, int]
    late_effects: Sequence[Lateness]
    full: Sequence[Second]

    @property
    def failed(self) -> int:
        """Number of failed requests and other steps."""
        return sum(self.errors.values())

    @property
    def unserved(self) -> int:
        """Arrivals of the open model that never got a user: no request was sent, and no label counts them."""
        return sum(count for error, count in self.errors.items() if error.kind == "not_served")

    @property
    def ended_early(self) -> bool:
        return self.length_s < EARLY_SHARE * self.planned_s


def summarise(seconds: Sequence[Second], healths: Sequence[Health], begin_ns: int, stages_ns: int) -> Summary:
    """The sum of all seconds. Rates and warnings cover only the stages, because only remaining requests follow."""
    end_ns = begin_ns + stages_ns
    judged = [health for second, health in zip(seconds, healths, strict=True) if second.start_ns < end_ns]
    counted: Counter[Reason] = Counter(reason for health in judged for reason in health.doubts)
    connect: dict[int, int] = {}
    tls: dict[int, int] = {}
    late: dict[int, int] = {}
    for second in seconds:
        add_pairs(connect, second.connect.items())
        add_pairs(tls, second.tls.items())
        add_pairs(late, second.lateness.items())
    inside = [second for second in seconds if second.start_ns < end_ns]
    full = [s for s in inside if s.start_ns > begin_ns and s.end_ns <= end_ns and s.length_s > FULL_S]
    length_s = min(stages_ns, max((second.end_ns for second in inside), default=begin_ns) - begin_ns) / 1e9
    rates = [_responses(second) / second.length_s for second in full]
    return Summary(
        length_s=length_s,
        planned_s=stages_ns / 1e9,
        requests=sum(second.requests for second in seconds),
        resent=sum(second.resent for second in seconds),
        rerouted=sum(second.rerouted for second in seconds),
        responses=sum(map(_responses, seconds)),
        rate=sum(map(_responses, inside)) / length_s if length_s > 0 else 0.0,
        rate_deviation=statistics.stdev(rates) if len(rates) > 1 else None,
        sent_bytes=sum(second.sent_bytes for second in seconds),
        received_bytes=sum(second.received_bytes for second in seconds),
        timings=merged(seconds),
        within={label: timing.done for label, timing in merged(inside).items()},
        connect=connect,
        tls=tls,
        lateness=late,
        timed=sum(thread["timed"] for second in seconds for thread in second.threads),
        late=sum(thread["late"] for second in seconds for thread in second.threads),
        statuses=_total(second.statuses for second in seconds),
        errors=_total(second.errors for second in seconds),
        seconds=len(judged),
        good=sum(health.good for health in judged),
        doubtful=dict(counted),
        late_effects=lateness(seconds),
        full=full,
    )


def _responses(second: Second) -> int:
    return sum(second.statuses.values())


def _total(counts: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    total: Counter[Key] = Counter()
    for part in counts:
        total.update(part)
    return dict(total)
