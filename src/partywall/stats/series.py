"""Observations of one trial as arrays, block by treatment, and the block-wise comparison of two treatments.

A comparison pairs the two slots of the same block and takes off what the host's own drift did between the two moments.
That drift is read from all slots of the neighbouring blocks, so it costs next to no noise, and it is the same for
either order of the pair: swapping treatment and baseline changes the sign and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from partywall.model.finding import Estimate
from partywall.model.observation import Observation
from partywall.model.plan import Treatment, Trial
from partywall.stats.interval import FEWEST, Array, factor_interval, ratio_of_means

_NEIGHBOUR_GAPS = 2.0
"""Blocks further apart than this many median distances lie in different visits; drift is not carried across."""


@dataclass(frozen=True)
class Pair:
    """The blocks in which both treatments were measured, in order of time: observations and drift-free log ratios.

    log_ratios is None if the victim did no work in some slot.
    """

    treated: tuple[Observation, ...]
    baseline: tuple[Observation, ...]
    log_ratios: Array | None

    def __len__(self) -> int:
        return len(self.treated)

    def treated_values(self, read: Callable[[Observation], float]) -> Array:
        return np.array([read(o) for o in self.treated], dtype=np.float64)

    def baseline_values(self, read: Callable[[Observation], float]) -> Array:
        return np.array([read(o) for o in self.baseline], dtype=np.float64)

    def factor(self, level: float = 0.95) -> Estimate:
        """The isolation factor."""
        if self.log_ratios is not None:
            return factor_interval(self.log_ratios, level)
        return ratio_of_means(self.treated_values(_rate), self.baseline_values(_rate), level)

    def losses(self) -> Array:
        """Relative loss of rate, block by block; where a baseline slot stalled, relative to the mean baseline."""
        if self.log_ratios is not None:
            return np.asarray(-np.expm1(self.log_ratios), dtype=np.float64)
        baseline = self.baseline_values(_rate)
        return np.asarray((baseline - self.treated_values(_rate)) / baseline.mean(), dtype=np.float64)

    @property
    def comparable(self) -> bool:
        """Enough blocks, and a baseline that did work."""
        return len(self) >= FEWEST and any(o.rate > 0 for o in self.baseline)


@dataclass(frozen=True)
class Series:
    """All observations of a trial by block and treatment. Blocks are in order of time."""

    blocks: tuple[dict[str, Observation], ...]
    drift: Array

    @staticmethod
    def of(blocks: Iterable[dict[str, Observation]]) -> Series:
        """Blocks in order of time, with the drift they show."""
        kept = tuple(blocks)
        return Series(kept, _drift(kept))

    def complete(self, treatments: Iterable[str]) -> int:
        """Blocks that hold every one of these treatments."""
        wanted = set(treatments)
        return sum(wanted <= block.keys() for block in self.blocks)

    def first(self, count: int, treatments: Iterable[str]) -> Series:
        """Only what had been seen when `count` blocks were complete."""
        wanted = set(treatments)
        full = [at for at, block in enumerate(self.blocks) if wanted <= block.keys()]
        return Series.of(self.blocks[: full[count - 1] + 1])

    def pair(self, treated: str, baseline: str) -> Pair:
        """The two treatments side by side."""
        both = [(at, block) for at, block in enumerate(self.blocks) if treated in block and baseline in block]
        first = tuple(block[treated] for _, block in both)
        second = tuple(block[baseline] for _, block in both)
        if any(o.rate <= 0 for o in first + second):
            return Pair(first, second, None)
        logs = np.array([np.log(a.rate / b.rate) for a, b in zip(first, second, strict=True)], dtype=np.float64)
        apart = np.array([_moment(a) - _moment(b) for a, b in zip(first, second, strict=True)], dtype=np.float64)
        return Pair(first, second, logs - self.drift[[at for at, _ in both]] * apart)


def of_trial(observations: Iterable[Observation], trial: str) -> Series:
    """The observations of one trial, arranged."""
    blocks: dict[int, dict[str, Observation]] = {}
    for observation in sorted(observations, key=lambda o: (o.start_ns, o.block)):
        if observation.trial == trial:
            blocks.setdefault(observation.block, {})[observation.treatment] = observation
    return Series.of(blocks.values())


def baseline_of(treatments: Sequence[Treatment]) -> Treatment:
    """The baseline among a trial's treatments."""
    found = next((t for t in treatments if t.role == "baseline"), None)
    if found is None:
        names = ", ".join(t.id for t in treatments)
        raise ValueError(f"no baseline among the treatments ({names}); every trial needs one to compare with")
    return found


def compared(trial: Trial) -> tuple[Treatment, ...]:
    """All treatments but the baseline."""
    return tuple(t for t in trial.treatments if t.role != "baseline")


def _rate(observation: Observation) -> float:
    return observation.rate


def _moment(observation: Observation) -> float:
    return (observation.start_ns + observation.end_ns) / 2e9


def _drift(blocks: Sequence[dict[str, Observation]]) -> Array:
    """Relative change of the victim's rate per second at each block: the slope from the block before to the one after.

    Each slot counts by how far it lies from its treatment's median, so that blocks with a missing treatment compare.
    """
    usual: dict[str, list[float]] = {}
    for observation in (o for block in blocks for o in block.values() if o.rate > 0):
        usual.setdefault(observation.treatment, []).append(np.log(observation.rate))
    medians = {treatment: float(np.median(values)) for treatment, values in usual.items()}
    level = np.full(len(blocks), np.nan)
    moment = np.full(len(blocks), np.nan)
    for at, block in enumerate(blocks):
        working = [o for o in block.values() if o.rate > 0]
        if working:
            level[at] = np.mean([np.log(o.rate) - medians[o.treatment] for o in working])
            moment[at] = np.mean([_moment(o) for o in working])
    return _slopes(moment, level)


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
