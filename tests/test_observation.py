"""Observations as columns, of which those of one trial exist as objects."""

import numpy as np

from partywall.model.observation import CounterRow, Histogram, Observation, Observations, Part, of_trial, table_of


def seen(trial: str, start_ns: int) -> Observation:
    return Observation(trial, 0, 0, "baseline", start_ns, start_ns + 10, 1.0, 1.0, 1.0, None, Histogram({}))


def part(trial: str, *starts: int) -> Part:
    disturbances = ((0, "baseline", "steal 9%"),)
    return Part(trial, len(starts), 10 * len(starts), disturbances, lambda: [seen(trial, start) for start in starts])


def test_observations_of_a_trial_are_in_order_of_time_whatever_the_order_of_its_visits():
    found = Observations([part("a", 50, 60), part("b", 5), part("a", 1)])
    assert [o.start_ns for o in found.of("a")] == [1, 50, 60]
    assert of_trial(found, "b") == [seen("b", 5)]
    assert found.of("nowhere") == []
    assert (len(found), found.measured_ns, len(list(found))) == (4, 40, 4)
    assert found.disturbances == (("a", 0, "baseline: steal 9%"),) * 2 + (("b", 0, "baseline: steal 9%"),)
    assert {o.trial for o in found} == {"a", "b"}


def test_counters_of_slots_from_several_visits_are_one_table():
    columns = {"steal": 0, "faults": 1}
    rows = [CounterRow(columns, np.array([1.0, np.nan])), {"faults": 3.0}, {}, CounterRow({"free": 0}, np.array([4.0]))]
    assert dict(rows[0]) == {"steal": 1.0}
    assert rows[0].get("faults") is None
    expected = {"steal": [1, *[np.nan] * 3], "faults": [np.nan, 3, *[np.nan] * 2], "free": [*[np.nan] * 3, 4]}
    found = table_of(rows)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], values, equal_nan=True) for name, values in expected.items())
