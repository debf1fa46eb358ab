"""Observations of one trial, block by treatment, and the comparison of two treatments.

Rates are compared without the host's own speed, which the slots around each slot tell (`speed`). A
block gives one value for each comparison.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.interval import FEWEST, Array, ratio_interval
from partywall.run.findings import latency
from partywall.run.findings.heed import heeds, is_better
from partywall.run.findings.speed import Rates, rates_of
from partywall.run.values.observation import Flags, Observation, Observations, Places
from partywall.run.values.plan import Treatment, Trial

DECIDING = 0.99
"""Level of the interval by which a neighbour is decided while a run goes on, and of the interval that it then keeps.

It lies outside the bound for "no effect", or within it. About ten looks come after the first seconds, and each errs at
each end in at most 0.5 %. So stopping at any of them errs in at most 5 % there, and the interval keeps its promise.
"""


@dataclass(frozen=True)
class Pair:
    """The blocks that contain both treatments, in order of time: observations, and one value for each block.

    values: their mean is the isolation factor. level: of its interval.
    """

    treated: Observations
    baseline: Observations
    values: Array
    level: float = 0.95

    def __len__(self) -> int:
        return len(self.treated)

    def factor(self, level: float | None = None) -> Estimate:
        """The isolation factor: the ratio of the work done."""
        return ratio_interval(self.values, level or self.level, stalled=not self.treated.rate.any())

    @cached_property
    def latencies(self) -> latency.Latencies:
        """Latency impacts, and the latency itself, by percentile."""
        return latency.latencies(self.treated, self.baseline)

    def losses(self) -> Array:
        """Relative loss of rate in each block. Their mean is one minus the isolation factor."""
        return 1 - self.values

    @property
    def long(self) -> bool:
        """True for the long blocks of a trial that also has short ones."""
        return bool(self.treated.long.any())

    @property
    def comparable(self) -> bool:
        """True if there are enough blocks, and the baseline did work."""
        return len(self) >= FEWEST and bool((self.baseline.rate > 0).any())


@dataclass(frozen=True)
class Series:
    """All observations of a trial, by block and treatment. Blocks are in order of time.

    seen: observations, in order of time. places: of each treatment, the place in `seen` of each block's observation;
    −1 in blocks without the treatment. pressing: treatments that may have after-effects. alike: the treatments in which
    no neighbour works and nothing is limited. decided: treatments that got no more blocks once their interval excluded
    enough.
    """

    seen: Observations
    places: Mapping[str, Places]
    pressing: frozenset[str] = frozenset()
    alike: frozenset[str] = frozenset()
    decided: frozenset[str] = frozenset()
    _pairs: dict[tuple[str, ...], Pair] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(seen: Observations, pressing: frozenset[str] = frozenset(), alike: frozenset[str] = frozenset()) -> Series:
        """Observations in order of time."""
        _, first, block = np.unique(seen.block, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.intp)
        rank[np.argsort(first)] = np.arange(len(first))
        places: dict[str, Places] = {}
        for treatment in dict.fromkeys(seen.treatment.tolist()):
            own = np.flatnonzero(seen.treatment == treatment)
            places[treatment] = np.full(len(first), -1)
            places[treatment][rank[block[own]]] = own
        return Series(seen, places, pressing, alike)

    def __len__(self) -> int:
        """The number of blocks."""
        return len(next(iter(self.places.values()), ()))

    @cached_property
    def _order(self) -> tuple[Places, Places, Places]:
        """Of all slots of these blocks in order of time: the place in `seen`, the block and the treatment's number."""
        table = np.stack([*self.places.values()])
        treatment, block = np.nonzero(table >= 0)
        where = table[treatment, block]
        order = np.argsort(where, kind="stable")
        return where[order], block[order], treatment[order]

    @cached_property
    def rates(self) -> Rates:
        """The rates of all treatments, without the host's speed. Each block counts by how much it tells."""
        return self._rates(self._heed)

    @cached_property
    def even_rates(self) -> Rates:
        """The same if each block counts alike."""
        return self._rates(None)

    def _rates(self, heed: Array | None) -> Rates:
        where, block, treatment = self._order
        moments = (self.seen.start_ns[where] + self.seen.end_ns[where]) / 2
        weights = None if heed is None else heed[block]
        return rates_of(self.seen.rate[where], treatment, moments, tuple(self.places), self.pressing, weights)

    @cached_property
    def _heed(self) -> Array | None:
        """How much each block counts; None if all count alike (`partywall.run.findings.heed`)."""
        alone = [place for name, place in self.places.items() if name in self.alike]
        if len(alone) < 2:
            return None
        first, second = (np.where(place >= 0, self.seen.rate[place], np.nan) for place in alone[:2])
        return heeds(first - second)

    @cached_property
    def _spans_ns(self) -> tuple[Array, Array]:
        """When the first slot of each block starts, and its last one ends."""
        table = np.stack([*self.places.values()])
        starts = np.where(table >= 0, self.seen.start_ns[table], np.iinfo(np.int64).max).min(axis=0)
        return starts, np.where(table >= 0, self.seen.end_ns[table], 0).max(axis=0)

    @property
    def lasted_ns(self) -> int:
        """Time from the start of its first block to the end of its last."""
        if not len(self):
            return 0
        starts, ends = self._spans_ns
        return int(ends[-1] - starts[0])

    def taken_ns(self, treatments: Iterable[str]) -> int:
        """The time in blocks that hold every one of these treatments."""
        if not len(self):
            return 0
        starts, ends = self._spans_ns
        return int((ends - starts)[self.hold(treatments)].sum())

    def hold(self, treatments: Iterable[str]) -> Flags:
        """Which blocks hold every one of these treatments."""
        nowhere = np.full(len(self), -1)
        return np.asarray(np.all([self.places.get(name, nowhere) >= 0 for name in treatments], axis=0), dtype=bool)

    def first(self, count: int, treatments: Iterable[str]) -> Series:
        """The observations up to the time when `count` blocks held every one of these treatments."""
        return self.kept(np.arange(np.flatnonzero(self.hold(treatments))[count - 1] + 1))

    def kept(self, blocks: Places) -> Series:
        """These blocks only, with a fit of their own."""
        places = {name: place[blocks] for name, place in self.places.items()}
        places = {name: place for name, place in places.items() if (place >= 0).any()}
        return replace(self, places=places, _pairs={})

    def pair(self, treated: str, baseline: str, *alike: str) -> Pair:
        """Two treatments, paired by block. alike: treatments that count as the baseline too, where there are any."""
        names = (treated, baseline, *(name for name in alike if name in self.places))
        if names not in self._pairs:
            self._pairs[names] = self._pair(*names)
        return self._pairs[names]

    def _pair(self, treated: str, *baselines: str) -> Pair:
        both = np.flatnonzero(self.hold((treated, baselines[0])))
        nowhere = np.full(len(self), -1)
        first, second = (self.seen.take(self.places.get(name, nowhere)[both]) for name in (treated, baselines[0]))
        if not len(both) or not second.rate.any():
            return Pair(first, second, np.zeros(len(both)))
        level = DECIDING if treated in self.decided else 0.95
        return Pair(first, second, self.ratio(treated, baselines, both), level)

    def ratio(self, treated: str, baselines: Sequence[str], blocks: Places) -> Array:
        """A value for each of these blocks, whose mean is the ratio of a treatment's rate to that of these together.

        All slots of the series count. What those of other blocks add counts with the next of these.
        """
        following = np.minimum(np.searchsorted(blocks, np.arange(len(self))), len(blocks) - 1)[self._order[1]]
        values = self.rates.ratio(treated, baselines, following, len(blocks))
        if self._heed is None:
            return values
        even = self.even_rates.ratio(treated, baselines, following, len(blocks))
        return values if is_better(values, even, self._heed[blocks]) else even


