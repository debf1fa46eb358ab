"""Observations of one trial, block by treatment, and the block-wise comparison of two treatments.

A comparison pairs the two slots of the same block, and removes the host's drift between their times. The drift is
estimated from all slots of the adjacent blocks, with more weight on quiet treatments, so it adds little noise. Each
rate is moved to the midpoint between the two times. Swapping treatment and baseline therefore only inverts the factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partywall.model.finding import Estimate
from partywall.model.observation import Flags, Observation, Observations, Places
from partywall.model.plan import Treatment, Trial
from partywall.stats import latency
from partywall.stats.interval import FEWEST, Array, linearised_ratio, ratio_of_means

_FAR = 5.0
"""A slot further than this many robust deviations from its treatment's median is not used for the drift."""

_FINEST = 1e-4
"""Lower bound on the relative spread of a slot's rate, which keeps weights finite."""

_NEIGHBOUR_GAPS = 2.0
"""Blocks further apart than this many median distances are from different turns. Drift is not computed across them."""


@dataclass(frozen=True)
class Pair:
    """The blocks that contain both treatments, in order of time: observations, and their rates without drift."""

    treated: Observations
    baseline: Observations
    treated_rates: Array
    baseline_rates: Array

    def __len__(self) -> int:
        return len(self.treated)

    def factor(self, level: float = 0.95) -> Estimate:
        """The isolation factor: the ratio of the work done."""
        return ratio_of_means(self.treated_rates, self.baseline_rates, level)

    @cached_property
    def latencies(self) -> latency.Latencies:
        """Latency impacts, and the latency itself, by percentile."""
        return latency.latencies(self.treated, self.baseline)

    def losses(self) -> Array:
        """Relative loss of rate in each block. Their mean is one minus the isolation factor."""
        return 1 - linearised_ratio(self.treated_rates, self.baseline_rates)

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
    −1 in blocks without the treatment.
    """

    seen: Observations
    places: Mapping[str, Places]
    _pairs: dict[tuple[str, str], Pair] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(seen: Observations) -> Series:
        """Observations in order of time."""
        _, first, block = np.unique(seen.block, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.intp)
        rank[np.argsort(first)] = np.arange(len(first))
        places: dict[str, Places] = {}
        for treatment in dict.fromkeys(seen.treatment.tolist()):
            own = np.flatnonzero(seen.treatment == treatment)
            places[treatment] = np.full(len(first), -1)
            places[treatment][rank[block[own]]] = own
        return Series(seen, places)

    def __len__(self) -> int:
        """The number of blocks."""
        return len(next(iter(self.places.values()), ()))

    @cached_property
    def drift(self) -> Array:
        """Relative change of the victim's rate per second at each block."""
        return _drift(self)

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

    def kept(self, blocks: Places | Flags) -> Series:
        """These blocks only."""
        places = {name: place[blocks] for name, place in self.places.items()}
        return Series(self.seen, {name: place for name, place in places.items() if (place >= 0).any()})

    def pair(self, treated: str, baseline: str) -> Pair:
        """Two treatments, paired by block."""
        if (treated, baseline) not in self._pairs:
            self._pairs[treated, baseline] = self._pair(treated, baseline)
        return self._pairs[treated, baseline]

    def _pair(self, treated: str, baseline: str) -> Pair:
        both = np.flatnonzero(self.hold((treated, baseline)))
        nowhere = np.full(len(self), -1)
        first, second = (self.seen.take(self.places.get(name, nowhere)[both]) for name in (treated, baseline))
        halfway = np.exp(self.drift[both] * (_moments(first) - _moments(second)) / 2)
        return Pair(first, second, first.rate / halfway, second.rate * halfway)


@dataclass(frozen=True)
class Measured:
    """A trial's blocks of both kinds. If all are alike, they are all in `short`.

    An isolation factor comes from the short blocks, or from the long ones if the treatment is in no short block.
    """

    short: Series
    long: Series

    @staticmethod
    def of(observations: Iterable[Observation]) -> Measured:
        """The observations of one trial, arranged."""
        own = Observations.of(observations).in_time
        return Measured(*(Series.of(own.take(np.flatnonzero(own.long == long))) for long in (False, True)))

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


def pairs_of(series: Series, treatments: Sequence[Treatment]) -> Iterator[tuple[Treatment, Pair]]:
    """Each treatment except the baseline, paired with its reference, in blocks of one kind."""
    for treatment in treatments:
        if (pair := _compared_in(series, treatment, treatments)) is not None:
            yield treatment, pair


def _compared_in(series: Series, treatment: Treatment, treatments: Sequence[Treatment]) -> Pair | None:
    reference = reference_of(treatments, treatment)
    if treatment.role == "baseline" or reference is None:
        return None
    return series.pair(treatment.id, reference.id)


def compared(trial: Trial) -> tuple[Treatment, ...]:
    """All treatments except the baseline."""
    return tuple(t for t in trial.treatments if t.role != "baseline")


def _moments(seen: Observations) -> Array:
    return np.asarray((seen.start_ns + seen.end_ns) / 2e9, dtype=np.float64)


def _drift(series: Series) -> Array:
    """Relative change of the victim's rate per second at each block: the slope from the previous block to the next.

    Each slot is measured relative to its treatment's median, so that blocks with missing treatments are comparable. It
    is weighted by how steady its treatment is, so that an irregular neighbour does not add noise to all others.
    """
    total, weight, moment = (np.zeros(len(series)) for _ in range(3))
    moments = _moments(series.seen)
    # In order of time, because the order of a sum decides its last digits.
    for place in sorted(series.places.values(), key=lambda place: int(place[place >= 0][0])):
        where = np.flatnonzero(place >= 0)
        own = place[where]
        usual = float(np.median(series.seen.rate[own]))
        if usual <= 0:
            continue
        away, trust = _steady(series.seen.rate[own] / usual - 1)
        total[where] += trust * away
        weight[where] += trust
        moment[where] += trust * moments[own]
    known = weight > 0
    missing = np.full(len(series), np.nan)
    return _slopes(*(np.divide(sums, weight, out=missing.copy(), where=known) for sums in (moment, total)))


def _steady(away: Array) -> tuple[Array, float]:
    """Distances from a treatment's median, with outliers clipped, and the weight of each: the inverse variance.

    The variance is estimated from differences between successive blocks, which hardly contain the host's slow drift.
    """
    reach = _FAR * max(_deviation(away), _FINEST)
    step = _deviation(np.diff(away)) if len(away) > 1 else 1.0
    return np.clip(away, -reach, reach), 1 / max(step, _FINEST) ** 2


def _deviation(values: Array) -> float:
    """Standard deviation of the bulk of the values."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _slopes(moment: Array, level: Array) -> Array:
    gaps = np.diff(moment)
    if not np.isfinite(gaps).any():
        return np.zeros(len(moment))
    near = gaps <= _NEIGHBOUR_GAPS * np.nanmedian(gaps)
    at = np.arange(len(moment))
    before, after = at - np.concatenate([[False], near]), at + np.concatenate([near, [False]])
    rise, run = level[after] - level[before], moment[after] - moment[before]
    return np.asarray(np.divide(rise, run, out=np.zeros(len(moment)), where=after > before), dtype=np.float64)
