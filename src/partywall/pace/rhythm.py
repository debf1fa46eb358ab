"""Which blocks are long, what each holds, and how long a block takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from partywall.model.plan import Treatment
from partywall.model.scenario import Timing

# Of a trial's time, what long blocks take: more where some treatments are measured in them alone.
LONG_SHARE = 1 / 4
LONG_SHARE_WITH_SLOW = 1 / 2


def ceil_to(value_ns: int, grid_ns: int) -> int:
    """The first multiple of `grid_ns` that is not before `value_ns`."""
    return -(-value_ns // grid_ns) * grid_ns


@dataclass(frozen=True)
class Rhythm:
    """Which treatments a block holds, and how long its slots are.

    quick: ids of the treatments whose slots can be short; empty if short blocks would be of no use. every: a block is
    long if this divides its number. Long blocks hold all treatments.
    """

    quick: frozenset[str]
    every: int
    long_ns: int

    def is_long(self, block: int) -> bool:
        """Whether it is one of the long blocks, of a trial that has others."""
        return bool(self.quick) and block % self.every == 0

    def holds(self, block: int, treatment: str) -> bool:
        """Whether a treatment gets a slot in a block."""
        return not self.quick or self.is_long(block) or treatment in self.quick

    def slot_ns_min(self, block: int) -> int:
        """The shortest slot of a block."""
        return self.long_ns if self.is_long(block) or not self.quick else 0


def rhythm(treatments: Sequence[Treatment], timing: Timing, stretch: int = 1) -> Rhythm:
    """The short blocks, which leave the host's drift the least room, and the long ones.

    Counters need long windows, only beside longer slots does it show that an effect needs longer to come or to go, and
    a treatment that is slow by its nature would fill short blocks with its guards.
    """
    quick = [t for t in treatments if is_quick(t, timing.long, stretch)]
    roles = {treatment.role for treatment in quick}
    if not {"baseline", "aggressor"} <= roles:
        return Rhythm(frozenset(), 1, timing.long)
    share = LONG_SHARE if len(quick) == len(treatments) else LONG_SHARE_WITH_SLOW
    short_ns = block_ns(quick, timing.slice, stretch)
    long_ns = block_ns(treatments, timing.slice, stretch, timing.long)
    every = 1 + ceil_to(int(long_ns * (1 / share - 1)), short_ns) // short_ns
    return Rhythm(frozenset(t.id for t in quick), every, timing.long)


def is_quick(t: Treatment, long_ns: int, stretch: int = 1) -> bool:
    """Whether what a treatment takes, in a slot no shorter than its guards, is little beside a long slot."""
    return (t.guard_ns + t.release_ns + max(t.slot_ns, settling_ns(t))) * stretch * 2 <= long_ns


def settling_ns(t: Treatment) -> int:
    """How long its effect takes to come or to go, whichever is longer."""
    return max(t.guard_ns, t.release_ns)


def block_ns(treatments: Sequence[Treatment], grid_ns: int, stretch: int = 1, at_least_ns: int = 0) -> int:
    """How long a block of these takes, on average over its random orders.

    After a switch the longer counts of the treatment's own guard and what the one before leaves behind. That may be any
    of the others, and where one block follows another, rarely, the treatment itself.
    """
    count = len(treatments)
    left = Counter(t.release_ns for t in treatments)

    def slot_ns(t: Treatment) -> int:
        after = {ns: ceil_to(max(t.guard_ns, ns) * stretch, grid_ns) for ns in left}
        guards_ns = (count + 1) * sum(after[ns] * many for ns, many in left.items()) - count * after[t.release_ns]
        return guards_ns // count**2 + ceil_to(max(t.slot_ns * stretch, at_least_ns), grid_ns)

    return sum(map(slot_ns, treatments))
