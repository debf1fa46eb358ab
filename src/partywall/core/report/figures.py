"""Formats figures for people: with a unit, and with as many digits as the interval warrants.

Numbers for programs (JSON, CSV, Parquet) are not formatted here; they keep all digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partywall.core.report.wording import UNTOLD, UNTOLD_REACH, impact, interval, loss, multiple, percent, ratio
from partywall.core.stats.estimate import Emulated, Estimate
from partywall.units import format_decimals, format_number, magnitude

__all__ = [
    "EMULATED",
    "UNTOLD",
    "Scale",
    "bare_percent",
    "change_span",
    "impact",
    "interval",
    "loss",
    "mark",
    "multiple",
    "percent",
    "rate",
    "ratio",
    "scale_of_kernel",
    "span",
    "value",
]

EMULATED = "E: emulated, so absolute figures reflect the emulator; (E): not the victim but a neighbour is emulated."


def mark(emulated: Emulated | None) -> str:
    """The mark behind a figure of an emulated sandbox (see `EMULATED`); empty for others."""
    return {"victim": " E", "neighbour": " (E)"}[emulated] if emulated else ""


@dataclass(frozen=True)
class Scale:
    """How a rate of work is shown: `rate / divisor`, or nanoseconds per operation if `inverse`."""

    label: str
    divisor: float = 1.0
    inverse: bool = False

    def show(self, rate: float) -> float:
        """A rate in its display unit. A rate of 0 gives an infinite time per operation."""
        if self.inverse:
            return 1e9 / rate if rate > 0 else math.inf
        return rate / self.divisor

    def show_estimate(self, rate: Estimate) -> Estimate:
        """An interval in its display unit. Its ends swap if the figure is a time per operation."""
        ends = sorted((self.show(rate.low), self.show(rate.high)))
        return rate.model_copy(update={"value": self.show(rate.value), "low": ends[0], "high": ends[1]})

    @property
    def direction(self) -> str:
        return "less is better" if self.inverse else "more is better"


def scale_of_kernel(figure: Mapping[str, Any]) -> Scale:
    """The scale in a kernel's catalogue entry, or plain work per second if it has none."""
    if figure.get("kind") == "per_operation":
        return Scale(figure["label"], inverse=True)
    return Scale(figure.get("label", "work/s"), float(figure.get("divisor", 1.0)))


def rate(estimate: Estimate, scale: Scale) -> str:
    """A rate with its unit: '7.9 ± 0.2 GB/s'."""
    shown = scale.show_estimate(estimate)
    return f"{interval(shown.value, shown.low, shown.high)} {scale.label}"


def value(number: float, scale: Scale) -> str:
    """A rate of one slot, without an interval, with four digits."""
    return f"{format_number(scale.show(number))} {scale.label}"


def span(low: float, high: float) -> str:
    """The ends of a band, with digits that match its width: '0.994 to 1.006', or 'not known'."""
    if high > UNTOLD_REACH * low:
        return UNTOLD
    width = high - low
    decimals = max(1 - magnitude(width), 0) if width > 0 else 4
    return f"{format_decimals(low, decimals)} to {format_decimals(high, decimals)}"


def change_span(low: float, high: float) -> str:
    """The ends of a band of relative changes: '−8.5 to +9.3 %'."""
    decimals = max(1 - magnitude(100 * (high - low)), 0) if high > low else 1
    ends = (format_decimals(100 * end, decimals, sign=True) for end in (low, high))
    return f"{' to '.join(ends)} %"


def bare_percent(share: float, digits: int = 1) -> str:
    """A share without an interval, such as an intensity: '50 %'."""
    text = f"{100 * share:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %".replace("-", "−")
