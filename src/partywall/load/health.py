"""Judges whether a second's figures are valid, from reports of the generator and its host, by fixed bounds. Pure.

A generator crosses a bound if it distorts the measurement, not if it is merely busy. The bounds say nothing about the
server.

The bounds on time have one goal: in a good second, p50, p90 and p99 are the service's, within 5 % or 50 µs, whichever
is more. The effect of lateness is known for every request, so percentiles with and without it are compared. Late reads
are not known individually. While a thread waits for a CPU or stalls, every response that arrives is affected, so this
may take at most 1 % of a second: more could change p99.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from partywall.core.report.latency import quantiles
from partywall.core.stats.histogram import Histogram
from partywall.load.second import SECOND_NS, Second, add_pairs

JUDGED_SHARES = (0.5, 0.9, 0.99)
WRONG_SHARE = 0.05
WRONG_NS = 50_000
# A percentile with fewer responses beyond it is not reported, so it cannot be wrong.
BEYOND_LEAST = 10
BUSY_SHARE = 0.95
STARVED_SHARE = 0.01
STALL_NS = 10_000_000
STEAL_SHARE = 0.01
PORTS_SHARE = 0.9
BACK_PRESSURE_SHARE = 0.01
RETRANSMITTED_SHARE = 0.01


class Reason(StrEnum):
    """Why a second's figures are unreliable. `ADVICE` has a remedy for each."""

    LATE = "late"
    BUSY = "busy"
    STARVED = "starved"
    STALLED = "stalled"
    STEAL = "steal"
    THROTTLED = "throttled"
    BACK_PRESSURE = "back_pressure"
    RETRANSMITTED = "retransmitted"
    LISTEN_DROPS = "listen_drops"
    """Only in records of earlier versions. What a server drops is the service's doing: a note says so."""
    FEW_PORTS = "few_ports"
    NO_PORTS = "no_ports"
    FEW_USERS = "few_users"
    NO_FILES = "no_files"


ADVICE: Mapping[Reason, tuple[str, str]] = {
    Reason.LATE: (
        "requests were sent so late that percentiles changed",
        "give the generator more threads or its own CPUs",
    ),
    Reason.BUSY: (
        "the generator's threads had no time left",
        "give it more --threads and CPUs, or more generators",
    ),
    Reason.STARVED: ("the generator waited for a CPU", "run nothing else on its CPUs; --cpus chooses others"),
    Reason.STALLED: (
        "the generator stood still",
        "keep other work off its CPUs, or find out what stopped its host",
    ),
    Reason.STEAL: ("the hypervisor took CPU time away", "measure on a host that is not overcommitted"),
    Reason.THROTTLED: ("a CPU limit held the generator back", "raise the limit of its cgroup"),
    Reason.BACK_PRESSURE: (
        "sockets accepted only part of a request",
        "the receiver is too slow, or buffers are small",
    ),
    Reason.RETRANSMITTED: ("TCP retransmitted segments", "the network loses packets; check its load and its links"),
    Reason.LISTEN_DROPS: (
        "connections were dropped before they were accepted",
        "raise the server's listen backlog",
    ),
    Reason.FEW_PORTS: ("few ports were left to connect from", "keep connections alive, or add local addresses"),
    Reason.NO_PORTS: ("no port was left to connect from", "keep connections alive, or add local addresses"),
    Reason.FEW_USERS: ("arrivals waited because all users were busy", "allow more users: users_max, or --users"),
    Reason.NO_FILES: ("the limit of open files was reached", "raise the limit of open files"),
}


@dataclass(frozen=True)
class HostSecond:
    """The generator's host in one second, from its monitor; None if unknown. cpus: the CPUs it may use."""

    cpus: int
    steal_ns: float | None = None
    throttled_ns: float | None = None
    sent_segments: float | None = None
    retransmitted_segments: float | None = None
    listen_drops: float | None = None
    guest_wait_ns: float | None = None
    """Time in which threads of a generator's guest were ready but did not run. The guest cannot see this."""


@dataclass(frozen=True)
class Health:
    """`doubts`: reasons with the figure that crossed each bound; empty for a good second.

    parts: the health of each generator that reported this second, if there are several. Not all report a partial one.
    """

    doubts: Mapping[Reason, str]
    parts: Mapping[str, Health] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.doubts


def judge(
    second: Second, host: HostSecond | None = None, elsewhere: Mapping[str, HostSecond | None] | None = None
) -> Health:
    """Judges one second. host: of all generators; elsewhere: the host of each, if they have different ones."""
    reasons = dict(_own(second))
    if host is not None:
        reasons |= dict(_hosts(host))
    each = {name: (elsewhere or {}).get(name) for name in second.parts or elsewhere or ()}
    parts = {name: judge(second.parts.get(name, second), theirs) for name, theirs in each.items()}
    for reason in Reason:
        # Percentiles, ports and users are judged over all generators; what a host does, of each.
        figures = {name: part.doubts[reason] for name, part in parts.items() if reason in part.doubts}
        if figures and (reason in reasons or reason in _OF_HOSTS):
            reasons[reason] = ", ".join(f"{name}: {figure}" for name, figure in figures.items())
    return Health(reasons, parts if second.parts else {})


