import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.agent.metric import Metric
from partywall.core.report import figures
from partywall.core.stats.estimate import Estimate
from partywall.run.document.scenario import Victim
from partywall.run.report.figures import scale_of


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=40, method="test")


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.8216, 0.8113, 0.8319, "0.82 ± 0.01"),
        (0.8216, 0.8076, 0.8356, "0.822 ± 0.014"),
        (1.0004, 0.9974, 1.0034, "1.000 ± 0.003"),
        (0.82, 0.75, 0.84, "0.82 (0.75 to 0.84)"),
        (0.335, 0.131, 0.803, "0.34 (0.13 to 0.81)"),
        (7900.0, 7500.0, 8300.0, "7\u202f900 ± 400"),
        (-0.02, -0.32, 0.28, "0.0 ± 0.3"),
        (0.4, 0.0, 7e6, "not known"),
        (0.004, 0.0, 0.02, "at most 0.02"),
        (0.5, 0.5, 0.5, "0.5000 ± 0.0000"),
    ],
)
def test_digits_follow_the_interval(value, low, high, text):
    assert figures.ratio(estimate(value, low, high)) == text


def test_shares_are_written_in_percent_with_the_half_width_in_the_same_unit():
    assert figures.percent(estimate(0.18, 0.17, 0.19)) == "18 % ± 1"
    assert figures.percent(estimate(0.18, 0.17, 0.19), sign=True) == "+18 % ± 1"
    assert figures.percent(estimate(-0.18, -0.19, -0.17)) == "−18 % ± 1"


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.12, 0.10, 0.14, "+12 % ± 2"),
        (0.2, -0.4, 1.3, "+20 % (−40 to +130)"),
        (23.564, 10.564, 51.179, "25 times (11 to 53)"),
        (0.0, -0.99, 5100.0, "not known"),
        (99.0, 5.4, 960.0, "at least 6.4 times"),
        (1.0, 0.2, 40.0, "at least 1.2 times"),
        (40.0, -0.5, 5100.0, "not known"),
        (0.0, -1.0, 100.0, "not known"),
        (50.0, 9.67, 900.0, "at least 10 times"),
        (-0.99, -0.9999, -0.991, "at most 0.009 times"),
        (-0.9, -0.9999, -0.9889, "at most 0.012 times"),
    ],
)
def test_a_latency_impact_is_a_share_a_multiple_or_not_known(value, low, high, text):
    assert figures.impact(estimate(value, low, high)) == text


def test_an_interval_without_bounds_is_said_to_be_none():
    assert figures.ratio(estimate(0.82, -math.inf, math.inf)) == "0.8200 (no interval yet)"


def test_loss_turns_the_interval_round():
    lost = figures.loss(estimate(0.8, 0.7, 0.85))
    assert (lost.low, lost.high) == pytest.approx((0.15, 0.3))


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e5))
def test_a_written_half_width_is_never_much_narrower_than_the_one_found(value, half):
    text = figures.interval(value, value - half, value + half)
    written = float(re.search(r"± ([\d\u202f.]+)$", text)[1].replace("\u202f", ""))
    assert 0.949 <= written / half <= 1.251


@given(st.floats(0.01, 100), st.floats(0.001, 1), st.floats(2, 50))
def test_a_lopsided_interval_is_written_out_and_contains_the_one_found(value, below, ratio):
    text = figures.interval(value, value - below, value + below * ratio)
    low, high = (
        float(end.replace("−", "-").replace("\u202f", "")) for end in re.search(r"\((.+) to (.+)\)", text).groups()
    )
    assert low <= value - below + 1e-9
    assert high >= value + below * ratio - 1e-9


def test_time_per_operation_turns_rate_and_interval_round():
    scale = figures.scale_of_kernel({"kind": "per_operation", "label": "ns per access"})
    shown = scale.show_estimate(estimate(1e7, 0.8e7, 1.25e7))
    assert (shown.value, shown.low, shown.high) == pytest.approx((100, 80, 125))
    assert scale.direction == "less is better"


def test_a_stalled_victim_takes_for_ever_per_operation_instead_of_failing():
    assert figures.Scale("ns", inverse=True).show(0.0) == math.inf


def test_a_rate_is_shown_in_the_unit_of_its_kernel():
    kernels = {"memory-copy": {"figure": {"kind": "rate", "label": "MB/s", "divisor": 1e6}}}
    scale = scale_of(Victim(probe="memory-copy"), kernels)
    assert figures.rate(estimate(7.9e9, 7.8e9, 8.0e9), scale) == "7\u202f900 ± 100 MB/s"


def test_a_command_is_shown_in_the_unit_its_metric_names():
    victim = Victim(command=("redis-benchmark",), metric=Metric(regex="(.*)", unit="requests/s"))
    assert scale_of(victim, {}).label == "requests/s"


def test_a_band_has_digits_that_follow_its_width():
    assert figures.span(0.99412, 1.00588) == "0.994 to 1.006"
    assert figures.span(0.9, 1.1) == "0.90 to 1.10"


def test_a_band_of_changes_goes_from_a_fall_to_a_rise():
    assert figures.change_span(-0.0849, 0.0927) == "−8 to +9 %"
    assert figures.change_span(-0.00495, 0.00497) == "−0.50 to +0.50 %"
    assert figures.change_span(-0.59, 1.444) == "−59 to +144 %"
