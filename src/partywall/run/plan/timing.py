"""Times of slots: guard times depend on the previous treatment, and all times lie on the grid of the agents' slices."""

from __future__ import annotations

from collections.abc import Sequence

from partywall.run.document.scenario import SWITCH_AFTER_NS
from partywall.run.plan.pace import PLANNED, Stretch, ceil_to
from partywall.run.values.plan import Slot, Treatment


def lay_out(
    treatments: Sequence[Treatment],
    start_ns: int,
    before: Treatment | None,
    *,
    grid_ns: int,
    stretch: Stretch = PLANNED,
    at_least_ns: int = 0,
    clock_error_ns: int = 0,
) -> tuple[Slot, ...]:
    """The slots of one block, from the first multiple of the grid at or after `start_ns`.

    before: the treatment in force until then. at_least_ns: the shortest slot, for long blocks. clock_error_ns: the
    largest error of a sandbox's clock. Switches are then delayed by twice this error after the previous window. That
    window's last slice may end late by one clock, while the switch comes early by another. The guard time grows by the
    same amount.
    """
    late_ns = 2 * clock_error_ns
    slots = []
    at = ceil_to(start_ns, grid_ns)
    for treatment in treatments:
        guard_ns = max(treatment.guard_ns, before.release_ns if before else 0) * stretch.guards
        switch_ns = at + late_ns + SWITCH_AFTER_NS
        measure_ns = ceil_to(at + guard_ns + 2 * late_ns, grid_ns)
        end_ns = ceil_to(measure_ns + max(treatment.slot_ns * stretch.slots, at_least_ns), grid_ns)
        slots.append(Slot(treatment=treatment.id, start_ns=switch_ns, measure_ns=measure_ns, end_ns=end_ns))
        at, before = end_ns, treatment
    return tuple(slots)
