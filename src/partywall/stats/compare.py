"""Two sides, of one run or several, cell by cell: did isolation get better or worse?

A run's own intervals tell how sure that run is of its mean. They know nothing of how runs differ from one another:
where memory lay, what the host did that hour. With several runs a side, or earlier ones of the same kind, that spread
is measured and the run is the unit; with one run each and none before, it is not known, and the comparison says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import scipy

from partywall.model.comparison import Change, ComparedCell, Comparison
from partywall.model.evidence import Evidence
from partywall.model.finding import Cell, Estimate, Findings
from partywall.stats.sameness import hosts_differ, workloads_differ

_SMALLEST = 1e-6
"""A stalled victim's factor of 0 has no logarithm; a millionth stands for it."""

FEWEST_FREE = 2
"""Degrees of freedom before a spread between runs is believed: with one, an interval is thirteen times its error."""

METHOD = "ratio of independent estimates; interval from both intervals' own bounds (MOVER, Zou & Donner 2008)"
METHOD_RUNS = "ratio of means over runs; interval from the spread between runs (pooled, Student's t)"

UNKNOWN_SPREAD = (
    "each side is one run, and how runs differ from one another is not known: a change may be no more than that; "
    "give more runs of each side (--also, --also-reference)"
)

Key = tuple[str, str, tuple[tuple[str, str], ...]]
Measured = tuple[Evidence, Findings]


@dataclass(frozen=True)
class Side:
    """What is compared with the other side. earlier: runs of the same kind that only show how runs differ."""

    runs: tuple[Findings, ...]
    earlier: tuple[Findings, ...] = ()

    def cells(self, key: Key) -> list[Cell]:
        """The cell of that key in each run that has it."""
        return [cell for run in self.runs if (cell := _by_key(run).get(key))]

    def spread(self, key: Key) -> list[list[float]]:
        """Groups of logarithms of the isolation factor that differ by nothing but the run."""
        both = [cell for run in (*self.runs, *self.earlier) if (cell := _by_key(run).get(key))]
        return [[_log(cell.isolation.value) for cell in both]]


