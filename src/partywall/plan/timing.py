"""Where slots lie in time: guards by what was on before, and everything on the grid by which agents cut slices."""

from __future__ import annotations

from collections.abc import Sequence

from partywall.model.plan import Slot, Treatment, Trial

# Of a trial's time, what long blocks take, and the least by which their slots are longer than the others.
LONG_SHARE = 1 / 3
LONG_FACTOR = 2


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
) -> tuple[Slot, ...]:
    """The slots of one block, from the first multiple of the grid at or after `start_ns`.

    before: the treatment that held until then. stretch: how much longer guards and slots are than planned, after a
    carry-over test asked for it. at_least_ns: the shortest slot, for long blocks.
    """
    slots = []
    at = ceil_to(start_ns, grid_ns)
    for treatment in treatments:
        guard_ns = max(treatment.guard_ns, before.release_ns if before else 0) * stretch
        measure_ns = ceil_to(at + guard_ns, grid_ns)
        end_ns = ceil_to(measure_ns + max(treatment.slot_ns * stretch, at_least_ns), grid_ns)
        slots.append(Slot(treatment=treatment.id, start_ns=at, measure_ns=measure_ns, end_ns=end_ns))
        at, before = end_ns, treatment
    return tuple(slots)


def long_every(trial: Trial, long_ns: int, stretch: int) -> int | None:
    """Which blocks are long: those whose number this divides. None if all of the trial's slots are about as long.

    Short blocks leave the host's drift the least room, but counters need longer windows than that, and only beside
    longer slots does it show that an effect needs longer to come or to go.
    """
    if min(treatment.slot_ns for treatment in trial.treatments) * stretch * LONG_FACTOR > long_ns:
        return None
    short = sum((t.guard_ns + t.slot_ns) * stretch for t in trial.treatments)
    extended = sum(t.guard_ns * stretch + max(t.slot_ns * stretch, long_ns) for t in trial.treatments)
    return 1 + ceil_to(int(extended * (1 / LONG_SHARE - 1)), short) // short
