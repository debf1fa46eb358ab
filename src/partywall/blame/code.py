"""The code of an experiment: in which slots each suspect is pulsed. Pure.

A block holds a Hadamard matrix and its mirror image (fold-over) in random order. Within each block, every suspect is
pulsed in half of the slots, each two suspects together in a quarter of them, and no effect of one suspect is mixed up
with the joint effect of two others. The order is random, so no clock of a suspect or of the victim can follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.bool_]
Array = NDArray[np.float64]


@cache
def hadamard(least: int) -> Array:
    """Returns the smallest Hadamard matrix of at least this order that Paley's and Sylvester's constructions give.

    Its first column is constant; all columns are orthogonal. Source: Paley, J. Math. Phys. 12, 1933.
    """
    order = max(4, -(-least // 4) * 4)
    while (made := _made(order)) is None:
        order += 4
    return made


def _made(order: int) -> Array | None:
    if order in (1, 2):
        return np.array([[1.0, 1.0], [1.0, -1.0]])[:order, :order]
    if order % 4 == 0 and _is_prime(order - 1):
        return _paley(order - 1)
    half = _made(order // 2) if order % 2 == 0 and order > 2 else None
    return None if half is None else np.block([[half, half], [half, -half]])


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def _paley(prime: int) -> Array:
    """Paley's first construction, for a prime that is 3 modulo 4, with the first column made constant."""
    squares = {n * n % prime for n in range(1, prime)}
    residue = np.array([0.0] + [1.0 if n in squares else -1.0 for n in range(1, prime)])
    place = np.arange(prime)
    skew = np.zeros((prime + 1, prime + 1))
    skew[0, 1:], skew[1:, 0] = 1.0, -1.0
    skew[1:, 1:] = residue[(place[:, None] - place) % prime]
    matrix = skew + np.eye(prime + 1)
    return np.asarray(matrix * matrix[:, :1])


@dataclass(frozen=True)
class Code:
    """The slots in which suspects are pulsed, from a seed. columns: suspects, and the dummy suspect as the last one."""

    columns: int
    seed: int

    @property
    def block_slots(self) -> int:
        """The number of slots of a block."""
        return 2 * len(hadamard(self.columns + 1))

    def block(self, number: int) -> Bits:
        """Returns one block, shape (slots, columns). True: pulsed."""
        random = np.random.default_rng([self.seed, number])
        half = hadamard(self.columns + 1)[:, 1:]
        half = half[:, random.permutation(half.shape[1])[: self.columns]]
        # Without it, one slot of each block would pulse everybody at once.
        half = half * random.choice([-1.0, 1.0], self.columns)
        return np.asarray(random.permutation(np.concatenate([half, -half])) > 0)

    def blocks(self, count: int) -> Bits:
        """Returns the first blocks one after the other, shape (slots, columns)."""
        return np.concatenate([self.block(number) for number in range(count)])
