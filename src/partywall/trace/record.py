"""A packet trace: the request, and the agent's reports. Frozen, and the same in the contract and in files.

Hops are listed in forward order by name (`TraceRequest.hops`, `Report.hops`), and in the order of the packets within a
direction (`Way.steps`, `Packet.at_ns`): backward packets pass the last hop first.
"""

from __future__ import annotations

import datetime
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from partywall import __version__
from partywall.core.record import JobRecord, decode, first_line
from partywall.trace.job import TraceJob
from partywall.trace.request import PROTOCOLS, Frozen, Hook, TraceRequest

if TYPE_CHECKING:
    from partywall.core.stats.histogram import Histogram


class Delay(Frozen):
    """Times between two places. Negative ones, from clock errors or a wrong order, are not in the histogram."""

    histogram: tuple[tuple[int, int], ...] = ()
    sum_ns: int = 0
    min_ns: int | None = None
    max_ns: int | None = None
    negative: int = 0
    negative_max_ns: int = 0

    @property
    def counts(self) -> Histogram:
        from partywall.core.stats.histogram import Histogram  # noqa: PLC0415 - of those who look alone

        return Histogram(dict(self.histogram))

    def within(self, ns: float) -> float:
        """A histogram's value, clamped to the shortest and longest delay: its buckets may extend beyond both."""
        least = self.min_ns if self.min_ns is not None else ns
        return min(max(ns, least), self.max_ns if self.max_ns is not None else ns)

    @property
    def count(self) -> int:
        return sum(count for _, count in self.histogram)


class Step(Frozen):
    """What happened between the previous hop and this one."""

    packets: int = 0
    bytes: int = 0
    lost: int = 0
    astray: int = 0
    duplicates: int = 0
    reordered: int = 0
    skipped: int = 0
    stray: int = 0
    delay: Delay = Delay()


class Packet(Frozen):
    """One packet: its time at each hop, in order of its path; None where it was not seen."""

    flow: str
    tag: int
    length: int
    stream: bool
    at_ns: tuple[int | None, ...]
    fate: Literal["delivered", "lost", "astray", "stray", "other", "unfinished"]

    @property
    def total_ns(self) -> int | None:
        first, last = self.at_ns[0], self.at_ns[-1]
        return None if first is None or last is None else last - first

    @property
    def delays_ns(self) -> tuple[int | None, ...]:
        """The delay of each step, from one hop to the next; None where it was not seen at both."""
        return tuple(
            None if earlier is None or later is None else later - earlier for earlier, later in pairwise(self.at_ns)
        )


class Way(Frozen):
    """One direction."""

    steps: tuple[Step, ...]
    total: Delay = Delay()
    delivered: int = 0
    unfinished: int = 0
    other: int = 0
    alike: int = 0
    forced: int = 0
    slowest: tuple[Packet, ...] = ()
    packets: tuple[Packet, ...] = ()


class Missed(Frozen):
    """Records that the tracer wrote at a hop, and those that it missed.

    counted_in, counted_out: packets of traced flows by hook, recorded or not, as segments on the wire; gone: the
    interface disappeared.
    """

    recorded: int = 0
    missed: int = 0
    untraced: int = 0
    counted_in: int = 0
    counted_out: int = 0
    gone: bool = False


class Flow(Frozen):
    """The addresses behind a flow's number."""

    flow: str
    protocol: int
    from_: str
    from_port: int
    to: str
    to_port: int

    model_config = ConfigDict(
        frozen=True, alias_generator=lambda name: name.rstrip("_"), populate_by_name=True, defer_build=True
    )

    def __str__(self) -> str:
        name = next(
            (name for name, number in PROTOCOLS.items() if number == self.protocol), f"protocol {self.protocol}"
        )
        ends = [f"{a}:{p}" if p else a for a, p in ((self.from_, self.from_port), (self.to, self.to_port))]
        return f"{name} {ends[0]} → {ends[1]}"


class Report(Frozen):
    """The findings of an interval. sampled: share of recorded flows; cost: share of the host's CPU time."""

    start_ns: int
    end_ns: int
    ways: tuple[Way, ...]
    hops: tuple[Missed, ...]
    hooks: tuple[Hook, ...] | None = None
    sampled: float = 1.0
    cost: float | None = None
    live: int = 0
    flows: tuple[Flow, ...] = ()


class ClockBound(Frozen):
    """How an agent's clock was aligned: the value added to its times, and its largest error."""

    agent: str
    offset_ns: int
    bound_ns: int


