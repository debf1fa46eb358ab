"""Compares two sides, each of one run or several, cell by cell: did isolation get better or worse?

A run's own intervals show how precise its mean is. They do not include differences between runs, for example in the
placement of memory or the state of the host. With several runs a side, or earlier ones of the same kind, that spread is
measured, and the run is the unit. With one run each and no earlier one it is unknown, and the comparison says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from partywall.model import wording
from partywall.model.comparison import Change, ComparedCell, Comparison
from partywall.model.evidence import Evidence
from partywall.model.finding import Cell, Estimate, Findings, Warn
from partywall.stats.latency import JUDGED
from partywall.stats.quantile import student_reach
from partywall.stats.reliability import understated
from partywall.stats.sameness import hosts_differ, workloads_differ
from partywall.stats.states import LATENCY_BOUND

_SMALLEST = 1e-6
"""Substitute for a stalled victim's factor of 0, which has no logarithm."""

FEWEST_FREE = 2
"""Least degrees of freedom for a spread between runs: with one, an interval is thirteen times its standard error."""

METHOD = "ratio of independent estimates; interval from both intervals' own bounds (MOVER, Zou & Donner 2008)"
METHOD_RUNS = "ratio of means over runs; interval from the spread between runs (pooled, Student's t)"

UNKNOWN_SPREAD = (
    "each side is one run, and the variation between runs is unknown: a change may be no more than that; "
    "give more runs of each side (--also, --also-reference)"
)

LATENCY_TOLERANCE = LATENCY_BOUND

Key = tuple[str, str, tuple[tuple[str, str], ...]]
Measured = tuple[Evidence, Findings]
Figure = Callable[[Cell], Estimate | None]
"""The compared figure of a cell: a positive factor with its interval, or None if it was not measured."""
Judgement = tuple[Change, str]


@dataclass(frozen=True)
class Side:
    """One side of a comparison. earlier: runs of the same kind that only show the variation between runs."""

    runs: tuple[Findings, ...]
    earlier: tuple[Findings, ...] = ()

    def cells(self, key: Key) -> list[Cell]:
        """The cell with this key in each run that has it."""
        return [cell for run in self.runs if (cell := _by_key(run).get(key))]

    def spread(self, key: Key, figure: Figure) -> list[float]:
        """Logarithms of the figure in all runs that differ only by being different runs."""
        both = [cell for run in (*self.runs, *self.earlier) if (cell := _by_key(run).get(key))]
        return [_log(estimate.value) for cell in both if (estimate := figure(cell))]


