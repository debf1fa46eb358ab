"""Says when a stall begins that is worth asking about, and when it ends. Pure.

It begins once a group has waited for others for a stated share of two readings in a row, or of one that is as long. It
ends after three seconds below half of that share. What a group's own limit or own tasks cause is no such stall: it is
in the totals only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partywall.watch.stalls.rule import ITSELF

BEGIN_NS, END_NS = 1_500_000_000, 3_000_000_000
FROM = 0.1
"""The share of the time that is worth asking about."""


@dataclass(slots=True)
class Stall:
    """A time in which a victim waited for others. parts_ns: by suspect, its own part included.

    has_ended: False while it goes on.
    """

    victim: str
    resource: str
    begin_ns: int
    length_ns: int = 0
    parts_ns: dict[str, int] = field(default_factory=dict)
    has_ended: bool = False

    @property
    def others_ns(self) -> int:
        """How long it waited for others."""
        return sum(self.parts_ns.values()) - self.parts_ns.get(ITSELF, 0)

    @property
    def largest(self) -> tuple[tuple[str, int], ...]:
        """The suspects, the largest first."""
        return tuple(sorted(self.parts_ns.items(), key=lambda part: -part[1]))


@dataclass(slots=True)
class _State:
    stall: Stall
    is_open: bool = False
    calm_ns: int = 0


class Detector:
    """Takes the parts of each victim and resource. threshold: a share of the time."""

    def __init__(self, threshold: float = FROM) -> None:
        self._threshold = threshold
        self._states: dict[tuple[str, str], _State] = {}

    @property
    def now(self) -> list[Stall]:
        """The stalls that go on."""
        return [state.stall for state in self._states.values() if state.is_open]

    def victims(self, resource: str) -> set[str]:
        """Those that have waited for a resource lately."""
        return {key[0] for key in self._states if key[1] == resource}

    def take(
        self, victim: str, resource: str, parts_ns: Mapping[str, int], begin_ns: int, length_ns: int
    ) -> Stall | None:
        """One interval of a victim. Returns the stall that begins or ends with it."""
        key = victim, resource
        others_ns = sum(parts_ns.values()) - parts_ns.get(ITSELF, 0)
        share, state = others_ns / length_ns, self._states.get(key)
        if share >= self._threshold:
            state = state or self._states.setdefault(key, _State(Stall(victim, resource, begin_ns)))
            state.calm_ns = 0
            _add(state.stall, parts_ns, length_ns)
            if state.is_open or state.stall.length_ns < BEGIN_NS:
                return None
            state.is_open = True
            return state.stall
        if state is None:
            return None
        if not state.is_open:
            del self._states[key]
            return None
        _add(state.stall, parts_ns, length_ns)
        state.calm_ns = state.calm_ns + length_ns if share < self._threshold / 2 else 0
        return self._end(key) if state.calm_ns >= END_NS else None

    def gone(self, victims: frozenset[str]) -> list[Stall]:
        """Ends the stalls of groups that do not exist any more. victims: those that do."""
        lost = [key for key in self._states if key[0] not in victims]
        return [stall for key in lost if (stall := self._end(key)) is not None]

    def _end(self, key: tuple[str, str]) -> Stall | None:
        state = self._states.pop(key)
        state.stall.has_ended = True
        return state.stall if state.is_open else None


def _add(stall: Stall, parts_ns: Mapping[str, int], length_ns: int) -> None:
    stall.length_ns += length_ns
    for suspect, stalled_ns in parts_ns.items():
        stall.parts_ns[suspect] = stall.parts_ns.get(suspect, 0) + stalled_ns