class Start(Frozen):
    """How a trace began. wall_ns: wall-clock time at monotonic zero. for_ns: its length; None until Ctrl-C."""

    asked: TraceRequest
    started: str
    wall_ns: int
    version: str
    for_ns: int | None = None

    @classmethod
    def now(cls, asked: TraceRequest, for_ns: int | None = None) -> Self:
        """A trace that begins now."""
        started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        wall_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return cls(asked=asked, started=started, wall_ns=wall_ns, version=__version__, for_ns=for_ns)


class TraceEvidence(Frozen):
    """A stored trace. interrupted: it did not reach its end.

    record_ns: time of the tracer's program for a record on this host; relays_record_ns: the same of agents elsewhere.
    """

    run: str
    start: Start
    host: dict[str, Any]
    reports: tuple[Report, ...]
    clocks: tuple[ClockBound, ...]
    record_ns: int | None
    interrupted: bool
    relays_record_ns: dict[str, int | None] = {}  # noqa: RUF012 - a model copies it


SLOWEST_KEPT = 50


def merged(reports: Sequence[Report]) -> Report:
    """The sum of at least one report. Sampling is the lowest, cost the highest value."""
    costs = [report.cost for report in reports if report.cost is not None]
    return Report(
        start_ns=min(report.start_ns for report in reports),
        end_ns=max(report.end_ns for report in reports),
        ways=tuple(_way(ways) for ways in zip(*(report.ways for report in reports), strict=True)),
        hops=tuple(
            _added(Missed, hops, gone=any(hop.gone for hop in hops))
            for hops in zip(*(report.hops for report in reports), strict=True)
        ),
        hooks=next((report.hooks for report in reversed(reports) if report.hooks), None),
        sampled=min(report.sampled for report in reports),
        cost=max(costs, default=None),
        live=reports[-1].live,
        flows=tuple(flow for report in reports for flow in report.flows),
    )


_Sum = TypeVar("_Sum", Missed, Step, Way)


def _added(kind: type[_Sum], parts: Sequence[_Sum], **rest: Any) -> _Sum:
    """Sums every numeric field."""
    numbers = [name for name, field in kind.model_fields.items() if field.annotation is int]
    return kind(**{name: sum(getattr(part, name) for part in parts) for name in numbers}, **rest)


def _way(ways: Sequence[Way]) -> Way:
    steps = tuple(
        _added(Step, steps, delay=added_delays([step.delay for step in steps]))
        for steps in zip(*(way.steps for way in ways), strict=True)
    )
    slowest = sorted((p for way in ways for p in way.slowest), key=lambda packet: -(packet.total_ns or 0))
    packets = tuple(packet for way in ways for packet in way.packets)
    total = added_delays([way.total for way in ways])
    return _added(Way, ways, steps=steps, total=total, slowest=tuple(slowest[:SLOWEST_KEPT]), packets=packets)


def counted(request: TraceRequest, report: Report) -> Report:
    """The report with packets and losses from the counts at each hop instead of from the recorded packets.

    A loss is what one hop counted less than the hop before, and `stray` what it counted more. Flows that leave or join
    the path between two hops are in these differences, so no packet is astray or skipped.
    """
    if report.hooks is None:
        return report
    forward = [getattr(hop, f"counted_{hook}") for hop, hook in zip(report.hops, report.hooks, strict=True)]
    both = [hop.counted_in + hop.counted_out for hop in report.hops]
    backward = [whole - part for whole, part in zip(both, forward, strict=True)][::-1]
    seen = (forward, backward if not request.one_way else [0] * len(forward))
    return report.model_copy(
        update={"ways": tuple(_by_counts(way, counts) for way, counts in zip(report.ways, seen, strict=True))}
    )


def _by_counts(way: Way, counts: Sequence[int]) -> Way:
    gone = [0, *(before - here for before, here in pairwise(counts))]
    steps = tuple(
        step.model_copy(
            update={"packets": count, "lost": max(0, less), "stray": max(0, -less), "astray": 0, "skipped": 0}
        )
        for step, count, less in zip(way.steps, counts, gone, strict=True)
    )
    return way.model_copy(update={"steps": steps, "delivered": counts[-1], "unfinished": 0, "alike": 0})


def added_delays(delays: Iterable[Delay]) -> Delay:
    """The sum of several delays."""
    delays = list(delays)
    counts: Counter[int] = Counter()
    for delay in delays:
        counts.update(dict(delay.histogram))
    return Delay(
        histogram=tuple(sorted(counts.items())),
        sum_ns=sum(delay.sum_ns for delay in delays),
        min_ns=min((delay.min_ns for delay in delays if delay.min_ns is not None), default=None),
        max_ns=max((delay.max_ns for delay in delays if delay.max_ns is not None), default=None),
        negative=sum(delay.negative for delay in delays),
        negative_max_ns=max((delay.negative_max_ns for delay in delays), default=0),
    )


