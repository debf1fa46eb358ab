"""What a trial's blocks hold, how long they last, and how many of them a budget holds. Pure.

A scenario is refused by the same reckoning by which it is planned, so both stand on this. Not here: which CPUs there
are, the order in a block, and when anything happens, which are the plan's.
"""

from partywall.pace.forecast import Forecast, forecast, needed_ns, shares
from partywall.pace.rhythm import PLANNED, BlockKind, Rhythm, Stretch, ceil_to, rhythm
from partywall.pace.treatments import NULL, SLOT_SLICES, treatments

__all__ = [
    "NULL",
    "PLANNED",
    "SLOT_SLICES",
    "BlockKind",
    "Forecast",
    "Rhythm",
    "Stretch",
    "ceil_to",
    "forecast",
    "needed_ns",
    "rhythm",
    "shares",
    "treatments",
]