@dataclass(frozen=True)
class Measured:
    """A trial's blocks of both kinds. If all are alike, they are all in `short`.

    An isolation factor comes from the short blocks, or from the long ones if the treatment is in no short block.
    """

    short: Series
    long: Series

    @staticmethod
    def of(
        observations: Iterable[Observation], treatments: Sequence[Treatment] = (), decided: Collection[str] = ()
    ) -> Measured:
        """The observations of one trial, arranged. treatments: those of the trial, of which some have after-effects.

        decided: see `Series`.
        """
        own = Observations.of(observations).in_time
        pressing = frozenset(t.id for t in treatments if presses(t))
        alike = frozenset(t.id for t in treatments if not presses(t) and t.victim_limits is None)
        kinds = (own.take(np.flatnonzero(own.long == long)) for long in (False, True))
        series = (Series.of(kind, pressing, alike) for kind in kinds)
        return Measured(*(replace(each, decided=frozenset(decided)) for each in series))

    def holding(self, treatment: str) -> Series:
        """The blocks by which a treatment is judged."""
        return self.short if treatment in self.short.places else self.long

    @property
    def watched(self) -> Series:
        """The blocks in which counters were read."""
        return self.long if len(self.long) else self.short

    def pairs(self, treatments: Sequence[Treatment]) -> Iterator[tuple[Treatment, Pair]]:
        """Each treatment except the baseline, paired with its reference."""
        for treatment in treatments:
            if (pair := _compared_in(self.holding(treatment.id), treatment, treatments)) is not None:
                yield treatment, pair


