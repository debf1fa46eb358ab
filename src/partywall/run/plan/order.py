"""The order of a run's trials, and of a trial's treatments."""

from __future__ import annotations

from collections.abc import Sequence

from partywall.core.design import rounds, shuffled
from partywall.run.values.plan import Plan, Trial


def order(seed: int, trial: Trial, block: int) -> tuple[str, ...]:
    """The treatments of `trial`, in the order of block number `block`."""
    return tuple(shuffled([treatment.id for treatment in trial.treatments], seed, trial.id, block))


def turns(plan: Plan) -> Sequence[tuple[int, Trial]]:
    """(round, trial) in the order of a run: each round contains every trial once, in its own random order."""
    return rounds(plan.trials, plan.rounds, plan.seed, "round")
