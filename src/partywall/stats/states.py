"""Decides whether a cell shows an effect, shows that there is none, or leaves it open.

The only definition of the three.

The headline, the matrix, the tables and comparisons use `Cell.effect`. An interval that is not outside the A/A band
excludes only effects beyond its own reach, so a bound is needed to conclude that there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partywall.model.finding import Band, Cell, Effect, Warn
from partywall.stats.reliability import understated

COARSE = 5.0
""""No effect" needs a bound of at most this multiple of the requested precision."""

WIDEST_BOUND = 0.2
"""And of at most this value, whatever the requested precision: a loss of over 20 % is severe."""

LATENCY_BOUND = 0.25
"""The bound of a latency impact. A 99th percentile is several times less precise than a rate.

A comparison uses the same bound for changes of it.
"""


_DUST = 1e-9
"""Tolerance for binary fractions: 1 − 0.95 is more than 0.05."""


def bound_of(precision: float) -> float:
    """The change of an isolation factor that a run of this precision must exclude for "no effect"."""
    return min(COARSE * precision, WIDEST_BOUND)


def with_effects(cells: Iterable[Cell], bands: Sequence[Band], precision: float) -> list[Cell]:
    """The cells with the evidence for their effects, once all of their warnings are known."""
    return [_with_effect(cell, next((b for b in bands if b.of(cell)), None), bound_of(precision)) for cell in cells]


def reach_of(cell: Cell, band: Band | None) -> float:
    """The largest change of the isolation factor that the interval and the A/A band do not exclude."""
    ends = [cell.isolation.low, cell.isolation.high, *([band.low, band.high] if band else [])]
    return max(abs(1 - end) for end in ends)


def _with_effect(cell: Cell, band: Band | None, bound: float) -> Cell:
    doubtful = bool(understated(cell)) or Warn.FEW_BLOCKS in cell.warnings
    latency = {
        name: _effect(
            name in cell.latency_seen, max(map(abs, _latency_ends(cell, band, name))), LATENCY_BOUND, doubtful
        )
        for name in cell.latency
    }
    effect = _effect(cell.seen, reach_of(cell, band), bound, doubtful)
    return cell.model_copy(
        update={
            "effect": effect,
            "effect_bound": bound,
            "latency_effect": latency,
            "latency_bound": LATENCY_BOUND,
        }
    )


def _latency_ends(cell: Cell, band: Band | None, name: str) -> list[float]:
    impact = cell.latency[name]
    return [impact.low, impact.high, *(band.latency.get(name, ()) if band else ())]


def _effect(seen: bool, reach: float, bound: float, doubtful: bool) -> Effect:
    if seen:
        return Effect.SEEN
    return Effect.NONE if reach <= bound + _DUST and not doubtful else Effect.NOT_KNOWN
