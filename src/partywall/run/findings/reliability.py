"""Reasons why a cell's figure may understate the harm, for verdicts, the headline and comparisons.

Only reads the warnings of cells, which come from `partywall.run.findings.effects` and `.agent_facts`.
"""

from __future__ import annotations

from partywall.agent.catalogue import Warn
from partywall.core.stats.interval import PROMISED
from partywall.run.values.finding import Cell

UNDERSTATED = {
    Warn.CARRY_OVER: "the effect still changed inside the slots or outlasted them, so there may be more harm than was "
    "measured; lengthen them",
    Warn.COARSE_VICTIM: "the victim reports too seldom for such short slots, so there may be more harm than was "
    "measured; raise the budget",
    Warn.AGGRESSOR_IDLE: "the aggressor did nothing while it was on, so nothing was tested",
    Warn.AGGRESSOR_NOT_STOPPED: "the aggressor continued in the baseline, so there may be more harm than was measured",
    Warn.AGGRESSOR_FELL_SHORT: "the aggressor did not reach its intensity, so there may be more harm than was measured",
}
"""Why the harm may be greater than the interval shows. With one of these, no goal holds, but it may be violated."""


DISTURBED = {
    Warn.STEAL: "stolen CPU time",
    Warn.FOREIGN_LOAD: "other programs",
    Warn.SWAPPING: "swapping",
}
"""What others did to the host in a part of the slots that matters."""


def disturbed(cell: Cell) -> tuple[str, ...]:
    """What disturbed the measurement of the cell; empty if nothing did."""
    return tuple(what for warn, what in DISTURBED.items() if warn in cell.warnings)


def understated(cell: Cell) -> tuple[str, ...]:
    """Why there may be more harm than the cell shows; empty if there is no reason."""
    return tuple(reason for warn, reason in UNDERSTATED.items() if warn in cell.warnings)


def rough(blocks: int) -> str:
    """A remark on an interval from fewer blocks than its coverage was shown for; empty for enough blocks."""
    if blocks >= PROMISED:
        return ""
    return f"on {blocks} blocks, of {PROMISED} from which 95 % intervals keep their promise"
