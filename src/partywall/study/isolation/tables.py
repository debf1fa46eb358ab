"""Converts findings of a study's runs to points of a paper's tables and figures, with intervals and explanations. Pure.

Two points of one trial are compared block by block; points of two trials by their own intervals.
"""

from __future__ import annotations

import functools
import itertools
import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partywall.core.stats.estimate import Emulated, Estimate
from partywall.core.stats.interval import FEWEST, mean_interval
from partywall.run.findings import series
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import BASELINE, Band, Cell, Findings
from partywall.run.values.plan import Treatment, Trial
from partywall.study.isolation.model import ALONE, Board, Setting, Shown
from partywall.study.paper import Measured, Paired, PaperTable, Place

BACKEND = "sandbox.backend"
"""The factor by which trials of several backends are in one run."""


FREQUENCY = "cpu_frequency_hz"
"""The monitor's counter of a CPU's clock."""

UNITY = Estimate(value=1.0, low=1.0, high=1.0, n=1, method="by definition")


@dataclass(frozen=True)
class PartRun:
    """One run of a study's part, with its name.

    values: values of `$name`. reference: the victim that represents the bare host, if any.
    """

    name: str
    part: str
    values: Mapping[str, Any]
    reference: str | None
    evidence: Evidence
    findings: Findings

    def trials(self, victim: str) -> list[Trial]:
        return [trial for trial in self.evidence.plan.trials if trial.victim_name == victim]

    def backend_of(self, trial: Trial) -> str:
        return trial.victim.sandbox.backend

    def cells(self, trial: Trial) -> dict[str, Cell]:
        """Cells by treatment."""
        return {cell.treatment: cell for cell in self.findings.cells if cell.trial == trial.id}

    def baseline(self, trial: Trial) -> Estimate | None:
        """The victim's rate alone."""
        return next((cell.baseline_rate for cell in self.cells(trial).values() if cell.baseline == BASELINE), None)

    def emulated(self, trial: Trial, treatment: Treatment) -> Emulated | None:
        """What was emulated, from the trial's facts instead of its cells: a victim alone has no cell."""
        agent_facts = self.evidence.agent_facts.get(trial.id)
        return agent_facts.emulation(treatment.pressing) if agent_facts else None

    @functools.cached_property
    def _measured(self) -> dict[str, series.Measured]:
        trials = self.evidence.plan.trials
        return {trial.id: series.Measured.of(self.evidence.of_trial(trial.id), trial.treatments) for trial in trials}

    def factor(self, trial: Trial, treated: str, baseline: str) -> Estimate | None:
        """One treatment's rate divided by another's in the same blocks; None if too few contain both."""
        measured = self._measured[trial.id]
        pairs = (kind.pair(treated, baseline) for kind in (measured.short, measured.long))
        return next((pair.factor() for pair in pairs if pair.comparable), None)

    @property
    def top_hz(self) -> float | None:
        """The highest frequency that the host's processor may have; None if unknown."""
        frequency = self.evidence.host.get("cpu", {}).get("frequency") or {}
        top = frequency.get("max_hz")
        return float(top) if top else None

    @property
    def has_clock(self) -> bool:
        """True if the host's monitors give the clock, and its top is known."""
        return self.top_hz is not None and any(name.endswith(f".{FREQUENCY}") for name in self.evidence.counters)

    def clock(self, trial: Trial, treatment: str) -> Estimate | None:
        """The clock of the victim's CPUs over the top frequency, as read at the ends of a treatment's slots."""
        if self.top_hz is None:
            return None
        seen = self.evidence.of_trial(trial.id)
        own = seen.take(np.flatnonzero(seen.treatment == treatment)).counters
        shares = np.mean([own.column(f"cpu{cpu}.{FREQUENCY}") for cpu in trial.victim_cpus], axis=0) / self.top_hz
        read = shares[np.isfinite(shares)]
        return mean_interval(read) if len(read) >= FEWEST else None

    def bare(self, trial: Trial) -> Estimate | None:
        """The rate of the bare host alone."""
        stands = self._stands_for_host(trial)
        return None if stands is None else self.baseline(stands)

    def alone(self, like: Trial) -> Estimate | None:
        """The rate alone of the victim that another run has in this trial."""
        same = (each for each in self.trials(like.victim_name) if each.levels == like.levels)
        return next(filter(None, map(self.baseline, same)), None)

    def _stands_for_host(self, trial: Trial) -> Trial | None:
        """The reference victim's trial at the same levels, or that of the same victim as a process."""
        levels = trial.levels if self.reference else {**trial.levels, BACKEND: "process"}
        every = self.trials(self.reference or trial.victim_name)
        return next((each for each in every if each.levels == levels), None)

    def over_reference(self, trial: Trial, treatment: str, other: PartRun | None = None) -> Estimate | None:
        """Rate divided by that of the bare host: the own isolation factor times the ratio of baselines.

        The baselines are from different trials, which were measured alternately. Their errors are treated as
        independent. other: the run whose victim stands for the bare host, if that is not in this run.
        """
        bare, own = self.bare(trial) if other is None else other.alone(trial), self.baseline(trial)
        if bare is None or own is None:
            return None
        within = UNITY if treatment == BASELINE else self.factor(trial, treatment, BASELINE)
        is_itself = other is self if other is not None else self._stands_for_host(trial) == trial
        apart = UNITY if is_itself else over(own, bare)
        return None if within is None else times(within, apart)


