"""A second is doubtful when the generator adds to what it measures, and not when it is merely busy."""

import pytest

from partywall.load.health import ADVICE, HostSecond, Reason, judge, lateness
from partywall.load.record import LoadDirectory
from partywall.load.second import Second, Seconds

SECOND = 1_000_000_000
QUIET = HostSecond(cpus=2, steal_ns=0, throttled_ns=0, sent_segments=1e5, retransmitted_segments=0, listen_drops=0)


def second(a_record, **changed):
    result = Second(10 * SECOND, 11 * SECOND)
    result.add(a_record(**changed))
    return result


def test_generators_on_several_hosts_are_judged_each_and_a_reason_names_them(a_record):
    seconds = Seconds([("east", 0), ("west", 0)])
    seconds.add(("east", 0), a_record())
    seconds.add(("west", 0), a_record(busy_ns=990_000_000))
    (result,) = seconds.complete(all_=True)
    lossy = HostSecond(cpus=2, retransmitted_segments=5, sent_segments=100)
    health = judge(result, elsewhere={"east": lossy, "west": QUIET})
    assert dict(health.doubts) == {
        Reason.BUSY: "west: 99.0% of the second",
        Reason.RETRANSMITTED: "east: 5.0% of them",
    }
    assert {name: list(part.doubts) for name, part in health.parts.items()} == {
        "east": [Reason.RETRANSMITTED],
        "west": [Reason.BUSY],
    }
    assert judge(result).parts["east"].good


def test_a_partial_second_that_only_one_of_several_generators_reported_is_stored(a_record, tmp_path):
    seconds = Seconds([("east", 0), ("west", 0)])
    seconds.add(("west", 0), a_record(requests=7))
    (result,) = seconds.complete(all_=True)
    health = judge(result, QUIET)
    assert list(health.parts) == ["west"]
    load = LoadDirectory.create(tmp_path / "load", {})
    load.append(result, health)
    (line,) = load.whole_lines()
    assert line["generators"]["west"]["requests"] == 7


def test_a_healthy_second_is_good(a_record):
    assert judge(second(a_record), QUIET).good
    assert judge(second(a_record), None).good
    assert judge(second(a_record, run_delay_ns=None), HostSecond(cpus=1)).good


@pytest.mark.parametrize(
    ("changed", "warning"),
    [
        ({"busy_ns": 960_000_000}, Reason.BUSY),
        ({"run_delay_ns": 12_000_000}, Reason.STARVED),
        ({"stall_ns_max": 12_000_000}, Reason.STALLED),
        ({"throttled_ns": 1_000_000}, Reason.THROTTLED),
        ({"ports_waiting": 26_000}, Reason.FEW_PORTS),
        ({"back_pressure": 1}, Reason.BACK_PRESSURE),
        ({"errors": [{"label": 0, "kind": "no_ports", "detail": "", "count": 1}]}, Reason.NO_PORTS),
        ({"errors": [{"label": 0, "kind": "no_files", "detail": "", "count": 1}]}, Reason.NO_FILES),
    ],
)
def test_what_the_generator_says_of_itself_is_doubted_by_name(a_record, changed, warning):
    assert list(judge(second(a_record, **changed), QUIET).doubts) == [warning]


@pytest.mark.parametrize(
    ("changed", "warning"),
    [
        ({"steal_ns": 0.2 * SECOND}, Reason.STEAL),
        ({"throttled_ns": 1e6}, Reason.THROTTLED),
        ({"retransmitted_segments": 2e3}, Reason.RETRANSMITTED),
        ({"guest_wait_ns": 12e6}, Reason.STARVED),
    ],
)
def test_what_its_host_says_is_doubted_by_name(a_record, changed, warning):
    host = HostSecond(**(vars(QUIET) | changed))
    assert list(judge(second(a_record), host).doubts) == [warning]


def test_connections_that_a_server_drops_are_no_fault_of_the_generator(a_record):
    full = HostSecond(**(vars(QUIET) | {"listen_drops": 40, "retransmitted_segments": 2e3}))
    assert judge(second(a_record), full).good


def answered(a_record, bucket_of, reported_ns, undelayed_ns):
    """A second of as many responses as there are times, as told and as they would be without lateness."""
    reported, undelayed = ([[bucket_of(ns), 1] for ns in times] for times in (reported_ns, undelayed_ns))
    timing = a_record()["timings"][0] | {"done": len(reported), "corrected": reported, "first_byte": reported}
    return second(a_record, timings=[timing], undelayed=undelayed, timed=len(reported), late=len(reported))


def test_lateness_is_doubted_where_it_moves_a_percentile_by_more_than_5_percent_and_50_us(a_record, bucket_of):
    fast, slow = [200_000] * 1000, [10_000_000] * 1000
    late = 100_000
    assert list(judge(answered(a_record, bucket_of, [ns + late for ns in fast], fast)).doubts) == [Reason.LATE]
    assert judge(answered(a_record, bucket_of, [ns + late for ns in slow], slow)).good
    assert judge(answered(a_record, bucket_of, [ns + 20_000 for ns in fast], fast)).good


@pytest.mark.parametrize(("late", "good"), [(5, True), (20, False), (200, False)])
def test_few_late_requests_are_doubted_once_they_reach_p99(a_record, bucket_of, late, good):
    fast = [200_000] * 1000
    assert (
        judge(answered(a_record, bucket_of, [ns + 10**6 * (n < late) for n, ns in enumerate(fast)], fast)).good is good
    )


def test_percentiles_beyond_which_hardly_anything_lies_are_not_judged(a_record, bucket_of):
    fast = [200_000] * 100
    result = answered(a_record, bucket_of, [ns + 10**6 * (n < 5) for n, ns in enumerate(fast)], fast)
    assert [each.share for each in lateness([result])] == [0.5, 0.9]
    assert judge(result).good


def test_lateness_of_several_seconds_is_judged_together(a_record, bucket_of):
    fast = [200_000] * 100
    result = answered(a_record, bucket_of, [ns + 10**6 * (n < 5) for n, ns in enumerate(fast)], fast)
    assert [each.matters for each in lateness([result] * 20)] == [False, False, True]


def test_every_warning_has_its_advice():
    assert set(ADVICE) == set(Reason)
