"""Random orders that depend on nothing but the seed and where they stand, so that a resumed run draws the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from partywall.model.plan import Plan, Trial

T = TypeVar("T")


def shuffled(items: Sequence[T], seed: int, *place: object) -> list[T]:
    """The items in an order of their own. place: what tells this order from others of the same seed."""
    result = list(items)
    random.Random("/".join(map(str, (seed, *place)))).shuffle(result)  # noqa: S311 - repeatable, not secret
    return result


def rounds(items: Sequence[T], count: int, seed: int, *place: object) -> list[tuple[int, T]]:
    """(round, item): every item once a round, each round in an order of its own."""
    return [(number, item) for number in range(count) for item in shuffled(items, seed, *place, number)]


def order(seed: int, trial: Trial, block: int) -> tuple[str, ...]:
    """The treatments of `trial` in the order of block number `block`."""
    return tuple(shuffled([treatment.id for treatment in trial.treatments], seed, trial.id, block))


def visits(plan: Plan) -> Sequence[tuple[int, Trial]]:
    """(round, trial) in the order of a run: every trial once a round, each round in an order of its own."""
    return rounds(plan.trials, plan.rounds, plan.seed, "round")
