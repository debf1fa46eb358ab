import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.core.stats.histogram import Histogram, bucket_bounds, bucket_of
from partywall.run.findings.latency import latencies
from partywall.run.values.observation import Observation, Observations


def observed(block, treatment, values):
    counts = {}
    for value in values:
        counts[bucket_of(int(value))] = counts.get(bucket_of(int(value)), 0) + 1
    return Observation("t", block, 0, treatment, block, block + 1, 1.0, 1.0, 1.0, None, Histogram(counts))


@given(st.integers(0, 2**63 - 1))
def test_every_value_lies_in_its_bucket_and_buckets_are_narrow(value):
    low, high = bucket_bounds(bucket_of(value))
    assert low <= value <= high
    assert high - low <= low // 256


def test_buckets_follow_each_other_without_gap():
    assert all(bucket_bounds(i)[1] + 1 == bucket_bounds(i + 1)[0] for i in range(12_000))


def made(blocks, operations, factor, seed=2):
    random = np.random.default_rng(seed)
    pairs = [
        (random.lognormal(10, 0.5, operations) * factor, random.lognormal(10, 0.5, operations)) for _ in range(blocks)
    ]
    treated = Observations.of(observed(b, "x", first) for b, (first, _) in enumerate(pairs))
    return treated, Observations.of(observed(b, "none", second) for b, (_, second) in enumerate(pairs))


def test_a_shift_of_all_latencies_is_found_at_each_percentile():
    result = latencies(*made(40, 500, 1.2)).impacts
    assert set(result) == {"p50", "p90", "p99", "p99.9"}
    assert all(e.low < 0.2 < e.high for e in result.values())
    assert result["p50"].half_width < result["p99"].half_width < 0.2


def test_the_latency_itself_is_stated_with_its_interval():
    own = latencies(*made(40, 500, 1.2)).treated
    assert set(own) == {"p50", "p90", "p99", "p99.9"}
    for name, reach in (("p50", 0.0), ("p90", 1.2816), ("p99", 2.3263)):
        true = 1.2 * np.exp(10 + 0.5 * reach)
        assert own[name].low < true < own[name].high
        assert own[name].half_width < 0.05 * true


def test_a_percentile_that_too_few_operations_lie_beyond_is_left_out():
    assert set(latencies(*made(20, 50, 1.0)).impacts) == {"p50", "p90"}


def test_without_operations_there_is_no_latency_impact():
    assert latencies(*made(20, 0, 1.0)).impacts == {}


@pytest.mark.long
def test_the_interval_of_the_median_covers_despite_correlated_blocks():
    random = np.random.default_rng(9)
    covered = own_covered = 0
    for _ in range(120):
        level = np.zeros(60)
        for at in range(1, 60):
            level[at] = 0.5 * level[at - 1] + 0.05 * random.standard_normal()
        treated = Observations.of(observed(b, "x", random.lognormal(10 + level[b], 0.2, 40)) for b in range(60))
        plain = Observations.of(observed(b, "none", random.lognormal(10, 0.2, 40)) for b in range(60))
        both = latencies(treated, plain)
        result, own = both.impacts["p50"], both.treated["p50"]
        covered += result.low <= 0 <= result.high
        own_covered += own.low <= np.exp(10) <= own.high
    assert 105 <= covered <= 120
    assert 105 <= own_covered <= 120


def test_of_very_many_blocks_adjacent_ones_are_taken_together(monkeypatch):
    pairs = made(120, 200, 1.2)
    alone = latencies(*pairs).impacts
    monkeypatch.setattr("partywall.run.findings.latency.MOST", 50)
    together = latencies(*pairs).impacts
    assert alone.keys() == together.keys()
    for name, result in together.items():
        assert (result.value, result.n) == (alone[name].value, 120)
        assert result.half_width == pytest.approx(alone[name].half_width, rel=0.5)