_OF_HOSTS = frozenset((Reason.STEAL, Reason.RETRANSMITTED, Reason.THROTTLED, Reason.STARVED))


Judged = Iterator[tuple[Reason, str]]


def _own(second: Second) -> Judged:
    yield from _lateness(second)
    throttled_ns = max((thread["throttled_ns"] or 0 for thread in second.threads), default=0)
    if throttled_ns:
        yield Reason.THROTTLED, f"for {throttled_ns / 1e6:.0f} ms"
    for reason, key, bound in (
        (Reason.BUSY, "busy_ns", BUSY_SHARE),
        (Reason.STARVED, "run_delay_ns", STARVED_SHARE),
    ):
        shares = [(t[key] or 0) / t["length_ns"] for t in second.threads if t["length_ns"] > 0 and t[key] is not None]
        if shares and max(shares) > bound:
            yield reason, f"{max(shares):.1%} of the second"
    stall_ns = max((thread["stall_ns_max"] for thread in second.threads), default=0)
    if stall_ns > STALL_NS:
        yield Reason.STALLED, f"for {stall_ns / 1e6:.0f} ms"
    held = sum(thread["back_pressure"] for thread in second.threads)
    if held > BACK_PRESSURE_SHARE * max(second.requests, 1):
        yield Reason.BACK_PRESSURE, f"{held} of {second.requests}"
    yield from _ports(second)
    unserved = sum(count for error, count in second.errors.items() if error.kind == "not_served")
    if second.waiting or unserved:
        yield Reason.FEW_USERS, f"{max(second.waiting, unserved)} at its end"
    for reason, kind in ((Reason.NO_PORTS, "no_ports"), (Reason.NO_FILES, "no_files")):
        if count := sum(count for error, count in second.errors.items() if error.kind == kind):
            yield reason, f"{count} times"


def _ports(second: Second) -> Judged:
    """Reports few ports before none are left, because the kernel takes ever longer to find one."""
    for thread in second.threads:
        most, waiting = thread["ports_most"], thread["ports_waiting"]
        if most is None or waiting is None:
            continue
        used = second.connections_open + waiting
        if used > PORTS_SHARE * most:
            yield Reason.FEW_PORTS, f"{used} of {most} in use"


@dataclass(frozen=True)
class Lateness:
    """The effect of late sending on one percentile of response times, in ns."""

    share: float
    reported_ns: float
    undelayed_ns: float

    @property
    def matters(self) -> bool:
        added_ns = self.reported_ns - self.undelayed_ns
        return added_ns > WRONG_NS and added_ns > WRONG_SHARE * self.undelayed_ns


def lateness(seconds: Iterable[Second]) -> list[Lateness]:
    """Percentiles of all requests, as reported and as if each had been sent on time, over several seconds.

    This assumes that a request sent earlier would have been answered equally fast.
    """
    reported: dict[int, int] = {}
    undelayed: dict[int, int] = {}
    for second in seconds:
        # First bytes are reported for requests only.
        for timing in second.timings.values():
            add_pairs(reported, timing.corrected.items() if timing.first_byte else ())
        add_pairs(undelayed, second.undelayed.items())
    total = sum(reported.values())
    shares = [share for share in JUDGED_SHARES if round(total * (1 - share)) >= BEYOND_LEAST]
    both = zip(shares, quantiles(Histogram(reported), shares), quantiles(Histogram(undelayed), shares), strict=True)
    return [Lateness(*pair) for pair in both]


def _lateness(second: Second) -> Judged:
    wrong = [late for late in lateness([second]) if late.matters]
    if wrong:
        worst = max(wrong, key=lambda late: late.reported_ns / max(late.undelayed_ns, 1))
        reported, undelayed = worst.reported_ns / 1e6, worst.undelayed_ns / 1e6
        yield Reason.LATE, f"p{worst.share * 100:.0f} is {reported:.3g} ms and would be {undelayed:.3g} ms"


def _hosts(host: HostSecond) -> Judged:
    # Counters are read at full seconds. The first and last second of a load are partial.
    if host.steal_ns is not None and host.steal_ns > STEAL_SHARE * host.cpus * SECOND_NS:
        yield Reason.STEAL, f"{host.steal_ns / SECOND_NS / host.cpus:.0%} of its CPUs"
    if host.guest_wait_ns is not None and host.guest_wait_ns > STARVED_SHARE * SECOND_NS:
        yield Reason.STARVED, f"its machine, {host.guest_wait_ns / SECOND_NS:.1%} of the second"
    if host.throttled_ns:
        yield Reason.THROTTLED, f"for {host.throttled_ns / 1e6:.0f} ms"
    if host.retransmitted_segments is not None and host.sent_segments:
        share = host.retransmitted_segments / host.sent_segments
        # A client sends again what a server with a full backlog dropped. That is the service's doing.
        if share > RETRANSMITTED_SHARE and not host.listen_drops:
            yield Reason.RETRANSMITTED, f"{share:.1%} of them"
