"""The offset of an agent's monotonic clock from this host's, with its uncertainty.

A round trip shows that the offset lies within half of its duration. Unsteered clocks drift apart only as far as
crystals do, so an old round trip still bounds the offset. The offset lies in the intersection of all remembered bounds
(after Cristian, "Probabilistic clock synchronization", 1989).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from partywall.agent.client import AgentClient
from partywall.clock import Clock

REMEMBERED = 64
# Each crystal is accurate to 100 parts per million.
DRIFT_PPB = 200_000


@dataclass(frozen=True)
class Offset:
    """The value to add to the agent's times to get ours, and its largest error in either direction."""

    offset_ns: int
    bound_ns: int


@dataclass(frozen=True)
class _Trip:
    at_ns: int
    offset_ns: int
    bound_ns: int

    def reach(self, now_ns: int, drift_ppb: int) -> tuple[int, int]:
        """The lowest and highest possible offset at a later time."""
        bound_ns = self.bound_ns + abs(now_ns - self.at_ns) * drift_ppb // 1_000_000_000
        return self.offset_ns - bound_ns, self.offset_ns + bound_ns


class Alignment:
    """Requests an agent's time, and combines the last responses.

    drift_ppb: largest difference of the clocks' rates; more than the default if one is steered.
    """

    def __init__(self, client: AgentClient, clock: Clock, timeout_s: float = 30, *, drift_ppb: int = DRIFT_PPB) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._clock = clock
        self._drift_ppb = drift_ppb
        self._trips: deque[_Trip] = deque(maxlen=REMEMBERED)

    def ask(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            sent = self._clock.now_ns()
            theirs = int(self._client.call("clock", timeout_s=self._timeout_s)["monotonic_ns"])
            came = self._clock.now_ns()
            # Counted from its start, because the clocks may have drifted during the trip.
            self._trips.append(_Trip(sent, (sent + came) // 2 - theirs, (came - sent) // 2 + 1))

    @property
    def best(self) -> Offset:
        """The best estimate now. Needs at least one round trip."""
        now_ns = self._clock.now_ns()
        lows, highs = zip(*(trip.reach(now_ns, self._drift_ppb) for trip in self._trips), strict=True)
        low, high = max(lows), min(highs)
        if low > high:
            # Its clock was set, or its machine was stopped: earlier bounds are invalid.
            newest = self._trips[-1]
            self._trips.clear()
            self._trips.append(newest)
            low, high = newest.reach(now_ns, self._drift_ppb)
        return Offset((low + high) // 2, (high - low + 1) // 2)