def over(left: Estimate, right: Estimate) -> Estimate:
    """The ratio of two independent positive figures; errors are added on logarithms."""
    return times(left, inverted(right))


def times(left: Estimate, right: Estimate) -> Estimate:
    """The product of two independent positive figures; errors are added on logarithms, separately for each arm."""
    value = left.value * right.value
    if value <= 0:
        return left.model_copy(update={"value": 0.0, "low": 0.0, "high": left.high * right.high})
    below = math.hypot(*(math.log(max(estimate.low, 1e-12) / estimate.value) for estimate in (left, right)))
    above = math.hypot(*(math.log(estimate.high / estimate.value) for estimate in (left, right)))
    ends = {"value": value, "low": value * math.exp(-below), "high": value * math.exp(above)}
    estimates = [estimate for estimate in (left, right) if estimate is not UNITY] or [left]
    about = {
        "n": min(estimate.n for estimate in estimates),
        "method": "; times ".join(estimate.method for estimate in estimates),
    }
    return left.model_copy(update=ends | about)


def named(text: str, values: Mapping[str, Any]) -> str:
    """The text with values for `$name`."""
    return string.Template(text).safe_substitute({name: str(value) for name, value in values.items()})


@dataclass(frozen=True)
class Point:
    """A place with its measurement.

    Its value is `rate ** power * by` of its treatment, up to a common factor of the trial. With a power of 0, it is not
    about a rate.
    """

    place: Place
    estimate: Estimate
    run: PartRun
    trial: Trial
    treatment: str
    emulated: Emulated | None
    power: int
    by: float

    @property
    def measured(self) -> Measured:
        estimate = self.estimate
        ends = {"value": estimate.value, "low": max(0.0, estimate.low), "high": estimate.high}
        return Measured(series=self.place.series, x=self.place.x, emulated=self.emulated, n=estimate.n, **ends)

    @property
    def cell(self) -> Cell | None:
        return self.run.cells(self.trial).get(self.treatment)

    @property
    def band(self) -> Band | None:
        cell = self.cell
        return next((band for band in self.run.findings.bands if cell and band.of(cell)), None)


Show = Callable[[Trial, Estimate], tuple[Estimate, int]]
"""A rate in its kernel's own figure, and whether the figure grows (1) or shrinks (-1) with the rate."""


def points(rule: Shown, runs: Sequence[PartRun], first: str, show: Show) -> Iterator[Point]:
    """The points of a rule. first: the backend that gets the paper's names; others are marked."""
    for run in runs:
        if run.part != rule.part or not _fits(rule.where, run.values):
            continue
        wanted = {**run.values, **rule.over}
        other = next((each for each in runs if (each.part, each.values) == (rule.part, wanted)), None)
        if rule.over and other is None:
            continue
        for trial in run.trials(rule.victim):
            backend = run.backend_of(trial)
            suffix = "" if backend == first else f" ({backend})"
            for treatment in trial.treatments:
                yield from _point(rule, run, trial, treatment, suffix, show, other if rule.over else None)


def places(rule: Shown, values: Mapping[str, Any], trials: Sequence[Trial]) -> Iterator[Place]:
    """The places that a rule gives to the points of one run. values: those of `$name` in the run."""
    for trial in trials if _fits(rule.where, values) else ():
        for treatment in trial.treatments if trial.victim_name == rule.victim else ():
            place = _place(rule, values, trial, treatment, "")
            if place is not None:
                yield place


