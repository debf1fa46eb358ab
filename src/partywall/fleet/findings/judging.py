"""Decisions about hosts: which are outliers, whether a group is as good as the rest, and whether a new host may join.

A loss is a difference of logarithms below 0: a host whose factor is lower isolates worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partywall.core.stats.estimate import Estimate, Outcome
from partywall.fleet.findings.pooling import Floats, Posterior, fitted

FALSE_DISCOVERIES = 0.05
"""The share of false ones among the outliers that are named, at most."""
FALSE_REJECTIONS = 0.01
"""The share of sound hosts that are refused, at most."""
POWER = 0.9
"""The share of hosts that are worse by the margin and are refused, at least; else nobody is admitted."""
RESERVE = 1.25
"""The time that is advised, over the one in which the margin just shows: how exact it will be is not known exactly."""
MAD = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""
TAKEN_AWAY = 0.02
"""The chance to take a host away from a fleet of sound ones. It is judged again afterwards."""
PATIENCE = 40
"""Hosts in a row that do not differ, after which no more are taken away."""
MIN_HOSTS = 3
"""With fewer, no host differs from the others more than chance may explain."""
FEW = 30
"""Up to here, the spread is estimated without each host."""
Flags = npt.NDArray[np.bool_]


def adjusted(chances: Floats) -> Floats:
    """P-values that hold the false discovery rate, by Benjamini and Hochberg."""
    from scipy import stats  # noqa: PLC0415 - slow to import

    held: Floats = stats.false_discovery_control(chances)
    return held


def outliers(cells: Sequence[tuple[Floats, Floats]], inside: Sequence[Flags] | None = None) -> list[Floats]:
    """The adjusted p-value of each host in each cell. cells: values and standard errors, each of shape (hosts,).

    A host is compared with the others that make up the fleet of its cell. All cells are judged together. inside: what
    `sound` says of each cell, if it is known.
    """
    held = [np.ones(len(values)) for values, _ in cells]
    judged = [place for place, (values, _) in enumerate(cells) if len(values) >= MIN_HOSTS]
    if not judged:
        return held
    known = {place: sound(*cells[place]) if inside is None else inside[place] for place in judged}
    every = adjusted(np.concatenate([_beyond(*cells[place], known[place]) for place in judged]))
    ends = np.cumsum([len(cells[place][0]) for place in judged])[:-1]
    for place, chances in zip(judged, np.split(every, ends), strict=True):
        held[place] = chances
    return held


def sound(values: Floats, errors: Floats) -> Flags:
    """The hosts that make up the fleet. More than half of the hosts do, whatever they measure.

    Several bad hosts widen the spread in which each of them hides. So hosts are taken away one by one, the one that is
    farthest from the middle first, and each is compared with those that are left. The last one that differs counts,
    with all before it (Rosner's generalised test, 1983).
    """
    count = len(values)
    middle = np.median(values)
    scale = MAD * float(np.median(np.abs(values - middle)))
    order = np.argsort(-np.abs(values - middle) / np.hypot(errors, scale), kind="stable")
    fleet, left, last = Posterior(values, errors), np.ones(count, bool), 0
    for removed, host in enumerate(order[: (count - 1) // 2], start=1):
        if removed - last > PATIENCE:
            break
        left[host] = False
        fleet.leave_out(int(left[:host].sum()))
        chance = fleet.chance_beyond(values[host : host + 1], errors[host : host + 1])[0]
        # Any of those that were left could have been the farthest one.
        if chance * (count - removed + 1) <= TAKEN_AWAY:
            last = removed
    inside = np.ones(count, bool)
    inside[order[:last]] = False
    return inside


def _beyond(values: Floats, errors: Floats, inside: Flags) -> Floats:
    """The p-value of each host against the others that make up the fleet."""
    if inside.sum() > FEW:
        return Posterior(values[inside], errors[inside]).chance_beyond(values, errors, inside.astype(float))
    # In a small fleet, a host also widens the spread that it is judged by, so the spread is without it too.
    chances = [
        Posterior(values[others], errors[others]).chance_beyond(values[place : place + 1], errors[place : place + 1])[0]
        for place in range(len(values))
        for others in [inside & (np.arange(len(values)) != place)]
    ]
    return np.array(chances)


@dataclass(frozen=True)
class Gated:
    """A group against the rest. change: of the logarithm of the factor; negative is worse. outcome: of this cell."""

    change: Estimate
    outcome: Outcome


def gate(values: Floats, errors: Floats, is_canary: Flags, margin: float, level: float = 0.95) -> Gated:
    """Whether canaries are worse than the rest by less than a margin. margin: a share, such as 0.03.

    The group is judged as no worse only if the whole interval is above the margin. ValueError if either group is empty.
    """
    if not 0 < is_canary.sum() < len(values):
        raise ValueError("a gate needs canaries and others")
    groups = np.column_stack([is_canary, ~is_canary]).astype(float)
    # One-sided at `level`, as is usual for non-inferiority.
    change = fitted(values, errors, groups).contrast(np.array([1.0, -1.0]), 2 * level - 1)
    return Gated(change, _against(change, margin))


def paired(before: Floats, after: Floats, errors: Floats, margin: float, level: float = 0.95) -> Gated:
    """The same for one fleet at two dates, by differences of the same hosts. errors: of the differences."""
    change = fitted(after - before, errors).contrast(np.ones(1), 2 * level - 1)
    return Gated(change, _against(change, margin))


def _against(change: Estimate, margin: float) -> Outcome:
    bound = math.log1p(-margin)
    if change.low > bound:
        return Outcome.HOLDS
    return Outcome.VIOLATED if change.high < bound else Outcome.INCONCLUSIVE


@dataclass(frozen=True)
class Admitted:
    """A new host against the fleet. chance: that a sound host is as bad, or worse; least: the least value to pass.

    shows: the smallest loss that would have shown, as a share.
    """

    chance: float
    least: float
    shows: float
    outcome: Outcome


def admit(fleet: Posterior, value: float, error: float, margin: float, cells: int = 1) -> Admitted:
    """Whether a host may take work, by the fleet's prediction for a measurement as exact as this one.

    margin: a share that must not be missed. cells: how many are judged at once; the error is divided among them.
    """
    wanted = FALSE_REJECTIONS / cells
    chance, least = float(fleet.chance_below(value, error)), fleet.quantile(wanted, error)
    shows = -math.expm1(-_reach(fleet, error, cells))
    if chance < wanted:
        return Admitted(chance, least, shows, Outcome.VIOLATED)
    return Admitted(chance, least, shows, Outcome.HOLDS if shows <= margin else Outcome.INCONCLUSIVE)


def exact(fleet: Posterior, margin: float, cells: int = 1) -> float:
    """The largest standard error of a new host's measurement with which a loss of the margin shows.

    0 if it does not show with an error of 0 either, because the hosts of the fleet differ too much.
    """
    from scipy import optimize  # noqa: PLC0415 - slow to import

    loss = -math.log1p(-margin)
    if _reach(fleet, 0.0, cells) >= loss:
        return 0.0
    return float(optimize.brentq(lambda error: _reach(fleet, error, cells) - loss, 0.0, loss))


def _reach(fleet: Posterior, error: float, cells: int) -> float:
    """The smallest loss, in logarithms, with which a host is refused as often as `POWER` says."""
    return fleet.quantile(POWER, error) - fleet.quantile(FALSE_REJECTIONS / cells, error)


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of several cells: the worst one."""
    order = (Outcome.VIOLATED, Outcome.INCONCLUSIVE)
    return next((outcome for outcome in order if outcome in outcomes), Outcome.HOLDS)
