"""A second is doubtful when the generator adds to what it measures, and not when it is merely busy."""

import pytest

from partywall.load.health import ADVICE, Doubt, HostSecond, judge
from partywall.load.second import Second

SECOND = 1_000_000_000
QUIET = HostSecond(cpus=2, steal_ns=0, throttled_ns=0, sent_segments=1e5, retransmitted_segments=0, listen_drops=0)


def second(a_record, **changed):
    found = Second(10 * SECOND, 11 * SECOND)
    found.add(a_record(**changed))
    return found


def test_a_healthy_second_is_good(a_record):
    assert judge(second(a_record), QUIET).good
    assert judge(second(a_record), None).good
    assert judge(second(a_record, run_delay_ns=None), HostSecond(cpus=1)).good


@pytest.mark.parametrize(
    ("changed", "doubt"),
    [
        ({"busy_ns": 960_000_000}, Doubt.BUSY),
        ({"run_delay_ns": 60_000_000}, Doubt.STARVED),
        ({"stall_ns_max": 60_000_000}, Doubt.STALLED),
        ({"timed": 4, "late": 1, "lateness": [[1000, 4]]}, Doubt.LATE),
        ({"back_pressure": 1}, Doubt.BACK_PRESSURE),
        ({"errors": [{"label": 0, "kind": "no_ports", "detail": "", "count": 1}]}, Doubt.NO_PORTS),
        ({"errors": [{"label": 0, "kind": "no_files", "detail": "", "count": 1}]}, Doubt.NO_FILES),
    ],
)
def test_what_the_generator_says_of_itself_is_doubted_by_name(a_record, changed, doubt):
    assert list(judge(second(a_record, **changed), QUIET).doubts) == [doubt]


@pytest.mark.parametrize(
    ("changed", "doubt"),
    [
        ({"steal_ns": 0.2 * SECOND}, Doubt.STEAL),
        ({"throttled_ns": 1e6}, Doubt.THROTTLED),
        ({"retransmitted_segments": 2e3}, Doubt.RETRANSMITTED),
        ({"listen_drops": 1}, Doubt.LISTEN_DROPS),
    ],
)
def test_what_its_host_says_is_doubted_by_name(a_record, changed, doubt):
    host = HostSecond(**(vars(QUIET) | changed))
    assert list(judge(second(a_record), host).doubts) == [doubt]


def test_lateness_that_does_not_show_in_response_times_is_no_doubt(a_record):
    slow = a_record()["timings"][0] | {"sum_ns": 4 * 10**9}
    assert judge(second(a_record, timed=4, late=1, lateness=[[1000, 4]], timings=[slow]), QUIET).good


def test_every_doubt_has_its_advice():
    assert set(ADVICE) == set(Doubt)
