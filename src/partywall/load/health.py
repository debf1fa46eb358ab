"""Whether a second can be believed: what the generator and its host say of themselves, judged by stated bounds.

Pure. A bound is crossed by a generator that adds to what it measures, not by one that is merely busy. None of it says
anything about the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from partywall.load.second import Second, Timing
from partywall.model.observation import bucket_bounds

LATE_SHARE = 0.05
LATE_OF_RESPONSE = 0.05
BUSY_SHARE = 0.95
STARVED_SHARE = 0.05
STALL_NS = 50_000_000
STEAL_SHARE = 0.05
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
    NO_PORTS = "no_ports"
    NO_FILES = "no_files"


ADVICE: Mapping[Doubt, tuple[str, str]] = {
    Doubt.LATE: ("requests left late", "give the generator more threads or CPUs of its own"),
    Doubt.BUSY: ("the generator's threads had no time left", "give it more --threads and CPUs, or more generators"),
    Doubt.STARVED: ("the generator waited for a CPU", "keep other work off its CPUs: --cpus"),
    Doubt.STALLED: ("the generator stood still", "keep other work off its CPUs, or find out what stopped its host"),
    Doubt.STEAL: ("the hypervisor took CPU time away", "measure on a host that is not overcommitted"),
    Doubt.THROTTLED: ("a CPU limit held the generator back", "raise the limit of its cgroup"),
    Doubt.BACK_PRESSURE: ("sockets did not take requests whole", "the receiver reads too slowly, or buffers are small"),
    Doubt.RETRANSMITTED: ("TCP sent segments again", "the network between loses packets"),
    Doubt.LISTEN_DROPS: ("connections were dropped before they were accepted", "raise the server's listen backlog"),
    Doubt.NO_PORTS: ("no port was left to connect from", "keep connections alive, or add local addresses"),
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
        found |= dict(_hosts(second, host))
    return Health(found)


Judged = Iterator[tuple[Doubt, str]]


def _own(second: Second) -> Judged:
    yield from _lateness(second)
    for doubt, key, bound in ((Doubt.BUSY, "busy_ns", BUSY_SHARE), (Doubt.STARVED, "run_delay_ns", STARVED_SHARE)):
        shares = [(t[key] or 0) / t["length_ns"] for t in second.threads if t["length_ns"] > 0 and t[key] is not None]
        if shares and max(shares) > bound:
            yield doubt, f"{max(shares):.0%} of the second"
    stall_ns = max((thread["stall_ns_max"] for thread in second.threads), default=0)
    if stall_ns > STALL_NS:
        yield Doubt.STALLED, f"for {stall_ns / 1e6:.0f} ms"
    held = sum(thread["back_pressure"] for thread in second.threads)
    if held > BACK_PRESSURE_SHARE * max(second.requests, 1):
        yield Doubt.BACK_PRESSURE, f"{held} of {second.requests}"
    for doubt, kind in ((Doubt.NO_PORTS, "no_ports"), (Doubt.NO_FILES, "no_files")):
        if count := sum(count for error, count in second.errors.items() if error.kind == kind):
            yield doubt, f"{count} times"


def _lateness(second: Second) -> Judged:
    """Late requests are doubtful if they are many, and so late that it shows in response times."""
    timed = sum(thread["timed"] for thread in second.threads)
    late = sum(thread["late"] for thread in second.threads)
    if late <= LATE_SHARE * timed:
        return
    late_ns = sum(sum(bucket_bounds(bucket)) / 2 * count for bucket, count in second.lateness.items()) / timed
    total = Timing()
    for timing in second.timings.values():
        total.merge(timing)
    if total.mean_ns is None or late_ns > LATE_OF_RESPONSE * total.mean_ns:
        yield Doubt.LATE, f"{late} of {timed}"


def _hosts(second: Second, host: HostSecond) -> Judged:
    if host.steal_ns is not None and host.steal_ns > STEAL_SHARE * host.cpus * second.length_s * 1e9:
        yield Doubt.STEAL, f"{host.steal_ns / 1e9 / second.length_s / host.cpus:.0%} of its CPUs"
    if host.throttled_ns:
        yield Doubt.THROTTLED, f"for {host.throttled_ns / 1e6:.0f} ms"
    if host.retransmitted_segments is not None and host.sent_segments:
        share = host.retransmitted_segments / host.sent_segments
        if share > RETRANSMITTED_SHARE:
            yield Doubt.RETRANSMITTED, f"{share:.1%} of them"
    if host.listen_drops:
        yield Doubt.LISTEN_DROPS, f"{host.listen_drops:.0f} times"
