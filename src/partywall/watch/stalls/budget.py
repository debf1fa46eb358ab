"""How often all groups are read: as often as a share of one CPU allows. Pure.

A reading follows when the host says that somebody waits, and otherwise from time to time. It waits until as much may
be spent as the last one has cost. A small credit lets a stall be looked at closely when it begins.
"""

from __future__ import annotations

SHARE = 0.0009
"""Of one CPU. A tenth of the promised 0.1 % is left for what the process cannot see of its own time."""
CREDIT_S = 10.0
"""So much time without readings can be made up for."""
SOON_NS, QUIET_NS = 1_000_000_000, 5_000_000_000
"""Between two readings: at least, and at most if the budget allows it."""


class Budget:
    """Takes what was spent; says when the next reading may be. spent_ns: CPU time of the process so far."""

    def __init__(self, now_ns: int, spent_ns: int) -> None:
        self._share, self._now_ns, self._spent_ns = SHARE, now_ns, spent_ns
        self._most_ns = SHARE * CREDIT_S * 1e9
        self._credit_ns = self._most_ns
        self._cost_ns = 0

    def account(self, now_ns: int, spent_ns: int) -> None:
        """Adds the time since the last call to what may be spent, and subtracts what was."""
        earned_ns = self._share * (now_ns - self._now_ns)
        most_ns = max(self._most_ns, self._cost_ns)
        self._credit_ns = min(most_ns, self._credit_ns + earned_ns - (spent_ns - self._spent_ns))
        self._now_ns, self._spent_ns = now_ns, spent_ns

    def has_read(self, cost_ns: int) -> None:
        """States what a reading of all groups has cost, which `account` subtracts."""
        self._cost_ns = cost_ns

    def is_due(self, since_ns: int, *, is_asked: bool) -> bool:
        """True if all groups should be read now. since_ns: since the last reading; is_asked: somebody waits."""
        return self._credit_ns >= self._cost_ns and since_ns >= (SOON_NS if is_asked else QUIET_NS) * 0.9
