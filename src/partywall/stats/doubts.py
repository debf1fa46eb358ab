"""Why a cell's figure may not be all of the harm: what verdicts, the headline and a comparison must not take for proof.

It only reads warnings that stand on cells; what raises them is `partywall.stats.effects` and `.witness`.
"""

from __future__ import annotations

from partywall.model.finding import Cell, Warn
from partywall.stats.interval import PROMISED

UNDERSTATED = {
    Warn.CARRY_OVER: "the effect still moved inside the slots or outlasted them, so there may be more harm than was "
    "measured; lengthen them",
    Warn.COARSE_VICTIM: "the victim reports too seldom for such short slots, so there may be more harm than was "
    "measured; raise the budget",
    Warn.AGGRESSOR_IDLE: "the aggressor did nothing while it was on, so nothing was tested",
    Warn.AGGRESSOR_NOT_STOPPED: "the aggressor went on in the baseline, so there may be more harm than was measured",
    Warn.AGGRESSOR_FELL_SHORT: "the aggressor pressed less than it was asked to, so there may be more harm than was "
    "measured",
}
"""Why a harm may be greater than its interval says: with one of these nothing holds, though it may be violated."""


def understated(cell: Cell) -> tuple[str, ...]:
    """Why there may be more harm than the cell says; empty where nothing speaks for it."""
    return tuple(reason for warn, reason in UNDERSTATED.items() if warn in cell.warnings)


def rough(cell: Cell) -> str:
    """What is to be said of an interval on fewer blocks than its promise was shown for; empty from there on."""
    if cell.isolation.n >= PROMISED:
        return ""
    return f"on {cell.isolation.n} blocks, of {PROMISED} from which 95 % intervals keep their promise"
