"""How much the slots of each block count, because a host's noise is not the same at all times.

While another tenant works on the victim's CPU, a block tells little; when it is gone, as much as on a quiet host. The
noise of a moment is what the slots without a neighbour differ by, in the blocks around a block and not in itself. So no
weight depends on what a neighbour does, nor on the block that is weighed, and whatever disturbs one slot of it counts.
"""

from __future__ import annotations

import numpy as np

from partywall.core.stats.interval import FEWEST, Array, ratio_interval

NEAR = 5
"""How many blocks before and after a block tell its noise."""

FLOOR = 0.1
"""Quantile of all blocks' noise that is added to each block's.

Noise estimated from few blocks would otherwise give weights that are mostly chance.
"""

WORTHWHILE = 0.5
"""Weights are used if they leave less of the variance than this, of the references and of the cell itself.

On a steady host they would only add noise. A choice between intervals of about the same width would select the one that
chance has made narrow.
"""


def heeds(gap: Array) -> Array | None:
    """The weight of each block, 1 on average; None if equal weights are as good.

    gap: difference of the block's two slots without a neighbour; not a number where it is unknown.
    """
    square = np.square(gap)
    known = np.isfinite(square)
    if known.sum() <= 2 * NEAR:
        return None
    square = np.where(known, square, 0.0)
    around = np.ones(2 * NEAR + 1)
    around[NEAR] = 0.0
    total, count = (_summed(values, around) for values in (square, known.astype(np.float64)))
    noise = np.divide(total, count, out=np.full(len(gap), float(square[known].mean())), where=count > 0)
    floor = float(np.quantile(noise, FLOOR))
    if floor <= 0:
        return None
    weight = 1 / (noise + floor)
    weight /= weight.mean()
    left = float((np.square(weight) * square).sum() / square.sum())
    return np.asarray(weight) if left < WORTHWHILE else None


def is_better(heeded: Array, even: Array, weight: Array) -> bool:
    """Whether weights make a ratio much more certain, and it may be the same in the noisy blocks, at 95 %.

    heeded, even: block values with and without weights. weight: of each block. If a neighbour does more harm in noisy
    moments, or drives others to the victim's CPU, weights would leave out a part of what it does.
    """
    noisy = even[weight < 1]
    if min(len(noisy), len(even)) < FEWEST:
        return False
    narrow, usual, there = map(ratio_interval, (heeded, even, noisy))
    return narrow.half_width**2 <= WORTHWHILE * usual.half_width**2 and there.low <= narrow.value <= there.high


def _summed(values: Array, around: Array) -> Array:
    """Of each block, the weighted sum over the blocks around it."""
    return np.asarray(np.convolve(values, around)[NEAR:-NEAR], dtype=np.float64)