def compare(
    run: Findings, reference: Findings, tolerance: float = 0.02, *,
    latency_tolerance: float | None = LATENCY_TOLERANCE, also: Sequence[Findings] = (),
    also_reference: Sequence[Findings] = (), earlier: Sequence[Findings] = (), host: Sequence[str] = (),
    workloads: Mapping[tuple[str, str], str] | None = None,
) -> Comparison:  # fmt: skip
    """Compares by victim, treatment and levels. tolerance: change of the isolation factor that does not matter.

    latency_tolerance: the same for the 99th percentile; None to leave it unjudged. also, also_reference: more runs of
    either side. earlier: runs like the reference, for the spread between runs. host and workloads: differences, see
    `partywall.stats.sameness`; cells with different workloads are not compared.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"a tolerance of {tolerance} cannot be used; give a share from 0 up to 1, for example 0.02")
    first, second = Side((run, *also)), Side((reference, *also_reference), tuple(earlier))
    new, old = _by_key(run), _by_key(reference)
    shared = [key for key in new if key in old]
    changed = {key: why for key in shared if (why := _changed(new[key], workloads or {}))}
    cells = tuple(_compared(first, second, key, tolerance, latency_tolerance) for key in shared if key not in changed)
    known = any(cell.runs > 0 for cell in cells)
    drifted = dict(_drifted([(new[key], old[key]) for key in shared], tolerance))
    return Comparison(
        run=_named(first),
        reference=_named(second),
        tolerance=tolerance,
        latency_tolerance=latency_tolerance,
        cells=cells,
        only_run=tuple(_name(cell) for key, cell in new.items() if key not in old),
        only_reference=tuple(_name(cell) for key, cell in old.items() if key not in new),
        incomparable=tuple(f"{_name(new[key])}: {why}" for key, why in changed.items()),
        # The same run may be on both sides, and each reason is shown once.
        incomplete=tuple(
            dict.fromkeys(
                f"{side_run.run}: {text}" for side_run in (*first.runs, *second.runs) for text in side_run.incomplete
            )
        ),
        host=tuple(host),
        notes=(*(() if known or not cells else (UNKNOWN_SPREAD,)), *map(_drift_in_words, drifted.items())),
        drifted=drifted,
    )


def _drifted(pairs: Iterable[tuple[Cell, Cell]], tolerance: float) -> Iterator[tuple[str, Estimate]]:
    """Victims whose own rate differs by more than the tolerance, as far as the interval shows, with its ratio.

    The first cell of a victim refers to its baseline, later ones perhaps to a limit.
    """
    first: dict[str, tuple[Cell, Cell]] = {}
    for cell, reference in pairs:
        first.setdefault(_victim(cell), (cell, reference))
    for name, (cell, reference) in first.items():
        ratio = ratio_of(cell.baseline_rate, reference.baseline_rate)
        if ratio.high < 1 - tolerance or ratio.low > 1 + tolerance:
            yield name, ratio


def _drift_in_words(drift: tuple[str, Estimate]) -> str:
    victim, ratio = drift
    return (
        f"without a neighbour, the rate of {victim} was {wording.ratio(ratio)} times the reference's: the victim or "
        "its host drifted between the runs, and each isolation factor refers to its own run's baseline"
    )


def compare_runs(
    run: Measured, reference: Measured, tolerance: float = 0.02, *,
    latency_tolerance: float | None = LATENCY_TOLERANCE, also: Sequence[Findings] = (),
    also_reference: Sequence[Findings] = (), earlier: Sequence[Findings] = (),
) -> Comparison:  # fmt: skip
    """Like `compare`, and finds the differences between the hosts and workloads of the two first runs."""
    return compare(
        run[1],
        reference[1],
        tolerance,
        latency_tolerance=latency_tolerance,
        also=also,
        also_reference=also_reference,
        earlier=earlier,
        host=hosts_differ(run[0].host, reference[0].host),
        workloads=workloads_differ(run[0].plan, reference[0].plan),
    )


def ratio_of(first: Estimate, second: Estimate) -> Estimate:
    """The ratio first / second, with the intervals combined on the logarithmic scale."""
    a, b = (_log_bounds(estimate) for estimate in (first, second))
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


def _log(value: float) -> float:
    return math.log(max(value, _SMALLEST))


def _log_bounds(estimate: Estimate) -> tuple[float, float, float]:
    return _log(estimate.low), _log(estimate.value), _log(estimate.high)


def _isolation(cell: Cell) -> Estimate:
    return cell.isolation


def _times(percentile: str) -> Figure:
    """A percentile of the latency as a multiple of the baseline's."""

    def times(cell: Cell) -> Estimate | None:
        if (impact := cell.latency.get(percentile)) is None:
            return None
        return impact.model_copy(update={name: 1 + getattr(impact, name) for name in ("value", "low", "high")})

    return times


def _by_key(findings: Findings) -> dict[Key, Cell]:
    return {_key(cell): cell for cell in findings.cells if cell.role != "null"}


def _key(cell: Cell) -> Key:
    return cell.victim, cell.treatment, tuple(sorted((name, repr(level)) for name, level in cell.levels.items()))


def _name(cell: Cell) -> str:
    return f"{cell.victim} under {cell.label}{_levels(cell)}"


def _victim(cell: Cell) -> str:
    return f"{cell.victim}{_levels(cell)}"


def _levels(cell: Cell) -> str:
    levels = ", ".join(f"{name} = {level}" for name, level in cell.levels.items())
    return f" ({levels})" if levels else ""


def _named(side: Side) -> str:
    more = len(side.runs) - 1
    return side.runs[0].run + (f" and {more} more" if more else "")


def _changed(cell: Cell, workloads: Mapping[tuple[str, str], str]) -> str:
    concerned = (("victim", cell.victim), ("aggressor", cell.aggressor or ""))
    return "; ".join(f"{role} {name}: {why}" for role, name in concerned if (why := workloads.get((role, name))))


def _compared(first: Side, second: Side, key: Key, tolerance: float, latency_tolerance: float | None) -> ComparedCell:
    now, before = first.cells(key), second.cells(key)
    cell, reference = now[0], before[0]
    ratio, runs = _ratio(first, second, key, _isolation)
    both = [name for name in cell.latency if name in reference.latency]
    latency = {name: _ratio(first, second, key, _times(name))[0] for name in both}
    judged = [_judge("isolation factor", ratio, tolerance)]
    if latency_tolerance is not None and JUDGED in latency:
        judged.append(_judge(f"{JUDGED} latency", latency[JUDGED], latency_tolerance, more_is_worse=True))
    change, reason = _doubted(*_joined(judged), now, before)
    return ComparedCell(
        victim=cell.victim,
        label=cell.label,
        treatment=cell.treatment,
        levels=cell.levels,
        isolation=cell.isolation,
        reference_isolation=reference.isolation,
        effect=cell.effect,
        reference_effect=reference.effect,
        ratio=ratio,
        latency=latency,
        change=change,
        reason=reason,
        runs=runs,
        emulated=any(Warn.EMULATED in cell_run.warnings for cell_run in (*now, *before)),
    )


