"""Stalls begin and end by a rule, are bounded, and are said in one line; readings stay within a budget."""

import json

from hypothesis import given
from hypothesis import strategies as st

from partywall.watch.stalls.budget import QUIET_NS, SHARE, SOON_NS, Budget
from partywall.watch.stalls.detect import Detector
from partywall.watch.stalls.reading import HostCount
from partywall.watch.stalls.ring import FILE_MAX, Ring, lines
from partywall.watch.stalls.rule import ITSELF, Pair
from partywall.watch.stalls.said import sentence
from partywall.watch.stalls.totals import IDLE_NS, Totals

S = 10**9


def course(*others, own=0.0, detector=None):
    """The stalls that begin or end in seconds with these shares of waiting for others."""
    detector = detector or Detector(0.1)
    said = []
    for second, share in enumerate(others):
        parts = {"one": round(share * S), ITSELF: round(own * S)}
        if stall := detector.take("victim", "cpu", parts, second * S, S):
            said.append((second, stall.has_ended))
    return said


def test_a_stall_begins_within_two_seconds_and_ends_after_three_calm_ones():
    assert course(0, 0.5, 0.5, 0.5, 0, 0, 0, 0) == [(2, False), (6, True)]


def test_one_second_is_not_worth_asking_about():
    assert course(0, 0.9, 0, 0.9, 0) == []


def test_what_a_group_does_to_itself_is_no_stall():
    assert course(*[0.05] * 10, own=0.9) == []


def test_a_stall_goes_on_between_its_two_bounds():
    assert course(0.5, 0.5, 0.07, 0.07, 0.07, 0.07, 0.07) == [(1, False)]


def test_a_group_that_is_gone_ends_its_stall():
    detector = Detector(0.1)
    assert course(0.5, 0.5, detector=detector) == [(1, False)]
    assert [stall.has_ended for stall in detector.gone(frozenset({"another"}))] == [True]
    assert detector.now == []


def test_a_line_says_who_waits_for_what_and_by_whose_use():
    detector = Detector(0.1)
    parts = {"batch/job": 3 * S // 10, ITSELF: S // 10, "host": S // 10}
    detector.take("shop/web", "cpu", parts, 0, S)
    begun = detector.take("shop/web", "cpu", parts, S, S)
    assert sentence(begun, 0)[9:] == (
        "shop/web waits for a CPU, 50 % of 2 s. By use: batch/job 60 %, its own limit or tasks 20 %, work outside of "
        "watched groups 20 %."
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, S)), max_size=300))
def test_all_series_together_are_the_stalled_time_and_are_bounded(pairs):
    totals, before = Totals(series_max=20, victims_max=5), {}
    for number, (victim, suspect, stalled_ns) in enumerate(pairs):
        totals.add("cpu", Pair(f"v{victim}", f"s{suspect}", stalled_ns), number)
        assert all(totals.pairs()[key] >= value for key, value in before.items()), "a total never goes back"
        before = dict(totals.pairs())
    assert sum(totals.pairs().values()) == sum(pair[2] for pair in pairs)
    assert len(totals) <= 20
    assert len({key[0] for key in totals.pairs()}) <= 5 + 1


def test_a_series_that_does_not_grow_gives_room():
    totals = Totals(series_max=5)
    for name in ("one", "two"):
        totals.add("cpu", Pair("v", name, S), 0)
    totals.add("cpu", Pair("v", "three", S), 1)
    assert ("v", "three", "cpu") not in totals.pairs()
    totals.add("cpu", Pair("v", "three", S), IDLE_NS + 60 * S)
    assert totals.pairs() == {("v", "three", "cpu"): S}


def test_names_in_metrics_are_escaped_and_families_follow_the_format():
    totals = Totals()
    totals.add("cpu", Pair('a"b\\c', "host", S), 0)
    text = list(totals.lines(totals.families(HostCount(), [], {"ready": 1}, []), is_open=True))
    assert r'partywall_stalled_seconds_total{victim="a\"b\\c",suspect="host",resource="cpu"} 1' in text
    assert "# TYPE partywall_stalled_seconds counter" in text, "OpenMetrics names a counter's family without _total"
    plain = list(totals.lines(totals.families(HostCount(), [], {"ready": 1}, []), is_open=False))
    assert "# TYPE partywall_stalled_seconds_total counter" in plain


def test_the_ring_keeps_an_hour_and_no_more(tmp_path):
    ring = Ring(tmp_path / "ring")
    for minute in range(200):
        ring.add(minute * 60 * S, {"minute": minute})
    assert [line["minute"] for line in lines(tmp_path / "ring")] == list(range(140, 200))
    assert len(list((tmp_path / "ring").iterdir())) == 60


def test_a_minute_has_a_bounded_file_that_says_that_it_is_full(tmp_path):
    ring = Ring(tmp_path)
    for number in range(2000):
        ring.add(number, {"text": "x" * 100})
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= FILE_MAX + 100
    assert json.loads(file.read_text().splitlines()[-1])["full"]


def test_a_watch_that_starts_again_adds_to_the_minute_and_skips_half_a_line(tmp_path):
    Ring(tmp_path).add(S, {"number": 1})
    with (tmp_path / "00.jsonl").open("a") as file:
        file.write('{"at_ns": 2, "numb')
    Ring(tmp_path).add(2 * S, {"number": 2})
    assert [line["number"] for line in lines(tmp_path)] == [1, 2]


@given(st.lists(st.integers(1, 50), min_size=50, max_size=200), st.booleans())
def test_readings_stay_within_the_budget_whatever_they_cost(costs_ms, asked):
    now_ns = spent_ns = read_ns = 0
    budget = Budget(0, 0)
    for cost_ms in costs_ms:
        while not budget.is_due(now_ns - read_ns, is_asked=asked):
            now_ns += S
            budget.account(now_ns, spent_ns)
        read_ns, spent_ns = now_ns, spent_ns + cost_ms * 10**6
        budget.has_read(cost_ms * 10**6)
        budget.account(now_ns, spent_ns)
    # The credit of the start comes on top, and as much as a reading costs more than the one before it.
    assert spent_ns <= SHARE * now_ns + SHARE * 10e9 + max(costs_ms) * 10**6


def test_cheap_readings_come_as_often_as_they_are_asked_for():
    budget = Budget(0, 0)
    assert not budget.is_due(SOON_NS // 2, is_asked=True)
    assert budget.is_due(SOON_NS, is_asked=True)
    assert not budget.is_due(SOON_NS, is_asked=False)
    assert budget.is_due(QUIET_NS, is_asked=False)
