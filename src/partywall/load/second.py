"""Seconds of a load: merges the records of all threads of all generators into one record a second, without loss."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partywall.core.stats.histogram import Histogram

SECOND_NS = 1_000_000_000
# The first and last second of a load are partial.
FULL_S = 0.9
HISTOGRAMS = ("corrected", "raw", "first_byte", "body", "failures")


@dataclass(frozen=True)
class Error:
    """The number of errors of one kind. label: None if no request was involved."""

    label: int | None
    kind: str
    detail: str


@dataclass
class Timing:
    """Times of one label. sum_ns and sum_squares_s2 are of corrected times, for an exact mean and deviation."""

    done: int = 0
    failed: int = 0
    sum_ns: int = 0
    sum_squares_s2: float = 0.0
    corrected: dict[int, int] = field(default_factory=dict)
    raw: dict[int, int] = field(default_factory=dict)
    first_byte: dict[int, int] = field(default_factory=dict)
    body: dict[int, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)

    def add(self, sent: Mapping[str, Any]) -> None:
        self.done += sent["done"]
        self.failed += sent["failed"]
        self.sum_ns += sent["sum_ns"]
        self.sum_squares_s2 += sent["sum_squares_s2"]
        for name in HISTOGRAMS:
            add_pairs(getattr(self, name), sent[name])

    def merge(self, other: Timing) -> None:
        self.done += other.done
        self.failed += other.failed
        self.sum_ns += other.sum_ns
        self.sum_squares_s2 += other.sum_squares_s2
        for name in HISTOGRAMS:
            add_pairs(getattr(self, name), getattr(other, name).items())

    @property
    def count(self) -> int:
        """Number of complete responses."""
        return sum(self.corrected.values())

    @property
    def mean_ns(self) -> float | None:
        return self.sum_ns / self.count if self.count else None

    @property
    def deviation_ns(self) -> float | None:
        """Standard deviation; None with fewer than two responses."""
        if self.count < 2:
            return None
        mean_s = self.sum_ns / self.count / 1e9
        variance = (self.sum_squares_s2 - self.count * mean_s * mean_s) / (self.count - 1)
        return math.sqrt(max(variance, 0.0)) * 1e9


@dataclass
class Second:
    """One second of monotonic time, over all generators and threads.

    resent: requests sent once more, because the server had closed their kept connection. rerouted: addresses at which
    connecting failed, after which the next one was tried. parts: the same by generator, if there are several.
    """

    start_ns: int
    end_ns: int
    users: int = 0
    in_flight: int = 0
    waiting: int = 0
    iterations: int = 0
    requests: int = 0
    resent: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    connections_opened: int = 0
    connections_open: int = 0
    rerouted: int = 0
    connect: dict[int, int] = field(default_factory=dict)
    tls: dict[int, int] = field(default_factory=dict)
    timings: defaultdict[int, Timing] = field(default_factory=lambda: defaultdict(Timing))
    statuses: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    errors: defaultdict[Error, int] = field(default_factory=lambda: defaultdict(int))
    threads: list[Mapping[str, Any]] = field(default_factory=list)
    parts: dict[str, Second] = field(default_factory=dict)

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def lateness(self) -> dict[int, int]:
        """Lateness of timed requests, over all threads."""
        return self._of_threads("lateness")

    @property
    def undelayed(self) -> dict[int, int]:
        """Response times as if every request had been sent on time, over all threads."""
        return self._of_threads("undelayed")

    def _of_threads(self, name: str) -> dict[int, int]:
        total: dict[int, int] = {}
        for thread in self.threads:
            add_pairs(total, thread[name])
        return total

    def add(self, sent: Mapping[str, Any]) -> None:
        """Adds a thread's record of this second."""
        self.end_ns = max(self.end_ns, sent["end_ns"])
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + sent[name])
        add_pairs(self.connect, sent["connect"])
        add_pairs(self.tls, sent["tls"])
        for timing in sent["timings"]:
            self.timings[timing["label"]].add(timing)
        for status, count in sent["statuses"]:
            self.statuses[status] += count
        for error in sent["errors"]:
            self.errors[Error(error["label"], error["kind"], error["detail"])] += error["count"]
        self.threads.append({**sent["health"], "length_ns": sent["end_ns"] - sent["start_ns"]})


_SUMS = (
    "users",
    "in_flight",
    "waiting",
    "iterations",
    "requests",
    "resent",
    "sent_bytes",
    "received_bytes",
    "connections_opened",
    "connections_open",
    "rerouted",
)


def add_pairs(into: dict[int, int], pairs: Iterable[tuple[int, int]]) -> None:
    """Adds (bucket, count) pairs to a histogram."""
    for bucket, count in pairs:
        into[bucket] = into.get(bucket, 0) + count


Thread = tuple[str, int]


class Seconds:
    """Merges threads' records. A second is complete when every thread has reported it fully.

    threads: the generator and the number of each. ends_ns: the end of the stages. Threads cut their records there.
    Records after it in the same second are a second of their own.
    """

    def __init__(self, threads: Sequence[Thread], ends_ns: int | None = None) -> None:
        self._until_ns: dict[Thread, int] = dict.fromkeys(threads, 0)
        self._several = len({generator for generator, _ in threads}) > 1
        self._ends_ns = ends_ns
        self._open: dict[tuple[int, bool], Second] = {}

    def add(self, thread: Thread, sent: Mapping[str, Any]) -> None:
        """Adds a record of one thread, identified as in the constructor."""
        after = self._ends_ns is not None and sent["start_ns"] >= self._ends_ns
        number = (sent["start_ns"] // SECOND_NS, after)
        second = self._open.setdefault(number, Second(sent["start_ns"], sent["end_ns"]))
        second.start_ns = min(second.start_ns, sent["start_ns"])
        second.add(sent)
        if self._several:
            second.parts.setdefault(thread[0], Second(sent["start_ns"], sent["end_ns"])).add(sent)
        self._until_ns[thread] = max(self._until_ns[thread], sent["end_ns"])

    def complete(self, *, all_: bool = False) -> Iterator[Second]:
        """Complete seconds, in order. all_: the load has ended, so every second is complete."""
        until = min(self._until_ns.values()) // SECOND_NS
        for number in sorted(self._open):
            if all_ or number[0] < until:
                yield self._open.pop(number)


class Beside:
    """Holds seconds until the host's counters at their end have been read too, for at most `patience_s`.

    The counters come from another process, with a delay. known: whether those at the end of a second are there. Partial
    seconds do not wait, because counters are read at full seconds.
    """

    def __init__(self, known: Callable[[int], bool], patience_s: float) -> None:
        self._known = known
        self._patience_s = patience_s
        self._kept: deque[tuple[Second, float]] = deque()

    def __bool__(self) -> bool:
        return bool(self._kept)

    def take(self, seconds: Iterable[Second], now_s: float) -> Iterator[Second]:
        """Seconds that need not wait any longer, in order. `seconds` are new ones."""
        self._kept.extend((second, now_s) for second in seconds)
        while self._kept:
            second, since_s = self._kept[0]
            waits = second.length_s > FULL_S and now_s - since_s < self._patience_s
            if waits and not self._known(second.start_ns // SECOND_NS):
                return
            self._kept.popleft()
            yield second


def merged(seconds: Iterable[Second]) -> dict[int, Timing]:
    """Times by label, over several seconds."""
    total: defaultdict[int, Timing] = defaultdict(Timing)
    for second in seconds:
        for label, timing in second.timings.items():
            total[label].merge(timing)
    return dict(total)


def histogram(counts: Mapping[int, int]) -> Histogram:
    return Histogram(dict(counts))
