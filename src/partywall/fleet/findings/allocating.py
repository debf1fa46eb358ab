"""Where further blocks of a fleet go: to the hosts whose answer they may change. Pure."""

from __future__ import annotations

import numpy as np

from partywall.fleet.findings.judging import MIN_HOSTS, Flags, sound
from partywall.fleet.findings.pooling import Floats, Posterior
from partywall.fleet.job import LEAST

EXCLUDED = 2.5
"""A figure that is so many standard deviations above that of the smallest loss excludes it."""
UNUSUAL = 0.4
"""A smaller chance, divided by the number of cells, keeps a host open: as long as few are, more can be afforded."""
REACH = 2.0
"""How far the figure of a host may still fall, in standard deviations."""
MAY_BE_NAMED = 0.01
"""A larger chance is not named, however many hosts are."""
IS_NAMED = 0.001
"""A smaller chance, divided by the number of hosts, is named, however few are. No luck of a few blocks reaches it."""


def is_open(values: Floats, errors: Floats, shares: Floats, cells: int = 1, least: float = LEAST) -> Flags:
    """Whether further blocks may decide if each host is worse than the fleet in one cell. Shapes: (hosts,).

    shares: the part of its blocks that each host has measured. cells: how many are judged together. least: the smallest
    loss that matters, as a share. A host is open unless it is named beyond doubt, or the lowest figure that is still
    likely would not be named, or such a loss is excluded. Its figure after all blocks is expected where it is now, with
    the variance that its error will lose. With fewer than `MIN_HOSTS` hosts, nothing can be decided, so each is open.

    Without `least`, a host would go on whose figure is low by luck in one of many cells: most hosts have such a cell.
    """
    if len(values) < MIN_HOSTS:
        return shares < 1
    inside = sound(values, errors)
    fleet = Posterior(values[inside], errors[inside])
    final = errors * np.sqrt(shares)
    lowest = values - REACH * np.sqrt(errors**2 - final**2)
    middle = np.median(values[inside])
    may_be_named = (lowest < middle) & (fleet.chance_beyond(lowest, final) <= MAY_BE_NAMED / cells)
    chance = fleet.chance_beyond(values, errors)
    is_excluded = (values - EXCLUDED * errors > middle + np.log1p(-least)) & (chance > UNUSUAL / cells)
    is_named = chance <= IS_NAMED / len(values) / cells
    left: Flags = may_be_named & ~is_named & ~is_excluded & (shares < 1)
    return left
