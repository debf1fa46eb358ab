"""Judges whether a load kept its plan's thresholds, from a summary. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from partywall import units
from partywall.core.report.figures import bare_percent
from partywall.core.report.latency import quantiles
from partywall.core.stats.estimate import Outcome
from partywall.load.availability import availability
from partywall.load.check import BOUNDS
from partywall.load.document import Threshold
from partywall.load.second import Timing, histogram
from partywall.load.summary import Summary
from partywall.load.values import Bound

LEAST = ("rate", "available")
"""Bounds below which a load may not fall; the others may not be exceeded."""

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def judge(thresholds: Sequence[Threshold], summary: Summary, labels: Sequence[dict[str, str]]) -> list[Bound]:
    return [_judge(threshold, summary, labels) for threshold in thresholds]


def overall(kept: Sequence[Bound], summary: Summary, good_seconds: float) -> Outcome:
    """The outcome of a whole load.

    Unreliable figures are inconclusive, and a load that was cut short kept no threshold.
    """
    if summary.good < good_seconds * summary.seconds:
        return Outcome.INCONCLUSIVE
    outcomes = {bound.outcome for bound in kept} | ({Outcome.INCONCLUSIVE} if summary.ended_early else set())
    return next((o for o in (Outcome.VIOLATED, Outcome.INCONCLUSIVE) if o in outcomes), Outcome.HOLDS)


def _judge(threshold: Threshold, summary: Summary, labels: Sequence[dict[str, str]]) -> Bound:
    numbers = _numbers(threshold, labels)
    key = next(key for key in BOUNDS if getattr(threshold, key) is not None)
    bound = getattr(threshold, key)
    if key == "available":
        value = availability(summary.full, numbers, threshold.within)
    else:
        value = _value_of(key, numbers, summary, 0 if threshold.of is not None else summary.unserved)
    about = f"{threshold.of}: " if threshold.of is not None else ""
    direction = "at least" if key in LEAST else "at most"
    condition = f"{about}{key} {direction} {_shown(key, bound)}"
    condition += (
        f" of seconds, within {units.format_duration(threshold.within)}" if threshold.within is not None else ""
    )
    if value is None:
        return Bound(condition, "nothing was measured", Outcome.INCONCLUSIVE)
    holds = value >= bound if key in LEAST else value <= bound
    return Bound(condition, _shown(key, value), Outcome.HOLDS if holds else Outcome.VIOLATED)


def _numbers(threshold: Threshold, labels: Sequence[dict[str, str]]) -> list[int]:
    """The labels that a threshold applies to: one name, which is unique in a plan, or all requests."""
    return [
        number
        for number, label in enumerate(labels)
        if label["name"] == threshold.of or (threshold.of is None and label["sort"] == "http")
    ]


def _value_of(key: str, numbers: Sequence[int], summary: Summary, unserved: int) -> float | None:
    """unserved: arrivals that failed before a request was sent."""
    timing = Timing()
    for number in numbers:
        timing.merge(summary.timings.get(number, Timing()))
    every = timing.done + timing.failed + unserved
    match key:
        case "mean":
            return timing.mean_ns
        case "errors":
            return (timing.failed + unserved) / every if every else None
        case "rate":
            done = sum(summary.within.get(number, 0) for number in numbers)
            return done / summary.length_s if every and summary.length_s > 0 else None
        case _:
            return next(iter(quantiles(histogram(timing.corrected), (SHARES[key],))), None)


def _shown(key: str, value: float) -> str:
    if key in ("errors", "available"):
        return bare_percent(value, 2)
    return f"{units.format_number(value)}/s" if key == "rate" else units.format_duration(value)
