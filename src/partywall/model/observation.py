"""What statistics see: one number a block and treatment, derived from slices by `partywall.store.observe`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Histogram:
    """Latencies in the agent's log-linear buckets: index → count. Merges without loss."""

    counts: dict[int, int]

    def merged(self, other: Histogram) -> Histogram:
        keys = self.counts.keys() | other.counts.keys()
        return Histogram({k: self.counts.get(k, 0) + other.counts.get(k, 0) for k in keys})


@dataclass(frozen=True)
class Observation:
    """One treatment of one block.

    rate: work per second of the victim between start_ns and end_ns (the slot without its guard), in the unit of its
    kernel. early_rate and late_rate: the same over the first and second half, for the carry-over test. cpu_share: CPU
    time over wall time of the victim's threads. achieved: rate of each aggressor in the same window, as a fraction of
    its calibrated maximum. straddle: share of the window whose slices reach beyond the slot: their work is partly
    another treatment's. counters: per second (totals) or last value (gauges). disturbed: named disturbances that
    were not ours.
    """

    trial: str
    block: int
    position: int
    treatment: str
    start_ns: int
    end_ns: int
    rate: float
    early_rate: float
    late_rate: float
    cpu_share: float | None
    latency: Histogram
    achieved: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    disturbed: tuple[str, ...] = ()
    straddle: float = 0.0
