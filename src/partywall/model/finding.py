"""Statistical results: every figure with its interval, its baseline from the same block, and how it was got."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from partywall.model.scenario import Frozen, Goal, Level

BASELINE = "baseline"
"""Id of the treatment in which nobody presses and nothing is limited."""


class Estimate(Frozen):
    """A figure with its interval. n: blocks. n_effective: blocks it is worth, given how they correlate."""

    value: float
    low: float
    high: float
    level: float = 0.95
    n: int
    n_effective: float | None = None
    method: str

    @property
    def half_width(self) -> float:
        """What may stand behind ±: the longer arm, as an interval that ends at a bound is not symmetric."""
        return max(self.high - self.value, self.value - self.low)


class Warn(StrEnum):
    """What a reader must know beside a figure; `partywall.report.advice` holds the advice for each."""

    CARRY_OVER = "carry_over"
    FEW_BLOCKS = "few_blocks"
    STEAL = "steal"
    FOREIGN_LOAD = "foreign_load"
    DRIFTING_EFFECT = "drifting_effect"
    NULL_EFFECT = "null_effect"
    NULL_LATENCY = "null_latency"
    THROTTLED = "throttled"
    AGGRESSOR_FELL_SHORT = "aggressor_fell_short"
    AGGRESSOR_IDLE = "aggressor_idle"
    AGGRESSOR_NOT_STOPPED = "aggressor_not_stopped"
    EMULATED = "emulated"
    SWAPPING = "swapping"
    SHARED_DISK_CACHE = "shared_disk_cache"


class Deferred(Frozen):
    """What a treatment did to the baseline and null slots `lag` slots after its own, as a share of their rate."""

    lag: int
    change: Estimate


class CarryOver(Frozen):
    """Whether the effect still moved inside the slots, or outlasted them.

    drift: late half against early half, relative to the baseline's. deferred: what quiet slots later still felt; None
    if nothing was seen. longer: the isolation factor late in long blocks less that of the others; None if there are
    none. present: one of them is more than negligible. slot_ns: as measured. lengthened: how many times as long as
    planned; 0 if it is as planned.
    """

    drift: Estimate
    present: bool
    slot_ns: int
    lengthened: int = 0
    deferred: Deferred | None = None
    longer: Estimate | None = None


class Cause(Frozen):
    """A kernel counter that moved with the harm: the likely resource. change: treated over baseline, per second."""

    counter: str
    resource: str
    baseline: float
    treated: float
    difference: Estimate
    correlation: Estimate | None = None
    text: str


class Effect(StrEnum):
    """What is known of a treatment's effect; `partywall.stats.states` decides it.

    SEEN: there is one. NONE: there is none larger than a stated bound. NOT_KNOWN: the interval reaches beyond that
    bound, or does not deserve belief.
    """

    SEEN = "effect"
    NONE = "none"
    NOT_KNOWN = "not_known"


class Cell(Frozen):
    """One victim under one treatment, against the baseline of the same blocks.

    baseline: id of the treatment it is compared with; for a neighbour beside a limited victim, the limit alone. long:
    measured in long blocks, for it is slow by its nature.
    isolation: isolation factor, measured/baseline throughput. latency: latency impact by percentile ("p50", "p99"…).
    efficiency: q = v/(v_ref·s) where a setting promises s of the unlimited baseline. promise: which kind of setting;
    a reservation is a floor, so more than it promises is no fault. variation: standard deviation of the true effect
    over time, sampling noise taken off; None when too few blocks. seen: the interval lies outside the A/A band.
    effect: what is known of the effect on throughput. effect_bound: the change of the isolation factor that NONE
    excludes. latency_effect, latency_bound: the same of the latency impact, by percentile.
    used, used_off: CPU time over wall time of an aggressor that is a command, while it was on, and in the baseline.
    latency_seen: percentiles whose latency impact lies outside the A/A band of that percentile. uncontrolled: in what
    the null aggressor behind the A/A band differed from this aggressor besides its pressure; empty where in nothing.
    """

    trial: str
    victim: str
    treatment: str
    label: str
    role: Literal["null", "aggressor", "limit"]
    aggressor: str | None
    intensity: float | None
    baseline: str = BASELINE
    long: bool = False
    levels: dict[str, Level] = Field(default_factory=dict)
    baseline_rate: Estimate
    rate: Estimate
    isolation: Estimate
    latency: dict[str, Estimate] = Field(default_factory=dict)
    efficiency: Estimate | None = None
    promised: float | None = None
    promise: Literal["limit", "reservation"] | None = None
    achieved: float | None = None
    used: float | None = None
    used_off: float | None = None
    variation: float | None = None
    carry_over: CarryOver | None = None
    causes: tuple[Cause, ...] = ()
    seen: bool
    latency_seen: tuple[str, ...] = ()
    effect: Effect = Effect.NOT_KNOWN
    effect_bound: float | None = None
    latency_effect: dict[str, Effect] = Field(default_factory=dict)
    latency_bound: float | None = None
    uncontrolled: tuple[str, ...] = ()
    warnings: tuple[Warn, ...] = ()


class Band(Frozen):
    """An A/A band: effects of the null aggressor. What lies inside is not called an effect.

    baseline: what the null was compared with; a trial has a band for its baseline and one for each switched limit, and
    a cell is judged by the one with its own baseline. long: of long blocks, for cells that were measured in them.
    null: the null aggressor's isolation factor. null_latency: its latency impact by percentile. latency: the band that
    each of these makes.
    """

    trial: str
    baseline: str = BASELINE
    long: bool = False
    low: float
    high: float
    null: Estimate
    latency: dict[str, tuple[float, float]] = Field(default_factory=dict)
    null_latency: dict[str, Estimate] = Field(default_factory=dict)

    def of(self, cell: Cell) -> bool:
        """Whether this is the band to judge a cell by."""
        return (self.trial, self.baseline, self.long) == (cell.trial, cell.baseline, cell.long)


class Curve(Frozen):
    """Sensitivity: a victim's isolation factor against an aggressor's intensity. slope: loss per unit of intensity."""

    trial: str
    victim: str
    aggressor: str
    points: tuple[tuple[float, Estimate], ...]
    slope: Estimate | None = None


class Precision(Frozen):
    """Whether a trial may end early: the widest half width among its isolation factors at the last checkpoint.

    half_width is None, and treatment empty, before the first checkpoint. next_blocks: complete blocks at which it is
    worth asking again; looking at every block would spoil the intervals.
    """

    reached: bool
    half_width: float | None
    treatment: str
    blocks: int
    next_blocks: int


class Outcome(StrEnum):
    """A verdict. Inconclusive never counts as a pass."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"


class Verdict(Frozen):
    """A goal against a cell.

    blocks: what it rests on; None if no cell was measured. rough: these are fewer than those from which intervals were
    shown to keep their promise.
    """

    goal: Goal
    trial: str
    treatment: str
    outcome: Outcome
    reason: str
    blocks: int | None = None
    rough: bool = False


class Findings(Frozen):
    """All that a run found. `headline` is the one line in plain words."""

    run: str
    scenario: str
    headline: str
    cells: tuple[Cell, ...]
    bands: tuple[Band, ...]
    curves: tuple[Curve, ...]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Of all verdicts, the worst; inconclusive where a trial is missing."""
        found = {verdict.outcome for verdict in self.verdicts}
        if Outcome.VIOLATED in found:
            return Outcome.VIOLATED
        if Outcome.INCONCLUSIVE in found or self.incomplete:
            return Outcome.INCONCLUSIVE
        return Outcome.HOLDS
