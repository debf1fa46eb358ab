"""Quantiles of the normal and Student's distribution, from scipy's special functions, and tests of many at once.

`scipy.stats` has them too, but takes half a second to import, which would delay every report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

Name = TypeVar("Name")

ALPHA = 0.05
"""The largest probability that any of several tests finds what is not there."""


def student_reach(level: float, freedom: float) -> float:
    """Standard errors on either side of the mean that contain `level` of Student's distribution."""
    return float(special.stdtrit(freedom, (1 + level) / 2))


def normal_reach(level: float) -> float:
    """Standard deviations on either side of the mean that contain `level` of the normal distribution."""
    return float(special.ndtri((1 + level) / 2))


def student_tail(distance: NDArray[np.float64], freedom: float) -> NDArray[np.float64]:
    """Probability that Student's distribution is at least `distance` standard errors from its mean, on either side."""
    return np.asarray(2 * special.stdtr(freedom, -np.abs(distance)), dtype=np.float64)


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1. Equal values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2)[place], dtype=np.float64).reshape(values.shape)


def holm(p_values: Mapping[Name, float], alpha: float = ALPHA) -> list[Name]:
    """Names that remain significant after testing all (Holm 1979), whatever the dependence between the tests."""
    kept: list[Name] = []
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > alpha / (len(p_values) - place):
            break
        kept.append(name)
    return kept
