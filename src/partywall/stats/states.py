"""Whether a cell shows an effect, shows that there is none, or leaves that open: the one definition of the three.

The headline, the matrix, the tables and a comparison read `Cell.effect`; none of them decides it anew. An interval that
is not outside the A/A band excludes an effect only as far as it reaches, so it needs a bound to be a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partywall.model.finding import Band, Cell, Effect, Warn
from partywall.stats.doubts import understated

COARSE = 5.0
"""Nothing seen at more than this many times the precision asked for is not a result."""

WIDEST_BOUND = 0.2
"""Nor at more than this, however coarse a precision was asked for: over 20 % lost is a severe harm."""

LATENCY_BOUND = 0.25
"""The bound of a latency impact. A 99th percentile is known several times less well than a rate; a comparison looks for
no smaller change of it either."""


_DUST = 1e-9
"""Of binary fractions: 1 − 0.95 is more than 0.05."""


def bound_of(precision: float) -> float:
    """The change of an isolation factor that a run of that precision must exclude to tell that there is no effect."""
    return min(COARSE * precision, WIDEST_BOUND)


def with_effects(cells: Iterable[Cell], bands: Sequence[Band], precision: float) -> list[Cell]:
    """The cells with what is known of their effects, once all of their warnings are there."""
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
