"""Each consumer's watts. Pure.

The watts of activity are divided by the Shapley value: a consumer gets the mean of the power that it adds, over all
orders in which the consumers could be switched on. Shares add up to the whole, and two consumers that do the same get
the same. Because cores that are busy already make the next one cheaper, neither "switched on first" nor "switched off
last" alone is fair. `judged` measures the same quantity by experiment: consumers are switched on in random order.

Each consumer is taken as threads that are busy independently. Of n cores the (k+1)th costs C(k+1) − C(k), so a share is
an integral over the probability q with which each other consumer is present (Owen's multilinear extension), which is
exact by Gauss-Legendre quadrature.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partywall.core.stats.algebra import one_thread
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.rounds import student
from partywall.power.findings.fitting import Observation
from partywall.power.findings.meter import NDArrayBool, cpu_rows
from partywall.power.values import Activity, Array, Attribution, NodeModel, Share, Slot

REST = "everything else"
NOTHING_S = 1e-6
"""CPU time below this is none: idle power is divided evenly then."""


@dataclass(frozen=True)
class Usage:
    """Busy cores of each consumer, and of the rest of the host, in each interval. shape (intervals, consumers)."""

    names: tuple[str, ...]
    busy: Array
    lengths_s: Array
    cpus: int

    @property
    def cpu_s(self) -> Array:
        """CPU seconds of each consumer."""
        return np.asarray(self.lengths_s @ self.busy, dtype=np.float64)

    def during(self, keep: NDArrayBool) -> Usage:
        return Usage(self.names, self.busy[keep], self.lengths_s[keep], self.cpus)


def usage(activity: Sequence[Activity]) -> Usage:
    """What each consumer used in each interval between two readings of the CPU time."""
    names = tuple(activity[0].consumers_s)
    lengths = np.maximum(np.diff([each.time_ns for each in activity]) / 1e9, 1e-9)
    own = np.diff([[each.consumers_s.get(name, 0.0) for name in names] for each in activity], axis=0)
    own = np.maximum(own.reshape(len(lengths), len(names)), 0.0)
    cpus_s = cpu_rows(activity)
    all_ = np.diff([sum(row) for row in cpus_s.tolist()])
    # Counters are read one after the other, so their sum may exceed the host's by what runs meanwhile.
    rest = np.maximum(all_ - own.sum(axis=1), 0.0)
    busy = np.column_stack([own, rest]) / lengths[:, None]
    return Usage((*names, REST), busy, lengths, cpus_s.shape[1])


@one_thread()
def weights(used: Usage) -> Array:
    """For each consumer, its mean share of each level: watts of activity are `weights @ model.levels(cpus)`."""
    n = used.cpus
    own = [_distribution(used.busy[:, place], n) for place in range(len(used.names))]
    nodes, parts = np.polynomial.legendre.leggauss(len(own) // 2 + 1)
    chances = np.zeros((len(own), n + 1))
    for q, part in zip((nodes + 1) / 2, parts / 2, strict=True):
        present = [_mixed(each, q) for each in own]
        before = _running(present)
        after = _running(present[::-1])[::-1]
        for place, each in enumerate(own):
            others = _sum(before[place], after[place + 1])
            chances[place] += part * (used.lengths_s @ (_sum(others, each) - others)) / used.lengths_s.sum()
    return chances


def _distribution(busy: Array, n: int) -> Array:
    """Probability of 0…n busy cores of one consumer, in each interval, shape (intervals, n + 1)."""
    distribution = _nothing(len(busy), n)
    for thread in range(min(n, int(np.ceil(busy.max(initial=0.0))))):
        share = np.clip(busy - thread, 0.0, 1.0)[:, None]
        moved = distribution * share
        distribution = distribution - moved
        distribution[:, 1:] += moved[:, :-1]
        distribution[:, -1] += moved[:, -1]
    return distribution


def _nothing(rows: int, n: int) -> Array:
    distribution = np.zeros((rows, n + 1))
    distribution[:, 0] = 1.0
    return distribution


def _mixed(chance: Array, q: float) -> Array:
    """The distribution of a consumer that is present with probability q."""
    mixed = q * chance
    mixed[:, 0] += 1 - q
    return mixed


def _running(every: Sequence[Array]) -> list[Array]:
    """Sums of the first 0, 1, 2, … consumers."""
    running = [_nothing(every[0].shape[0], every[0].shape[1] - 1)]
    for each in every:
        running.append(_sum(running[-1], each))
    return running


def _sum(left: Array, right: Array) -> Array:
    """The distribution of a sum, at most n."""
    n = left.shape[1] - 1
    total = np.zeros_like(left)
    for k in range(n + 1):
        total[:, k:] += left[:, : n + 1 - k] * right[:, [k]]
        if k:
            total[:, n] += left[:, n + 1 - k :].sum(axis=1) * right[:, k]
    return total


@one_thread()
def attribution(model: NodeModel, used: Usage, total: Estimate | None, cut_s: float = 0.0) -> Attribution:
    """Watts of each consumer. total: as a meter measured it; None if it comes from the model too.

    cut_s: time that was left out of `used`, because the meter does not cover it.
    """
    share = weights(used)
    draws = model.level_draws(used.cpus)
    levels = model.levels(used.cpus)
    modelled = levels[0] + float((share @ levels).sum())
    whole = total or _modelled_total(modelled, draws[:, 0] + (draws @ share.T).sum(axis=1), model)
    aim = whole.value if total else None
    active = _active(share, levels, aim)
    each = np.array([_active(share, draw, aim) for draw in draws])
    # The total's own error moves all shares together.
    common_error = whole.half_width / max(float(active.sum()), 1e-9) if total else 0.0
    idle, idles = max(0.0, whole.value - float(active.sum())), np.maximum(0.0, whole.value - each.sum(axis=1))
    cpu_s = used.cpu_s
    even = 1 / len(used.names)
    all_s = float(cpu_s.sum())
    parts = cpu_s / all_s if all_s > NOTHING_S else np.full(len(cpu_s), even)
    utilisation = float(cpu_s.sum()) / float(used.lengths_s.sum()) / used.cpus
    shares = tuple(
        Share(
            name=name,
            cpu_s=float(cpu_s[place]),
            active=_estimate(active[place], each[:, place], model.band, common_error * active[place]),
            by_use=_with_idle(active, each, place, idle, idles, parts[place], model.band, common_error),
            evenly=_with_idle(active, each, place, idle, idles, even, model.band, common_error),
            common=float(whole.value * min(1.0, utilisation) * parts[place]),
        )
        for place, name in enumerate(used.names)
    )
    return Attribution(
        model=model, total=whole, idle=idle, shares=shares, measured=total is not None,
        model_error=modelled / whole.value - 1 if total else None, cpus=used.cpus, cut_s=cut_s,
    )  # fmt: skip


def _modelled_total(value: float, draws: Array, model: NodeModel) -> Estimate:
    """The total as the model has it, with its band."""
    low, high = np.quantile(draws, (0.025, 0.975))
    half = max(value - float(low), float(high) - value, model.band * value)
    return Estimate(value=value, low=value - half, high=value + half, n=len(draws), method="model")


def _active(share: Array, levels: Array, total: float | None) -> Array:
    """Watts of activity, scaled so that they and the idle power are the total, if that is known."""
    active = share @ levels
    whole = float(active.sum())
    if total is None or whole <= 0:
        return np.asarray(active, dtype=np.float64)
    return np.asarray(active * max(0.0, total - levels[0]) / whole, dtype=np.float64)


def _with_idle(
    active: Array, each: Array, place: int, idle: float, idles: Array, part: float, band: float, common_error: float
) -> Estimate:
    """A consumer's watts with its part of the idle power."""
    own = float(active[place]) + part * idle
    return _estimate(own, each[:, place] + part * idles, band, common_error * float(active[place]))


