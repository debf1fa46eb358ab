"""Compares two sides, each of one run or several, cell by cell: did isolation get better or worse?

A run's own intervals show how precise its mean is. They do not include differences between runs, for example in the
placement of memory or the state of the host. With several runs a side, or earlier ones of the same kind, that spread is
measured (`partywall.run.findings.between`). With one run each and no earlier ones it is unknown, and no cell is judged.

All cells and figures are one family: the probability that any of them is called worse or better by chance is at most
5 % (Holm). No correction is needed for *same*: a comparison holds only if every cell is the same or better, so one
cell that is not suffices to prevent it (an intersection-union test).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from partywall.agent.catalogue import Warn
from partywall.core.report import wording
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import ALPHA, holm
from partywall.run.findings.between import FEWEST_FREE, SMALLEST, Difference, Logged, spreads
from partywall.run.findings.latency import JUDGED
from partywall.run.findings.reliability import disturbed, understated
from partywall.run.findings.sameness import hosts_differ, workloads_differ
from partywall.run.findings.states import LATENCY_BOUND
from partywall.run.values.comparison import Change, ComparedCell, Comparison
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Cell, Effect, Findings
from partywall.units import counted

METHOD = "ratio of independent estimates; interval from both intervals' own bounds (MOVER, Zou & Donner 2008)"

UNKNOWN = "the variation between runs is unknown"
UNKNOWN_SPREAD = (
    f"{UNKNOWN}, so no change can be told from it: at least {FEWEST_FREE + 2} finished runs of this scenario on this "
    "host are needed, both compared ones included"
)

LATENCY_TOLERANCE = LATENCY_BOUND

Key = tuple[str, str, tuple[tuple[str, str], ...]]
Measured = tuple[Evidence, Findings]
Figure = Callable[[Cell], Estimate | None]
"""The compared figure of a cell: a positive factor with its interval, or None if it was not measured."""


class Judged(NamedTuple):
    """A figure that decides whether a cell got worse. tolerance: a change of it that does not matter."""

    name: str
    figure: Figure
    state: Callable[[Cell], Effect]
    tolerance: float
    more_is_worse: bool = False


class Rule(NamedTuple):
    """How sure a change must be. chance: probability that any cell is called worse or better though nothing changed.

    in_turn: the runs of both sides were made in turn, so their spread contains whatever disturbed single runs.
    """

    chance: float = ALPHA
    in_turn: bool = False


ALONE = Rule()
"""That of one run a side, or of several that were not made in turn."""


class Judgement(NamedTuple):
    """why: what keeps a change from being told, in words that many cells may share."""

    change: Change
    shown: str
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """One side of a comparison. earlier: runs of the same kind that only show the variation between runs."""

    runs: tuple[Findings, ...]
    earlier: tuple[Findings, ...] = ()

    @cached_property
    def _keyed(self) -> list[dict[Key, Cell]]:
        return [_by_key(run) for run in (*self.runs, *self.earlier)]

    def cells(self, key: Key) -> list[Cell]:
        """The cell with this key in each run that has it."""
        return [cells[key] for cells in self._keyed[: len(self.runs)] if key in cells]

    def alike(self, key: Key, figure: Figure) -> list[Logged]:
        """The figure in all runs that differ only by being different runs."""
        both = [figure(cells[key]) for cells in self._keyed if key in cells]
        return [Logged.of(estimate) for estimate in both if estimate]


def compare(
    run: Findings, reference: Findings, tolerance: float = 0.02, *,
    latency_tolerance: float | None = LATENCY_TOLERANCE, also: Sequence[Findings] = (),
    also_reference: Sequence[Findings] = (), earlier: Sequence[Findings] = (), unread: int = 0,
    host: Sequence[str] = (), workloads: Mapping[tuple[str, str], str] | None = None, rule: Rule = ALONE,
) -> Comparison:  # fmt: skip
    """Compares by victim, treatment and levels. tolerance: change of the isolation factor that does not matter.

    latency_tolerance: the same for the 99th percentile; None to leave it unjudged. also, also_reference: more runs of
    either side. earlier: runs like the reference, for the spread between runs; unread: how many more could not be read.
    host and workloads: differences, see `sameness`; cells with different workloads are only compared if the runs were
    made in turn.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"a tolerance of {tolerance} cannot be used; give a share from 0 up to 1, for example 0.02")
    first, second = Side((run, *also)), Side((reference, *also_reference), tuple(earlier))
    new, old = _by_key(run), _by_key(reference)
    shared = [key for key in new if key in old]
    differ = {key: why for key in shared if (why := _changed(new[key], workloads or {}))}
    changed = {} if rule.in_turn else differ
    judged = [Judged("isolation factor", _isolation, _effect, tolerance)]
    if latency_tolerance is not None:
        judged.append(Judged(f"{JUDGED} latency", _times(JUDGED), _latency_effect, latency_tolerance, True))
    cells = tuple(_compared(first, second, [key for key in shared if key not in changed], judged, rule))
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
        notes=(
            *_precision(cells),
            *_unread(unread),
            *map(_drift_in_words, drifted.items()),
            *(f"the sides differ in {_name(new[key])}: {why}" for key, why in differ.items() if rule.in_turn),
        ),
        drifted=drifted,
    )


