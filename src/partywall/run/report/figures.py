"""Formats a run's own figures: the scale and latency of a victim, and readings of counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partywall.core.report.figures import Scale, scale_of_kernel
from partywall.core.report.wording import interval
from partywall.core.stats.estimate import Estimate
from partywall.run.document.scenario import Victim
from partywall.run.values.evidence import Counter


def scale_of(victim: Victim, kernels: Mapping[str, Mapping[str, Any]]) -> Scale:
    """The scale of a victim: its kernel's figure, or the unit that its metric names."""
    if victim.load is not None:
        return Scale("responses/s")
    if victim.probe is None:
        return Scale(victim.metric.unit if victim.metric else "work/s")
    return scale_of_kernel(kernels.get(victim.probe, {}).get("figure", {}))


def latency_of(victim: Victim, kernels: Mapping[str, Mapping[str, Any]]) -> str:
    """What the latency histogram of a victim measures, according to its kernel."""
    if victim.load is not None:
        return "response time from the intended start"
    latency = kernels.get(victim.probe or "", {}).get("latency", {})
    return str(latency.get("of", "one operation"))


def reading(difference: Estimate, counter: Counter) -> str:
    """A difference between two readings of a counter: '+57 % ± 4 of a core'."""
    low, high = difference.low, difference.high
    divisor, unit = counter.scale(max(abs(low), abs(high)))
    mark, rest = ("%", unit.removeprefix("%").strip()) if unit.startswith("%") else ("", unit)
    text = interval(difference.value / divisor, low / divisor, high / divisor, mark, sign=True)
    return f"{text} {rest}".strip()
