"""Threads' records become seconds without losing anything, and seconds a summary."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.load.health import judge
from partywall.load.second import Beside, Error, Second, Seconds, Timing, add_pairs
from partywall.load.summary import summarise

SECOND = 1_000_000_000


def test_a_second_is_given_out_once_every_thread_has_reported_of_it(a_record):
    seconds = Seconds([("load", 0), ("load", 1)])
    seconds.add(("load", 0), a_record(thread=0))
    seconds.add(("load", 0), a_record(thread=0, start_ns=11 * SECOND, end_ns=12 * SECOND))
    assert list(seconds.complete()) == []
    seconds.add(("load", 1), a_record(thread=1))
    (result,) = seconds.complete()
    assert (result.start_ns, result.requests, result.users, result.timings[0].done) == (10 * SECOND, 8, 4, 8)
    assert result.connect == {500: 4}
    (rest,) = seconds.complete(all_=True)
    assert rest.requests == 4


def test_generators_that_share_a_load_are_kept_apart_too(a_record):
    seconds = Seconds([("east", 0), ("west", 0), ("west", 1)])
    for thread in (("east", 0), ("west", 0), ("west", 1)):
        seconds.add(thread, a_record(thread=thread[1]))
    (result,) = seconds.complete(all_=True)
    assert {name: (part.requests, part.timings[0].done) for name, part in result.parts.items()} == {
        "east": (4, 4),
        "west": (8, 8),
    }
    assert (result.requests, result.timings[0].done, len(result.threads)) == (12, 12, 3)


def test_a_second_waits_for_the_hosts_counters_but_not_for_ever_and_keeps_its_place():
    def second(begin_s, length_s=1.0):
        return Second(int(begin_s * SECOND), int((begin_s + length_s) * SECOND))

    known = set()
    beside = Beside(known.__contains__, 1.5)
    assert list(beside.take([second(10), second(11)], 100.0)) == []
    known.add(11)
    assert list(beside.take([], 100.2)) == []
    known.add(10)
    assert [s.start_ns // SECOND for s in beside.take([second(12), second(13, 0.3)], 100.4)] == [10, 11]
    assert beside
    assert list(beside.take([], 101.8)) == []
    # Nobody tells of the end of second 12; after it comes a part of one.
    assert [s.start_ns // SECOND for s in beside.take([], 102.0)] == [12, 13]
    assert not beside
    assert [s.start_ns for s in beside.take([second(14.2, 0.5)], 102.0)] == [14.2 * SECOND]


def test_a_thread_that_stood_still_holds_up_no_more_than_it_must(a_record):
    seconds = Seconds([("load", 0)])
    seconds.add(("load", 0), a_record(start_ns=10 * SECOND, end_ns=12 * SECOND + 5))
    seconds.add(("load", 0), a_record(start_ns=12 * SECOND + 5, end_ns=13 * SECOND))
    assert [second.start_ns for second in seconds.complete()] == [10 * SECOND, 12 * SECOND + 5]


def test_what_comes_after_the_stages_is_a_second_of_its_own(a_record):
    seconds = Seconds([("load", 0), ("load", 1)], ends_ns=int(10.5 * SECOND))
    for thread in (0, 1):
        seconds.add(("load", thread), a_record(thread=thread, end_ns=int(10.5 * SECOND)))
        seconds.add(("load", thread), a_record(thread=thread, start_ns=int(10.5 * SECOND)))
    assert [(s.start_ns, s.end_ns, s.requests) for s in seconds.complete()] == [
        (10 * SECOND, 10.5 * SECOND, 8),
        (10.5 * SECOND, 11 * SECOND, 8),
    ]


def test_mean_and_deviation_are_exact(a_record):
    second = Second(0, SECOND)
    second.add(a_record())
    timing = second.timings[0]
    assert timing.mean_ns == 2500
    assert timing.deviation_ns == pytest.approx(1291, abs=1)
    assert Timing().mean_ns is None
    assert Timing().deviation_ns is None


@given(st.lists(st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 9)), max_size=9), max_size=5))
def test_merged_histograms_hold_what_their_parts_held(parts):
    total = {}
    for part in parts:
        add_pairs(total, part)
    assert sum(total.values()) == sum(count for part in parts for _, count in part)


def test_errors_of_the_same_kind_and_place_are_counted_together(a_record):
    error = {"label": 0, "kind": "reset", "detail": "", "count": 2}
    second = Second(0, SECOND)
    second.add(a_record(errors=[error]))
    second.add(a_record(thread=1, errors=[error, {"label": None, "kind": "not_served", "detail": "", "count": 1}]))
    assert dict(second.errors) == {Error(0, "reset", ""): 4, Error(None, "not_served", ""): 1}


def test_the_rate_is_over_the_stages_and_its_spread_over_full_seconds(a_record):
    records = [(10.4, 11), (11, 12), (12, 13), (13, 13.4), (13.4, 14)]
    seconds = []
    for first, last in records:
        second = Second(int(first * SECOND), int(last * SECOND))
        second.add(a_record(start_ns=int(first * SECOND), end_ns=int(last * SECOND)))
        seconds.append(second)
    summary = summarise(seconds, [judge(s) for s in seconds], int(10.4 * SECOND), 3 * SECOND)
    assert summary.rate == pytest.approx(16 / 3)
    assert summary.rate_deviation == 0
    assert (summary.responses, summary.good, summary.seconds) == (20, 4, 4)
    assert summary.within == {0: 16}
    assert math.isclose(summary.length_s, 3)
