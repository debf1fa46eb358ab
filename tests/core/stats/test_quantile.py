"""Quantiles agree with scipy.stats, which is too slow to import for every report."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from partywall.core.stats.quantile import normal_reach, ranks, student_reach, student_tail

LEVELS = st.floats(0.01, 0.9999)


@given(level=LEVELS, freedom=st.floats(1, 1e5))
def test_reach_and_tail_are_those_of_students_distribution(level, freedom):
    reach = stats.t.ppf((1 + level) / 2, freedom)
    assert student_reach(level, freedom) == pytest.approx(reach, rel=1e-7)
    assert student_tail(np.array([reach, -reach]), freedom) == pytest.approx(1 - level, rel=1e-6)


@given(level=LEVELS)
def test_normal_reach_is_that_of_the_normal_distribution(level):
    assert normal_reach(level) == pytest.approx(stats.norm.ppf((1 + level) / 2), rel=1e-9)


@given(values=arrays.arrays(float, st.integers(1, 40), elements=st.integers(-3, 3).map(float)))
def test_equal_values_share_their_rank(values):
    assert ranks(values) == pytest.approx(stats.rankdata(values))
