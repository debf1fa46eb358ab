"""Where slots lie in time: guards by what was on before, and everything on the grid by which agents cut slices."""

from __future__ import annotations

from collections.abc import Sequence

from partywall.model.plan import Slot, Treatment


def ceil_to(value_ns: int, grid_ns: int) -> int:
    """The first multiple of `grid_ns` that is not before `value_ns`."""
    return -(-value_ns // grid_ns) * grid_ns


def lay_out(
    treatments: Sequence[Treatment], start_ns: int, before: Treatment | None, *, grid_ns: int, stretch: int = 1
) -> tuple[Slot, ...]:
    """The slots of one block, from the first multiple of the grid at or after `start_ns`.

    before: the treatment that held until then. stretch: how much longer guards and slots are than planned, after a
    carry-over test asked for it.
    """
    slots = []
    at = ceil_to(start_ns, grid_ns)
    for treatment in treatments:
        guard_ns = max(treatment.guard_ns, before.release_ns if before else 0) * stretch
        measure_ns = ceil_to(at + guard_ns, grid_ns)
        end_ns = ceil_to(measure_ns + treatment.slot_ns * stretch, grid_ns)
        slots.append(Slot(treatment=treatment.id, start_ns=at, measure_ns=measure_ns, end_ns=end_ns))
        at, before = end_ns, treatment
    return tuple(slots)
