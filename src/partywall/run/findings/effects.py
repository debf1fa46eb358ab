"""Cells: the effect of each treatment on a victim, against the baseline of the same blocks; A/A bands of a trial."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from partywall.agent.catalogue import Warn
from partywall.core.stats.interval import mean_interval
from partywall.run.findings import latency
from partywall.run.findings.carryover import carry_over
from partywall.run.findings.limits import kept
from partywall.run.findings.series import Measured, Pair, Series, pairs_of
from partywall.run.values.finding import Band, CarryOver, Cell
from partywall.run.values.observation import STRADDLE_MAX, Observations
from partywall.run.values.plan import Treatment, Trial, null_cpus

DISTURBED_SHARE = 0.05
"""Disturbed slots are kept. A larger share of them adds a warning to the cell."""

FELL_SHORT = 0.5
"""A stressor runs flat out for its share of the time. Contention with the victim lowers its rate, and is measured.

Below this share of the requested intensity, something other than the victim slowed it.
"""

IDLE_CPU = 0.005
IDLE_BYTES = 64 << 10
"""A command is idle if its CPU time and its disk bandwidth, while it is on, are below these bounds."""

STOPPED_CPU = 0.02
STOPPED_SHARE = 0.1
"""CPU time that a stopped command may use, absolute or as a share of its use while on: ticks are coarse."""

_VARIATION_BLOCKS = 20
_NAMED = (("steal", Warn.STEAL), ("throttl", Warn.THROTTLED), ("swap", Warn.SWAPPING))


def bands_of(trial: Trial, measured: Measured) -> tuple[Band, ...]:
    """An A/A band for the baseline and for each switched limit whose null treatment was measured.

    The baseline has one for short blocks and one for long blocks.
    """
    pairs = (pair for series in (measured.short, measured.long) for pair in pairs_of(series, trial.treatments))
    return tuple(_band(trial, pair) for t, pair in pairs if t.role == "null" and pair.comparable)


def _band(trial: Trial, pair: Pair) -> Band:
    """The null treatment's interval, mirrored around 1 at its widest, and the same for its latency impacts."""
    factor = pair.factor()
    reach = max(abs(math.log(max(factor.low, 1e-9))), abs(math.log(factor.high)))
    return Band(
        trial=trial.id,
        baseline=pair.baseline.treatment[0],
        long=pair.long,
        low=math.exp(-reach),
        high=math.exp(reach),
        null=factor,
        latency={name: latency.band(impact) for name, impact in pair.latencies.impacts.items()},
        null_latency=dict(pair.latencies.impacts),
    )


def cells_of(trial: Trial, measured: Measured, min_blocks: int) -> tuple[Cell, ...]:
    """A cell for every treatment with enough blocks for an interval."""
    lasting = carry_over(measured, trial.treatments)
    watched = {t.id: pair for t, pair in pairs_of(measured.watched, trial.treatments)}
    return tuple(
        _cell(
            trial,
            t,
            measured.holding(t.id),
            pair,
            watched[t.id],
            lasting[t.id],
            min_blocks,
        )
        for t, pair in measured.pairs(trial.treatments)
        if pair.comparable
    )


def variation_of(losses: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, bool] | None:
    """Standard deviation of the true effect over time, and whether it is significant; None for too few blocks.

    From the lag-1 autocovariance: noise is independent between blocks, but a drifting effect is not. Variation faster
    than a block is missed. The covariance is increased by the variance of the subtracted mean.
    """
    n = len(losses)
    if n < _VARIATION_BLOCKS:
        return None
    rest = losses - losses.mean()
    variance = float(rest @ rest) / n
    shared = float(rest[1:] @ rest[:-1]) / n
    significant = variance > 0 and shared / variance > 1.645 / math.sqrt(n)
    return math.sqrt(max(0.0, shared + variance / n)) if significant else 0.0, significant


