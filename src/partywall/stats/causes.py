"""Which kernel counter moved with a harm: evidence for the resource it went through, not proof of it.

A counter is named only if its change survives Holm's correction over all counters of the cell, if it did not move as
much under a treatment that did no harm (then it merely echoes that a stressor works), and if it is not a total that
fell (a victim that does less reads less: a consequence). It never claims more than that it moved with the harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partywall.model.evidence import Counter
from partywall.model.finding import Cause, Cell, Estimate
from partywall.stats.interval import FEWEST, Array, correlation_interval, mean_interval, p_value
from partywall.stats.series import Pair, Series

ALPHA = 0.05
MOST = 3
ECHO = 0.5
"""A counter that moved at least this share as far under a harmless treatment is an echo."""


def causes_of(cell: Cell, cells: Sequence[Cell], series: Series, counters: Mapping[str, Counter]) -> tuple[Cause, ...]:
    """The likeliest causes of a cell's harm, best first. cells: all of the trial, for what moves without harm."""
    if not (cell.seen and cell.aggressor is not None and cell.isolation.high < 1):
        return ()
    pair = series.pair(cell.treatment, cell.baseline)
    changes = {name: change for name in counters if (change := _change(pair, name)) is not None}
    harmless = [series.pair(other.treatment, other.baseline) for other in cells if not other.seen]
    named = [
        name
        for name in _holm({name: p_value(change) for name, change in changes.items()})
        if _telling(counters[name], changes[name], harmless)
    ]
    found = [_cause(cell, pair, counters[name], changes[name]) for name in named]
    return tuple(sorted(found, key=_rank)[:MOST])


def _reading(pair: Pair, name: str) -> tuple[Array, Array] | None:
    """A counter in the treated and in the baseline slots; None unless it was read in all of them."""
    if len(pair) < FEWEST or any(name not in o.counters for o in pair.treated + pair.baseline):
        return None
    treated, baseline = (
        np.array([o.counters[name] for o in side], dtype=np.float64) for side in (pair.treated, pair.baseline)
    )
    return (treated, baseline) if np.isfinite(treated).all() and np.isfinite(baseline).all() else None


def _change(pair: Pair, name: str) -> Array | None:
    reading = _reading(pair, name)
    return None if reading is None else reading[0] - reading[1]


def _holm(p_values: Mapping[str, float]) -> list[str]:
    """Names that stay significant when all were tried (Holm 1979)."""
    kept: list[str] = []
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > ALPHA / (len(p_values) - place):
            break
        kept.append(name)
    return kept


def _telling(counter: Counter, change: Array, harmless: Sequence[Pair]) -> bool:
    moved = float(change.mean())
    if counter.name.startswith("aggressor") or (counter.kind != "gauge" and moved < 0):
        return False
    elsewhere = [float(other.mean()) for pair in harmless if (other := _change(pair, counter.name)) is not None]
    return all(other * moved <= 0 or abs(other) < ECHO * abs(moved) for other in elsewhere)


def _cause(cell: Cell, pair: Pair, counter: Counter, change: Array) -> Cause:
    reading = _reading(pair, counter.name)
    if reading is None:
        raise ValueError(f"counter {counter.name} was not read in every slot")
    treated, baseline = (float(side.mean()) for side in reading)
    together = correlation_interval(change, pair.losses())
    return Cause(
        counter=counter.name,
        resource=counter.resource,
        baseline=baseline,
        treated=treated,
        difference=mean_interval(change),
        correlation=together,
        text=_text(cell, counter, baseline, treated, together),
    )


def _supports(cause: Cause) -> bool:
    """Blocks in which the counter moved further are blocks with more harm."""
    together = cause.correlation
    if together is None:
        return False
    return together.low > 0 if cause.difference.value > 0 else together.high < 0


def _rank(cause: Cause) -> tuple[bool, float]:
    half = cause.difference.half_width
    return not _supports(cause), -abs(cause.difference.value) / half if half > 0 else -np.inf


def _text(cell: Cell, counter: Counter, baseline: float, treated: float, together: Estimate | None) -> str:
    direction = "rose" if treated > baseline else "fell"
    first = f"{counter.title} {direction} from {counter.change(baseline, treated, 'to')} under {cell.label}"
    if together is not None and (together.low > 0) == (treated > baseline) and (together.low > 0 or together.high < 0):
        first += f", and the more it moved in a block the more {cell.victim} lost there (r = {together.value:.2f})"
    return f"{first[0].upper()}{first[1:]}. Points to {counter.resource.replace('_', ' ')}; evidence, not proof."
