"""Data of charts and tables: pure selections of observations and slices.

Only the running interval is estimated here, and it is only displayed. Results come from `Findings`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from partywall.core.report import figures, latency
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.histogram import Histogram
from partywall.run.report.figures import scale_of as scale_of_victim
from partywall.run.values.evidence import Evidence, SlicePoint
from partywall.run.values.finding import Cell
from partywall.run.values.observation import Observations, Values
from partywall.run.values.plan import Trial

MAX_SLICES = 1500
"""Most slices of one trial in a page. Beyond that, whole blocks are evenly left out, and the page says so."""

_FEWEST = 5
"""Fewest blocks whose running mean is drawn."""

MAX_POINTS = 300
"""Most blocks of a cell whose factor is drawn. Beyond that, blocks are evenly left out, and the chart says so."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Pairs:
    """A treatment and the baseline of the same blocks, in order of time."""

    baseline: Observations
    treated: Observations

    def __len__(self) -> int:
        return len(self.treated)

    @cached_property
    def merged(self) -> dict[str, Histogram]:
        """The latencies of all slots of each side."""
        return {name: side.latency.merged for name, side in self.sides}

    @property
    def sides(self) -> tuple[tuple[str, Observations], ...]:
        return (("baseline", self.baseline), ("treated", self.treated))


def trial_of(evidence: Evidence, trial: str) -> Trial:
    return next(t for t in evidence.plan.trials if t.id == trial)


def scale_of(evidence: Evidence, trial: str) -> figures.Scale:
    return scale_of_victim(trial_of(evidence, trial).victim, evidence.kernels)


def baseline_id(evidence: Evidence, trial: str) -> str | None:
    return next((t.id for t in trial_of(evidence, trial).treatments if t.role == "baseline"), None)


def pairs_of(evidence: Evidence, cell: Cell) -> Pairs:
    """One pair for each block. Blocks that lack either, or whose baseline did no work, are left out."""
    return _pairs.of(evidence, cell)


class _LastPairs:
    """The pairs of the last cell: all of its charts and figures need them, and a long run has many."""

    def __init__(self) -> None:
        self._last: tuple[weakref.ref[Evidence], str, str, Pairs] | None = None

    def of(self, evidence: Evidence, cell: Cell) -> Pairs:
        last = self._last
        if last is None or last[0]() is not evidence or last[1:3] != (cell.trial, cell.treatment):
            self._last = last = weakref.ref(evidence), cell.trial, cell.treatment, _paired(evidence, cell)
        return last[3]


_pairs = _LastPairs()


def _paired(evidence: Evidence, cell: Cell) -> Pairs:
    own = evidence.of_trial(cell.trial)
    base, treated = (
        np.flatnonzero((own.treatment == id_) & (own.long == cell.long))
        for id_ in (baseline_id(evidence, cell.trial), cell.treatment)
    )
    of_block = np.full(int(own.block.max(initial=0)) + 1, -1)
    of_block[own.block[base]] = base
    beside = of_block[own.block[treated]]
    both = np.flatnonzero(beside >= 0)
    both = both[own.rate[beside[both]] > 0]
    return Pairs(own.take(beside[both]), own.take(treated[both]))