def _estimate(value: float, draws: Array, band: float, error: float) -> Estimate:
    """The quantiles of repetitions of the fit, at least as wide as the model's error band; and a further error."""
    low, high = np.quantile(draws, (0.025, 0.975))
    half = float(np.hypot(max(value - low, high - value, band * value), error))
    return Estimate(
        value=float(value), low=max(0.0, float(value) - half), high=float(value) + half, n=len(draws),
        method="repetitions of the fit, at least the model's error band",
    )  # fmt: skip


def judged(observed: Sequence[Observation], names: Sequence[str]) -> dict[str, Estimate]:
    """What each consumer added to the power when it was switched on, as the meter saw it.

    Slots of a block switch one consumer on after the other, in random order, so the mean is a Shapley value.
    """
    added: dict[str, list[float]] = {name: [] for name in names}
    for earlier, later in itertools.pairwise(observed):
        came = set(later.slot.on) - set(earlier.slot.on)
        if later.slot.block == earlier.slot.block and len(came) == 1 and set(earlier.slot.on) < set(later.slot.on):
            added[came.pop()].append(later.watts - earlier.watts)
    return {name: student(values) for name, values in added.items() if len(values) > 1}


def within(activity: Sequence[Activity], slots: Sequence[Slot]) -> NDArrayBool:
    """True for the intervals of `usage` that lie in one of the slots."""
    times = np.array([each.time_ns for each in activity])
    inside = np.zeros(len(times) - 1, dtype=bool)
    for slot in slots:
        inside |= (times[:-1] >= slot.begin_ns) & (times[1:] <= slot.end_ns)
    return inside
