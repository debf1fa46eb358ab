"""Statistical results: every figure with its interval, its baseline from the same block, and its method."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from partywall.agent.catalogue import Warn
from partywall.core.stats.estimate import Estimate, Outcome
from partywall.run.document.scenario import Goal
from partywall.values import Frozen, Level

BASELINE = "baseline"
"""Id of the treatment without aggressors and limits."""


class Deferred(Frozen):
    """Effect of a treatment on baseline and null slots `lag` slots after its own, as a share of their rate."""

    lag: int
    change: Estimate


class CarryOver(Frozen):
    """Whether the effect changed within the slots, or outlasted them.

    drift: late half against early half, relative to the baseline's. deferred: effects on later quiet slots; None if not
    tested. longer: the isolation factor late in long blocks minus that of the others; None if there are none. present:
    true if one of them is more than negligible. slot_ns: as measured. lengthened: factor on the planned length; 0 if as
    planned.
    """

    drift: Estimate
    present: bool
    slot_ns: int
    lengthened: int = 0
    deferred: Deferred | None = None
    longer: Estimate | None = None


class Cause(Frozen):
    """A kernel counter that changed together with the harm: the likely resource.

    change: treated / baseline, per second.
    """

    counter: str
    resource: str
    baseline: float
    treated: float
    difference: Estimate
    correlation: Estimate | None = None
    text: str


class CpuTime(Frozen):
    """The CPU time that a limit or a reservation gave. All figures are shares of the time of the sandbox's CPUs.

    got: in all of its slots. held: in slots in which a limit was used up in each of its periods, so that nothing else
    held the sandbox back; held_share: the share of such slots, of those whose periods were counted. alone: beside a
    neighbour, what it got without it. None where it does not apply, or too few slots tell.
    """

    promised: float
    got: Estimate
    held: Estimate | None = None
    held_share: float | None = None
    alone: Estimate | None = None

    @property
    def judged(self) -> Estimate:
        """What the setting gave at least, as far as nothing else took the time, as a share of the CPUs."""
        return self.held or self.got

    @property
    def of_promise(self) -> Estimate:
        """The same as a share of the promise."""
        return self.promise_kept(self.judged)

    def promise_kept(self, cpu: Estimate) -> Estimate:
        """A share of the CPUs as a share of the promise."""
        return cpu.mapped(lambda share: share / self.promised)


class Effect(StrEnum):
    """The evidence for a treatment's effect, see `partywall.run.findings.states`.

    SEEN: there is an effect. NONE: there is none larger than a stated bound. NOT_KNOWN: neither; `Cell.why` says why.
    """

    SEEN = "effect"
    NONE = "none"
    NOT_KNOWN = "not_known"


class Cell(Frozen):
    """One victim under one treatment, against the baseline of the same blocks.

    baseline: id of the treatment it is compared with; for a neighbour beside a limited victim, the limit alone. long:
    measured in long blocks, because it is slow.
    isolation: isolation factor, measured/baseline throughput. latency: latency impact by percentile ("p50", "p99"…);
    latency_ns: the latency itself under the treatment.
    efficiency: q = v/(v_ref·s) where a setting promises s of the unlimited baseline. promise: which kind of setting;
    a reservation is a floor, so more than it promises is no fault. by_baseline: whether q depends on the baseline's
    rate. cpu_time: what a CPU limit or reservation is judged by, if it is known. variation: standard deviation of the
    true effect over time, sampling noise taken off; None when too few blocks.
    effect: what is known of the effect on throughput; why: the reason if it is not known. effect_bound: the change of
    the isolation factor that NONE excludes. latency_effect, latency_bound: the same of the latency impact, by
    percentile.
    used, used_off: CPU time over wall time of an aggressor that is a command, while it was on, and in the baseline.
    uncontrolled: in what the null aggressor behind the A/A band differed from this aggressor beside its pressure; empty
    where in nothing.
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
    latency_ns: dict[str, Estimate] = Field(default_factory=dict)
    efficiency: Estimate | None = None
    promised: float | None = None
    promise: Literal["limit", "reservation"] | None = None
    by_baseline: bool = False
    cpu_time: CpuTime | None = None
    achieved: float | None = None
    used: float | None = None
    used_off: float | None = None
    variation: float | None = None
    carry_over: CarryOver | None = None
    causes: tuple[Cause, ...] = ()
    effect: Effect = Effect.NOT_KNOWN
    why: str = ""
    effect_bound: float | None = None
    latency_effect: dict[str, Effect] = Field(default_factory=dict)
    latency_bound: float | None = None
    uncontrolled: tuple[str, ...] = ()
    warnings: tuple[Warn, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_older_record(cls, data: Any) -> Any:
        # Recorded before `partywall.run.findings.states` decided every effect. Nothing reads them any more.
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if name not in ("seen", "latency_seen")}
        return data


