import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, linalg

from partywall.core.stats.interval import (
    _PERSISTENCE,
    _WHITE_SHARE,
    FEWEST,
    PROMISED,
    _shapes,
    correlation_interval,
    linearised_ratio,
    mean_interval,
    p_values,
    ratio_of_means,
)

BENCH = Path(__file__).parents[3] / "benches" / "honesty_simulation.py"
values = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 6)), min_size=8, max_size=40).map(np.array)


@pytest.fixture(scope="module")
def simulation():
    spec = importlib.util.spec_from_file_location("honesty_simulation", BENCH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def chosen(noises, *names, **changed):
    """Noises of the simulation by their names, changed."""
    by_name = {noise.name: noise for noise in noises}
    return [replace(by_name[name], **changed) for name in names]


@pytest.fixture(scope="module")
def table(simulation):
    """Coverage where the promise begins, and below. Most blocks and noises are left to benches/honesty.py.

    A fit for each replication takes its time, so of slots one noise of each kind is tried.
    """
    simple = [noise for noise in simulation.NOISES if not isinstance(noise, simulation.Slots)]
    slots = chosen(simulation.NOISES, "slots, 8 % at 0", "slots of 60 ms, 3 treatments", blocks=(PROMISED,), stops=())
    after = chosen(simulation.AFTER, "3 treatments, 8% after", "8 treatments, 8% + 4% after", blocks=(PROMISED,))
    stopped = chosen(simple, "white", "AR(1) 0.7", "t(3)", "8 % of slots at 0", blocks=(), stops=(200,))
    fixed = [replace(noise, blocks=(20, PROMISED), stops=()) for noise in simple]
    return simulation.coverage_table([*fixed, *stopped, *slots, *after], quick=True)


@pytest.mark.long
def test_intervals_cover_between_93_and_97_percent_wherever_that_is_promised(table):
    promised = [row for row in table if row.promised]
    assert len(promised) == 22
    assert {row.stopped for row in promised} == {True, False}
    assert [(row.noise, row.blocks, row.coverage) for row in promised if not row.honest] == []


@pytest.mark.long
def test_where_nothing_is_promised_intervals_are_still_intervals(table):
    below = [row.coverage for row in table if row.blocks < PROMISED]
    assert len(below) == 14
    assert min(below) > 0.7


@pytest.mark.long
def test_carry_over_is_reported_where_a_run_must_report_it_and_seldom_where_there_is_none(simulation):
    names = "3 treatments, none after", "8 treatments, none after", "3 treatments, 16% + 8% after"
    reports = simulation.carry_over_table(chosen(simulation.AFTER, *names), quick=True)
    assert {report.must for report in reports} == {True, False, None}
    assert [(report.noise, report.blocks, report.share) for report in reports if not report.right] == []


@pytest.mark.parametrize(("white", "persistence"), [(0, 0), (0, 9), (0, -1), (1, -1), (3, 3)])
def test_variances_of_the_transforms_are_those_of_an_autoregression_in_noise(white, persistence):
    n = 25
    cosine, mean, _ = _shapes(n)
    share, rho = _WHITE_SHARE[white], _PERSISTENCE[persistence]
    spectrum = white * len(_PERSISTENCE) + persistence % len(_PERSISTENCE)
    covariance = (1 - share) * linalg.toeplitz(rho ** np.arange(n)) + share * np.eye(n)
    basis = fft.dct(np.eye(n), norm="ortho", axis=0)
    brute = np.diag(basis @ covariance @ basis.T)
    assert np.isclose(mean[spectrum], brute[0])
    assert np.allclose(cosine[spectrum], brute[1 : cosine.shape[1] + 1])


def test_stalls_of_a_victim_are_not_taken_for_mishaps_of_the_host():
    random = np.random.default_rng(3)
    rates = np.exp(0.01 * random.standard_normal((2, 300, 60)) - 0.15 * (random.random((2, 300, 60)) < 0.02))
    rates[0] *= np.where(random.random((300, 60)) < 0.08, 0.03, 1)
    result = [ratio_of_means(treated, baseline) for treated, baseline in zip(*rates, strict=True)]
    truth = 1 - 0.08 * 0.97
    assert np.mean([f.value for f in result]) == pytest.approx(truth, abs=0.005)
    assert np.mean([f.low <= truth <= f.high for f in result]) > 0.88


def test_the_factor_is_continuous_where_a_slot_comes_to_a_stand():
    random = np.random.default_rng(2)
    baseline, treated = np.exp(0.005 * random.standard_normal((2, 60)))
    factors = []
    for rest in (0.01, 0.001, 0.0):
        treated[:6] = rest
        factors.append(ratio_of_means(treated, baseline).value)
    assert factors == sorted(factors, reverse=True)
    assert factors[0] - factors[-1] == pytest.approx(0.001, rel=0.05)


@given(values, values)
@settings(deadline=None)
def test_the_linearised_ratio_has_the_ratio_of_means_as_its_mean(treated, baseline):
    n = min(len(treated), len(baseline))
    first, second = np.abs(treated[:n]), np.abs(baseline[:n]) + 1
    assert linearised_ratio(first, second).mean() == pytest.approx(first.mean() / second.mean(), rel=1e-6, abs=1e-9)


@given(values, st.floats(0.01, 100), st.floats(-100, 100))
@settings(deadline=None)
def test_scaling_and_shifting_a_series_scales_and_shifts_its_interval(series, scale, shift):
    before, after = mean_interval(series), mean_interval(scale * series + shift)
    room = 1e-6 * (1 + abs(shift) + scale * float(np.abs(series).max()))
    assert after.value == pytest.approx(scale * before.value + shift, abs=room)
    assert after.half_width == pytest.approx(scale * before.half_width, abs=room)


@given(values)
@settings(deadline=None)
def test_negating_a_series_mirrors_its_interval(series):
    before, after = mean_interval(series), mean_interval(-series)
    room = 1e-9 * (1 + float(np.abs(series).max()))
    assert (after.low, after.high) == pytest.approx((-before.high, -before.low), abs=room)


@given(values)
@settings(deadline=None)
def test_reversing_time_changes_nothing(series):
    before, after = mean_interval(series), mean_interval(series[::-1])
    assert after.half_width == pytest.approx(before.half_width, rel=1e-6, abs=1e-9)


def test_the_p_value_is_five_percent_at_the_edge_of_the_interval():
    series = np.random.default_rng(5).standard_normal(40)
    assert p_values(series, mean_interval(series).high) == pytest.approx(0.05, abs=1e-4)


def test_a_series_that_never_moves_has_an_interval_of_no_width():
    result = mean_interval(np.full(10, 2.5))
    assert (result.low, result.value, result.high, result.n_effective) == (2.5, 2.5, 2.5, None)
    assert p_values(np.zeros(10)) == pytest.approx(1)


def test_correlated_blocks_are_worth_fewer():
    random = np.random.default_rng(6)
    drifting = np.convolve(random.standard_normal(220), np.ones(10), "valid")[:200]
    assert mean_interval(drifting).n_effective < 80
    assert mean_interval(random.standard_normal(200)).n_effective > 120


def test_too_few_blocks_are_refused_with_the_number_needed():
    with pytest.raises(ValueError, match=f"at least {FEWEST}"):
        mean_interval(np.ones(3))


def test_a_value_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="1 not finite"):
        mean_interval(np.array([1.0, 2.0, math.nan, 3.0]))


def test_stalled_slots_count_in_the_ratio_of_means():
    treated = np.tile([0.0, 1.0], 20)
    result = ratio_of_means(treated, np.full(40, 1.0))
    assert result.value == 0.5
    assert 0 <= result.low < 0.5 < result.high


def test_a_victim_that_always_stalls_has_factor_zero_and_an_upper_bound():
    result = ratio_of_means(np.zeros(30), np.ones(30))
    assert (result.value, result.low) == (0, 0)
    assert result.high == pytest.approx(1 - 0.05 ** (1 / 30))


def test_a_baseline_without_any_work_cannot_be_compared_with():
    with pytest.raises(ValueError, match="baseline did no work"):
        ratio_of_means(np.ones(30), np.zeros(30))


def test_correlation_finds_what_moves_together_and_not_what_does_not():
    random = np.random.default_rng(8)
    x, y = random.standard_normal((2, 200))
    assert correlation_interval(x, x + y).low > 0.5
    unrelated = correlation_interval(x, y)
    assert unrelated.low < 0 < unrelated.high
    assert correlation_interval(x, np.ones(200)) is None
