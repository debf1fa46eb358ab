"""Two runs side by side: did isolation get better or worse, cell by cell? The runs are taken as independent."""

from __future__ import annotations

import math

from partywall.model.comparison import Change, ComparedCell, Comparison
from partywall.model.finding import Cell, Estimate, Findings

_SMALLEST = 1e-6
"""A stalled victim's factor of 0 has no logarithm; a millionth stands for it."""

METHOD = "ratio of independent estimates; interval from both intervals' own bounds (MOVER, Zou & Donner 2008)"


def compare(run: Findings, reference: Findings, tolerance: float = 0.02) -> Comparison:
    """Matched by victim, treatment and levels. tolerance: change of the isolation factor that does not matter."""
    if not 0 <= tolerance < 1:
        raise ValueError(f"a tolerance of {tolerance} cannot be used; give a share from 0 up to 1, for example 0.02")
    new, old = ({_key(cell): cell for cell in found.cells if cell.role != "null"} for found in (run, reference))
    return Comparison(
        run=run.run,
        reference=reference.run,
        tolerance=tolerance,
        cells=tuple(_compared(cell, old[key], tolerance) for key, cell in new.items() if key in old),
        only_run=tuple(_name(cell) for key, cell in new.items() if key not in old),
        only_reference=tuple(_name(cell) for key, cell in old.items() if key not in new),
    )


def ratio_of(first: Estimate, second: Estimate, shift: float = 0.0) -> Estimate:
    """(first + shift) / (second + shift), the intervals joined on the logarithmic scale."""
    a, b = (_log_bounds(estimate, shift) for estimate in (first, second))
    centre = a[1] - b[1]
    low = centre - math.hypot(a[1] - a[0], b[2] - b[1])
    high = centre + math.hypot(a[2] - a[1], b[1] - b[0])
    return Estimate(
        value=math.exp(centre),
        low=math.exp(low),
        high=math.exp(high),
        level=first.level,
        n=min(first.n, second.n),
        method=METHOD,
    )


def _log_bounds(estimate: Estimate, shift: float) -> tuple[float, float, float]:
    low, value, high = (
        math.log(max(bound + shift, _SMALLEST)) for bound in (estimate.low, estimate.value, estimate.high)
    )
    return low, value, high


def _key(cell: Cell) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    return cell.victim, cell.treatment, tuple(sorted((name, repr(level)) for name, level in cell.levels.items()))


def _name(cell: Cell) -> str:
    levels = ", ".join(f"{name} = {level}" for name, level in cell.levels.items())
    return f"{cell.victim} under {cell.label}" + (f" ({levels})" if levels else "")


def _compared(cell: Cell, reference: Cell, tolerance: float) -> ComparedCell:
    ratio = ratio_of(cell.isolation, reference.isolation)
    change, reason = _judge(ratio, tolerance)
    both = [name for name in cell.latency if name in reference.latency]
    return ComparedCell(
        victim=cell.victim,
        label=cell.label,
        treatment=cell.treatment,
        levels=cell.levels,
        isolation=cell.isolation,
        reference_isolation=reference.isolation,
        ratio=ratio,
        latency={name: ratio_of(cell.latency[name], reference.latency[name], shift=1.0) for name in both},
        change=change,
        reason=reason,
    )


def _judge(ratio: Estimate, tolerance: float) -> tuple[Change, str]:
    shown = f"isolation factor {ratio.value:.4g} times the reference's, interval {ratio.low:.4g} to {ratio.high:.4g}"
    if ratio.high < 1 - tolerance:
        return Change.WORSE, f"{shown}: all of it below {1 - tolerance:g}"
    if ratio.low > 1 + tolerance:
        return Change.BETTER, f"{shown}: all of it above {1 + tolerance:g}"
    if 1 - tolerance <= ratio.low and ratio.high <= 1 + tolerance:
        return Change.SAME, f"{shown}: all of it within ±{100 * tolerance:g} %"
    return Change.INCONCLUSIVE, f"{shown}: reaches across ±{100 * tolerance:g} %; longer runs would narrow it"
