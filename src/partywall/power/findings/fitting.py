"""A node's power model from a load ladder. Pure.

One observation a slot: the mean watts of the meter's new values that describe the settled part of the slot, and the
mean activity of the same times. Watts are an idle power and an increment for each further busy core; increments are
at least 0 and do not grow (non-negative least squares). Each level of the ladder is predicted by a fit without it.

A chip that is warm from earlier slots takes more than a cold one (leakage), and slots are shorter than it takes to warm
up. The fit therefore has a term for heat: a share of the watts above idle, averaged over the past with a time constant.
The model's watts are those of a level that lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from partywall.core.stats.algebra import one_thread
from partywall.core.stats.rounds import student
from partywall.errors import TrialError
from partywall.power.findings.meter import SHORT_S, Load, updates
from partywall.power.values import Activity, Array, Fit, MeterFacts, NodeModel, Reading, Rung, Slot, Timing
from partywall.units import counted

DRAWS = 200
SETTLE_S = 0.1
"""Left out at the start of a slot, in addition to the meter's own delay."""
LEAST_LEVELS = 3
HEAT_S = (5.0, 7.0, 10.0, 14.0, 20.0, 28.0, 40.0)
"""Time constants of heat that are tried."""


@dataclass(frozen=True)
class Observation:
    """One slot. features: probability that at least 1, 2, … cores are busy. busy: mean number of busy cores."""

    slot: Slot
    watts: float
    features: Array

    @property
    def busy(self) -> float:
        return float(self.features.sum())


def observations(
    slots: Sequence[Slot],
    readings: Sequence[Reading],
    activity: Sequence[Activity],
    timing: Timing,
    *,
    sends: bool = False,
) -> list[Observation]:
    """Slots with watts and activity; slots without a new value of the meter are left out."""
    new, load = updates(readings, sends=sends), Load.of(activity)
    lag_s = timing.lag_ms.value / 1e3 if timing.lag_ms else 0.0
    width_s = timing.refresh_ms.value / 1e3 if timing.refresh_ms else max(new.every_s, SHORT_S)
    ends = new.seen_s - lag_s
    begins = new.since_s - lag_s if new.counts_joules else ends - width_s
    rows = []
    for slot in slots:
        inside = (begins >= slot.begin_ns / 1e9 + SETTLE_S) & (ends <= slot.end_ns / 1e9)
        inside &= load.holds(begins, ends)
        if inside.any():
            features = load.means(begins[inside], ends[inside]).mean(axis=0)
            rows.append(Observation(slot, float(new.watts[inside].mean()), features))
    return rows


@one_thread()
def fit(facts: MeterFacts, observed: Sequence[Observation], name: str) -> Fit:
    """The model of a ladder's observations. TrialError with too few levels."""
    levels = list(dict.fromkeys(each.slot.level for each in observed))
    if len(levels) < LEAST_LEVELS:
        raise TrialError(
            f"{facts.meter} gave values at {counted(len(levels), 'level')} of load, but a model needs {LEAST_LEVELS}; "
            "give longer slots, or a faster meter"
        )
    sample = _Sample.of(observed)
    place = np.array([levels.index(each.slot.level) for each in observed])
    node = sample.fit()
    rungs = []
    for number, level in enumerate(levels):
        own = sample.take(np.flatnonzero(place == number))
        predicted = float(sample.take(np.flatnonzero(place != number)).fit().watts(own).mean())
        left = own.watts - node.watts(own)
        rungs.append(_rung(level, [each for each in observed if each.slot.level == level], predicted, left))
    errors = np.array([abs(rung.error or 0.0) for rung in rungs])
    generator = np.random.default_rng(0)
    draws = [sample.take(_drawn(place, generator)).fit().lasting for _ in range(DRAWS)]
    model = NodeModel(
        name=name,
        origin=facts.origin,
        source=facts.meter,
        points=tuple((float(core), float(value)) for core, value in enumerate(node.lasting)),
        band=float(2 * np.sqrt(np.square(errors).mean())),
        draws=tuple(tuple(map(float, draw)) for draw in draws),
        covers=facts.covers,
        is_whole=facts.is_whole,
    )
    return Fit(
        model=model,
        rungs=tuple(sorted(rungs, key=lambda rung: rung.busy)),
        left_out_error=float(errors.mean()),
        worst_error=float(errors.max()),
    )


