"""Observations of one trial as arrays, block by treatment, and the block-wise comparison of two treatments.

A comparison pairs the two slots of the same block, and removes the host's drift between their times. The drift is
estimated from all slots of the adjacent blocks, with more weight on quiet treatments, so it adds little noise. Each
rate is moved to the midpoint between the two times. Swapping treatment and baseline therefore only inverts the factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partywall.model.finding import Estimate
from partywall.model.observation import Observation, of_trial, table_of
from partywall.model.plan import Treatment, Trial
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

    treated: tuple[Observation, ...]
    baseline: tuple[Observation, ...]
    treated_rates: Array
    baseline_rates: Array

    def __len__(self) -> int:
        return len(self.treated)

    def treated_values(self, read: Callable[[Observation], float]) -> Array:
        return np.array([read(o) for o in self.treated], dtype=np.float64)

    def baseline_values(self, read: Callable[[Observation], float]) -> Array:
        return np.array([read(o) for o in self.baseline], dtype=np.float64)

    def factor(self, level: float = 0.95) -> Estimate:
        """The isolation factor: the ratio of the work done."""
        return ratio_of_means(self.treated_rates, self.baseline_rates, level)

    def losses(self) -> Array:
        """Relative loss of rate in each block. Their mean is one minus the isolation factor."""
        return 1 - linearised_ratio(self.treated_rates, self.baseline_rates)

    @cached_property
    def counters(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Each counter by block, of the treated and of the baseline slots; not a number where it is unknown."""
        treated, baseline = (table_of([o.counters for o in side]) for side in (self.treated, self.baseline))
        return treated, baseline

    @property
    def long(self) -> bool:
        """True for the long blocks of a trial that also has short ones."""
        return any(o.long for o in self.treated)

    @property
    def comparable(self) -> bool:
        """True if there are enough blocks, and the baseline did work."""
        return len(self) >= FEWEST and any(o.rate > 0 for o in self.baseline)


@dataclass(frozen=True)
class Series:
    """All observations of a trial by block and treatment. Blocks are in order of time."""

    blocks: tuple[dict[str, Observation], ...]
    drift: Array
    _pairs: dict[tuple[str, str], Pair] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(blocks: Iterable[dict[str, Observation]]) -> Series:
        """Blocks in order of time, with their drift."""
        kept = tuple(blocks)
        return Series(kept, _drift(kept))

    @property
    def lasted_ns(self) -> int:
        """Time from the start of its first block to the end of its last."""
        if not self.blocks:
            return 0
        first, last = self.blocks[0].values(), self.blocks[-1].values()
        return max(o.end_ns for o in last) - min(o.start_ns for o in first)

    def taken_ns(self, treatments: Iterable[str]) -> int:
        """The time in blocks that hold every one of these treatments."""
        wanted = set(treatments)
        full = [block.values() for block in self.blocks if wanted <= block.keys()]
        return sum(max(o.end_ns for o in block) - min(o.start_ns for o in block) for block in full)

    def complete(self, treatments: Iterable[str]) -> int:
        """Number of blocks that contain every one of these treatments."""
        wanted = set(treatments)
        return sum(wanted <= block.keys() for block in self.blocks)

    def first(self, count: int, treatments: Iterable[str]) -> Series:
        """The observations up to the time when `count` blocks were complete."""
        wanted = set(treatments)
        full = [at for at, block in enumerate(self.blocks) if wanted <= block.keys()]
        return Series.of(self.blocks[: full[count - 1] + 1])

    def pair(self, treated: str, baseline: str) -> Pair:
        """Two treatments, paired by block."""
        if (treated, baseline) not in self._pairs:
            self._pairs[treated, baseline] = self._pair(treated, baseline)
        return self._pairs[treated, baseline]

    def _pair(self, treated: str, baseline: str) -> Pair:
        both = [(at, block) for at, block in enumerate(self.blocks) if treated in block and baseline in block]
        first = tuple(block[treated] for _, block in both)
        second = tuple(block[baseline] for _, block in both)
        apart = np.array([_moment(a) - _moment(b) for a, b in zip(first, second, strict=True)], dtype=np.float64)
        halfway = np.exp(self.drift[[at for at, _ in both]] * apart / 2)
        return Pair(first, second, _rates(first) / halfway, _rates(second) * halfway)


@dataclass(frozen=True)
class Measured:
    """A trial's blocks of both kinds. If all are alike, they are all in `short`.

    An isolation factor comes from the short blocks, or from the long ones if the treatment is in no short block.
    """

    short: Series
    long: Series

    @staticmethod
    def of(observations: Iterable[Observation], trial: str) -> Measured:
        """The observations of one trial, arranged."""
        blocks: dict[bool, dict[int, dict[str, Observation]]] = {False: {}, True: {}}
        for observation in of_trial(observations, trial):
            blocks[observation.long].setdefault(observation.block, {})[observation.treatment] = observation
        return Measured(*(Series.of(blocks[long].values()) for long in (False, True)))

    def holding(self, treatment: str) -> Series:
        """The blocks by which a treatment is judged."""
        return self.short if any(treatment in block for block in self.short.blocks) else self.long

    @property
    def watched(self) -> Series:
        """The blocks in which counters were read."""
        return self.long if self.long.blocks else self.short

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


def _rates(observations: Iterable[Observation]) -> Array:
    return np.array([o.rate for o in observations], dtype=np.float64)


def _moment(observation: Observation) -> float:
    return (observation.start_ns + observation.end_ns) / 2e9


def _drift(blocks: Sequence[dict[str, Observation]]) -> Array:
    """Relative change of the victim's rate per second at each block: the slope from the previous block to the next.

    Each slot is measured relative to its treatment's median, so that blocks with missing treatments are comparable. It
    is weighted by how steady its treatment is, so that an irregular neighbour does not add noise to all others.
    """
    marked = [(at, o) for at, block in enumerate(blocks) for o in block.values()]
    total, weight, moment = (np.zeros(len(blocks)) for _ in range(3))
    for treatment in dict.fromkeys(o.treatment for _, o in marked):
        own = [(at, o) for at, o in marked if o.treatment == treatment]
        where, rates = [at for at, _ in own], _rates(o for _, o in own)
        usual = float(np.median(rates))
        if usual <= 0:
            continue
        away, trust = _steady(rates / usual - 1)
        total[where] += trust * away
        weight[where] += trust
        moment[where] += trust * np.array([_moment(o) for _, o in own])
    known = weight > 0
    missing = np.full(len(blocks), np.nan)
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
    slopes = np.zeros(len(moment))
    gaps = np.diff(moment)
    if not np.isfinite(gaps).any():
        return slopes
    near = gaps <= _NEIGHBOUR_GAPS * np.nanmedian(gaps)
    for at in range(len(moment)):
        before = at - 1 if at > 0 and near[at - 1] else at
        after = at + 1 if at < len(near) and near[at] else at
        if after > before:
            slopes[at] = (level[after] - level[before]) / (moment[after] - moment[before])
    return slopes
