"""Requirements of a limit on the slots in which it applies: how soon and how often it must have taken effect. Pure.

A limit lets work through in turns, with waiting between them. Linux assigns CPU time, and a cgroup's disk bandwidth, in
periods of 100 ms. QEMU allows a guest's disk to exceed its limit briefly by the same amount. If a single request takes
longer at the allowed rate, the turn is as long as the request.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from partywall.agent.catalogue import Catalogue
from partywall.agent.requests import Requests, requests_of
from partywall.host.block import Throttle
from partywall.run.document.scenario import Victim, Workload
from partywall.run.plan.pace.rhythm import ceil_to
from partywall.sandbox.document import Limits

PERIOD_NS = 100_000_000
SLOT_TURNS = 5
GUARD_TURNS = 2
# CPU time in a slot of one that computes without a pause: a turn may end a timer tick late, at the next one's expense.
COMPUTING_NS = 20_000_000
COMPUTING = ("cpu", "cache", "memory_bandwidth")
# After a ceiling is lifted, a process waits at most this long for its next turn. Delayed requests go at once.
LIFTED_NS = GUARD_TURNS * PERIOD_NS


@dataclass(frozen=True)
class Ceiling:
    """turn_ns: 0 without a delay. drain_ns: time until work in progress is done at once.

    rate: work a second that it lets through, where that follows from it. slot_turns, guard_turns: turns that a slot
    must hold, and that a switch disturbs.
    """

    turn_ns: int = 0
    drain_ns: int = 0
    rate: float | None = None
    slot_turns: int = SLOT_TURNS
    guard_turns: int = GUARD_TURNS

    def slot_ns(self, least_ns: int) -> int:
        """Of whole periods, and of several turns."""
        return ceil_to(max(least_ns, self.slot_turns * self.turn_ns), PERIOD_NS) if self.turn_ns else least_ns

    @property
    def guard_ns(self) -> int:
        """The turn it begins in does not count."""
        return max(self.guard_turns * self.turn_ns, self.drain_ns)

    @property
    def release_ns(self) -> int:
        """A workload that has used up its turn notices the removal only at the next turn."""
        return max(self.turn_ns, self.drain_ns)


def of_victim(victim: Victim, catalogue: Catalogue) -> Ceiling:
    """The ceiling under which a victim is all the time.

    One that computes without a pause uses up its CPU time at the same pace beside any neighbour on another CPU. A slot
    of whole periods then holds the same CPU time wherever it begins, and no switch disturbs that.
    """
    held, share = of_sandbox(victim, victim.probe, catalogue), victim.sandbox.cpu_limit
    info = catalogue.kernel(victim.probe) if victim.probe else None
    computes = info is not None and info.resource in COMPUTING and info.roles == "both"
    if share is None or not held.turn_ns or victim.sandbox.throttle is not None or not computes:
        return held
    turns = min(SLOT_TURNS, math.ceil(COMPUTING_NS / (share * PERIOD_NS)))
    return dataclasses.replace(held, slot_turns=turns, guard_turns=0)


def of_sandbox(workload: Workload, kernel: str | None, catalogue: Catalogue) -> Ceiling:
    """The permanent limit of a workload."""
    sandbox = workload.sandbox
    limits = Limits(cpu_limit=sandbox.cpu_limit if sandbox.limited else None, disk=sandbox.throttle)
    return Ceiling() if limits == Limits() else ceiling(limits, workload, kernel, catalogue)


def ceiling(limits: Limits, workload: Workload, kernel: str | None, catalogue: Catalogue) -> Ceiling:
    """The limit of a workload under these limits."""
    asks = requests_of(kernel, workload.params, workload.threads, catalogue)
    plain = Ceiling(PERIOD_NS)
    return plain if limits.disk is None or asks is None else _throttled(plain, limits.disk, asks, workload.threads)


def _throttled(plain: Ceiling, limits: Throttle, asks: Requests, threads: int) -> Ceiling:
    """Threads alternate at the disk, each with its own request."""
    rate = asks.ceiling_rate(limits)
    if rate is None:
        return plain
    turn_ns, drain_ns = (math.ceil(size * 1e9 / rate) for size in (threads * asks.bytes, asks.at_once))
    return dataclasses.replace(plain, turn_ns=max(plain.turn_ns, turn_ns), drain_ns=drain_ns, rate=rate)
