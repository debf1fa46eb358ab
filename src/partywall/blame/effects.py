"""What pulses of each suspect do to the victim: a regression of the victim's rate on the code. Pure.

The victim's rate drifts, so its noise is modelled as an autoregression that is fitted to the residuals, and both sides
are filtered by it (feasible generalised least squares; Cochrane and Orcutt, JASA 44, 1949). Each block has its own
level. Residuals that are far off are drawn in for the fit. A pulse may act late, so several delays are tried, and each
probability is multiplied by their number.

All columns of the code are fitted together. An effect is a difference of the victim's rate in pulsed and other slots,
as a share of its mean rate and for pulses of depth 1. Positive: the victim gains while the suspect is pulsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from partywall.blame.code import Array
from partywall.core.stats.algebra import one_thread
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import student_reach

LAGS = 4
"""Order of the autoregression."""
FAR = 3.5
"""Robust standard deviations beyond which a residual is drawn in."""
ROUNDS = 3
METHOD = "difference of pulsed and other slots, all suspects together; autoregressive noise, Student"


@dataclass(frozen=True)
class Fit:
    """Effects and their standard errors, shape (columns). dof: degrees of freedom. slots: how many there were."""

    effect: Array
    error: Array
    dof: int
    slots: int

    def estimate(self, column: int, level: float = 0.95) -> Estimate:
        """The effect of one column with its interval."""
        half = student_reach(level, self.dof) * float(self.error[column])
        value = float(self.effect[column])
        return Estimate(value=value, low=value - half, high=value + half, level=level, n=self.slots, method=METHOD)

    @property
    def p_gain(self) -> Array:
        """The probability of a gain at least this large without any effect, by column."""
        ratio = np.divide(self.effect, self.error, out=np.zeros_like(self.effect), where=self.error > 0)
        return np.asarray(special.stdtr(self.dof, -ratio), dtype=np.float64)


@one_thread()
def fit(rate: Array, pulsed: Array, block_slots: int) -> Fit:
    """Estimates all effects. rate: by slot. pulsed: shape (slots, columns), or the depths of the pulses.

    ValueError if there are fewer slots than columns can be told apart with.
    """
    code = np.asarray(pulsed, dtype=np.float64)
    slots, columns = code.shape
    dof = slots - columns - -(-slots // block_slots) - 2 * LAGS
    if dof < 3:
        raise ValueError(f"{slots} slots are too few for {columns} suspects")
    mean = float(rate.mean())
    if mean <= 0:
        raise ValueError("the victim did nothing in any slot, so there is nothing to compare")
    level = rate / mean
    filter_, weights = np.zeros(LAGS), np.ones(slots)
    for _ in range(ROUNDS):
        effect, error, residual = _solved(level, code, block_slots, filter_, weights, dof)
        filter_ = _autoregression(residual)
        weights = _weights(residual, filter_)
    effect, error, _ = _solved(level, code, block_slots, filter_, weights, dof)
    return Fit(effect, error, dof, slots)


def _solved(
    level: Array, code: Array, block_slots: int, filter_: Array, weights: Array, dof: int
) -> tuple[Array, Array, Array]:
    """Effects, their standard errors, and the residuals before the filter."""
    blocks = np.arange(len(level)) // block_slots
    design = np.column_stack([code, (blocks[:, None] == np.arange(blocks[-1] + 1)).astype(np.float64)])
    root = np.sqrt(weights)
    left, right = _filtered(design, filter_) * root[:, None], _filtered(level[:, None], filter_)[:, 0] * root
    # A delay can make two columns alike: then neither is known, and the pseudo-inverse shares between them.
    inverse = linalg.pinvh(left.T @ left)
    solution = inverse @ (left.T @ right)
    variance = float(np.square(right - left @ solution).sum() / dof)
    # Weights below 1 make residuals smaller than they are; see Street, Carroll and Ruppert, 1988.
    variance /= max(float(weights.mean()), 0.2) ** 2
    error = np.sqrt(np.maximum(0.0, np.diag(inverse)) * variance)
    columns = code.shape[1]
    return solution[:columns], error[:columns], level - design @ solution


def _filtered(series: Array, filter_: Array) -> Array:
    """series: shape (slots, …). The first slots are filtered as far as there are earlier ones."""
    out = series.copy()
    for lag, coefficient in enumerate(filter_, start=1):
        out[lag:] -= coefficient * series[:-lag]
    return out


def _autoregression(residual: Array) -> Array:
    """Coefficients by Yule and Walker, from residuals that are drawn in."""
    spread = _spread(residual)
    held = np.clip(residual, -FAR * spread, FAR * spread)
    moments = np.array([held[: len(held) - lag] @ held[lag:] for lag in range(LAGS + 1)]) / len(held)
    if moments[0] <= 0:
        return np.zeros(LAGS)
    moments[0] *= 1 + 1e-6
    return np.asarray(linalg.solve_toeplitz(moments[:-1], moments[1:]))


def _weights(residual: Array, filter_: Array) -> Array:
    """Huber's weights of the residuals after the filter."""
    step = _filtered(residual[:, None], filter_)[:, 0]
    spread = _spread(step)
    if spread <= 0:
        return np.ones_like(step)
    return np.asarray(np.minimum(1.0, FAR / np.maximum(np.abs(step) / spread, 1e-12)))


