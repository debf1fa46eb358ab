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


@given(st.integers(1, 8784), st.sampled_from(units.DURATION_UNITS))
def test_durations_as_people_write_them_are_read_in_proportion(count, unit):
    assert units.parse_duration_ns(f"{count}{unit}") == count * units.parse_duration_ns(f"1{unit}")


@pytest.mark.parametrize(
    ("parse", "largest", "too_large", "said"),
    [
        (units.parse_duration_ns, "8784h", "8785h", "is longer than a year"),
        (units.parse_bytes, "1048576TiB", "1048577TiB", "is more than 1 EiB"),
        (units.parse_bps, "1048576TiB/s", "1e30MB/s", "is more than 1 EiB"),
        (units.parse_share, "1e6", "1e30", "is more than 100000000%"),
        (units.parse_bit_rate, "1000Tbit/s", "1001Tbit/s", "is more than 1000 Tbit/s"),
        (units.parse_packet_rate, "1T/s", "1e30", "is more than 1 Tp/s"),
    ],
)
def test_what_no_host_can_have_is_refused_with_the_largest_value(parse, largest, too_large, said):
    assert parse(largest) > 0
    with pytest.raises(ValueError, match=f"{said}.*; write for example"):
        parse(too_large)


@pytest.mark.parametrize("text", ["3", "3 parsecs", "ms", "", "1..5s"])
def test_a_duration_without_a_unit_that_is_known_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"for example .*100ms"):
        units.parse_duration_ns(text)
