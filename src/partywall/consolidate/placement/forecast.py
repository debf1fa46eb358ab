"""Each guest's CPU demand in the near future, from its recent samples. Pure.

The mean lies between the latest sample and the recent mean. The variance is how far such forecasts were wrong recently,
and never less than that of a fraction of a core.
"""

from __future__ import annotations

import numpy as np

from partywall.consolidate.placement.state import Floats, Forecast

WINDOW = 12
"""Recent samples."""
LATEST = 0.4
"""Weight of the latest sample."""
FLOOR = 0.01
"""Least standard deviation, as a share of a guest's CPUs."""


def forecast(history: Floats, cpus: Floats) -> Forecast:
    """history: (guests, samples) of demand in cores, the latest last."""
    recent = history[:, -WINDOW:]
    mean = LATEST * recent[:, -1] + (1 - LATEST) * recent.mean(axis=1)
    if recent.shape[1] < 3:
        return Forecast(mean, (0.25 * cpus) ** 2)
    # The mean square of deviations from the forecast holds both noise and drift.
    errors = ((recent - mean[:, None]) ** 2).mean(axis=1)
    return Forecast(np.minimum(mean, cpus), np.maximum(errors, (FLOOR * cpus) ** 2))