def _cell(
    trial: Trial,
    treatment: Treatment,
    series: Series,
    pair: Pair,
    watched: Pair,
    lasting: CarryOver,
    min_blocks: int,
) -> Cell:
    isolation = pair.factor()
    variation = variation_of(pair.losses())
    given = kept(trial, treatment, series)
    achieved = _mean((pair.treated,), treatment, "achieved")
    on, off = (pair.treated, watched.treated), (pair.baseline, watched.baseline)
    used, used_off = (_mean(side, treatment, "used") for side in (on, off))
    raised = {
        Warn.CARRY_OVER: lasting.present,
        Warn.COARSE_VICTIM: np.median(pair.treated.straddle) > STRADDLE_MAX,
        Warn.FEW_BLOCKS: len(pair) < min_blocks,
        Warn.AGGRESSOR_IDLE: used is not None and _is_idle(used, _mean(on, treatment, "moved")),
        Warn.AGGRESSOR_NOT_STOPPED: used_off is not None and used_off > max(STOPPED_CPU, STOPPED_SHARE * (used or 0.0)),
        Warn.AGGRESSOR_FELL_SHORT: achieved is not None and _fell_short(trial, treatment, achieved),
    }
    return Cell(
        trial=trial.id,
        victim=trial.victim_name,
        treatment=treatment.id,
        label=treatment.label,
        role=treatment.role,
        aggressor=treatment.aggressor,
        intensity=treatment.intensities.get(treatment.aggressor or ""),
        baseline=pair.baseline.treatment[0],
        long=pair.long,
        levels=trial.levels,
        baseline_rate=mean_interval(pair.baseline.rate),
        rate=mean_interval(pair.treated.rate),
        isolation=isolation,
        latency=dict(pair.latencies.impacts),
        latency_ns=dict(pair.latencies.treated),
        efficiency=given.efficiency if given else None,
        promised=given.promised if given else None,
        promise=given.promise if given else None,
        by_baseline=given is not None and given.by_baseline,
        cpu_time=given.cpu_time if given else None,
        achieved=achieved,
        used=used,
        used_off=used_off,
        variation=variation[0] if variation else None,
        carry_over=lasting,
        uncontrolled=tuple(_uncontrolled(trial, treatment, long=pair.long)),
        warnings=tuple(warn for warn, holds in raised.items() if holds) + _disturbances(watched),
    )


def _uncontrolled(trial: Trial, treatment: Treatment, *, long: bool) -> Iterator[str]:
    """Differences between an aggressor and the null aggressor of the same limits other than load.

    long: in long blocks, whose slots have the same length.
    """
    nulls = (t for t in trial.treatments if t.role == "null" and t.victim_limits == treatment.victim_limits)
    null = next(nulls, None)
    if treatment.aggressor is None or null is None:
        return
    differ = [("guard", treatment.guard_ns, null.guard_ns)]
    differ += [] if long else [("slot", treatment.slot_ns, null.slot_ns)]
    for what, own, control in differ:
        if own != control:
            yield f"{what} {own / 1e6:g} ms, not {control / 1e6:g}"
    cpus = trial.aggressor_cpus.get(treatment.aggressor, ())
    machine, like = (trial.aggressors[aggressor].sandbox.machine for aggressor in (treatment.aggressor, _first(trial)))
    if machine != like:
        yield f"on {machine or 'this host'}, not {like or 'this host'}"
    elif cpus != null_cpus(trial):
        yield f"CPU {_listed(cpus)}, not {_listed(null_cpus(trial))}"
    if trial.aggressors[treatment.aggressor].command is not None:
        yield "a command that is stopped and continued, not a stressor"
    if trial.aggressors[treatment.aggressor].migration is not None:
        yield "a migration that is stopped and continued, not a stressor"
    if trial.aggressors[treatment.aggressor].load is not None:
        yield "virtual users and their service, not a stressor"


def _first(trial: Trial) -> str:
    """The aggressor that the null aggressor imitates."""
    return next(iter(trial.aggressors))


def _listed(cpus: Sequence[int]) -> str:
    return ", ".join(map(str, cpus))


def _intensity(treatment: Treatment, default: float) -> float:
    return treatment.intensities.get(treatment.aggressor or "", default)


def _fell_short(trial: Trial, treatment: Treatment, achieved: float) -> bool:
    planned = _intensity(treatment, 1.0)
    short = achieved < planned * FELL_SHORT
    # If both need the same CPU, the aggressor's reduced share is part of the contention.
    return short and not trial.shares_cpu(treatment.aggressor or "")


def _mean(
    sides: Sequence[Observations], treatment: Treatment, what: Literal["achieved", "used", "moved"]
) -> float | None:
    """The mean over slots of a value of a treatment's aggressor; None if no slot has one."""
    reported = [getattr(side, what).get(treatment.aggressor, ()) for side in sides]
    known = np.concatenate([values[np.isfinite(values)] for values in map(np.asarray, reported)])
    return float(np.mean(known)) if len(known) else None


def _is_idle(used: float, moved: float | None) -> bool:
    """A command that uses no CPU time is called idle only if its disk use is known."""
    return used < IDLE_CPU and moved is not None and moved < IDLE_BYTES


def _disturbances(pair: Pair) -> tuple[Warn, ...]:
    """Warnings for disturbances of more than the tolerated share of the pair's slots."""
    slots = [*pair.treated.disturbed, *pair.baseline.disturbed]
    count = Counter(kind for names in slots if names for kind in _kinds(names))
    kinds = (Warn.STEAL, Warn.THROTTLED, Warn.SWAPPING, Warn.FOREIGN_LOAD)
    return tuple(warn for warn in kinds if count[warn] > DISTURBED_SHARE * len(slots))


def _kinds(names: Sequence[str]) -> set[Warn]:
    """Kinds of disturbance of a slot. An unknown name counts as load by other programs."""
    return {next((warn for start, warn in _NAMED if start in name.lower()), Warn.FOREIGN_LOAD) for name in names}
