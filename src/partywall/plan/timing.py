"""Where slots lie in time: guards by what was on before, and everything on the grid by which agents cut slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partywall.model.plan import Slot, Treatment, Trial

# Of a trial's time, what long blocks take: more where some treatments are measured in them alone.
LONG_SHARE = 1 / 4
LONG_SHARE_WITH_SLOW = 1 / 2


def ceil_to(value_ns: int, grid_ns: int) -> int:
    """The first multiple of `grid_ns` that is not before `value_ns`."""
    return -(-value_ns // grid_ns) * grid_ns


def lay_out(
    treatments: Sequence[Treatment],
    start_ns: int,
    before: Treatment | None,
    *,
    grid_ns: int,
    stretch: int = 1,
    at_least_ns: int = 0,
    clock_error_ns: int = 0,
) -> tuple[Slot, ...]:
    """The slots of one block, from the first multiple of the grid at or after `start_ns`.

    before: the treatment that held until then. stretch: how much longer guards and slots are than planned, after a
    carry-over test asked for it. at_least_ns: the shortest slot, for long blocks. clock_error_ns: how far the clock of
    a sandbox may be off. Everything is then switched by twice as much after the window before, whose last slice may end
    late by one's clock while the switch comes early by another's; and the guard is as much longer.
    """
    late_ns = 2 * clock_error_ns
    slots = []
    at = ceil_to(start_ns, grid_ns)
    for treatment in treatments:
        guard_ns = max(treatment.guard_ns, before.release_ns if before else 0) * stretch
        measure_ns = ceil_to(at + guard_ns + 2 * late_ns, grid_ns)
        end_ns = ceil_to(measure_ns + max(treatment.slot_ns * stretch, at_least_ns), grid_ns)
        slots.append(Slot(treatment=treatment.id, start_ns=at + late_ns, measure_ns=measure_ns, end_ns=end_ns))
        at, before = end_ns, treatment
    return tuple(slots)


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


def rhythm(trial: Trial, long_ns: int, stretch: int) -> Rhythm:
    """The short blocks, which leave the host's drift the least room, and the long ones.

    Counters need long windows, only beside longer slots does it show that an effect needs longer to come or to go, and
    a treatment that is slow by its nature would fill short blocks with its guards.
    """
    quick = [t for t in trial.treatments if (t.guard_ns + t.slot_ns + t.release_ns) * stretch * 2 <= long_ns]
    roles = {treatment.role for treatment in quick}
    if not {"baseline", "aggressor"} <= roles:
        return Rhythm(frozenset(), 1, long_ns)
    share = LONG_SHARE if len(quick) == len(trial.treatments) else LONG_SHARE_WITH_SLOW
    short = sum((t.guard_ns + t.slot_ns) * stretch for t in quick)
    long = sum(max(t.guard_ns, t.release_ns) * stretch + max(t.slot_ns * stretch, long_ns) for t in trial.treatments)
    every = 1 + ceil_to(int(long * (1 / share - 1)), short) // short
    return Rhythm(frozenset(t.id for t in quick), every, long_ns)
