import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partywall.core.report import latency
from partywall.core.stats.histogram import Histogram, bucket_of
from partywall.run.values.observation import Latencies


def histogram(values: list[int]) -> Histogram:
    return Latencies.of([Histogram({bucket_of(value): 1}) for value in values]).merged


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_is_within_a_bucket_of_the_exact_one(values, share):
    exact = sorted(values)[max(-(-int(share * len(values) * 1e9) // 10**9) - 1, 0)]
    neighbours = [abs(latency.quantiles(histogram(values), [share])[0] - value) <= value / 256 + 1 for value in values]
    assert any(neighbours)
    assert latency.quantiles(histogram(values), [share])[0] >= exact * (1 - 1 / 256) - 1


def test_an_empty_histogram_has_no_quantiles():
    assert latency.quantiles(Histogram({}), [0.5]) == []


def test_a_percentile_beyond_which_nothing_lies_is_not_reported():
    assert latency.known_quantiles({5: 999}, (0.5, 0.99, 0.999)) == [
        *latency.quantiles(Histogram({5: 1}), [0.5]) * 2,
        None,
    ]
    assert None not in latency.known_quantiles({5: 1000}, (0.5, 0.99, 0.999))
    assert [value is None for value in latency.known_quantiles({5: 1}, (0.5, 0.9))] == [False, True]
    assert latency.known_quantiles({}, (0.5, 0.9)) == [None, None]


def test_the_tail_is_drawn_only_as_far_as_ten_operations_lie_beyond():
    shares = latency.tail_shares(Histogram({5: 1000}))
    assert shares[0] == 0.0
    assert 0.989 < shares[-1] <= 0.99


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=20))
def test_a_histogram_of_arrays_counts_each_bucket_once(pairs):
    buckets, counts = (np.array([pair[at] for pair in pairs], dtype=np.uint16) for at in (0, 1))
    result = Histogram(arrays=(buckets, counts))
    expected = {bucket: sum(count for other, count in pairs if other == bucket) for bucket, _ in pairs}
    assert result == Histogram(expected)
    assert Latencies.of([result, result]).merged.counts == {bucket: 2 * count for bucket, count in expected.items()}
