"""Kernel counters that changed together with a harm: evidence for the resource behind it, not proof.

A counter is named only if its change survives Holm's correction over all counters of the cell. It must not change as
much under a harmless treatment (then it merely reflects the stressor's work), and must not be a total that decreased (a
victim that does less also reads less). Blocks in which a counter could not be read on both sides are excluded for that
counter, and the text states their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.interval import FEWEST, Array, correlation_interval, mean_interval, p_values
from partywall.core.stats.quantile import holm
from partywall.run.findings.series import Pair, Series
from partywall.run.values.evidence import Counter
from partywall.run.values.finding import Cause, Cell, Effect

MOST = 3
ECHO = 0.5
"""A counter that changes by at least this share as much under a harmless treatment is excluded."""


@dataclass(frozen=True)
class Reading:
    """A counter in the treated and baseline slots of blocks that have it in both, and which of the pair's blocks."""

    treated: Array
    baseline: Array
    read: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

    @property
    def change(self) -> Array:
        return self.treated - self.baseline


def causes_of(cell: Cell, cells: Sequence[Cell], series: Series, counters: Mapping[str, Counter]) -> tuple[Cause, ...]:
    """The likeliest causes of a cell's harm, best first. cells: all of the trial, for changes without harm."""
    if not (cell.effect is Effect.SEEN and cell.aggressor is not None and cell.isolation.value < 1):
        return ()
    pair = series.pair(cell.treatment, cell.baseline)
    readings = {name: reading for name in counters if (reading := _reading(pair, name)) is not None}
    harmless = [series.pair(other.treatment, other.baseline) for other in cells if other.effect is not Effect.SEEN]
    named = [
        name for name in holm(dict(_p_values(readings))) if _telling(counters[name], readings[name].change, harmless)
    ]
    causes = [_cause(cell, pair, counters[name], readings[name]) for name in named]
    return tuple(sorted(causes, key=_rank)[:MOST])


def _reading(pair: Pair, name: str) -> Reading | None:
    """A counter where it was read in both slots of a block; None if there are too few such blocks."""
    treated, baseline = pair.treated.counters.column(name), pair.baseline.counters.column(name)
    read = np.isfinite(treated) & np.isfinite(baseline)
    return Reading(treated[read], baseline[read], read) if read.sum() >= FEWEST else None


def _p_values(readings: Mapping[str, Reading]) -> Iterator[tuple[str, float]]:
    """Of each counter, with those together that were read in the same blocks."""
    alike: dict[bytes, list[str]] = {}
    for name, reading in readings.items():
        alike.setdefault(reading.read.tobytes(), []).append(name)
    for names in alike.values():
        yield from zip(names, p_values(np.stack([readings[name].change for name in names])).tolist(), strict=True)


def _telling(counter: Counter, change: Array, harmless: Sequence[Pair]) -> bool:
    moved = float(change.mean())
    if counter.name.startswith("aggressor") or (counter.kind != "gauge" and moved < 0):
        return False
    elsewhere = [float(other.change.mean()) for pair in harmless if (other := _reading(pair, counter.name))]
    return all(other * moved <= 0 or abs(other) < ECHO * abs(moved) for other in elsewhere)


def _cause(cell: Cell, pair: Pair, counter: Counter, reading: Reading) -> Cause:
    treated, baseline = (float(side.mean()) for side in (reading.treated, reading.baseline))
    together = correlation_interval(reading.change, pair.losses()[reading.read])
    known = "" if reading.read.all() else f" (read in {reading.read.sum()} of {len(pair)} blocks)"
    return Cause(
        counter=counter.name,
        resource=counter.resource,
        baseline=baseline,
        treated=treated,
        difference=mean_interval(reading.change),
        correlation=together,
        text=_text(cell, counter, baseline, treated, together, known),
    )


def _supports(cause: Cause) -> bool:
    """True if blocks with a larger change of the counter have more harm."""
    together = cause.correlation
    if together is None:
        return False
    return together.low > 0 if cause.difference.value > 0 else together.high < 0


def _rank(cause: Cause) -> tuple[bool, float]:
    half = cause.difference.half_width
    return not _supports(cause), -abs(cause.difference.value) / half if half > 0 else -np.inf


def _text(cell: Cell, counter: Counter, baseline: float, treated: float, together: Estimate | None, known: str) -> str:
    direction = "rose" if treated > baseline else "fell"
    first = f"{counter.title} {direction} from {counter.change(baseline, treated, 'to')} under {cell.label}"
    if together is not None and (together.low > 0) == (treated > baseline) and (together.low > 0 or together.high < 0):
        first += f", and {cell.victim} lost more in blocks where it changed more (r = {together.value:.2f})"
    return f"{first[0].upper()}{first[1:]}{known}."
