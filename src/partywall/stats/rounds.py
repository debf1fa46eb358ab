"""Intervals from a few repeats that are far enough apart to be independent: rounds of a study."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy import stats as distributions

from partywall.model.finding import Estimate


def student(values: Sequence[float], level: float = 0.95) -> Estimate:
    """The mean of two values or more with Student's interval. ValueError with fewer."""
    if len(values) < 2:
        raise ValueError("an interval needs two values at least")
    mean = statistics.fmean(values)
    reach = float(distributions.t.ppf((1 + level) / 2, len(values) - 1))
    half = reach * statistics.stdev(values) / math.sqrt(len(values))
    method = f"Student, {len(values)} rounds"
    return Estimate(value=mean, low=mean - half, high=mean + half, level=level, n=len(values), method=method)
