"""Simulated fleets: hosts whose truth is known, measured in a few noisy blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
TAIL_FREEDOM = 4
"""Of Student's distribution, for noise with heavy tails."""


@dataclass(frozen=True)
class Fleet:
    """A drawn fleet in logarithms. truth, values, errors: shape (hosts,). each: its blocks, shape (hosts, blocks)."""

    centre: float
    truth: Floats
    each: Floats

    @property
    def blocks(self) -> int:
        return int(self.each.shape[1])

    @property
    def values(self) -> Floats:
        return self.after(self.blocks)[0]

    @property
    def errors(self) -> Floats:
        return self.after(self.blocks)[1]

    def after(self, blocks: int | npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Values and standard errors after some blocks of each host."""
        counts = np.broadcast_to(blocks, len(self.each))[:, None]
        is_seen = np.arange(self.blocks) < counts
        means = self.each.mean(axis=1, where=is_seen)
        return means, self.each.std(axis=1, ddof=1, where=is_seen) / counts[:, 0] ** 0.5


def drawn(
    chance: np.random.Generator,
    hosts: int,
    spread: float,
    *,
    blocks: int = 10,
    is_heavy: bool = True,
    drift: float = 0.0,
    bad: int = 0,
    loss: float = 0.0,
    error: float = 0.01,
) -> Fleet:
    """A fleet around a factor of 0.8. spread: between hosts, in standard errors; error: of one host's mean.

    drift: how far the speed of a host moves from its first block to its last, in standard deviations of a block, up or
    down. A factor compares slots of one block, in random order, so that only the part within a block is left of it.
    bad: the first hosts are worse by `loss`, in logarithms.
    """
    centre, scale = float(np.log(0.8)), error * blocks**0.5
    truth = centre + spread * error * chance.standard_normal(hosts)
    truth[:bad] -= loss
    noise = _noise(chance, (hosts, blocks), is_heavy=is_heavy)
    towards = chance.choice([-1.0, 1.0], (hosts, 1))
    noise += towards * (drift / blocks) * chance.uniform(-1, 1, (hosts, blocks))
    return Fleet(centre, truth, truth[:, None] + scale * noise)


def _noise(chance: np.random.Generator, shape: tuple[int, int], *, is_heavy: bool) -> Floats:
    """Noise with a standard deviation of 1."""
    drawn: Floats
    if is_heavy:
        drawn = chance.standard_t(TAIL_FREEDOM, shape) / (TAIL_FREEDOM / (TAIL_FREEDOM - 2)) ** 0.5
    else:
        drawn = chance.standard_normal(shape)
    return drawn
