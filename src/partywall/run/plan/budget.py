"""Each trial's part of the budget, and what it can measure in that time. Pure."""

from __future__ import annotations

from partywall.run.plan import pace
from partywall.run.values.plan import Plan


def forecasts(plan: Plan) -> dict[str, pace.Forecast]:
    """The blocks of each trial and their durations, by trial."""
    return {trial.id: pace.forecast(trial.treatments, plan.timing) for trial in plan.trials}


def shares(plan: Plan) -> dict[str, int]:
    """Each trial's part of the budget in ns, by trial."""
    expected = forecasts(plan)
    needed = pace.needed_ns(list(expected.values()), plan.scenario.min_blocks)
    return dict(zip(expected, pace.shares(plan.scenario.budget, needed), strict=True))