def presses(treatment: Treatment) -> bool:
    """Whether it may affect slots after its own."""
    return treatment.role not in ("baseline", "null")


def baseline_of(treatments: Sequence[Treatment]) -> Treatment:
    """The baseline among a trial's treatments."""
    baseline = next((t for t in treatments if t.role == "baseline"), None)
    if baseline is None:
        names = ", ".join(t.id for t in treatments)
        raise ValueError(f"no baseline among the treatments ({names}); every trial needs one to compare with")
    return baseline


def reference_of(treatments: Sequence[Treatment], treatment: Treatment) -> Treatment | None:
    """The reference of a treatment: the baseline, or for a neighbour (or null) beside a limited victim, the limit.

    Otherwise the limit's own effect would be attributed to the neighbour. None if that limit was not measured alone.
    """
    if treatment.victim_limits is None or not treatment.intensities:
        return baseline_of(treatments)
    alone = (t for t in treatments if t.victim_limits == treatment.victim_limits and not t.intensities)
    return next(alone, None)


def pair_of(series: Series, treatments: Sequence[Treatment], treatment: Treatment, reference: Treatment) -> Pair:
    """A treatment beside its reference and the null treatment of the same limits, if it is not a null itself.

    Such a null differs from the reference in nothing but an idle neighbour, and measuring against both takes a fourth
    less time. A null is compared with the reference alone, which checks that they are equal. One that is seen to differ
    is no reference.
    """
    alone = treatment.role == "null"
    return series.pair(treatment.id, *([reference.id] if alone else references(series, treatments, reference)))


def references(series: Series, treatments: Sequence[Treatment], reference: Treatment) -> list[str]:
    """A reference and the null treatments of the same limits that have no effect, where there are any."""
    nulls = (t.id for t in treatments if t.role == "null" and t.victim_limits == reference.victim_limits)
    measured = (name for name in nulls if name in series.places)
    return [reference.id, *(name for name in measured if _has_no_effect(series.pair(name, reference.id)))]


def _has_no_effect(pair: Pair) -> bool:
    """False if its interval excludes 1."""
    if not pair.comparable:
        return True
    factor = pair.factor()
    return factor.low <= 1 <= factor.high


def pairs_of(series: Series, treatments: Sequence[Treatment]) -> Iterator[tuple[Treatment, Pair]]:
    """Each treatment except the baseline, paired with its reference, in blocks of one kind."""
    for treatment in treatments:
        if (pair := _compared_in(series, treatment, treatments)) is not None:
            yield treatment, pair


def _compared_in(series: Series, treatment: Treatment, treatments: Sequence[Treatment]) -> Pair | None:
    reference = reference_of(treatments, treatment)
    if treatment.role == "baseline" or reference is None:
        return None
    return pair_of(series, treatments, treatment, reference)


def compared(trial: Trial) -> tuple[Treatment, ...]:
    """All treatments except the baseline."""
    return tuple(t for t in trial.treatments if t.role != "baseline")
