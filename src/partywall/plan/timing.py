"""Where slots lie in time: guards by what was on before, and everything on the grid by which agents cut slices."""

from __future__ import annotations

from collections.abc import Sequence

from partywall.model.plan import Slot, Treatment
from partywall.model.scenario import SWITCH_AFTER_NS
from partywall.pace import ceil_to


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
        switch_ns = at + late_ns + SWITCH_AFTER_NS
        measure_ns = ceil_to(at + guard_ns + 2 * late_ns, grid_ns)
        end_ns = ceil_to(measure_ns + max(treatment.slot_ns * stretch, at_least_ns), grid_ns)
        slots.append(Slot(treatment=treatment.id, start_ns=switch_ns, measure_ns=measure_ns, end_ns=end_ns))
        at, before = end_ns, treatment
    return tuple(slots)
