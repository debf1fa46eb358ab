"""Observations as columns, whose rows are objects."""

from itertools import pairwise

import numpy as np
import pytest

from partywall.core.stats.histogram import Histogram
from partywall.run.values.observation import CounterTable, Latencies, Observation, Observations, by_trial


def seen(trial: str, start_ns: int, **more) -> Observation:
    values = (trial, 0, 0, "baseline", start_ns, start_ns + 10, 1.0, 1.0, 1.0, None, Histogram({start_ns: 2}))
    return Observation(*values, **more)


ROWS = [
    seen("a", 50, counters={"steal": 1.0}, achieved={"n": 0.5}, disturbed=("steal 9%", "swap")),
    seen("a", 60, long=True, straddle=0.25, used={"job": 0.1}, moved={"job": 4096.0}),
    seen("b", 5, counters={"faults": 3.0}, achieved={"m": 1.0}),
    seen("a", 1),
]


def test_columns_give_the_rows_they_are_made_of():
    result = Observations.of(ROWS)
    assert list(result) == ROWS
    assert (result[1], list(result[1:3])) == (ROWS[1], ROWS[1:3])
    assert Observations.of(result) is result
    assert [o.latency.counts for o in result] == [{50: 2}, {60: 2}, {5: 2}, {1: 2}]


@pytest.mark.parametrize("cuts", [(), (1,), (1, 3), (0, 2, 4)])
def test_parts_joined_are_the_whole(cuts):
    bounds = [0, *cuts, len(ROWS)]
    parts = [Observations.of(ROWS[low:high]) for low, high in pairwise(bounds)]
    assert list(Observations.joined(parts)) == ROWS


def test_nothing_joined_is_nothing():
    assert list(Observations.joined([])) == []


def test_some_are_taken_in_the_order_given():
    result = Observations.of(ROWS).take(np.array([3, 1]))
    assert list(result) == [ROWS[3], ROWS[1]]
    assert result.latency.merged.counts == {1: 2, 60: 2}


def test_observations_of_a_trial_are_in_order_of_time():
    result = by_trial(ROWS)
    assert [o.start_ns for o in result["a"]] == [1, 50, 60]
    assert list(result["b"]) == [ROWS[2]]
    assert (len(result["a"]), result["a"].measured_ns) == (3, 30)
    assert list(result["a"].disturbances) == [("a", 0, "baseline: steal 9%"), ("a", 0, "baseline: swap")]


def test_a_counter_is_unknown_where_it_was_not_read():
    first = CounterTable({"steal": 0, "faults": 1}, np.array([[1.0, np.nan]]), np.array([-1, 0]))
    result = CounterTable.joined([first, CounterTable.of([{"faults": 3.0}, {}])])
    expected = {"steal": [np.nan, 1, np.nan, np.nan], "faults": [np.nan, np.nan, 3, np.nan], "free": [np.nan] * 4}
    assert all(np.array_equal(result.column(name), values, equal_nan=True) for name, values in expected.items())
    assert [result[at] for at in range(4)] == [{}, {"steal": 1.0}, {"faults": 3.0}, {}]


def test_buckets_of_no_slot_are_left_out():
    every = Latencies(np.array([1, 4, 4]), np.array([3, 4, 6]), np.arange(10, 18), np.arange(8))
    packed = every.packed
    assert packed.buckets.tolist() == [11, 12, 14, 15]
    assert [packed[at].counts for at in range(3)] == [every[at].counts for at in range(3)]
