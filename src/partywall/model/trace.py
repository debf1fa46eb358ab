"""A packet trace: what was asked, and what the agent reports. Frozen, and the same in the contract and in files.

Hops are told in forward order where they are named (`Asked.hops`, `Report.hops`), and in the order in which packets
pass them within a way (`Way.steps`, `Packet.at_ns`): backward packets pass the last hop first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from partywall.model.observation import Histogram

Hook = Literal["in", "out"]
WAYS = ("forward", "backward")
PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58}
HOPS_MOST = 8


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Hop(_Frozen):
    """One place on the path. agent: who traces it if not this host's; namespace: a name, a process number or a path."""

    name: str
    interface: str
    agent: str | None = None
    namespace: str | None = None
    hook: Hook | None = None


class End(_Frozen):
    """An address, and a port where it matters."""

    address: str
    port: int | None = None


class Translation(_Frozen):
    """NAT on the way: what is outside at some hops is inside at others."""

    outside: End
    inside: End


class Only(_Frozen):
    """Which packets are traced; all if nothing is said."""

    protocol: int | None = None
    port: int | None = None
    address: str | None = None


class Asked(_Frozen):
    """What to trace. budget: share of the host's CPU time; agents: command lines of agents elsewhere, by name."""

    hops: tuple[Hop, ...]
    horizon_ns: int
    budget: float | None = None
    only: Only = Only()
    translations: tuple[Translation, ...] = ()
    packets: int = 2000
    agents: dict[str, tuple[str, ...]] = {}

    @property
    def one_way(self) -> bool:
        """Once a hop's hook is told, only forward packets are traced."""
        return any(hop.hook for hop in self.hops)

    def names(self, way: int) -> tuple[str, ...]:
        """The hops in the order in which packets of a way pass them."""
        names = tuple(hop.name for hop in self.hops)
        return names if way == 0 else names[::-1]


class Delay(_Frozen):
    """Times between two places. Negative ones, which only clocks can make, are not in the histogram."""

    histogram: tuple[tuple[int, int], ...] = ()
    sum_ns: int = 0
    min_ns: int | None = None
    max_ns: int | None = None
    negative: int = 0
    negative_max_ns: int = 0

    @property
    def counts(self) -> Histogram:
        return Histogram(dict(self.histogram))

    def within(self, ns: float) -> float:
        """A figure of the histogram, between the shortest and the longest delay: its buckets may reach beyond both."""
        least = self.min_ns if self.min_ns is not None else ns
        return min(max(ns, least), self.max_ns if self.max_ns is not None else ns)

    @property
    def count(self) -> int:
        return sum(count for _, count in self.histogram)


class Step(_Frozen):
    """What happened between the hop before and this one."""

    packets: int = 0
    bytes: int = 0
    lost: int = 0
    astray: int = 0
    duplicates: int = 0
    reordered: int = 0
    skipped: int = 0
    stray: int = 0
    delay: Delay = Delay()


class Packet(_Frozen):
    """One packet's way: when it was at each hop, in the order in which it passes them; None where it was not seen."""

    flow: str
    tag: int
    length: int
    stream: bool
    at_ns: tuple[int | None, ...]
    fate: str

    @property
    def total_ns(self) -> int | None:
        first, last = self.at_ns[0], self.at_ns[-1]
        return None if first is None or last is None else last - first


class Way(_Frozen):
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


class Missed(_Frozen):
    """What the tracer took down at a hop, and what it could not: its own loss. gone: the interface vanished."""

    recorded: int = 0
    missed: int = 0
    untraced: int = 0
    gone: bool = False


class Flow(_Frozen):
    """The addresses behind a flow's number."""

    flow: str
    protocol: int
    from_: str
    from_port: int
    to: str
    to_port: int

    model_config = ConfigDict(frozen=True, alias_generator=lambda name: name.rstrip("_"), populate_by_name=True)

    def __str__(self) -> str:
        name = next(
            (name for name, number in PROTOCOLS.items() if number == self.protocol), f"protocol {self.protocol}"
        )
        ends = [f"{a}:{p}" if p else a for a, p in ((self.from_, self.from_port), (self.to, self.to_port))]
        return f"{name} {ends[0]} → {ends[1]}"


class Report(_Frozen):
    """What was found in a stretch of time. sampled: the share of flows recorded; cost: of the host's CPU time."""

    start_ns: int
    end_ns: int
    ways: tuple[Way, ...]
    hops: tuple[Missed, ...]
    hooks: tuple[Hook, ...] | None = None
    sampled: float = 1.0
    cost: float | None = None
    live: int = 0
    flows: tuple[Flow, ...] = ()


class ClockBound(_Frozen):
    """How an agent's clock was aligned: what was added to its times, and how far that may be off."""

    agent: str
    offset_ns: int
    bound_ns: int


class Start(_Frozen):
    """How a trace began. wall_ns: wall time at monotonic zero."""

    asked: Asked
    started: str
    wall_ns: int
    version: str


class TraceEvidence(_Frozen):
    """A trace as it was stored. interrupted: it never came to its end."""

    run: str
    start: Start
    host: dict[str, Any]
    reports: tuple[Report, ...]
    clocks: tuple[ClockBound, ...]
    record_ns: int | None
    interrupted: bool


SLOWEST_KEPT = 50


def merged(reports: Sequence[Report]) -> Report:
    """All of them in one; there must be at least one. Sampling is the least, cost the most there was."""
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
    """Sums every field that is a number."""
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


def added_delays(delays: Iterable[Delay]) -> Delay:
    """All of them in one."""
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


class HopFinding(_Frozen):
    """From one hop to the next; delays in nanoseconds.

    lost_low and lost_high: what losses may be for all that the tracer itself did not take down.
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


class WayFinding(_Frozen):
    """One direction. sent: packets seen at the first hop; lost_low and lost_high as of a step."""

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


class TraceFindings(_Frozen):
    """What a trace found, in figures and in words.

    missed: the tracer's own losses, by hop as given. gone: hops whose interface vanished.
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
