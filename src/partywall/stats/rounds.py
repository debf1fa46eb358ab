"""Intervals from a few repeats that are far enough apart to be independent: rounds of a study."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import scipy

from partywall.model.finding import Estimate


def ratio(left: Sequence[float], right: Sequence[float], level: float = 0.95) -> Estimate:
    """Left over right, pairs of the same rounds: the geometric mean with its interval. ValueError if any is not > 0."""
    if min([*left, *right], default=0.0) <= 0:
        raise ValueError("a ratio needs values over 0")
    logs = student([math.log(over / under) for over, under in zip(left, right, strict=True)], level)
    ends = {name: math.exp(getattr(logs, name)) for name in ("value", "low", "high")}
    return logs.model_copy(update=ends | {"method": f"Student on logarithms, {logs.n} pairs"})


def student(values: Sequence[float], level: float = 0.95) -> Estimate:
    """The mean of two values or more with Student's interval. ValueError with fewer."""
    if len(values) < 2:
        raise ValueError("an interval needs two values at least")
    mean = statistics.fmean(values)
    reach = float(scipy.stats.t.ppf((1 + level) / 2, len(values) - 1))
    half = reach * statistics.stdev(values) / math.sqrt(len(values))
    method = f"Student, {len(values)} rounds"
    return Estimate(value=mean, low=mean - half, high=mean + half, level=level, n=len(values), method=method)
