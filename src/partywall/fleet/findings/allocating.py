"""Where further blocks of a fleet go: to the hosts whose answer they may change. Pure."""

from __future__ import annotations

import numpy as np

from partywall.fleet.findings.judging import MIN_HOSTS, Flags, sound
from partywall.fleet.findings.pooling import Floats, Posterior

REACH = 2.0
"""How far the figure of a host may still fall, in standard deviations."""
MAY_BE_NAMED = 0.01
"""A larger chance is not named, however many hosts are."""
IS_NAMED = 0.001
"""A smaller chance, divided by the number of hosts, is named, however few are. No luck of a few blocks reaches it."""


def is_open(values: Floats, errors: Floats, shares: Floats) -> Flags:
    """Whether further blocks may decide if each host is worse than the fleet. Shapes: (hosts,).

    shares: the part of its blocks that each host has measured. A host is open unless it is named beyond doubt, or the
    lowest figure that is still likely would not be named. Its figure after all blocks is expected where it is now, with
    the variance that its error will lose. With fewer than `MIN_HOSTS` hosts, nothing can be decided, so each is open.
    """
    if len(values) < MIN_HOSTS:
        return shares < 1
    inside = sound(values, errors)
    fleet = Posterior(values[inside], errors[inside])
    final = errors * np.sqrt(shares)
    lowest = values - REACH * np.sqrt(errors**2 - final**2)
    may_be_named = (lowest < np.median(values[inside])) & (fleet.chance_beyond(lowest, final) <= MAY_BE_NAMED)
    is_named = fleet.chance_beyond(values, errors) <= IS_NAMED / len(values)
    left: Flags = may_be_named & ~is_named & (shares < 1)
    return left