def effects(evidence: Evidence, cell: Cell) -> Rows:
    """For each block: its time, its own isolation factor, and the running mean with its interval."""
    pairs = pairs_of(evidence, cell)
    if not len(pairs):
        return []
    origin_ns = int(evidence.of_trial(cell.trial).start_ns[0])
    factors = pairs.treated.rate / pairs.baseline.rate
    mean, half = running_interval(factors, cell.isolation)
    ends = {"mean": mean, "low": mean - half, "high": mean + half}
    last, steps = len(pairs) - 1, MAX_POINTS - 1
    drawn = [at * last // steps for at in range(MAX_POINTS)] if last > steps else range(len(pairs))
    return [
        {
            "block": int(pairs.treated.block[at]),
            "time_s": _short((int(pairs.treated.start_ns[at]) - origin_ns) / 1e9),
            "factor": _short(float(factors[at])),
            **{name: None if at < _FEWEST - 1 else _short(float(end[at])) for name, end in ends.items()},
        }
        for at in drawn
    ]


def running_interval(factors: Values, final: Estimate) -> tuple[Values, Values]:
    """Mean of the first k blocks, and half of its interval. The weight of a block is that in `final`."""
    worth = (final.n_effective or final.n) / final.n if final.n else 1.0
    count = np.arange(1, len(factors) + 1)
    # Around their own mean, so that squares do not cancel.
    middle = factors.mean()
    mean = np.cumsum(factors - middle) / count
    squares = np.maximum(np.cumsum(np.square(factors - middle)) - count * np.square(mean), 0)
    return middle + mean, 1.96 * np.sqrt(squares / np.maximum(count - 1, 1) / (count * worth))


def rates(evidence: Evidence, cell: Cell, bins: int = 24) -> Rows:
    """Histogram of slot rates, baseline and treated over the same bins, in the kernel's unit."""
    scale = scale_of(evidence, cell.trial)
    shown = {
        name: np.fromiter(map(scale.show, side.rate.tolist()), np.float64, len(side))
        for name, side in pairs_of(evidence, cell).sides
    }
    groups = {name: values[np.isfinite(values)] for name, values in shown.items()}
    values = np.concatenate([*groups.values()])
    if not len(values):
        return []
    low, high = float(values.min()), float(values.max())
    width = (high - low) / bins or abs(low) / bins or 1.0
    rows = []
    for name, group in groups.items():
        counts = np.bincount(np.minimum(((group - low) / width).astype(np.int64), bins - 1), minlength=bins)
        rows += [
            {"state": name, "low": _short(low + i * width), "high": _short(low + (i + 1) * width), "slots": n}
            for i, n in enumerate(counts.tolist())
            if n
        ]
    return rows


def latencies(evidence: Evidence, cell: Cell) -> Rows:
    """Latency by the share of slower operations, as far into the tail as the counts allow."""
    rows = []
    for name, merged in pairs_of(evidence, cell).merged.items():
        shares = latency.tail_shares(merged)
        rows += [
            {"state": name, "slower": _short(1 - share), "latency_us": _short(value_ns / 1e3)}
            for share, value_ns in zip(shares, latency.quantiles(merged, shares), strict=False)
        ]
    return rows


def percentiles(
    evidence: Evidence, cell: Cell, shares: Sequence[float] = (0.5, 0.9, 0.99, 0.999)
) -> list[tuple[float, float, float]]:
    """(share, baseline ns, treated ns) for shares with at least ten operations beyond."""
    base, treated = pairs_of(evidence, cell).merged.values()
    fewest = min(sum(base.counts.values()), sum(treated.counts.values()))
    kept = [share for share in shares if fewest * (1 - share) >= 10]
    return list(zip(kept, latency.quantiles(base, kept), latency.quantiles(treated, kept), strict=True))


def drawn_blocks(slices: Sequence[SlicePoint], limit: int = MAX_SLICES) -> list[int]:
    """Blocks whose slices are drawn: all, or evenly spaced ones to keep the page small."""
    blocks = sorted({point.block for point in slices})
    per_block = max(len(slices) // max(len(blocks), 1), 1)
    keep = max(limit // per_block, 1)
    return blocks if len(blocks) <= keep else [blocks[i * len(blocks) // keep] for i in range(keep)]


def slices(evidence: Evidence, trial: str) -> Rows:
    """Slices of the drawn blocks. Time counts from the start of the block."""
    points = evidence.timeline.get(trial, ())
    scale = scale_of(evidence, trial)
    labels, groups = labels_of(evidence, trial), groups_of(evidence, trial)
    rows: Rows = []
    for block in drawn_blocks(points):
        own = [p for p in points if p.block == block]
        origin_ns = min(p.start_ns for p in own)
        rows += [
            {
                "block": block,
                "start_ms": _short((p.start_ns - origin_ns) / 1e6),
                "end_ms": _short((p.end_ns - origin_ns) / 1e6),
                "rate": _short(scale.show(p.rate)),
                "treatment": p.treatment,
                "label": labels.get(p.treatment, p.treatment),
                "group": groups.get(p.treatment, p.treatment),
                "guard": p.guard,
            }
            for p in own
        ]
    return rows


def stretches(rows: Rows, key: str) -> Rows:
    """Consecutive slices with the same `key`, merged into one row each, from start to end."""
    merged: Rows = []
    for row in rows:
        last = merged[-1] if merged else None
        if last and last["block"] == row["block"] and last[key] == row[key] and last["treatment"] == row["treatment"]:
            last["end_ms"] = row["end_ms"]
        else:
            merged.append({name: row[name] for name in ("block", "start_ms", "end_ms", "treatment", "label", "guard")})
    return merged


def labels_of(evidence: Evidence, trial: str) -> dict[str, str]:
    return {t.id: t.label for t in trial_of(evidence, trial).treatments}


def groups_of(evidence: Evidence, trial: str) -> dict[str, str]:
    """The colour group of each treatment: its aggressor at any intensity, or else its role."""
    return {t.id: t.aggressor or t.role for t in trial_of(evidence, trial).treatments}


def _short(number: float) -> float:
    """Six significant digits: enough for a drawing, and half the page size."""
    return float(f"{number:.6g}")