class Band(Frozen):
    """An A/A band: effects of the null aggressor. If the A/A check fails, it widens the intervals that refer to it.

    baseline: the treatment that the null was compared with. A trial has a band for its baseline and one for each
    switched limit; a cell is judged by the band with its own baseline. long: of long blocks, for cells measured in
    them. null: the null aggressor's isolation factor. null_latency: its latency impact by percentile. latency: the band
    of each of these.
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
        """True if a cell is judged by this band."""
        return (self.trial, self.baseline, self.long) == (cell.trial, cell.baseline, cell.long)


class Dose(Frozen):
    """What an aggressor's threads did on average while they ran at partial intensities, as shares of that time.

    requested: the intensities. pressed: time at work. cpu: CPU time, pacing included; a thread that waits uses less.
    """

    requested: float
    pressed: float
    cpu: float


class Curve(Frozen):
    """Sensitivity: a victim's isolation factor by an aggressor's intensity. slope: loss per unit of intensity.

    dose: of the aggressor, over all of its partial intensities; None if its agent did not report it.
    """

    trial: str
    victim: str
    aggressor: str
    points: tuple[tuple[float, Estimate], ...]
    slope: Estimate | None = None
    dose: Dose | None = None


class Precision(Frozen):
    """Whether a trial may end early: the largest half-width of its isolation factors at the last checkpoint.

    half_width is None, and treatment empty, before the first checkpoint. next_blocks: complete blocks at which it is
    worth asking again; looking at every block would spoil the intervals. worth: of a second for this trial, beside that
    of others. slow_share: of the trial's time, what its slow treatments should get. Both are None as long as there are
    too few blocks; slow_share also if it has not both kinds.
    factors: the isolation factors at the checkpoint, by treatment, as (value, low, high). known: neighbours whose
    half width is within the bound for "no effect", whatever their factor. decided: those that need no more blocks, so
    certain are they.
    """

    reached: bool
    half_width: float | None
    treatment: str
    blocks: int
    next_blocks: int
    worth: float | None = None
    slow_share: float | None = None
    factors: Mapping[str, tuple[float, float, float]] = Field(default_factory=dict)
    known: frozenset[str] = frozenset()
    decided: frozenset[str] = frozenset()


class Verdict(Frozen):
    """A goal applied to a cell.

    blocks: number of blocks behind it; None if no cell was measured. rough: fewer blocks than intervals were shown to
    need.
    """

    goal: Goal
    trial: str
    treatment: str
    outcome: Outcome
    reason: str
    blocks: int | None = None
    rough: bool = False


class Findings(Frozen):
    """All findings of a run. `headline` is for people. goals: how many verdicts there are."""

    run: str
    scenario: str
    headline: str
    goals: int = 0
    cells: tuple[Cell, ...]
    bands: tuple[Band, ...]
    curves: tuple[Curve, ...]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst of all verdicts; inconclusive if a trial is missing."""
        outcomes = {verdict.outcome for verdict in self.verdicts}
        if Outcome.VIOLATED in outcomes:
            return Outcome.VIOLATED
        if Outcome.INCONCLUSIVE in outcomes or self.incomplete:
            return Outcome.INCONCLUSIVE
        return Outcome.HOLDS


def beside(cell: Cell) -> str:
    """The neighbour of a cell: 'batch at 50 %'. One whose only intensity is 1 is labelled by its name alone."""
    label, _, limits = cell.label.partition(", ")
    varied = label != cell.aggressor and cell.intensity is not None
    at = f" at {100 * (cell.intensity or 0.0):g} %" if varied else ""
    return f"{cell.aggressor}{at}{f', {limits}' if limits else ''}"
