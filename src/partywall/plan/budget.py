"""What each trial of a plan gets of the budget, and what it can measure in that. Pure."""

from __future__ import annotations

from partywall import pace
from partywall.model.plan import Plan


def forecasts(plan: Plan) -> dict[str, pace.Forecast]:
    """By trial: what its blocks take."""
    return {trial.id: pace.forecast(trial.treatments, plan.timing) for trial in plan.trials}


def shares(plan: Plan) -> dict[str, int]:
    """By trial: its part of the budget in ns."""
    found = forecasts(plan)
    needed = pace.needed_ns(list(found.values()), plan.scenario.min_blocks)
    return dict(zip(found, pace.shares(plan.scenario.budget, needed), strict=True))
