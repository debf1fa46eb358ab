"""How far a trial has come is told by its events alone."""

from partywall.agent.catalogue import shipped
from partywall.model.scenario import Scenario
from partywall.plan import Topology, make
from partywall.run.execute import _attempt, tally

SCENARIO = {"partywall": 1, "name": "t", "victims": {"v": {"probe": "integer"}}}
(TRIAL,) = make(Scenario.model_validate(SCENARIO), Topology((0, 1)), shipped()).trials


def test_a_resumed_trial_knows_its_blocks_visits_and_length_of_slots():
    slots = [{"start_ns": 10, "end_ns": 30}, {"start_ns": 30, "end_ns": 60}]
    events = [
        {"kind": "visit", "visit": "0"},
        {"kind": "stretched", "stretch": 4},
        {"kind": "block_done", "block": 7, "slots": slots, "stretch": 4},
        {"kind": "visit_ended", "visit": "0"},
        {"kind": "visit", "visit": "1"},
        {"kind": "visit", "visit": "1.1"},
    ]
    found = tally(TRIAL, events, ())
    assert (found.next_block, found.stretch, found.measured_ns) == (8, 4, 50)
    assert (found.finished, found.visits_done, dict(found.visits_paid)) == (False, {"0"}, {"0": 1, "1": 2})


def test_each_payment_of_a_visit_has_records_of_its_own():
    found = tally(TRIAL, [{"kind": "visit", "visit": "1"}], ())
    assert [_attempt(found, visit) for visit in ("1", "1", "2")] == ["1.1", "1.2", "2"]
