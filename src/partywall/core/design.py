"""Random orders that depend only on the seed and their place, so that a resumed measurement gets the same ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def shuffled(items: Sequence[T], seed: int, *place: object) -> list[T]:
    """The items in random order. place: distinguishes this order from others of the same seed."""
    result = list(items)
    random.Random("/".join(map(str, (seed, *place)))).shuffle(result)  # noqa: S311 - repeatable, not secret
    return result


def rounds(items: Sequence[T], count: int, seed: int, *place: object) -> list[tuple[int, T]]:
    """(round, item): each round contains every item once, in its own random order."""
    return [(number, item) for number in range(count) for item in shuffled(items, seed, *place, number)]
