"""What a setting promised a sandbox, and what the sandbox got. Pure.

CPU limits and reservations are judged by the CPU time that the sandbox got, over wall time. The rate under a limit over
that of an unlimited baseline is shown as efficiency q, but depends on others too: they slow the baseline down, and the
ratio rises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.interval import FEWEST, mean_interval
from partywall.run.findings.series import Series, baseline_of, pair_of
from partywall.run.values.evidence import VICTIM
from partywall.run.values.finding import CpuTime
from partywall.run.values.observation import Observations, Values
from partywall.run.values.plan import Treatment, Trial
from partywall.sandbox.backends import BACKENDS

USED_NS = f"{VICTIM}.cgroup_cpu_usage_ns"
PERIODS = f"{VICTIM}.cgroup_cpu_periods_count"
USED_UP = f"{VICTIM}.cgroup_cpu_throttled_periods_count"

HELD_LEAST = 6
"""Slots from which a used-up limit is judged. In each of them, it gave nearly the same time."""

_EVERY = 0.99
"""Share of a slot's periods that counts as all of them: readings are of whole periods, their rates are not exact."""


@dataclass(frozen=True)
class Promise:
    """The capacity that settings promise, as the share s of the unlimited baseline or as a rate; the smaller one.

    cpu: the promised share of the time of the sandbox's CPUs; None for a disk limit.
    """

    kind: Literal["limit", "reservation"]
    share: float = 1.0
    rate: float | None = None
    cpu: float | None = None


@dataclass(frozen=True)
class Kept:
    """What a sandbox got, in the terms of `Cell`."""

    efficiency: Estimate
    promised: float
    promise: Literal["limit", "reservation"]
    by_baseline: bool
    cpu_time: CpuTime | None


def promise_of(trial: Trial, treatment: Treatment) -> Promise | None:
    """A treatment's promised capacity, if there is an unlimited baseline to compare with."""
    sandbox = trial.victim.sandbox
    if treatment.role == "null":
        return None
    if treatment.victim_limits is not None:
        limit, rate = treatment.victim_limits.cpu_limit, treatment.ceiling_rate
        share = 1.0 if limit is None else limit / (sandbox.cpu_limit or 1.0)
        return None if limit is None and rate is None else Promise("limit", share, rate, limit)
    if treatment.aggressor is not None and sandbox.cpu_limit is None and sandbox.cpu_reservation is not None:
        return Promise("reservation", sandbox.cpu_reservation, cpu=sandbox.cpu_reservation)
    return None


def kept(trial: Trial, treatment: Treatment, series: Series) -> Kept | None:
    """What a treatment's setting gave; None if it promises nothing, or too few blocks contain the unlimited baseline.

    A rate limit above the disk's own rate promises only that rate.
    """
    promise = promise_of(trial, treatment)
    unlimited = pair_of(series, trial.treatments, treatment, baseline_of(trial.treatments)) if promise else None
    if promise is None or unlimited is None or not unlimited.comparable:
        return None
    usual = mean_interval(unlimited.baseline.rate).value
    if promise.rate is None or promise.rate >= promise.share * usual:
        efficiency, cpu_time = _scaled(unlimited.factor(), promise.share), _cpu_time(trial, treatment, series, promise)
        return Kept(efficiency, promise.share, promise.kind, by_baseline=True, cpu_time=cpu_time)
    efficiency = _scaled(mean_interval(unlimited.treated.rate), promise.rate)
    return Kept(efficiency, promise.rate / usual, promise.kind, by_baseline=False, cpu_time=None)


def _scaled(estimate: Estimate, promised: float) -> Estimate:
    update = {name: getattr(estimate, name) / promised for name in ("value", "low", "high")}
    return estimate.model_copy(update=update | {"method": f"{estimate.method}, divided by the promised share"})


def _cpu_time(trial: Trial, treatment: Treatment, series: Series, promise: Promise) -> CpuTime | None:
    """The CPU time of the treatment's slots. None if it is not known in enough of them.

    Without a neighbour, slots beside the idle null neighbour count too.
    """
    if promise.cpu is None:
        return None
    alike = (each for each in trial.treatments if each.victim_limits == treatment.victim_limits)
    quiet = _slots(series, [each.id for each in alike if not each.pressing])
    slots = _slots(series, [treatment.id]) if treatment.pressing else quiet
    got = cpu_shares(trial, slots)
    if np.isfinite(got).sum() < FEWEST:
        return None
    periods, used_up = (slots.counters.column(name) for name in (PERIODS, USED_UP))
    counted = np.isfinite(got) & np.isfinite(periods) & np.isfinite(used_up)
    held = got[counted & (periods > 0) & (used_up >= _EVERY * periods)]
    return CpuTime(
        promised=promise.cpu,
        got=mean_interval(got[np.isfinite(got)]),
        held=mean_interval(held) if len(held) >= HELD_LEAST and not treatment.pressing else None,
        held_share=len(held) / int(counted.sum()) if counted.any() else None,
        alone=_mean(cpu_shares(trial, quiet)) if treatment.pressing else None,
    )


def _slots(series: Series, treatments: Sequence[str]) -> Observations:
    return series.seen.take(np.flatnonzero(np.isin(series.seen.treatment, treatments)))


def _mean(values: Values) -> Estimate | None:
    known = values[np.isfinite(values)]
    return mean_interval(known) if len(known) >= FEWEST else None


def cpu_shares(trial: Trial, side: Observations) -> Values:
    """CPU time over wall time of the victim's CPUs in each slot. Not a number where it is unknown.

    A probe's threads report their own CPU time. Of a guest, whose clock does not see what the host takes, and of a
    command, the kernel counts it.
    """
    victim, cpus = trial.victim, len(trial.victim_cpus)
    if victim.probe is not None and not BACKENDS[victim.sandbox.backend].is_machine:
        return np.asarray(side.cpu_share * victim.threads / cpus, dtype=np.float64)
    return np.asarray(side.counters.column(USED_NS) / 1e9 / cpus, dtype=np.float64)
