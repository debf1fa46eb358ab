"""Running totals of pairs as metrics, with a bounded number of series. Pure.

A pair gets a series of its own while there is room, and keeps it: totals never go back. Pairs without a series are
added to the victim `other` or the suspect `other`, so that the sum over all series is the stalled time of all. A series
that has not grown for an hour gives its room to another pair, and disappears.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from partywall.core.report.prometheus import family, sample
from partywall.watch.stalls.detect import Stall
from partywall.watch.stalls.reading import RESOURCES, HostCount
from partywall.watch.stalls.rule import OTHER, Pair

PAIRS = "partywall_stalled_seconds_total"
SERIES_MAX = 1000
VICTIMS_MAX = 200
IDLE_NS, FORGET_NS = 3600 * 10**9, 60 * 10**9
STALLED = (
    "Time in which a victim waited for a resource because of a suspect. itself: its own limit or tasks. host: what is "
    "in no watched group. unknown: use was not counted. other: all that have no series. By use, not a proof."
)
Key = tuple[str, str, str]
"""Victim, suspect, resource."""


class Family(NamedTuple):
    """A metric. kind: counter or gauge. samples: labels and a value."""

    name: str
    about: str
    kind: str
    samples: Sequence[tuple[Mapping[str, str], float]]


HOST = {
    "steal_ns": ("steal_seconds", "CPU time that the hypervisor gave to others.", 1e9),
    "softirq_ns": ("softirq_seconds", "CPU time of soft interrupts, network packets among them.", 1e9),
    "reclaimed": ("pages_scanned", "Pages that were scanned to free memory of the host.", 1),
    "allocation_stalls": ("allocation_stalls", "Times that an allocation had to free memory first.", 1),
    "major_faults": ("major_faults", "Page faults that had to read from a disk.", 1),
    "packets_dropped": ("packets_dropped", "Packets dropped because a CPU's queue of received ones was full.", 1),
    "softnet_squeezed": ("softnet_squeezed", "Times that receiving stopped before the queue was empty.", 1),
}


class Totals:
    """Sums since the start. series_max: the most pairs with a series."""

    def __init__(self, series_max: int = SERIES_MAX, victims_max: int = VICTIMS_MAX) -> None:
        self._series_max, self._victims_max = series_max, victims_max
        self._sums: dict[Key, int] = {}
        self._grown_ns: dict[Key, int] = {}
        self._named: dict[Key, str] = {}
        self._victims: dict[str, int] = {}
        self._forgot_ns = 0
        self.stalls = 0

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, resource: str, pair: Pair, now_ns: int) -> None:
        """Adds one pair of an interval."""
        key = pair.victim, pair.suspect, resource
        if key not in self._sums:
            key = self._placed(key, now_ns)
            if key not in self._sums:
                self._victims[key[0]] = self._victims.get(key[0], 0) + 1
        self._sums[key] = self._sums.get(key, 0) + pair.stalled_ns
        self._grown_ns[key] = now_ns

    def _placed(self, key: Key, now_ns: int) -> Key:
        """The series to which a pair without one is added."""
        if not self._has_room(key[0]) and now_ns - self._forgot_ns >= FORGET_NS:
            self._forgot_ns = now_ns
            self._forget(now_ns)
        if self._has_room(key[0]):
            return key
        narrower = key[0], OTHER, key[2]
        return narrower if narrower in self._sums else (OTHER, OTHER, key[2])

    def _has_room(self, victim: str) -> bool:
        """The last series are kept for those in which several victims and suspects are together."""
        is_known = victim in self._victims or len(self._victims) < self._victims_max
        return is_known and len(self._sums) < self._series_max - len(RESOURCES)

    def _forget(self, now_ns: int) -> None:
        """Drops series that have not grown for long."""
        for key in [key for key, grown_ns in self._grown_ns.items() if now_ns - grown_ns >= IDLE_NS]:
            del self._sums[key], self._grown_ns[key]
            self._named.pop(key, None)
            self._victims[key[0]] -= 1
            if not self._victims[key[0]]:
                del self._victims[key[0]]

    def _samples(self) -> list[str]:
        """Their names are made once: to make a thousand of them takes as long as to read all groups."""
        for key in self._sums.keys() - self._named.keys():
            victim, suspect, resource = key
            self._named[key] = sample(PAIRS, {"victim": victim, "suspect": suspect, "resource": resource})
        return [f"{self._named[key]} {sum_ns / 1e9:.12g}" for key, sum_ns in self._sums.items()]

    def pairs(self) -> Mapping[Key, int]:
        """The sums in ns."""
        return self._sums

    def families(
        self, host: HostCount, now: list[Stall], own: Mapping[str, float], lacks: Iterable[str]
    ) -> Iterator[Family]:
        """All metrics but the pairs. own: figures of the watch itself; lacks: kinds."""
        for field, (name, about, scale) in HOST.items():
            yield Family(f"partywall_host_{name}_total", about, "counter", [({}, getattr(host, field) / scale)])
        going_on = [({"victim": stall.victim, "resource": stall.resource}, 1.0) for stall in now]
        yield Family("partywall_stall", "1 while the victim waits for others.", "gauge", going_on)
        yield Family("partywall_stalls_total", "Stalls that began since the start.", "counter", [({}, self.stalls)])
        for name, value in own.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            yield Family(f"partywall_watch_{name}", OWN[name], kind, [({}, value)])
        yield Family("partywall_watch_lacks", LACKS, "gauge", [({"what": what}, 1.0) for what in sorted(lacks)])

    def lines(self, families: Iterable[Family], *, is_open: bool) -> Iterator[str]:
        """The pairs and these metrics as text, without an end. is_open: as OpenMetrics."""
        yield from family(PAIRS, STALLED, "counter", self._samples(), is_open=is_open)
        for each in families:
            yield from family(*each, is_open=is_open)


LACKS = "1 for each thing that this host does not show, or that the watch cannot write now; /ready says more."
OWN = {
    "ready": "1 if the watch reads as often as it promises.",
    "groups": "Groups that are watched.",
    "period_seconds": "Time between the last two readings of all groups.",
    "cpu_seconds_total": "CPU time of the watch itself.",
    "resident_bytes": "Memory of the watch itself.",
}
