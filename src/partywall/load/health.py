"""Whether a second can be believed: what the generator and its host say of themselves, judged by stated bounds.

Pure. A bound is crossed by a generator that adds to what it measures, not by one that is merely busy. None of it says
anything about the server.

The bounds of time follow from one wish: that a good second's p50, p90 and p99 are the service's, to 5 % or 50 µs,
whichever is more. What lateness adds is known for every request, so percentiles with and without it are compared. What
is read late is not known one by one, but while a thread waits for a CPU or stands still whatever comes is, so that may
not last for over 1 % of a second: more could move p99.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from partywall.load.second import SECOND_NS, Second, add_pairs
from partywall.model.observation import Histogram
from partywall.report.latency import quantiles

JUDGED_SHARES = (0.5, 0.9, 0.99)
WRONG_SHARE = 0.05
WRONG_NS = 50_000
# A percentile beyond which fewer responses lie is no figure to be wrong about.
BEYOND_LEAST = 10
BUSY_SHARE = 0.95
STARVED_SHARE = 0.01
STALL_NS = 10_000_000
STEAL_SHARE = 0.01
PORTS_SHARE = 0.9
BACK_PRESSURE_SHARE = 0.01
RETRANSMITTED_SHARE = 0.01


class Doubt(StrEnum):
    """Why a second is doubtful; `ADVICE` says what to do about each."""

    LATE = "late"
    BUSY = "busy"
    STARVED = "starved"
    STALLED = "stalled"
    STEAL = "steal"
    THROTTLED = "throttled"
    BACK_PRESSURE = "back_pressure"
    RETRANSMITTED = "retransmitted"
    LISTEN_DROPS = "listen_drops"
    FEW_PORTS = "few_ports"
    NO_PORTS = "no_ports"
    FEW_USERS = "few_users"
    NO_FILES = "no_files"


ADVICE: Mapping[Doubt, tuple[str, str]] = {
    Doubt.LATE: (
        "requests left so late that it shows in percentiles",
        "give the generator more threads or CPUs of its own",
    ),
    Doubt.BUSY: ("the generator's threads had no time left", "give it more --threads and CPUs, or more generators"),
    Doubt.STARVED: ("the generator waited for a CPU", "keep other work off its CPUs: --cpus"),
    Doubt.STALLED: ("the generator stood still", "keep other work off its CPUs, or find out what stopped its host"),
    Doubt.STEAL: ("the hypervisor took CPU time away", "measure on a host that is not overcommitted"),
    Doubt.THROTTLED: ("a CPU limit held the generator back", "raise the limit of its cgroup"),
    Doubt.BACK_PRESSURE: ("sockets did not take requests whole", "the receiver reads too slowly, or buffers are small"),
    Doubt.RETRANSMITTED: ("TCP sent segments again", "the network between loses packets"),
    Doubt.LISTEN_DROPS: ("connections were dropped before they were accepted", "raise the server's listen backlog"),
    Doubt.FEW_PORTS: ("few ports were left to connect from", "keep connections alive, or add local addresses"),
    Doubt.NO_PORTS: ("no port was left to connect from", "keep connections alive, or add local addresses"),
    Doubt.FEW_USERS: ("arrivals waited because all users were busy", "allow more users: users_max, or --users"),
    Doubt.NO_FILES: ("no file was left to open", "raise the limit of open files"),
}


@dataclass(frozen=True)
class HostSecond:
    """The generator's host in one second, from its monitor; None where it does not tell. cpus: those it may use."""

    cpus: int
    steal_ns: float | None = None
    throttled_ns: float | None = None
    sent_segments: float | None = None
    retransmitted_segments: float | None = None
    listen_drops: float | None = None
    guest_wait_ns: float | None = None
    """For how long the threads of a guest that generates were ready to run and did not; the guest cannot tell."""


@dataclass(frozen=True)
class Health:
    """doubts: none if the second is good, each with the figure that crossed its bound."""

    doubts: Mapping[Doubt, str]

    @property
    def good(self) -> bool:
        return not self.doubts


def judge(second: Second, host: HostSecond | None = None) -> Health:
    """What is doubtful about a second."""
    found = dict(_own(second))
    if host is not None:
        found |= dict(_hosts(host))
    return Health(found)


Judged = Iterator[tuple[Doubt, str]]


