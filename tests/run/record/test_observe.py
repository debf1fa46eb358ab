"""From slices to observations."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.agent.catalogue import shipped
from partywall.run.document.scenario import Scenario
from partywall.run.plan import Topology, make
from partywall.run.record.observe import (
    Block,
    Columns,
    Samples,
    Thread,
    Window,
    observe,
    observed,
    rate,
    track,
)
from partywall.run.values.evidence import Counter
from partywall.run.values.plan import Slot

MS = 1_000_000
SCENARIO = {
    "partywall": 1,
    "name": "t",
    "victims": {"v": {"probe": "integer"}},
    "aggressors": {"same": {"stressor": "integer", "sandbox": {"cpus": "same"}}, "next": {"stressor": "integer"}},
}
TRIAL = make(Scenario.model_validate(SCENARIO), Topology((0, 1)), shipped()).trials[0]


def piece(start_ms, end_ms, work, thread=0, latency=()):
    return {
        "thread": thread,
        "start_ns": start_ms * MS,
        "end_ns": end_ms * MS,
        "work": work,
        "cpu_ns": (end_ms - start_ms) * MS // 2,
        "intensity": 1.0,
        "latency": list(latency),
    }


def slot(start_ms, measure_ms, end_ms, treatment="baseline"):
    return Slot(treatment=treatment, start_ns=start_ms * MS, measure_ns=measure_ms * MS, end_ns=end_ms * MS)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, 400), st.integers(1, 400))
def test_a_constant_rate_is_seen_as_it_is_wherever_slices_and_windows_lie(lengths, start, length):
    rows, at = [], 0
    for ms in lengths:
        rows.append(piece(at, at + ms, ms * 1000.0))
        at += ms
    end = start + length
    covered = max(0, min(end, at) - start)
    result = rate(Window(rows), start * MS, end * MS)
    # Time of which nothing is known is no standstill: a figure only where most of the window is covered.
    assert result == (pytest.approx(1e6) if covered >= 0.8 * length else None)


def test_threads_add_up():
    rows = [piece(0, 10, 5.0, thread=0), piece(0, 10, 7.0, thread=1)]
    assert rate(Window(rows), 0, 10 * MS, threads=2) == pytest.approx(1200)
    assert rate(Window(rows[:1]), 0, 10 * MS, threads=2) is None


def test_the_guard_does_not_count_and_halves_are_reported_apart():
    rows = [
        piece(0, 10, 1000.0),
        *(piece(10 * n, 10 * n + 10, 10.0) for n in (1, 2)),
        *(piece(10 * n, 10 * n + 10, 30.0) for n in (3, 4)),
    ]
    (seen,) = observe(Block("000-v", 3, (slot(0, 10, 50),)), TRIAL, Window(rows), {}, {})
    assert (seen.rate, seen.early_rate, seen.late_rate) == pytest.approx((2000, 1000, 3000))
    assert (seen.block, seen.position, seen.cpu_share) == (3, 0, pytest.approx(0.5))


def test_a_victim_that_stalls_through_a_slot_is_a_rate_near_zero_and_not_missing():
    rows = [piece(0, 10, 10.0), piece(10, 210, 1.0), piece(210, 220, 10.0)]
    (seen,) = observe(Block("000-v", 0, (slot(0, 20, 120),)), TRIAL, Window(rows), {}, {})
    assert seen.rate == pytest.approx(5.0)


def test_latencies_belong_to_the_slot_in_which_their_operations_ended():
    rows = [
        piece(0, 10, 1.0, latency=[(5, 1)]),
        piece(10, 20, 1.0, latency=[(5, 2), (9, 1)]),
        piece(18, 30, 1.0, latency=[(7, 4)]),
    ]
    (seen,) = observe(Block("000-v", 0, (slot(0, 10, 20),)), TRIAL, Window(rows), {}, {})
    assert seen.latency.counts == {5: 2, 9: 1}


def test_a_slice_that_ends_with_the_first_operation_beyond_the_grid_counts_where_it_lies():
    ends = [0, 2.1, 4.3, 6.1, 8.2, 10.4, 12.1]
    rows = [piece(int(a * 10), int(b * 10), 1.0, latency=[(n, 1)]) for n, (a, b) in enumerate(pairwise(ends))]
    (seen,) = observe(Block("000-v", 0, (slot(0, 20, 100),)), TRIAL, Window(rows), {}, {})
    assert seen.latency.counts == {1: 1, 2: 1, 3: 1, 4: 1}, "not the guard's last slice, but the slot's own"


def test_achieved_is_a_share_of_the_calibrated_maximum():
    noise = Window([piece(0, 50, 25.0)])
    (seen,) = observe(
        Block("000-v", 0, (slot(0, 0, 50),)), TRIAL, Window([piece(0, 50, 1.0)]), {"noise": noise}, {"noise": 1000.0}
    )
    assert seen.achieved == {"noise": pytest.approx(0.5)}


def test_totals_become_rates_gauges_stay_and_what_is_missing_is_left_out():
    counters = (
        Counter("faults", "count", "total", "memory_capacity"),
        Counter("free", "bytes", "gauge", "memory_capacity"),
        Counter("gone", "count", "total", "cpu"),
    )
    at = np.array([0, 100 * MS, 200 * MS], dtype=np.int64)
    values = np.array([[0.0, 5.0, np.nan], [10.0, 6.0, np.nan], [30.0, 7.0, np.nan]])
    samples = Samples(counters, at, values)
    (row,) = samples.between(np.array([100 * MS]), np.array([200 * MS]))
    result = dict(zip([counter.name for counter in counters], row.tolist(), strict=True))
    assert result == pytest.approx(
        {counters[0].name: 200, counters[1].name: 7.0, counters[2].name: np.nan}, nan_ok=True
    )


def test_readings_of_other_slots_say_nothing():
    counters = (Counter("faults", "count", "total", "memory_capacity"),)
    at = np.array([0, 1000 * MS], dtype=np.int64)
    samples = Samples(counters, at, np.array([[0.0], [1.0]]))
    assert np.isnan(samples.between(np.array([400 * MS]), np.array([450 * MS]))).all()


def test_stolen_time_of_the_victims_cpu_makes_a_disturbance():
    counters = (Counter("cpu0.cpu_steal_ns", "nanoseconds", "total", "cpu"),)
    at = np.array([0, 100 * MS], dtype=np.int64)
    samples = Samples(counters, at, np.array([[0.0], [20.0 * MS]]))
    block = Block("000-v", 0, (slot(0, 0, 100),))
    (seen,) = observe(block, TRIAL, Window([piece(0, 100, 1.0)]), {}, {}, samples)
    assert seen.disturbed == ("steal 20%",)
    elsewhere = TRIAL.model_copy(update={"victim_cpus": (1,)})
    (other,) = observe(block, elsewhere, Window([piece(0, 100, 1.0)]), {}, {}, samples)
    assert other.disturbed == ()


def test_waiting_for_the_cpu_is_foreign_load_only_where_nobody_of_ours_presses():
    counters = (Counter("victim.process_run_queue_wait_ns", "nanoseconds", "total", "cpu"),)
    samples = Samples(counters, np.array([0, 100 * MS], dtype=np.int64), np.array([[0.0], [30.0 * MS]]))

    def disturbed(treatment):
        block = Block("000-v", 0, (slot(0, 0, 100, treatment),))
        return observe(block, TRIAL, Window([piece(0, 100, 1.0)]), {}, {}, samples)[0].disturbed

    expected = ("foreign load: the victim waited 30% of the slot for its CPU",)
    assert [disturbed(name) for name in ("baseline", "null", "next@1", "same@1")] == [expected, expected, (), ()]


def test_what_a_victims_own_ceiling_holds_up_is_nobody_elses_disturbance():
    names = ("victim.process_run_queue_wait_ns", "victim.cgroup_cpu_throttled_ns")
    counters = tuple(Counter(name, "nanoseconds", "total", "cpu") for name in names)
    samples = Samples(counters, np.array([0, 100 * MS], dtype=np.int64), np.array([[0.0, 0.0], [50.0 * MS, 50.0 * MS]]))
    box = {"backend": "container"}

    def disturbed(sandbox, treatment, **more):
        content = SCENARIO | {"victims": {"v": {"probe": "integer", "sandbox": box | sandbox}}} | more
        trial = make(Scenario.model_validate(content), Topology((0, 1)), shipped()).trials[0]
        block = Block("000-v", 0, (slot(0, 0, 100, treatment),))
        return [
            text.split()[0]
            for text in observe(block, trial, Window([piece(0, 100, 1.0)]), {}, {}, samples)[0].disturbed
        ]

    switched = {"factors": {"victim.sandbox.cpu_limit": [0.5]}}
    assert disturbed({"cpu_limit": 0.5}, "baseline") == []
    assert disturbed({"cpu_limit": 0.5}, "next@1") == []
    assert disturbed({}, "null,cpu_limit=0.5", **switched) == []
    # Without a ceiling of its own in force, being held up is news.
    assert disturbed({}, "baseline", **switched) == ["foreign", "throttled"]
    assert disturbed({"cpu_limit": 1.0}, "next@1") == ["throttled"]


def test_an_operation_longer_than_a_slot_is_counted_where_it_ended():
    rows = [piece(0, 10, 1.0), piece(10, 310, 1.0, latency=[(900, 1)]), piece(310, 320, 1.0)]
    block = Block("000-v", 0, (slot(100, 110, 200), slot(200, 210, 320, "null")))
    stalled, ended = observe(block, TRIAL, Window(rows), {}, {})
    assert (stalled.latency.counts, ended.latency.counts) == ({}, {900: 1})


def test_latencies_are_of_the_slots_own_slices_where_these_end_with_an_operation_beyond_the_grid():
    """Slices of 2 ms in a slot of 4 ms, each ended by an operation that takes 0.6 ms more."""
    edges = [2 * n + (0.6 if n % 2 else 0.7) for n in range(-1, 6)]
    rows = [
        piece(1000 * start, 1000 * end, 1.0, latency=[(bucket, 1)])
        for bucket, (start, end) in enumerate(pairwise(edges))
    ]
    scaled = [row | {key: row[key] // 1000 for key in ("start_ns", "end_ns", "cpu_ns")} for row in rows]
    block = Block("000-v", 0, (slot(2, 4, 8),))
    # The guard's last slice, bucket 2, ends at 4.7 ms; the slot's own end at 6.6 and 8.7.
    assert observe(block, TRIAL, Window(scaled), {}, {})[0].latency.counts == {3: 1, 4: 1}


def test_slices_that_reach_beyond_their_slot_are_reported():
    fine = [piece(10 * n, 10 * n + 10, 1.0) for n in range(12)]
    # One that began 10 ms before the switch, and one that ends 40 ms after the window.
    coarse = [piece(50 * n, 50 * n + 50, 5.0) for n in range(4)]
    block = Block("000-v", 0, (slot(10, 20, 110),))
    assert observe(block, TRIAL, Window(fine), {}, {})[0].straddle == 0
    result = observe(block, TRIAL, Window(coarse), {}, {})[0].straddle
    assert result == pytest.approx((0.6 * 10 + 0.2 * 39.8) / 90)


def test_a_block_with_a_slot_of_which_too_little_is_known_gives_no_observation():
    rows = [piece(10 * n, 10 * n + 10, 1.0) for n in range(5)]
    block = Block("000-v", 0, (slot(0, 0, 50), slot(50, 50, 100, "null")))
    assert not observe(block, TRIAL, Window(rows), {}, {})


def test_what_a_command_used_counts_by_the_share_of_its_interval_that_lies_in_the_slot():
    block = Block("000-v", 0, (slot(0, 0, 100), slot(100, 100, 200, "null")))
    rows = [
        {"start_ns": 0, "end_ns": 50 * MS, "cpu_ns": 50 * MS, "disk_bytes": 5000},
        {"start_ns": 50 * MS, "end_ns": 150 * MS, "cpu_ns": 0, "disk_bytes": None},
    ]
    victim = Window([piece(0, 200, 1.0)])
    first, second = observe(block, TRIAL, victim, {}, {}, None, {"job": rows})
    assert first.used == {"job": pytest.approx(0.5)}
    assert first.moved == second.moved == second.used == {}, "of half a slot nothing is said"


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 100)), min_size=1, max_size=20),
    st.integers(0, 150),
    st.integers(1, 100),
)
def test_the_sum_over_a_window_is_that_of_the_shares_of_its_slices(pieces, start, length):
    rows, at = [], 0
    for gap, lasted, work in pieces:
        rows.append(piece(at + gap, at + gap + lasted, float(work)))
        at += gap + lasted
    window = start * MS, (start + length) * MS
    inside = [
        row["work"]
        * max(0, min(row["end_ns"], window[1]) - max(row["start_ns"], window[0]))
        / (row["end_ns"] - row["start_ns"])
        for row in rows
    ]
    thread = Thread.of(rows)
    ((result,),) = thread.between(*(np.array([at_ns]) for at_ns in window), thread.work)
    assert result == pytest.approx(sum(inside), abs=1e-9)


def test_many_blocks_are_seen_as_each_of_them_alone_with_all_threads():
    rows = [
        piece(at, at + 10, float(at + 1), thread=thread, latency=[(at + thread, 2), (7, 1)])
        for thread in (0, 1)
        for at in range(0, 200, 10)
    ]
    blocks = [
        Block("000-v", 0, (slot(0, 10, 50), slot(50, 60, 95))),
        Block("000-v", 1, (slot(95, 105, 195),), long=True),
    ]
    trial = TRIAL.model_copy(update={"victim": TRIAL.victim.model_copy(update={"threads": 2})})
    alone = [seen for block in blocks for seen in observe(block, trial, Window(rows), {}, {})]
    together = observed(Columns.of(blocks), trial, {"victim": track(rows)}, {})
    assert list(together) == alone
    assert [seen.long for seen in together] == [False, False, True]
    assert together[0].latency.counts == {7: 8} | {at + thread: 2 for at in (10, 20, 30, 40) for thread in (0, 1)}
    assert together[0].rate == pytest.approx(2 * (11 + 21 + 31 + 41) / 0.04)