@dataclass(frozen=True)
class _Sample:
    """Observations as arrays. heats: by time constant, watts above idle averaged over the past of each slot."""

    features: Array
    watts: Array
    heats: Array

    @classmethod
    def of(cls, observed: Sequence[Observation]) -> _Sample:
        features, watts = np.array([each.features for each in observed]), np.array([each.watts for each in observed])
        above_idle = features @ np.diff(fitted(features, watts))
        begins_s = np.array([each.slot.begin_ns for each in observed]) / 1e9
        return cls(features, watts, np.array([_heat(above_idle, begins_s, constant_s) for constant_s in HEAT_S]))

    def take(self, rows: NDArray[np.intp]) -> _Sample:
        return _Sample(self.features[rows], self.watts[rows], self.heats[:, rows])

    def fit(self) -> _Node:
        """With the time constant that leaves the least over."""
        fits = [_solved(self.features, self.watts, heat) for heat in self.heats]
        best = min(range(len(fits)), key=lambda number: fits[number][2])
        cold, share, _ = fits[best]
        return _Node(cold, share, best)


@dataclass(frozen=True)
class _Node:
    """cold: watts with 0, 1, 2, … busy cores of a cold node. share: what heat adds. heat: its place in `HEAT_S`."""

    cold: Array
    share: float
    heat: int

    @property
    def lasting(self) -> Array:
        """Watts of levels that last, so that their heat is their own."""
        return np.asarray(self.cold + self.share * (self.cold - self.cold[0]), dtype=np.float64)

    def watts(self, sample: _Sample) -> Array:
        """Of each observation."""
        warmed = self.share * sample.heats[self.heat]
        return np.asarray(with_idle(sample.features) @ _steps(self.cold) + warmed, dtype=np.float64)


def _heat(above_idle: Array, begins_s: Array, constant_s: float) -> Array:
    """At the start of each slot. The node was idle before the first."""
    heat = np.zeros(len(above_idle))
    for number in range(1, len(heat)):
        kept = np.exp(-(begins_s[number] - begins_s[number - 1]) / constant_s)
        heat[number] = above_idle[number - 1] + (heat[number - 1] - above_idle[number - 1]) * kept
    return heat


def _rung(level: str, own: Sequence[Observation], predicted: float, left: Array) -> Rung:
    """One level. left: what the model leaves over in each slot; slots differ in the CPU time that they got."""
    mean = float(np.mean([each.watts for each in own]))
    interval = None
    if len(own) > 1:
        spread = student(list(left))
        ends = {"value": mean, "low": mean - spread.half_width, "high": mean + spread.half_width}
        interval = spread.model_copy(update=ends)
    return Rung(
        level=level,
        busy=float(np.mean([each.busy for each in own])),
        watts=interval,
        mean_watts=mean,
        slots=len(own),
        predicted=predicted,
    )


def fitted(features: Array, watts: Array) -> Array:
    """Watts with 0, 1, 2, … busy cores. features: shape (observations, cores)."""
    return _solved(features, watts, np.zeros(len(watts)))[0]


def _solved(features: Array, watts: Array, heat: Array) -> tuple[Array, float, float]:
    """(watts with 0, 1, 2, … busy cores, the share of heat, what is left over)."""
    # With increments that are sums of non-negative parts, they cannot grow from core to core.
    design = np.column_stack([with_idle(np.cumsum(features, axis=1)), heat])
    (*parts, share), left = nnls(design, watts)
    increments = np.cumsum(parts[:0:-1])[::-1]
    return np.asarray(parts[0] + np.concatenate([[0.0], np.cumsum(increments)])), float(share), float(left)


def with_idle(features: Array) -> Array:
    """Features with a column of ones, which idle power is a multiple of."""
    return np.column_stack([np.ones(len(features)), features])


def _steps(points: Array) -> Array:
    """Idle power and increments, from watts by busy cores."""
    return np.concatenate([points[:1], np.diff(points)])


def _drawn(place: Array, generator: np.random.Generator) -> NDArray[np.intp]:
    """Slots drawn with replacement within each level."""
    return np.concatenate(
        [generator.choice(np.flatnonzero(place == number), (place == number).sum()) for number in np.unique(place)]
    )