def _ratio(first: Side, second: Side, key: Key, figure: Figure) -> tuple[Estimate, int]:
    """The ratio of a figure that both first runs have, and the number of runs behind its spread."""
    now, before = ([estimate for cell in side.cells(key) if (estimate := figure(cell))] for side in (first, second))
    within = ratio_of(now[0], before[0])
    between, runs = _between(now, before, [side.spread(key, figure) for side in (first, second)])
    if between is None:
        return within, 0
    # With one run on each side, earlier runs can only widen the two runs' own intervals.
    return (between if len(now) + len(before) > 2 else _wider(within, between)), runs


def _between(
    now: Sequence[Estimate], before: Sequence[Estimate], groups: Sequence[Sequence[float]]
) -> tuple[Estimate | None, int]:
    """The ratio with the run as the unit, and the number of runs behind its spread; None if too few runs have it."""
    free = sum(len(group) - 1 for group in groups)
    if free < FEWEST_FREE:
        return None, 0
    variance = sum(statistics.variance(group) * (len(group) - 1) for group in groups if len(group) > 1) / free
    level = now[0].level
    error = math.sqrt(variance * (1 / len(now) + 1 / len(before)))
    half = student_reach(level, free) * error
    centre = statistics.fmean(_log(e.value) for e in now) - statistics.fmean(_log(e.value) for e in before)
    low, value, high = (math.exp(centre + side * half) for side in (-1, 0, 1))
    runs = sum(len(group) for group in groups)
    return Estimate(value=value, low=low, high=high, level=level, n=len(now) + len(before), method=METHOD_RUNS), runs


def _wider(within: Estimate, between: Estimate) -> Estimate:
    low, high = min(within.low, between.low), max(within.high, between.high)
    return within.model_copy(
        update={"low": low, "high": high, "method": f"{METHOD}; not narrower than the spread between runs"}
    )


def _judge(name: str, ratio: Estimate, tolerance: float, *, more_is_worse: bool = False) -> Judgement:
    shown = f"{name} {ratio.value:.4g} times the reference's, interval {ratio.low:.4g} to {ratio.high:.4g}"
    less, more = (Change.BETTER, Change.WORSE) if more_is_worse else (Change.WORSE, Change.BETTER)
    if ratio.high < 1 - tolerance:
        return less, f"{shown}: all of it below {1 - tolerance:g}"
    if ratio.low > 1 + tolerance:
        return more, f"{shown}: all of it above {1 + tolerance:g}"
    if 1 - tolerance <= ratio.low and ratio.high <= 1 + tolerance:
        return Change.SAME, f"{shown}: all of it within ±{100 * tolerance:g} %"
    return Change.INCONCLUSIVE, f"{shown}: only in part within ±{100 * tolerance:g} %; longer runs would narrow it"


def _joined(judged: Sequence[Judgement]) -> Judgement:
    """The most important judgement of several figures of one cell."""
    changes = {change for change, _ in judged}
    change = next(
        change for change in (Change.WORSE, Change.INCONCLUSIVE, Change.BETTER, Change.SAME) if change in changes
    )
    return change, "; ".join(reason for kind, reason in judged if kind is change)


def _doubted(change: Change, reason: str, now: Sequence[Cell], before: Sequence[Cell]) -> Judgement:
    """Makes a change inconclusive if either side is unreliable. It stays worse if only the run may be even worse."""
    run, reference = (list(dict.fromkeys(_cautions(cells))) for cells in (now, before))
    either = list(dict.fromkeys(_unusable(now, before)))
    stands = change is Change.WORSE and not reference and not either
    cautions = [f"but in the run {text}" for text in run] + [f"but in the reference {text}" for text in reference]
    doubted = change if stands or not (cautions or either) else Change.INCONCLUSIVE
    return doubted, "; ".join([reason, *cautions, *either])


def _cautions(cells: Sequence[Cell]) -> Iterator[str]:
    for cell in cells:
        yield from understated(cell)


def _unusable(now: Sequence[Cell], before: Sequence[Cell]) -> Iterator[str]:
    for side, cells in (("run", now), ("reference", before)):
        for cell in cells:
            if Warn.FEW_BLOCKS in cell.warnings:
                yield f"but the {side} has only {cell.isolation.n} blocks"
    emulated = {Warn.EMULATED in cell.warnings for cell in (*now, *before)}
    if len(emulated) > 1:
        yield "but one is emulated and the other is not, so their figures cannot be compared"