def _place(rule: Shown, values: Mapping[str, Any], trial: Trial, treatment: Treatment, suffix: str) -> Place | None:
    """The place of a treatment; None if the rule does not show it."""
    label, share = rule.beside.get(name_of(treatment) or ""), share_of(rule, trial, treatment, values)
    if label is None or (rule.x != "beside" and share is None):
        return None
    said = named(label, values) if isinstance(label, str) else label
    x = said if rule.x == "beside" else round(100 * (share or 0.0), 6)
    return Place(named(rule.series, {**values, "beside": said}) + suffix, x)


def _fits(where: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(values.get(name) in (wanted if isinstance(wanted, list) else [wanted]) for name, wanted in where.items())


def _point(
    rule: Shown, run: PartRun, trial: Trial, treatment: Treatment, suffix: str, show: Show, other: PartRun | None
) -> Iterator[Point]:
    place = _place(rule, run.values, trial, treatment, suffix)
    if place is None:
        return
    share = share_of(rule, trial, treatment, run.values)
    value = _value(rule, run, trial, treatment.id, share, show, other)
    # With too few blocks, a rate may not be distinguishable from 0, and is not yet a point.
    if value is None or not math.isfinite(value[0].high) or value[0].value <= 0:
        return
    estimate, power, by = value
    yield Point(place, estimate, run, trial, treatment.id, run.emulated(trial, treatment), power, by)


def name_of(treatment: Treatment) -> str | None:
    """Its name in a study's file; None for the null treatment, which is never shown."""
    return None if treatment.role == "null" else treatment.aggressor or ALONE


def share_of(setting: Setting, trial: Trial, treatment: Treatment, values: Mapping[str, Any]) -> float | None:
    """The share that was set: by the treatment's limit, by a factor between trials, or by the run's own value."""
    if setting.x == "limit":
        return treatment.victim_limits.cpu_limit if treatment.victim_limits else None
    level = values.get(setting.of) if setting.x == "value" else trial.levels.get(setting.of)
    return float(level) if isinstance(level, int | float) and treatment.victim_limits is None else None


def _value(
    rule: Shown, run: PartRun, trial: Trial, treatment: str, share: float | None, show: Show, other: PartRun | None
) -> tuple[Estimate, int, float] | None:
    if rule.value in ("relative", "efficiency"):
        estimate = run.over_reference(trial, treatment, other)
        by = 100 / share if rule.value == "efficiency" and share else 100.0
        return None if estimate is None else (estimate.scaled(by), 1, by)
    if rule.value in ("factor", "times"):
        estimate = run.factor(trial, treatment, BASELINE)
        if estimate is None:
            return None
        return (estimate, 1, 1.0) if rule.value == "factor" else (inverted(estimate), -1, 1.0)
    if rule.value == "clock":
        return None if (clock := run.clock(trial, treatment)) is None else (clock.scaled(100.0), 0, 1.0)
    return _value_of_rate(rule, run, trial, treatment, show)


def _value_of_rate(
    rule: Shown, run: PartRun, trial: Trial, treatment: str, show: Show
) -> tuple[Estimate, int, float] | None:
    rate = _rate(run, trial, treatment)
    if rate is None or rate.value <= 0:
        return None
    if rule.value == "seconds":
        return inverted(rate).scaled(float(rule.task or 0)), -1, float(rule.task or 0)
    shown, power = show(trial, rate)
    return shown, power, 1.0


def _rate(run: PartRun, trial: Trial, treatment: str) -> Estimate | None:
    if treatment == BASELINE:
        return run.baseline(trial)
    cell = run.cells(trial).get(treatment)
    return cell.rate if cell else None


def inverted(estimate: Estimate) -> Estimate:
    """The inverse of a figure that is certainly positive; otherwise its upper end is infinite."""
    high = 1 / estimate.low if estimate.low > 0 else math.inf
    return estimate.model_copy(update={"value": 1 / estimate.value, "low": 1 / estimate.high, "high": high})


def paired(paper_table: PaperTable, points: Sequence[Point]) -> Iterator[Paired]:
    """Pairs of places in one trial that the paper compares, compared block by block."""
    wanted = {frozenset((claim.left, claim.than)) for claim in paper_table.claims}
    wanted |= {frozenset(both) for both in itertools.combinations(paper_table.values, 2)}
    for left, right in itertools.combinations(points, 2):
        same = left.run is right.run and left.trial.id == right.trial.id
        if not same or not left.power or frozenset((left.place, right.place)) not in wanted:
            continue
        factor = left.run.factor(left.trial, left.treatment, right.treatment)
        if factor is None or factor.low <= 0:
            continue
        ratio = (factor if left.power > 0 else inverted(factor)).scaled(left.by / right.by)
        ends = {"value": ratio.value, "low": ratio.low, "high": ratio.high}
        yield Paired(left=left.place, right=right.place, **ends)


# The board

ENVIRONMENT, BENCHMARK, LOAD, CORES = "environment", "benchmark", "load", "cores"


@dataclass(frozen=True)
class Entry:
    """One place of the board. absolute: the victim's rate. relative: to the bare host's. q: to the expected value.

    reference: True for the bare host itself without a neighbour.
    """

    places: Mapping[str, str]
    trial: Trial
    absolute: Estimate
    relative: Estimate | None
    q: Estimate | None
    emulated: Emulated | None
    reference: bool


def scaling(board: Sequence[Entry]) -> Iterator[tuple[str, Estimate, int]]:
    """(benchmark, rate of the bare host on all of its CPUs divided by the rate on one, number of CPUs)."""
    bare = [entry for entry in board if entry.reference]
    for few, many in itertools.permutations(bare, 2):
        counts = len(few.trial.victim_cpus), len(many.trial.victim_cpus)
        if few.places[BENCHMARK] == many.places[BENCHMARK] and counts[0] == 1 < counts[1]:
            yield few.places[BENCHMARK], over(many.absolute, few.absolute), counts[1]


def entries(rules: Sequence[Board], runs: Sequence[PartRun]) -> Iterator[Entry]:
    """The board of a study, each place once. A host measured in several runs is shown as in the first."""
    seen = set()
    for rule, run in itertools.product(rules, runs):
        for trial in run.trials(rule.victim) if run.part == rule.part else ():
            for treatment in trial.treatments:
                entry = _entry(rule, run, trial, treatment)
                if entry is not None and (at := tuple(entry.places.values())) not in seen:
                    seen.add(at)
                    yield entry


def _entry(rule: Board, run: PartRun, trial: Trial, treatment: Treatment) -> Entry | None:
    load, rate = rule.loads.get(name_of(treatment) or ""), _rate(run, trial, treatment.id)
    share = share_of(rule, trial, treatment, run.values)
    unset = treatment.victim_limits is None
    if load is None or rate is None or (rule.x == "beside" and not unset) or (rule.x == "level" and share is None):
        return None
    said = "no limit" if share is None else f"{100 * share:g} %"
    values = {**run.values, "share": said, "backend": run.backend_of(trial)}
    texts = {ENVIRONMENT: rule.environment, BENCHMARK: rule.benchmark, LOAD: load, CORES: rule.cores}
    relative = run.over_reference(trial, treatment.id)
    expected = _expected(rule, trial, treatment, share)
    return Entry(
        places={level: named(text, values) for level, text in texts.items()},
        trial=trial,
        absolute=rate,
        relative=relative,
        q=None if relative is None or not expected else relative.scaled(1 / expected),
        emulated=run.emulated(trial, treatment),
        reference=relative is not None and relative.low == relative.high == 1,
    )


def _expected(rule: Board, trial: Trial, treatment: Treatment, share: float | None) -> float | None:
    """The share that the setting leaves the victim: its own, or the rest of CPUs shared with a busy neighbour."""
    if rule.x != "level":
        return share
    return 1 - share if share is not None and trial.shares_cpu(treatment.aggressor or "") else 1.0


# Why an effect does not show

FULL = 0.9
"""A neighbour that reaches this share of its rate beside an idle victim is not slowed by the victim."""

MOST = 1.1
"""Above this share of its rate alone, that rate was not measured well enough for a conclusion."""


def reason(point: Point) -> str:
    """Measurements beside a point that explain why no effect shows there; empty if one does."""
    cell, band = point.cell, point.band
    if cell is None or cell.role != "aggressor" or not point.power:
        return ""
    factor = cell.isolation
    text = f"{point.place}: isolation factor {factor.value:.3f} ({factor.low:.3f} to {factor.high:.3f})"
    if band is not None:
        text += f", effect: {cell.effect.value.replace('_', ' ')}"
        text += f"; the band of a neighbour that loads nothing is {band.low:.3f} to {band.high:.3f}"
    if cell.achieved is not None and cell.achieved <= MOST:
        text += f"; the neighbour got {cell.achieved:.0%} of its rate alone"
        if cell.achieved >= FULL and factor.low >= FULL:
            text += ", so both had enough: the resource is not scarce here"
    causes = [cause.text for cause in cell.causes[:1]]
    text += f"; {causes[0]}" if causes else ""
    return text + (f"; the {point.emulated} is emulated" if point.emulated else "")