def _precision(cells: Sequence[ComparedCell]) -> Iterator[str]:
    """What the comparison is able to find."""
    known = sorted(cell.found_from for cell in cells if cell.found_from is not None)
    if known:
        runs = counted(max(cell.runs for cell in cells), "run")
        best, usual = (f"{100 * loss:.0f} %" for loss in (known[0], statistics.median(known)))
        half = "" if best == usual else f" in the best known cell, and of {usual} in half of the cells"
        yield f"{runs} show how much runs vary; nine of ten comparisons like this find a loss of {best}{half}"
    elif cells:
        yield UNKNOWN_SPREAD


def _unread(count: int) -> Iterator[str]:
    if count:
        runs = counted(count, "other run")
        yield f"{runs} in the same folders cannot be read, so how much runs vary is told without them"


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
    also_reference: Sequence[Findings] = (), earlier: Sequence[Findings] = (), unread: int = 0, rule: Rule = ALONE,
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
        unread=unread,
        host=hosts_differ(run[0].host, reference[0].host),
        workloads=workloads_differ(run[0].plan, reference[0].plan),
        rule=rule,
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


def _log_bounds(estimate: Estimate) -> tuple[float, float, float]:
    low, value, high = (math.log(max(end, SMALLEST)) for end in (estimate.low, estimate.value, estimate.high))
    return low, value, high


def _isolation(cell: Cell) -> Estimate:
    return cell.isolation


def _effect(cell: Cell) -> Effect:
    return cell.effect


def _latency_effect(cell: Cell) -> Effect:
    return cell.latency_effect.get(JUDGED, Effect.NOT_KNOWN)


def _times(percentile: str) -> Figure:
    """A percentile of the latency as a multiple of the baseline's."""

    def times(cell: Cell) -> Estimate | None:
        impact = cell.latency.get(percentile)
        return impact and impact.mapped(lambda change: 1 + change)

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


def _compared(
    first: Side, second: Side, keys: Sequence[Key], judged: Sequence[Judged], rule: Rule
) -> Iterator[ComparedCell]:
    """Compares all cells together, since they share the estimate of the spread and the probability of an error."""
    differences = {each.name: _differences(first, second, keys, each.figure) for each in judged}
    p_values = {
        (each.name, key): difference.p_value(each.tolerance)
        for each in judged
        for key, difference in differences[each.name].items()
    }
    significant = set(holm(p_values, rule.chance))
    shown = dict.fromkeys(name for key in keys for cell in first.cells(key)[:1] for name in cell.latency)
    latencies = {name: _differences(first, second, keys, _times(name)) for name in shown}
    for key in keys:
        now, before = first.cells(key), second.cells(key)
        cell, reference = now[0], before[0]
        judgements = [
            _judge(each, ratio, now, before, differences[each.name].get(key), (each.name, key) in significant, rule)
            for each in judged
            if (ratio := _ratio(first, second, key, each.figure, differences[each.name].get(key))) is not None
        ]
        judgements += [one for each in judged if (one := _one_sided(each, now, before))]
        change, reason, why = _joined(judgements, now, before)
        known = differences[judged[0].name].get(key)
        ratios = {name: _ratio(first, second, key, _times(name), latencies[name].get(key)) for name in shown}
        isolation = _ratio(first, second, key, _isolation, known)
        assert isolation is not None  # noqa: S101 - every cell has one
        yield ComparedCell(
            victim=cell.victim,
            label=cell.label,
            treatment=cell.treatment,
            levels=cell.levels,
            isolation=cell.isolation,
            reference_isolation=reference.isolation,
            effect=cell.effect,
            reference_effect=reference.effect,
            ratio=isolation,
            latency={name: ratio for name, ratio in ratios.items() if ratio is not None},
            change=change,
            reason=reason,
            why=why,
            runs=known.runs if known else 0,
            found_from=known.found_from(judged[0].tolerance, rule.chance / len(p_values)) if known else None,
            emulated=any(Warn.EMULATED in cell_run.warnings for cell_run in (*now, *before)),
        )


def _sides(first: Side, second: Side, key: Key, figure: Figure) -> tuple[list[Estimate], list[Estimate]]:
    now, before = ([estimate for cell in side.cells(key) if (estimate := figure(cell))] for side in (first, second))
    return now, before


