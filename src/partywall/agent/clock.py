"""How far another agent's monotonic clock is from ours, and how sure that is.

A round trip says that the offset lies within half of it, and clocks that are not steered against each other drift apart
by no more than crystals do, so an old round trip still says something: the offset lies in what all of those remembered
have in common (after Cristian, "Probabilistic clock synchronization", 1989).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from partywall.agent.client import AgentClient
from partywall.clock import Clock

REMEMBERED = 64
# Crystals keep within 100 parts in a million, each.
DRIFT_PPB = 200_000


@dataclass(frozen=True)
class Offset:
    """What to add to its times to get ours, and how far that may be off either way."""

    offset_ns: int
    bound_ns: int


@dataclass(frozen=True)
class _Trip:
    at_ns: int
    offset_ns: int
    bound_ns: int

    def reach(self, now_ns: int) -> tuple[int, int]:
        """Between what and what the offset is by now."""
        bound_ns = self.bound_ns + abs(now_ns - self.at_ns) * DRIFT_PPB // 1_000_000_000
        return self.offset_ns - bound_ns, self.offset_ns + bound_ns


class Alignment:
    """Asks an agent for its time, and makes the best of the last answers."""

    def __init__(self, client: AgentClient, clock: Clock, timeout_s: float = 30) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._clock = clock
        self._trips: deque[_Trip] = deque(maxlen=REMEMBERED)

    def ask(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            sent = self._clock.now_ns()
            theirs = int(self._client.call("clock", timeout_s=self._timeout_s)["monotonic_ns"])
            came = self._clock.now_ns()
            # As old as when it left: they may have drifted during the trip itself.
            self._trips.append(_Trip(sent, (sent + came) // 2 - theirs, (came - sent) // 2 + 1))

    @property
    def best(self) -> Offset:
        """As of now; there must have been a round trip."""
        now_ns = self._clock.now_ns()
        lows, highs = zip(*(trip.reach(now_ns) for trip in self._trips), strict=True)
        low, high = max(lows), min(highs)
        if low > high:
            # Its clock was set, or the machine it is in stood still: what was known before is void.
            newest = self._trips[-1]
            self._trips.clear()
            self._trips.append(newest)
            low, high = newest.reach(now_ns)
        return Offset((low + high) // 2, (high - low + 1) // 2)
