"""Intervals from a few independent repetitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import student_reach


def ratio(left: Sequence[float], right: Sequence[float], level: float = 0.95) -> Estimate:
    """The ratio left / right over pairs of the same rounds: the geometric mean with its interval.

    ValueError if any value is not positive.
    """
    if min([*left, *right], default=0.0) <= 0:
        raise ValueError("a ratio needs values over 0")
    logs = student([math.log(over / under) for over, under in zip(left, right, strict=True)], level)
    ends = {name: math.exp(getattr(logs, name)) for name in ("value", "low", "high")}
    return logs.model_copy(update=ends | {"method": f"Student on logarithms, {logs.n} pairs"})


def student(values: Sequence[float], level: float = 0.95) -> Estimate:
    """The mean of at least two values with Student's interval. ValueError with fewer."""
    if len(values) < 2:
        raise ValueError("an interval needs two values at least")
    mean = statistics.fmean(values)
    reach = student_reach(level, len(values) - 1)
    half = reach * statistics.stdev(values) / math.sqrt(len(values))
    method = f"Student, {len(values)} rounds"
    return Estimate(value=mean, low=mean - half, high=mean + half, level=level, n=len(values), method=method)
