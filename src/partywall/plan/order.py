"""Random orders that depend on nothing but the seed and where they stand, so that a resumed run draws the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

from partywall.model.plan import Plan, Trial


def order(seed: int, trial: Trial, block: int) -> tuple[str, ...]:
    """The treatments of `trial` in the order of block number `block`."""
    ids = [treatment.id for treatment in trial.treatments]
    random.Random(f"{seed}/{trial.id}/{block}").shuffle(ids)  # noqa: S311 - a plan must be repeatable, not secret
    return tuple(ids)


def visits(plan: Plan) -> Sequence[tuple[int, Trial]]:
    """(round, trial) in the order of a run: every trial once a round, each round in an order of its own."""
    result = []
    for round_ in range(plan.rounds):
        trials = list(plan.trials)
        random.Random(f"{plan.seed}/round/{round_}").shuffle(trials)  # noqa: S311
        result += [(round_, trial) for trial in trials]
    return result
