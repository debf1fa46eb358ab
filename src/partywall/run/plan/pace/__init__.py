"""The contents and durations of a trial's blocks, and how many fit into a budget. Pure.

Scenarios are checked and planned by the same calculation, so both use this package. The CPUs, the order in a block and
all times are decided by the plan.
"""

from partywall.run.plan.pace.forecast import Forecast, forecast, needed_ns, shares
from partywall.run.plan.pace.rhythm import PLANNED, SLOW_SHARE, BlockKind, Rhythm, Stretch, ceil_to, rhythm
from partywall.run.plan.pace.treatments import NULL, SLOT_SLICES, treatments

__all__ = [
    "NULL",
    "PLANNED",
    "SLOT_SLICES",
    "SLOW_SHARE",
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
