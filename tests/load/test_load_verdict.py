"""What thresholds say of a load: of its stages, of arrivals that nobody served, and of seconds that can be believed."""

from pathlib import Path

import pytest

from partywall.core.stats.estimate import Outcome
from partywall.core.stats.histogram import bucket_of
from partywall.errors import UsageError
from partywall.load import check as plans
from partywall.load.document import Threshold
from partywall.load.health import Health, Reason, judge
from partywall.load.second import Second
from partywall.load.summary import summarise
from partywall.load.thresholds import judge as judge_thresholds
from partywall.load.thresholds import overall

SECOND = 1_000_000_000
LABELS = [{"name": "GET /", "sort": "http"}]
GOOD, BAD = Health({}), Health({Reason.STEAL: ""})
NOT_SERVED = {"label": None, "kind": "not_served", "detail": "", "count": 12}


def a_load(a_record, lengths, stages_s, healths=None, **changed):
    """Seconds of these lengths, four responses each; what is changed, in the last that begins within the stages."""
    seconds, at_ns = [], 0
    for length_s in lengths:
        end_ns = at_ns + round(length_s * SECOND)
        last = at_ns < stages_s * SECOND <= end_ns
        second = Second(at_ns, end_ns)
        second.add(a_record(start_ns=at_ns, end_ns=end_ns, **(changed if last else {})))
        seconds.append(second)
        at_ns = end_ns
    return summarise(seconds, healths or [judge(second) for second in seconds], 0, stages_s * SECOND)


def result(summary, **threshold):
    (kept,) = judge_thresholds([Threshold.model_validate(threshold)], summary, LABELS)
    return kept


def test_a_rate_counts_what_ended_within_the_stages(a_record):
    summary = a_load(a_record, [1, 1, 1, 1], 2)
    assert summary.rate == 4
    assert result(summary, rate=4.5).outcome is Outcome.VIOLATED
    assert result(summary, rate=4).outcome is Outcome.HOLDS
    assert result(summary, of="GET /", rate=4.5).outcome is Outcome.VIOLATED


def test_arrivals_that_nobody_served_are_errors_of_the_whole_and_not_of_one_request(a_record):
    summary = a_load(a_record, [1, 1], 2, errors=[NOT_SERVED])
    assert result(summary, errors="10%").found == "60 %"
    assert result(summary, errors="10%").outcome is Outcome.VIOLATED
    assert result(summary, of="GET /", errors="0%").outcome is Outcome.HOLDS


def test_a_load_none_of_whose_arrivals_was_served_has_violated_its_errors(a_record):
    nothing = {"timings": [], "statuses": [], "errors": [NOT_SERVED]}
    assert result(a_load(a_record, [1], 1, **nothing), errors="1%").found == "100 %"


@pytest.mark.parametrize("changed", [{"waiting": 1}, {"errors": [NOT_SERVED]}])
def test_a_second_in_which_arrivals_had_to_wait_for_a_user_is_doubtful(a_record, changed):
    assert dict(a_load(a_record, [1, 1], 2, **changed).doubtful) == {Reason.FEW_USERS: 1}


def test_idle_seconds_after_the_stages_lend_no_belief(a_record):
    healths = [BAD, BAD, GOOD, GOOD, GOOD, GOOD]
    summary = a_load(a_record, [1] * 6, 2, healths)
    assert (summary.seconds, summary.good, dict(summary.doubtful)) == (2, 0, {Reason.STEAL: 2})
    assert overall([], summary, 0.5) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("seconds", "length_s", "early"), [(5, 5, True), (10, 10, False), (12, 10, False)])
def test_a_load_that_ended_early_has_the_rate_of_what_there_was_of_it_and_holds_nothing(
    a_record, seconds, length_s, early
):
    summary = a_load(a_record, [1] * seconds, 10, [GOOD] * seconds)
    assert (summary.rate, summary.length_s, summary.ended_early) == (4, length_s, early)
    kept = [result(summary, rate=1)]
    assert overall(kept, summary, 0.5) is (Outcome.INCONCLUSIVE if early else Outcome.HOLDS)
    assert overall([*kept, result(summary, rate=100)], summary, 0.5) is Outcome.VIOLATED


def timed(ns, failed=0):
    """One label with four responses of this time."""
    pairs = [[bucket_of(ns), 4]]
    times = {"corrected": pairs, "raw": pairs, "first_byte": pairs, "body": [[0, 4]], "failures": []}
    return [{"label": 0, "done": 4, "failed": failed, "sum_ns": 4 * ns, "sum_squares_s2": 0.0, **times}]


NOTHING = {"timings": [], "statuses": []}


def test_a_service_that_is_slow_in_one_second_of_four_is_available_in_three_quarters(a_record):
    summary = a_load(a_record, [1, 1, 1, 1, 1], 5, timings=timed(900_000_000))
    assert result(summary, available="75%", within="500ms").outcome is Outcome.HOLDS
    missed = result(summary, available="80%", within="500ms")
    assert missed.outcome is Outcome.VIOLATED
    assert (missed.asked, missed.found) == ("available at least 80 % of seconds, within 500 ms", "75 %")
    assert result(summary, available="100%").outcome is Outcome.HOLDS


def test_a_second_in_which_most_requests_fail_is_not_available(a_record):
    summary = a_load(a_record, [1, 1, 1], 3, timings=timed(1000, failed=5))
    assert result(summary, available="100%").found == "50 %"
    assert result(a_load(a_record, [1, 1, 1], 3, timings=timed(1000, failed=4)), available="100%").found == "100 %"


def test_a_second_without_an_answer_counts_only_if_somebody_waits_for_one(a_record):
    hung = a_load(a_record, [1, 1, 1], 3, **NOTHING, in_flight=1)
    idle = a_load(a_record, [1, 1, 1], 3, **NOTHING, in_flight=0)
    assert result(hung, available="100%").found == "50 %"
    assert result(idle, available="100%").found == "100 %"


def test_a_load_without_a_full_second_has_no_availability(a_record):
    assert result(a_load(a_record, [0.5], 1), available="99%").outcome is Outcome.INCONCLUSIVE


def test_a_limit_without_availability_is_a_mistake():
    plan = (
        "partywall_load: 1\nname: a\nbase: http://127.0.0.1:1\nusers: {a: {actions: [{http: /}]}}\n"
        "closed: {users: 1, hold: 1s}\nthresholds:\n  - {p99: 1s, within: 1s}\n"
    )
    with pytest.raises(UsageError, match=r"a.yaml:7: thresholds\[0\]\.within: within belongs to available"):
        plans.loads(plan.encode(), "a.yaml", Path())