def _own(second: Second) -> Judged:
    yield from _lateness(second)
    throttled_ns = max((thread["throttled_ns"] or 0 for thread in second.threads), default=0)
    if throttled_ns:
        yield Doubt.THROTTLED, f"for {throttled_ns / 1e6:.0f} ms"
    for doubt, key, bound in ((Doubt.BUSY, "busy_ns", BUSY_SHARE), (Doubt.STARVED, "run_delay_ns", STARVED_SHARE)):
        shares = [(t[key] or 0) / t["length_ns"] for t in second.threads if t["length_ns"] > 0 and t[key] is not None]
        if shares and max(shares) > bound:
            yield doubt, f"{max(shares):.1%} of the second"
    stall_ns = max((thread["stall_ns_max"] for thread in second.threads), default=0)
    if stall_ns > STALL_NS:
        yield Doubt.STALLED, f"for {stall_ns / 1e6:.0f} ms"
    held = sum(thread["back_pressure"] for thread in second.threads)
    if held > BACK_PRESSURE_SHARE * max(second.requests, 1):
        yield Doubt.BACK_PRESSURE, f"{held} of {second.requests}"
    yield from _ports(second)
    unserved = sum(count for error, count in second.errors.items() if error.kind == "not_served")
    if second.waiting or unserved:
        yield Doubt.FEW_USERS, f"{max(second.waiting, unserved)} at its end"
    for doubt, kind in ((Doubt.NO_PORTS, "no_ports"), (Doubt.NO_FILES, "no_files")):
        if count := sum(count for error, count in second.errors.items() if error.kind == kind):
            yield doubt, f"{count} times"


def _ports(second: Second) -> Judged:
    """Few ports left are a doubt before none is, for finding one takes the kernel longer and longer."""
    for thread in second.threads:
        most, waiting = thread["ports_most"], thread["ports_waiting"]
        if most is None or waiting is None:
            continue
        used = second.connections_open + waiting
        if used > PORTS_SHARE * most:
            yield Doubt.FEW_PORTS, f"{used} of {most} in use"


@dataclass(frozen=True)
class Lateness:
    """What requests' leaving late does to one percentile of response times, in ns."""

    share: float
    told_ns: float
    undelayed_ns: float

    @property
    def matters(self) -> bool:
        added_ns = self.told_ns - self.undelayed_ns
        return added_ns > WRONG_NS and added_ns > WRONG_SHARE * self.undelayed_ns


def lateness(seconds: Iterable[Second]) -> list[Lateness]:
    """Percentiles of all requests as told and as they would be had each left on time, of seconds together.

    The same request would have been answered as fast had it left earlier: that is assumed.
    """
    told: dict[int, int] = {}
    undelayed: dict[int, int] = {}
    for second in seconds:
        # First bytes are told of requests alone.
        for timing in second.timings.values():
            add_pairs(told, timing.corrected.items() if timing.first_byte else ())
        add_pairs(undelayed, second.undelayed.items())
    total = sum(told.values())
    shares = [share for share in JUDGED_SHARES if round(total * (1 - share)) >= BEYOND_LEAST]
    both = zip(shares, quantiles(Histogram(told), shares), quantiles(Histogram(undelayed), shares), strict=True)
    return [Lateness(*one) for one in both]


def _lateness(second: Second) -> Judged:
    wrong = [one for one in lateness([second]) if one.matters]
    if wrong:
        worst = max(wrong, key=lambda one: one.told_ns / max(one.undelayed_ns, 1))
        told, undelayed = worst.told_ns / 1e6, worst.undelayed_ns / 1e6
        yield Doubt.LATE, f"p{worst.share * 100:.0f} is {told:.3g} ms and would be {undelayed:.3g} ms"


def _hosts(host: HostSecond) -> Judged:
    # Counters are read at full seconds, of which the first and the last of a load are but parts.
    if host.steal_ns is not None and host.steal_ns > STEAL_SHARE * host.cpus * SECOND_NS:
        yield Doubt.STEAL, f"{host.steal_ns / SECOND_NS / host.cpus:.0%} of its CPUs"
    if host.guest_wait_ns is not None and host.guest_wait_ns > STARVED_SHARE * SECOND_NS:
        yield Doubt.STARVED, f"its machine, {host.guest_wait_ns / SECOND_NS:.1%} of the second"
    if host.throttled_ns:
        yield Doubt.THROTTLED, f"for {host.throttled_ns / 1e6:.0f} ms"
    if host.retransmitted_segments is not None and host.sent_segments:
        share = host.retransmitted_segments / host.sent_segments
        if share > RETRANSMITTED_SHARE:
            yield Doubt.RETRANSMITTED, f"{share:.1%} of them"
    if host.listen_drops:
        yield Doubt.LISTEN_DROPS, f"{host.listen_drops:.0f} times"