def _spread(values: Array) -> float:
    """The robust standard deviation."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


@dataclass(frozen=True)
class Effects(Fit):
    """The effects of all columns, each at its own delay.

    p: the probability of such a gain by chance, corrected for the delays tried. delay: in ticks. Shape (columns).
    """

    p: Array
    delay: NDArray[np.int64]


def effects(ticks: Array, depths: Array, block_slots: int, delays: Sequence[int], per_slot: int) -> Effects:
    """Estimates all effects at the best of several delays each. ticks: the victim's rate, `per_slot` for each slot.

    depths: of the pulses, shape (slots, columns); 0: none. delays: in ticks, the first is preferred. A pulse that acts
    late is seen in slots that begin late.
    """
    fits = [delayed(ticks, depths, block_slots, delay, per_slot) for delay in delays]
    p = np.stack([each.p_gain for each in fits])
    best = p.argmin(axis=0)
    column = np.arange(p.shape[1])
    return Effects(
        effect=np.stack([each.effect for each in fits])[best, column],
        error=np.stack([each.error for each in fits])[best, column],
        p=np.minimum(1.0, p[best, column] * len(fits)),
        delay=np.asarray([delays[at] for at in best], dtype=np.int64),
        dof=min(each.dof for each in fits),
        slots=len(depths),
    )


def delayed(ticks: Array, depths: Array, block_slots: int, delay: int, per_slot: int) -> Fit:
    """Estimates all effects at one delay. Arguments as for `effects`; delay: in ticks."""
    slots = (len(ticks) - delay) // per_slot
    slots = min(slots, len(depths))
    shifted = ticks[delay : delay + slots * per_slot].reshape(slots, per_slot).mean(axis=1)
    return fit(shifted, depths[:slots], block_slots)


def reductions(use: Array, depths: Array, block_slots: int) -> tuple[Array, Array]:
    """Returns by how much less each suspect does at full depth, as a share of what it does otherwise, and the errors.

    use, depths: shape (slots, suspects). NaN for a suspect that did nothing.
    """
    out = [_reduction(use[:, at], depths[:, at], block_slots) for at in range(use.shape[1])]
    return np.array([value for value, _ in out]), np.array([error for _, error in out])


def _reduction(use: Array, depths: Array, block_slots: int) -> tuple[float, float]:
    if not use.any():
        return np.nan, np.nan
    found = fit(use, depths[:, None], block_slots)
    free = outside(float(found.effect[0]), float(depths.mean()))
    return -float(found.effect[0]) / free, float(found.error[0]) / free


def outside(effect: float, depth: float) -> float:
    """Returns the rate outside of a suspect's pulses, as a share of the mean rate. depth: the mean of all slots."""
    return max(0.1, 1 - effect * depth)


def gained(effect: Estimate, pulse: float, depth: float) -> Estimate:
    """Returns the gain in pulses of one depth, as a share of the rate outside of them. depth: the mean of all slots."""
    return effect.scaled(pulse / outside(effect.value, depth))


def taken(effect: Estimate, held: float, depth: float) -> Estimate:
    """Returns the share that a suspect takes of what the victim would do without it.

    held: the part of a pulse's depth that the suspect loses of its work. depth: the mean of all slots.

    The rate is `alone * (1 - taken * (1 - held * depth))`, and an effect is its slope as a share of its mean.
    """
    left = 1 - held * depth
    return effect.mapped(lambda value: value / max(0.1 * held, held + value * left))
