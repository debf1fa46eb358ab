"""How far another agent's monotonic clock is from ours: round trips, of which the shortest says most."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from partywall.agent.client import AgentClient
from partywall.clock import Clock

# Clocks drift apart by some microseconds a second, so old round trips say less and less.
REMEMBERED = 32


@dataclass(frozen=True)
class Offset:
    """What to add to its times to get ours, and how far that may be off: half of the round trip."""

    offset_ns: int
    bound_ns: int


class Alignment:
    """Asks an agent for its time, and keeps the best of the last answers."""

    def __init__(self, client: AgentClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._seen: deque[Offset] = deque(maxlen=REMEMBERED)

    def ask(self, rounds: int = 1) -> Offset:
        for _ in range(rounds):
            sent = self._clock.now_ns()
            theirs = int(self._client.call("clock")["monotonic_ns"])
            came = self._clock.now_ns()
            self._seen.append(Offset((sent + came) // 2 - theirs, (came - sent) // 2 + 1))
        return self.best

    @property
    def best(self) -> Offset:
        return min(self._seen, key=lambda offset: offset.bound_ns)
