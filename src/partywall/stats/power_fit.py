"""A node's power model from a load ladder. Pure.

One observation a slot: the mean watts of the meter's new values that describe the settled part of the slot, and the
mean activity of the same times. Watts are an idle power and an increment for each further busy core; increments are
at least 0 and do not grow (non-negative least squares). Each level of the ladder is predicted by a fit without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from partywall.errors import TrialError
from partywall.model.power import Activity, Array, Fit, MeterFacts, NodeModel, Reading, Rung, Slot, Timing
from partywall.stats.algebra import one_thread
from partywall.stats.power_meter import SHORT_S, Load, updates
from partywall.stats.rounds import student
from partywall.units import counted

DRAWS = 200
SETTLE_S = 0.1
"""Left out at the start of a slot, in addition to the meter's own delay."""
LEAST_LEVELS = 3


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
    features, watts = np.array([each.features for each in observed]), np.array([each.watts for each in observed])
    place = np.array([levels.index(each.slot.level) for each in observed])
    points = fitted(features, watts)
    rungs = []
    for number, level in enumerate(levels):
        own, others = place == number, place != number
        predicted = float((with_idle(features[own]) @ _steps(fitted(features[others], watts[others]))).mean())
        left = watts[own] - with_idle(features[own]) @ _steps(points)
        rungs.append(_rung(level, [each for each in observed if each.slot.level == level], predicted, left))
    errors = np.array([abs(rung.error or 0.0) for rung in rungs])
    generator = np.random.default_rng(0)
    draws = [_draw(features, watts, place, generator) for _ in range(DRAWS)]
    model = NodeModel(
        name=name,
        origin=facts.origin,
        source=facts.meter,
        points=tuple((float(core), float(value)) for core, value in enumerate(points)),
        band=float(2 * np.sqrt(np.square(errors).mean())),
        draws=tuple(tuple(map(float, draw)) for draw in draws),
    )
    return Fit(
        model=model,
        rungs=tuple(sorted(rungs, key=lambda rung: rung.busy)),
        left_out_error=float(errors.mean()),
        worst_error=float(errors.max()),
    )


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
    # With increments that are sums of non-negative parts, they cannot grow from core to core.
    design = with_idle(np.cumsum(features, axis=1))
    parts = nnls(design, watts)[0]
    increments = np.cumsum(parts[:0:-1])[::-1]
    return np.asarray(parts[0] + np.concatenate([[0.0], np.cumsum(increments)]), dtype=np.float64)


def with_idle(features: Array) -> Array:
    """Features with a column of ones, which idle power is a multiple of."""
    return np.column_stack([np.ones(len(features)), features])


def _steps(points: Array) -> Array:
    """Idle power and increments, from watts by busy cores."""
    return np.concatenate([points[:1], np.diff(points)])


def _draw(features: Array, watts: Array, place: Array, generator: np.random.Generator) -> Array:
    """The fit of slots drawn with replacement within each level."""
    drawn = np.concatenate(
        [generator.choice(np.flatnonzero(place == number), (place == number).sum()) for number in np.unique(place)]
    )
    return fitted(features[drawn], watts[drawn])
