"""Durations, sizes and numbers, read and shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall import units


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (900, "900 ns"),
        (-19_000, "\u221219 µs"),
        (120_000_000, "120 ms"),
        (999_600_000, "1 s"),
        (45_000_000_000, "45 s"),
        (150_000_000_000, "2 min 30 s"),
        (7_140_000_000_000, "119 min"),
        (7_200_000_000_000, "2 h"),
        (156_720_000_000_000, "43 h 32 min"),
    ],
)
def test_a_duration_is_shown_as_one_reads_it(ns, shown):
    assert units.format_duration(ns) == shown


@given(st.integers(1, 10_000), st.sampled_from(units.DURATION_UNITS))
def test_durations_as_people_write_them_are_read_in_proportion(count, unit):
    assert units.parse_duration_ns(f"{count}{unit}") == count * units.parse_duration_ns(f"1{unit}")


@pytest.mark.parametrize("text", ["3", "3 parsecs", "ms", "", "1..5s"])
def test_a_duration_without_a_unit_that_is_known_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"for example .*100ms"):
        units.parse_duration_ns(text)
