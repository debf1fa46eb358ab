"""How often a comparison of two runs is wrong, and how often it finds what is there; by simulation."""

import math

import numpy as np
import pytest

from partywall.core.stats.estimate import Outcome
from partywall.core.stats.quantile import holm
from partywall.run.findings.between import FEWEST_FREE, Logged, spreads
from partywall.run.findings.compare import compare, ratio_of
from partywall.run.values.comparison import Change
from partywall.testing.varied import VariedHost, as_recorded

PAIRS = 60
ALLOWED = 0.05
FOUND = 0.9


def changed(comparison) -> bool:
    return any(cell.change in (Change.WORSE, Change.BETTER) for cell in comparison.cells)


def most_by_chance(share: float, of: int) -> int:
    """A count that is exceeded in one of a thousand cases if `share` is the truth."""
    return math.ceil(share * of + 3.1 * math.sqrt(share * (1 - share) * of))


def none(_random, cells):
    return np.zeros(cells)


def large(random, cells):
    return np.exp(0.8 * random.standard_normal(cells))


def alike(_random, cells):
    return np.full(cells, 1.5)


@pytest.mark.long
@pytest.mark.parametrize("between", [none, as_recorded, large, alike])
@pytest.mark.parametrize("earlier", [2, 4])
def test_two_runs_of_one_host_are_called_different_in_at_most_5_percent(between, earlier):
    """No tolerance: a tolerance makes errors rarer."""
    wrong = 0
    for seed in range(PAIRS):
        host = VariedHost(seed, between=between)
        past = [host.run() for _ in range(earlier)]
        result = compare(host.run(), host.run(), tolerance=0.0, latency_tolerance=0.0, earlier=past)
        wrong += changed(result)
    assert wrong <= most_by_chance(ALLOWED, PAIRS)


def test_the_simulated_runs_differ_as_recorded_ones_do():
    apart = total = 0
    for seed in range(60):
        host = VariedHost(seed)
        first, second = host.run(), host.run()
        for cell, other in zip(first.cells, second.cells, strict=True):
            ratio = ratio_of(cell.isolation, other.isolation)
            apart += not ratio.low <= 1 <= ratio.high
            total += 1
    assert apart / total == pytest.approx(0.064, abs=0.02)


@pytest.mark.parametrize("earlier", [2, 4, 8])
def test_a_planted_10_percent_in_all_cells_is_found(earlier):
    found = 0
    for seed in range(PAIRS):
        host = VariedHost(seed)
        past = [host.run() for _ in range(earlier)]
        found += compare(host.run(keeps=0.9), host.run(), earlier=past).outcome is Outcome.VIOLATED
    assert found >= FOUND * PAIRS


@pytest.mark.long
def test_a_planted_10_percent_in_one_cell_is_found_where_the_comparison_says_so():
    found = said = 0
    for seed in range(2 * PAIRS):
        host = VariedHost(seed)
        past = [host.run() for _ in range(6)]
        at = host.precise(0.01)[0]
        result = compare(host.run(keeps=0.9, cell=at), host.run(), earlier=past)
        cell = next(cell for cell in result.cells if (cell.victim, cell.label) == (f"v{at[0]}", f"n{at[1]}"))
        if cell.found_from <= 0.1:
            said += 1
            found += cell.change is Change.WORSE
    assert said > PAIRS
    assert found >= FOUND * said


def test_a_larger_spread_between_runs_is_estimated_as_such():
    random = np.random.default_rng(5)

    def group(between: float) -> list[Logged]:
        return [Logged(value, 0.01, 0.01, 40) for value in random.normal(0, math.hypot(0.01, between), 400)]

    found = spreads({name: [group(between)] for name, between in {"calm": 0.0, "wild": 0.03}.items()}, 2)
    assert found["calm"].variance < 0.004**2
    assert math.sqrt(found["wild"].variance) == pytest.approx(0.03, rel=0.1)


def test_cells_support_each_other_only_as_far_as_they_are_alike_and_independent():
    random = np.random.default_rng(6)

    def groups(sd: list[float]) -> dict[int, list[list[Logged]]]:
        return {
            at: [[Logged(value, 0.01, 0.01, 40) for value in random.normal(0, one, 4)]] for at, one in enumerate(sd)
        }

    same = spreads(groups([0.01] * 24), 4)
    mixed = spreads(groups(list(0.01 * np.exp(random.standard_normal(24)))), 4)
    alone = spreads(groups([0.01] * 24), 1)
    assert max(spread.freedom for spread in same.values()) <= 3 * 4
    assert min(spread.freedom for spread in same.values()) > max(spread.freedom for spread in mixed.values()) > 3
    assert {spread.freedom for spread in alone.values()} == {3}


@pytest.mark.parametrize("runs", [0, 1, FEWEST_FREE])
def test_a_spread_of_too_few_runs_is_not_estimated(runs):
    assert spreads({"a": [[Logged(0.0, 0.01, 0.01, 40)] * runs]}, 1) == {}


def test_holm_keeps_what_is_significant_after_testing_all():
    assert holm({"a": 0.02, "b": 0.04, "c": 0.001}) == ["c", "a", "b"]
    assert holm({"a": 0.02, "b": 0.04, "c": 0.03}) == []
    assert holm({}) == []