class HopFinding(Frozen):
    """From one hop to the next; delays in nanoseconds.

    lost_low and lost_high: bounds on losses, given the records that the tracer missed.
    """

    origin: str
    hop: str
    packets: int
    lost: int
    lost_low: int
    lost_high: int
    lost_share: float | None
    astray: int
    duplicates: int
    reordered: int
    skipped: int
    stray: int
    negative: int
    negative_max_ns: int
    clock_bound_ns: int | None
    delay_ns: dict[str, float]


class WayFinding(Frozen):
    """One direction. sent: packets seen at the first hop; lost_low and lost_high as in a step.

    clock_bound_ns: largest error of total_ns; None if the first and the last hop use this host's clock.
    """

    way: str
    hops: tuple[str, ...]
    sent: int
    delivered: int
    lost: int
    lost_low: int
    lost_high: int
    unfinished: int
    other: int
    alike: int
    forced: int
    steps: tuple[HopFinding, ...]
    total_ns: dict[str, float]
    clock_bound_ns: int | None = None


class TraceFindings(Frozen):
    """The findings of a trace, in figures and words.

    order: the hops in the order in which packets passed them, if it is not the given one; then the figures of steps
    mean nothing. missed: records that the tracer missed, by hop as given. gone: hops whose interface disappeared.
    record_ns and relays_record_ns: as in the evidence.
    """

    run: str
    headline: str
    duration_ns: int
    ways: tuple[WayFinding, ...]
    recorded: dict[str, int]
    missed: dict[str, int]
    sampled: float
    cost: float | None
    record_ns: int | None
    clocks: tuple[ClockBound, ...]
    gone: tuple[str, ...]
    notes: tuple[str, ...]
    relays_record_ns: dict[str, int | None] = {}  # noqa: RUF012 - a model copies it
    order: tuple[str, ...] = ()


class TraceDirectory(JobRecord[TraceJob]):
    """The record of a trace."""

    KIND = "trace"
    JOBS = (TraceJob,)

    @classmethod
    def create(cls, path: Path, job: TraceJob, host: Mapping[str, Any], instead: str = "") -> Self:
        return cls.begun(path, Start.now(job.request, job.for_ns), host, instead)

    @classmethod
    def begun(cls, path: Path, start: Start, host: Mapping[str, Any], instead: str = "") -> Self:
        """Creates a record of what no command asked for, such as a trace beside a study."""
        trace = cls.make(path, instead)
        trace.put("host.json", json.dumps(host, indent=1))
        trace.put(cls.MARK, start.model_dump_json(indent=1))
        return trace

    @property
    def start(self) -> Start:
        """What was asked, and when."""
        return self.decoded(self.MARK, Start.model_validate_json)

    def append(self, kind: str, content: BaseModel | dict[str, Any]) -> None:
        """Appends an event."""
        fields = content.model_dump(by_alias=True) if isinstance(content, BaseModel) else content
        self.append_line(json.dumps({"kind": kind} | fields, allow_nan=False))

    def evidence(self) -> TraceEvidence:
        """The stored evidence. UsageError if it is invalid."""
        start = self.start
        events = list(self._events())
        wanted = [(kind, content) for kind, content in events if kind in ("report", "clock")]
        hooked: dict[str, Any] = next((content for kind, content in events if kind == "hooked"), {})
        return TraceEvidence(
            run=self.name,
            start=start,
            host=self.host,
            reports=tuple(content for kind, content in wanted if kind == "report"),
            clocks=tuple(content for kind, content in wanted if kind == "clock"),
            record_ns=hooked.get("record_ns"),
            relays_record_ns=hooked.get("relays_record_ns", {}),
            interrupted=not any(kind == "ended" for kind, _ in events),
        )

    def _events(self) -> Iterator[tuple[str, Any]]:
        kinds: dict[str, type[Report | ClockBound]] = {"report": Report, "clock": ClockBound}
        for number, line in self.lines():
            try:
                decoded = decode(line)
                if decoded:
                    kind = decoded.pop("kind")
                    yield kind, kinds[kind].model_validate(decoded) if kind in kinds else decoded
            except (ValueError, ValidationError) as error:
                raise self.damaged(self.LINES, first_line(error), number) from None
