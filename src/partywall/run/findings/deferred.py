"""Harm that outlasts its slot: whether quiet slots differ after one neighbour from those after others.

The order of treatments is random, so the treatment before a baseline or null slot is random too, and such slots can be
compared by it. A neighbour with delayed harm affects them, while it looks harmless in its own slots. The test looks
back LAGS slots; longer effects are spread evenly over all treatments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partywall.core.stats.algebra import one_thread
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.interval import Array
from partywall.core.stats.quantile import ranks, student_reach, student_tail
from partywall.run.findings.series import Series, presses
from partywall.run.findings.speed import LAGS
from partywall.run.values.finding import Deferred
from partywall.run.values.observation import Observations
from partywall.run.values.plan import Treatment

METHOD = "quiet slots by what preceded them, least squares; found by ranks, Bonferroni over neighbours and lags"

_WINDOW = 11
"""Number of quiet slots whose mean is subtracted, to remove slow drift of the host."""

_FEWEST_SPARE = 8
"""Least degrees of freedom that must remain; otherwise fewer lags are tested."""


def deferred_of(series: Series, treatments: Sequence[Treatment], alpha: float) -> dict[str, Deferred]:
    """By treatment id: the most significant lag, if it is significant at alpha over all neighbours and lags together.

    All intensities of an aggressor count as one.
    """
    pressing = {t.id: t.aggressor or t.id for t in treatments if presses(t)}
    names = list(dict.fromkeys(pressing.values()))
    seen = series.seen
    before = np.array([pressing.get(treatment) for treatment in seen.treatment], dtype=object)
    quiet = np.flatnonzero(before == None)  # noqa: E711 - in each slot
    quiet = quiet[quiet >= LAGS]
    lags = min(LAGS, (len(quiet) - 1 - _FEWEST_SPARE) // max(1, len(names)))
    if lags < 1 or not names:
        return {}
    tried = [(name, lag) for name in names for lag in range(1, lags + 1)]
    preceded = np.column_stack([before[quiet - lag] == name for name, lag in tried]).astype(np.float64)
    delay = _significant(_detrended(_relative(seen.take(quiet))), _detrended(preceded), alpha / len(tried))
    by_name: dict[str, Deferred] = {}
    for column, change in delay:
        name, lag = tried[column]
        by_name.setdefault(name, Deferred(lag=lag, change=change))
    return {id_: by_name[name] for id_, name in pressing.items() if name in by_name}


def _relative(seen: Observations) -> Array:
    """Each rate divided by its treatment's mean; 1 for a treatment that never did any work."""
    usual = np.empty(len(seen))
    for treatment in dict.fromkeys(seen.treatment.tolist()):
        own = seen.treatment == treatment
        usual[own] = seen.rate[own].mean()
    return np.asarray(np.divide(seen.rate, usual, out=np.ones(len(seen)), where=usual > 0), dtype=np.float64)


def _detrended(columns: Array) -> Array:
    """Each column minus its local mean. The first and last values are repeated beyond the ends."""
    width = min(_WINDOW, len(columns))
    before = width // 2
    padded = np.pad(columns, ((before, width - before - 1), *[(0, 0)] * (columns.ndim - 1)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=0)
    return np.asarray(columns - windows.mean(axis=-1), dtype=np.float64)


def _significant(values: Array, preceded: Array, alpha: float) -> list[tuple[int, Estimate]]:
    """Columns with a significant coefficient, most significant first; by ranks, so that outliers do not decide."""
    size, error, spare = _least_squares(values, preceded)
    rank_size, rank_error, _ = _least_squares(ranks(values), preceded)
    sure = np.divide(np.abs(rank_size), rank_error, out=np.zeros_like(rank_size), where=rank_error > 0)
    p = student_tail(sure, spare)
    reach = student_reach(0.95, spare) * error
    return [
        (
            int(at),
            Estimate(
                value=float(size[at]),
                low=float(size[at] - reach[at]),
                high=float(size[at] + reach[at]),
                n=len(values),
                method=METHOD,
            ),
        )
        for at in np.argsort(p, kind="stable")
        if p[at] <= alpha
    ]


@one_thread()
def _least_squares(values: Array, columns: Array) -> tuple[Array, Array, int]:
    """Coefficients, their standard errors, and the degrees of freedom left after these and the subtracted means."""
    design = np.column_stack([np.ones(len(values)), columns])
    inverse = np.linalg.pinv(design.T @ design)
    coefficients = inverse @ design.T @ values
    rest = values - design @ coefficients
    spare = len(values) - len(values) // _WINDOW - design.shape[1]
    errors = np.sqrt(np.maximum(np.diag(inverse), 0) * float(rest @ rest) / spare)
    return coefficients[1:], errors[1:], spare
