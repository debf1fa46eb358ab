"""Predicted loss of a guest's throughput to its neighbours, from measured isolation factors. Pure.

A guest that was measured at an isolation factor f while neighbours used a resource fully loses (1 − f)·u to neighbours
that use the share u of it. Losses to several neighbours and resources are added. That is never less than the product of
their factors says, so the sum errs on the safe side. The lower end of a factor's interval is used where it is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partywall.consolidate.document import GuestSpec
from partywall.consolidate.placement.state import Floats, Ints


def factors(guests: Sequence[GuestSpec]) -> tuple[Floats, Floats]:
    """(loss, use), each (guests, resources): what a guest loses while neighbours use all of it; what it uses."""
    resources = sorted({name for guest in guests for name in guest.suffers})
    loss = [[_loss(guest, name) for name in resources] for guest in guests]
    use = [[guest.uses.get(name, 0.0) for name in resources] for guest in guests]
    shape = (len(guests), len(resources))
    return np.array(loss, float).reshape(shape), np.array(use, float).reshape(shape)


def between(loss: Floats, use: Floats) -> Floats:
    """(guests, guests): what the row's guest loses to the column's guest."""
    harm: Floats = loss @ use.T
    np.fill_diagonal(harm, 0.0)
    return harm


def _loss(guest: GuestSpec, resource: str) -> float:
    measured = guest.suffers.get(resource)
    if measured is None:
        return 0.0
    return max(0.0, 1.0 - (measured.factor if measured.low is None else measured.low))


def tolerance(guests: Sequence[GuestSpec]) -> Floats:
    """The loss that each guest's goals allow; inf without a goal.

    A p99 grows as throughput falls, so a p99 of half its goal tolerates a loss of half.
    """
    return np.array([min(_by_isolation(guest), _by_p99(guest)) for guest in guests])


def _by_isolation(guest: GuestSpec) -> float:
    return math.inf if guest.slo.isolation is None else 1.0 - guest.slo.isolation


def _by_p99(guest: GuestSpec) -> float:
    if guest.slo.p99 is None or guest.p99 is None:
        return math.inf
    return max(0.0, 1.0 - guest.p99 / guest.slo.p99)


def losses(loss: Floats, use: Floats, at: Ints) -> Floats:
    """The predicted loss of each guest at a placement."""
    used = np.zeros((int(at.max(initial=-1)) + 1, use.shape[1]))
    np.add.at(used, at, use)
    return np.asarray((loss * (used[at] - use)).sum(axis=1))
