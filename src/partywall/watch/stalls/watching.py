"""One watch: takes snapshots, and gives lines, totals and the ring what they need. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from partywall.watch.stalls.detect import Detector, Stall
from partywall.watch.stalls.reading import RESOURCES, Differences, HostCount, Interval, Snapshot
from partywall.watch.stalls.rule import Pair, divided
from partywall.watch.stalls.said import sentence
from partywall.watch.stalls.totals import Totals

RING_NS = 10_000_000_000
"""How often the ring gets a line of pairs."""
RING_PAIRS = 50


class Watching:
    """What is known of the groups so far.

    tell: takes a stall that begins or ends, ns since the epoch, and a line for people; wall: ns since the epoch; ring:
    takes a time and a line for the last hour.
    """

    def __init__(
        self,
        tell: Callable[[Stall, int, str], None],
        wall: Callable[[], int],
        threshold: float,
        ring: Callable[[int, dict[str, Any]], None] | None = None,
    ) -> None:
        self._say, self._wall, self._ring = tell, wall, ring
        self.differences = Differences()
        self.detector = Detector(threshold)
        self.totals = Totals()
        self.host = HostCount()
        self.period_ns = 0
        self._kept: dict[tuple[str, str, str], int] = {}
        self._kept_from_ns = 0

    def take(self, snapshot: Snapshot, groups: frozenset[str]) -> None:
        """Takes all counters of one moment. groups: those that exist."""
        interval = self.differences.take(snapshot)
        self.host = snapshot.host
        if interval is None:
            self._kept_from_ns = snapshot.time_ns
            return
        self.period_ns = interval.length_ns
        for stall in [*self._intervals(interval), *self.detector.gone(groups)]:
            self._tell(stall)
        if self._ring is not None and snapshot.time_ns - self._kept_from_ns >= RING_NS:
            self.keep(snapshot.time_ns)

    def _intervals(self, interval: Interval) -> Iterator[Stall]:
        for resource in RESOURCES:
            by_victim: dict[str, dict[str, int]] = {}
            for pair in divided(interval.shares.get(resource, {}), interval.others.get(resource, {})):
                self._add(resource, pair, interval.begin_ns + interval.length_ns)
                by_victim.setdefault(pair.victim, {})[pair.suspect] = pair.stalled_ns
            # Those that waited before, and do not now, too.
            for victim in by_victim.keys() | self.detector.victims(resource):
                parts = by_victim.get(victim, {})
                if stall := self.detector.take(victim, resource, parts, interval.begin_ns, interval.length_ns):
                    yield stall

    def _add(self, resource: str, pair: Pair, at_ns: int) -> None:
        self.totals.add(resource, pair, at_ns)
        if self._ring is not None:
            key = pair.victim, pair.suspect, resource
            self._kept[key] = self._kept.get(key, 0) + pair.stalled_ns

    def _tell(self, stall: Stall) -> None:
        at_ns = self._wall()
        self.totals.stalls += not stall.has_ended
        text = sentence(stall, at_ns)
        self._say(stall, at_ns, text)
        if self._ring is not None:
            self._ring(at_ns, {"stall": text})

    def keep(self, now_ns: int) -> None:
        """Writes the pairs since the last time into the ring."""
        largest = sorted(self._kept.items(), key=lambda pair: -pair[1])[:RING_PAIRS]
        rows = [[*key, round(stalled_ns / 1e6, 3)] for key, stalled_ns in largest if stalled_ns >= 1_000_000]
        if self._ring is not None and rows:
            length_ms = (now_ns - self._kept_from_ns) // 10**6
            self._ring(self._wall(), {"length_ms": length_ms, "pairs": rows})
        self._kept.clear()
        self._kept_from_ns = now_ns
