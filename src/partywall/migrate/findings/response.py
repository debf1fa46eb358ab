"""Response times of a service during a move: what was seen, and what is to be expected. Pure.

A request that is due while the guest stands still waits until it goes on. All others take as long as before the move,
and longer by what the work of a move costs the guest. So the distribution during a move is a mixture of three: what
was seen before, both pauses, and the slower answers between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""At which a distribution of response times is kept."""
P99 = 0.99
POINTS = 400


@dataclass(frozen=True)
class Service:
    """A service before its guest moves. quantiles_s: response times at SHARES.

    rate: answers a second. users: how many users wait for an answer before they ask again; None if requests are due
    on a schedule.
    """

    quantiles_s: tuple[float, ...]
    rate: float
    users: int | None = None


def quantiles(waits: Sequence[float] | Floats) -> tuple[float, ...]:
    """Response times at SHARES; empty if there are none."""
    return tuple(map(float, np.quantile(waits, SHARES))) if len(waits) else ()


def weighted(values: Floats, counts: Floats) -> tuple[float, ...]:
    """As `quantiles`, of values that were counted."""
    if not len(values):
        return ()
    order = np.argsort(values)
    ranks = np.cumsum(counts[order])
    places = np.searchsorted(ranks, np.array(SHARES) * ranks[-1])
    return tuple(map(float, values[order][np.minimum(places, len(values) - 1)]))


def until_answered(due: npt.NDArray[np.int64], answered: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How long a client waits that asks again until it is answered. answered: 0 if a request never was.

    A request counts until its own answer, or that of the next request that was answered. Requests at the end that
    nothing answered are left out.
    """
    never = np.iinfo(np.int64).max
    at = np.where(answered > 0, answered, never)
    first = np.minimum.accumulate(at[::-1])[::-1]
    known = first < never
    waits: npt.NDArray[np.int64] = first[known] - due[known]
    return waits


def p99_during(service: Service, slower_s: Sequence[float], pauses_s: Sequence[float], length_s: float) -> float:
    """The p99 response during a move of a length. slower_s: by how much, at SHARES, the work of a move slows answers.

    Users who wait for an answer have one request each in a pause, however long it is.
    """
    shares = (np.arange(POINTS) + 0.5) / POINTS
    usual = np.interp(shares, SHARES, np.array(service.quantiles_s) + np.array(slower_s))
    pauses = [pause for pause in pauses_s if pause > 0]
    calm_s = max(0.0, length_s - sum(pauses))
    values, weights = [usual], [np.full(POINTS, service.rate * calm_s / POINTS)]
    middle = float(np.median(service.quantiles_s))
    for pause in pauses:
        if service.users is None:
            values.append(middle + pause * shares)
            weights.append(np.full(POINTS, service.rate * pause / POINTS))
        else:
            values.append(np.array([middle + pause]))
            weights.append(np.array([float(service.users)]))
    every, weight = np.concatenate(values), np.concatenate(weights)
    order = np.argsort(every)
    ranks = np.cumsum(weight[order])
    if not ranks[-1]:
        return float(every.max())
    return float(every[order][min(len(every) - 1, int(np.searchsorted(ranks, P99 * ranks[-1])))])
