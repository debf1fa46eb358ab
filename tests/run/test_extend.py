"""A run that is given more time or another precision after it was planned."""

import pytest

from partywall.agent.catalogue import shipped
from partywall.errors import UsageError
from partywall.run.capability import Runs
from partywall.run.document.scenario import Scenario
from partywall.run.measure.execute import progress_of
from partywall.run.plan import Topology, extended, make
from partywall.run.record import RunDirectory

SCENARIO = {"partywall": 1, "name": "t", "victims": {"v": {"probe": "integer"}}, "budget": "1min", "precision": "1%"}
PLAN = make(Scenario.model_validate(SCENARIO), Topology((0, 1)), shipped())
(TRIAL,) = PLAN.trials
MINUTE_NS = 60 * 10**9


@pytest.fixture
def record(tmp_path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "run", "", PLAN, {})
    made.append("run_started", wall_time="now")
    made.append("trial_precise", trial=TRIAL.id)
    made.append("run_ended")
    return made


def test_more_time_gives_further_rounds_and_a_later_end():
    longer = extended(PLAN, 10 * MINUTE_NS, PLAN.scenario.precision)
    assert longer.rounds > PLAN.rounds
    assert longer.estimate_ns > 10 * MINUTE_NS
    assert longer.trials == PLAN.trials


def test_an_extended_run_has_not_ended_and_its_precise_trials_are_measured_again(record):
    assert record.ended
    Runs().extend(record, {"precision": 0.001})
    again = RunDirectory.open(record.path)
    assert not again.ended
    assert again.plan.scenario.precision == 0.001
    assert not progress_of(TRIAL, again.by_trial()[TRIAL.id]).finished
    again.append("trial_precise", trial=TRIAL.id)
    assert progress_of(TRIAL, again.by_trial()[TRIAL.id]).finished


@pytest.mark.parametrize("changes", [{"budget": MINUTE_NS}, {"precision": 0.02}, {"budget": MINUTE_NS // 2}])
def test_a_run_is_not_shortened(record, changes):
    with pytest.raises(UsageError, match="already"):
        Runs().extend(record, changes)
    assert record.ended


def test_a_run_that_is_being_measured_is_not_extended(record):
    with record.exclusive(), pytest.raises(UsageError, match="in use"):
        Runs().extend(record, {"budget": 10 * MINUTE_NS})
