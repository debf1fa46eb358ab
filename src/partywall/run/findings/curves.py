"""Sensitivity curves: a victim's isolation factor by an aggressor's intensity, and the slope of its loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.interval import FEWEST, mean_interval
from partywall.run.findings.series import Measured, Series, baseline_of, references
from partywall.run.values.finding import Cell, Curve
from partywall.run.values.plan import Trial


def curves_of(trial: Trial, measured: Measured, cells: Sequence[Cell]) -> tuple[Curve, ...]:
    """A curve for each aggressor with at least two intensities, for the unlimited victim."""
    by_aggressor: dict[str, list[Cell]] = {}
    unlimited = {t.id for t in trial.treatments if t.victim_limits is None}
    for cell in cells:
        if cell.treatment in unlimited and cell.aggressor is not None and cell.intensity is not None:
            by_aggressor.setdefault(cell.aggressor, []).append(cell)
    return tuple(
        _curve(trial, measured.holding(group[0].treatment), name, group)
        for name, group in by_aggressor.items()
        if _intensities(group) > 1
    )


def _intensities(cells: Sequence[Cell]) -> int:
    return len({cell.intensity for cell in cells})


def _curve(trial: Trial, series: Series, aggressor: str, cells: Sequence[Cell]) -> Curve:
    ordered = sorted(cells, key=lambda cell: cell.intensity or 0)
    points = tuple((cell.intensity or 0.0, cell.isolation) for cell in ordered)
    return Curve(
        trial=trial.id,
        victim=trial.victim_name,
        aggressor=aggressor,
        points=points,
        slope=_slope(trial, series, ordered),
    )


def _slope(trial: Trial, series: Series, cells: Sequence[Cell]) -> Estimate | None:
    """Loss per unit of intensity: the least-squares line through the origin and the losses of the cells.

    Through the origin, because at intensity 0 an aggressor is the baseline. Each block gives one slope, which keeps its
    intensities together, so that common deviations of that block count once. The losses are those of the trial's own
    fit, to which blocks that lack an intensity contribute as well.
    """
    wanted = [cell.treatment for cell in cells]
    baseline = baseline_of(trial.treatments)
    complete = np.flatnonzero(series.hold([*wanted, baseline.id]))
    if len(complete) < FEWEST:
        return None
    alike = references(series, trial.treatments, baseline)
    losses = np.stack([1 - series.ratio(name, alike, complete) for name in wanted])
    intensity = np.array([cell.intensity for cell in cells], dtype=np.float64)
    return mean_interval(intensity @ losses / float(intensity @ intensity))