def compare(
    run: Findings, reference: Findings, tolerance: float = 0.02, *, also: Sequence[Findings] = (),
    also_reference: Sequence[Findings] = (), earlier: Sequence[Findings] = (), host: Sequence[str] = (),
    workloads: Mapping[tuple[str, str], str] | None = None,
) -> Comparison:  # fmt: skip
    """Matched by victim, treatment and levels. tolerance: change of the isolation factor that does not matter.

    also, also_reference: more runs of either side. earlier: runs like the reference, for the spread between runs. host
    and workloads: what differs, see `partywall.stats.sameness`; cells of workloads that differ are not compared.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"a tolerance of {tolerance} cannot be used; give a share from 0 up to 1, for example 0.02")
    first, second = Side((run, *also)), Side((reference, *also_reference), tuple(earlier))
    new, old = _by_key(run), _by_key(reference)
    shared = [key for key in new if key in old]
    changed = {key: why for key in shared if (why := _changed(new[key], workloads or {}))}
    cells = tuple(_compared(first, second, key, tolerance) for key in shared if key not in changed)
    known = any(cell.runs > 0 for cell in cells)
    return Comparison(
        run=_named(first),
        reference=_named(second),
        tolerance=tolerance,
        cells=cells,
        only_run=tuple(_name(cell) for key, cell in new.items() if key not in old),
        only_reference=tuple(_name(cell) for key, cell in old.items() if key not in new),
        incomparable=tuple(f"{_name(new[key])}: {why}" for key, why in changed.items()),
        host=tuple(host),
        notes=() if known or not cells else (UNKNOWN_SPREAD,),
    )


def compare_runs(
    run: Measured, reference: Measured, tolerance: float = 0.02, *, also: Sequence[Findings] = (),
    also_reference: Sequence[Findings] = (), earlier: Sequence[Findings] = (),
) -> Comparison:  # fmt: skip
    """`compare`, with what differs between the hosts and workloads of the two first runs found out."""
    return compare(
        run[1],
        reference[1],
        tolerance,
        also=also,
        also_reference=also_reference,
        earlier=earlier,
        host=hosts_differ(run[0].host, reference[0].host),
        workloads=workloads_differ(run[0].plan, reference[0].plan),
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


def _log(value: float, shift: float = 0.0) -> float:
    return math.log(max(value + shift, _SMALLEST))


def _log_bounds(estimate: Estimate, shift: float) -> tuple[float, float, float]:
    return _log(estimate.low, shift), _log(estimate.value, shift), _log(estimate.high, shift)


def _by_key(found: Findings) -> dict[Key, Cell]:
    return {_key(cell): cell for cell in found.cells if cell.role != "null"}


def _key(cell: Cell) -> Key:
    return cell.victim, cell.treatment, tuple(sorted((name, repr(level)) for name, level in cell.levels.items()))


def _name(cell: Cell) -> str:
    levels = ", ".join(f"{name} = {level}" for name, level in cell.levels.items())
    return f"{cell.victim} under {cell.label}" + (f" ({levels})" if levels else "")


def _named(side: Side) -> str:
    more = len(side.runs) - 1
    return side.runs[0].run + (f" and {more} more" if more else "")


def _changed(cell: Cell, workloads: Mapping[tuple[str, str], str]) -> str:
    concerned = (("victim", cell.victim), ("aggressor", cell.aggressor or ""))
    return "; ".join(f"{role} {name}: {why}" for role, name in concerned if (why := workloads.get((role, name))))


def _compared(first: Side, second: Side, key: Key, tolerance: float) -> ComparedCell:
    now, before = first.cells(key), second.cells(key)
    cell, reference = now[0], before[0]
    ratio = ratio_of(cell.isolation, reference.isolation)
    between, runs = _between([c.isolation for c in now], [c.isolation for c in before], first, second, key)
    if between is not None:
        # One run each: earlier runs can only widen what the two say of themselves.
        ratio = between if len(now) + len(before) > 2 else _wider(ratio, between)
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
        runs=runs,
    )


def _between(
    now: Sequence[Estimate], before: Sequence[Estimate], first: Side, second: Side, key: Key
) -> tuple[Estimate | None, int]:
    """The ratio with the run as the unit, and how many runs its spread rests on; None if too few show it."""
    groups = [group for side in (first, second) for group in side.spread(key)]
    free = sum(len(group) - 1 for group in groups)
    if free < FEWEST_FREE:
        return None, 0
    variance = sum(statistics.variance(group) * (len(group) - 1) for group in groups if len(group) > 1) / free
    level = now[0].level
    error = math.sqrt(variance * (1 / len(now) + 1 / len(before)))
    half = float(scipy.stats.t.ppf((1 + level) / 2, free)) * error
    centre = statistics.fmean(_log(e.value) for e in now) - statistics.fmean(_log(e.value) for e in before)
    low, value, high = (math.exp(centre + side * half) for side in (-1, 0, 1))
    runs = sum(len(group) for group in groups)
    return Estimate(value=value, low=low, high=high, level=level, n=len(now) + len(before), method=METHOD_RUNS), runs


def _wider(within: Estimate, between: Estimate) -> Estimate:
    low, high = min(within.low, between.low), max(within.high, between.high)
    return within.model_copy(update={"low": low, "high": high, "method": f"{METHOD}; not narrower than runs differ"})


def _judge(ratio: Estimate, tolerance: float) -> tuple[Change, str]:
    shown = f"isolation factor {ratio.value:.4g} times the reference's, interval {ratio.low:.4g} to {ratio.high:.4g}"
    if ratio.high < 1 - tolerance:
        return Change.WORSE, f"{shown}: all of it below {1 - tolerance:g}"
    if ratio.low > 1 + tolerance:
        return Change.BETTER, f"{shown}: all of it above {1 + tolerance:g}"
    if 1 - tolerance <= ratio.low and ratio.high <= 1 + tolerance:
        return Change.SAME, f"{shown}: all of it within ±{100 * tolerance:g} %"
    return Change.INCONCLUSIVE, f"{shown}: reaches across ±{100 * tolerance:g} %; longer runs would narrow it"
