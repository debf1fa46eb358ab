"""Through what a suspect harms the victim: the gain at each depth, and the waiting that pulses shorten. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partywall.blame.code import Array
from partywall.blame.effects import delayed, gained
from partywall.blame.record import Slot
from partywall.core.stats.estimate import Estimate
from partywall.values import Frozen

ALPHA = 0.01
UNSEEN = "nothing that the kernel counts: memory bandwidth, a cache or a lock"
BY_LEVER = {"network": "what it sends", "disk": "what it does on this disk", "cpuset": "the cores that both use"}
"""What pulses of these levers act on, where no counter moves."""


class Dose(Frozen):
    """The victim's gain while the suspect is pulsed at one depth."""

    depth: float
    gain: Estimate


class Waiting(Frozen):
    """A wait that pulses of a suspect shorten. less: the share of the time that is waited less, at full depth."""

    resource: str
    less: Estimate


def doses(ticks: Array, slots: Sequence[Slot], at: int, block_slots: int, delay: int) -> tuple[Dose, ...]:
    """The victim's gain at each depth of the pulses of suspect `at`. Depths with too few slots are left out.

    ticks: the victim's rate. delay: of the suspect, in ticks.
    """
    depths = np.array([slot.depths for slot in slots])
    per_slot = len(ticks) // len(slots)
    blocks = np.arange(len(slots)) // block_slots
    of_block = np.array([depths[blocks == block].max(initial=0.0) for block in range(blocks[-1] + 1)])
    found = []
    for depth in sorted(set(of_block[of_block > 0])):
        chosen = of_block[blocks] == depth
        try:
            fitted = delayed(ticks[np.repeat(chosen, per_slot)], depths[chosen], block_slots, delay, per_slot)
        except ValueError:
            continue
        found.append(
            Dose(depth=float(depth), gain=gained(fitted.estimate(at), float(depth), float(depths[chosen, at].mean())))
        )
    return tuple(found)


def waiting(slots: Sequence[Slot], at: int, block_slots: int, delay: int, per_slot: int) -> tuple[Waiting, ...]:
    """The waits that pulses of suspect `at` shorten more than chance explains, the longest first."""
    names = [name for name in (slots[0].waits if slots else {}) if any(slot.waits.get(name) for slot in slots)]
    depths, found = np.array([slot.depths for slot in slots]), []
    for name in names:
        series = np.array([slot.waits.get(name, 0.0) for slot in slots])
        try:
            # Positive: the victim waits less while the suspect is pulsed.
            fitted = delayed(np.repeat(series, per_slot), -depths, block_slots, delay, per_slot)
        except ValueError:
            continue
        less = fitted.estimate(at, 1 - 2 * ALPHA / len(names)).scaled(float(series.mean()))
        if less.low > 0:
            found.append(Waiting(resource=name, less=less))
    return tuple(sorted(found, key=lambda each: -each.less.value))


def said(found: Sequence[Waiting], lever: str) -> str:
    """The waits as the end of a sentence. lever: of the pulses that shorten them."""
    return f"waiting for {found[0].resource}" if found else BY_LEVER.get(lever, UNSEEN)
