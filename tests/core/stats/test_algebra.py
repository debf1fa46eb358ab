"""Matrices are multiplied in one thread, and afterwards in as many as before."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from partywall.core.stats import interval
from partywall.core.stats.algebra import one_thread


def threads() -> set[int]:
    """How many threads each library that multiplies would use."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two():
    with threadpool_limits(2, user_api="blas"):
        if threads() != {2}:
            pytest.skip("NumPy's library for matrices cannot use two threads here")
        yield


def test_inside_there_is_one_thread_and_afterwards_there_are_as_many_as_before():
    with one_thread(), one_thread():
        assert threads() == {1}
    assert threads() == {2}


def test_an_error_inside_leaves_as_many_threads_as_before():
    with pytest.raises(ValueError, match="wrong"), one_thread():
        raise ValueError("wrong")
    assert threads() == {2}


def test_an_interval_is_computed_in_one_thread(monkeypatch):
    seen, own = [], interval.special.softmax

    def softmax(*args, **options):
        seen.append(threads())
        return own(*args, **options)

    monkeypatch.setattr(interval.special, "softmax", softmax)
    interval.mean_interval(np.random.default_rng(1).normal(size=50))
    assert seen == [{1}]
    assert threads() == {2}