def _differences(first: Side, second: Side, keys: Sequence[Key], figure: Figure) -> dict[Key, Difference]:
    """The differences of a figure, where it is known how much it varies between runs."""
    sides = {key: _sides(first, second, key, figure) for key in keys}
    both = {key: pair for key, pair in sides.items() if all(pair)}
    # Cells of one victim share its baseline, so they do not vary independently.
    victims = len({(key[0], key[2]) for key in both})
    known = spreads({key: [side.alike(key, figure) for side in (first, second)] for key in both}, victims)
    return {key: Difference.of(*both[key], spread) for key, spread in known.items()}


def _ratio(first: Side, second: Side, key: Key, figure: Figure, known: Difference | None) -> Estimate | None:
    """The ratio of a figure; None if a side lacks it. The interval of an unknown spread is that of the first runs."""
    now, before = _sides(first, second, key, figure)
    if not now or not before:
        return None
    return known.ratio if known else ratio_of(now[0], before[0])


def _judge(
    judged: Judged, ratio: Estimate, now: Sequence[Cell], before: Sequence[Cell], known: Difference | None, found: bool,
    rule: Rule,
) -> Judgement:  # fmt: skip
    """Judges one figure of a cell. found: whether it differs by more than chance over all cells allows."""
    tolerance = judged.tolerance
    times = wording.multiple(ratio)
    known_times = f"{times} times the reference's"
    shown = f"{judged.name} {'beside the reference not known' if times == wording.UNTOLD else known_times}"
    within = f"±{100 * tolerance:g} %"
    if known is None:
        return Judgement(Change.INCONCLUSIVE, shown, (UNKNOWN,))
    if found:
        rises = ratio.value > 1
        change = Change.WORSE if rises == judged.more_is_worse else Change.BETTER
        doubts = () if rule.in_turn else tuple(_undecidable(judged, now, before))
        reason = f"{shown}: {'more' if rises else 'less'} than {within} and chance explain"
        return Judgement(Change.INCONCLUSIVE if doubts else change, reason, doubts)
    if 1 - tolerance <= ratio.low and ratio.high <= 1 + tolerance:
        return Judgement(Change.SAME, f"{shown}: all of it within {within}")
    if ratio.high < 1 - tolerance or ratio.low > 1 + tolerance:
        why = f"{judged.name} outside {within}, but of so many cells one may be there by chance"
    else:
        why = f"{judged.name} only in part within {within}; longer or more runs would narrow it"
    return Judgement(Change.INCONCLUSIVE, shown, (why,))


def _one_sided(judged: Judged, now: Sequence[Cell], before: Sequence[Cell]) -> Judgement | None:
    """A figure that only one side has may have got worse."""
    sides = [any(judged.figure(cell) is not None for cell in side) for side in (now, before)]
    why = f"{judged.name} measured on one side only"
    return Judgement(Change.INCONCLUSIVE, why, (why,)) if sides[0] != sides[1] else None


def _undecidable(judged: Judged, now: Sequence[Cell], before: Sequence[Cell]) -> Iterator[str]:
    """Why a difference that is more than chance is not called a change."""
    for side, cells in (("run", now), ("reference", before)):
        if names := dict.fromkeys(name for cell in cells for name in disturbed(cell)):
            yield f"{' and '.join(names)} disturbed the {side}"
        if all(judged.state(cell) is Effect.NOT_KNOWN for cell in cells):
            yield f"the effect in the {side} is not known"


def _joined(judged: Sequence[Judgement], now: Sequence[Cell], before: Sequence[Cell]) -> Judgement:
    """The most important judgement of several figures of one cell, made inconclusive if a side is unreliable.

    It stays worse if only the run may be even worse.
    """
    order = (Change.WORSE, Change.INCONCLUSIVE, Change.BETTER, Change.SAME)
    change = min((one.change for one in judged), key=order.index)
    chosen = [one for one in judged if one.change is change]
    why = tuple(dict.fromkeys(text for one in chosen for text in one.why))
    run, reference = ([*dict.fromkeys(text for cell in side for text in understated(cell))] for side in (now, before))
    either = list(dict.fromkeys(_unusable(now, before)))
    stands = change is Change.WORSE and not reference and not either
    cautions = [f"in the run {text}" for text in run] + [f"in the reference {text}" for text in reference] + either
    if cautions and not stands:
        change = Change.INCONCLUSIVE
    shown = "; ".join(one.shown for one in chosen)
    reason = "; ".join([shown, *why, *(f"but {text}" for text in cautions)])
    return Judgement(change, reason, (*why, *cautions))


def _unusable(now: Sequence[Cell], before: Sequence[Cell]) -> Iterator[str]:
    for side, cells in (("run", now), ("reference", before)):
        for cell in cells:
            if Warn.FEW_BLOCKS in cell.warnings:
                yield f"the {side} has only {cell.isolation.n} blocks"
    emulated = {Warn.EMULATED in cell.warnings for cell in (*now, *before)}
    if len(emulated) > 1:
        yield "one is emulated and the other is not, so their figures cannot be compared"
