"""Figures with their uncertainty: estimates, intervals, verdicts, and what of a figure was emulated."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal, Self

from partywall.values import Frozen


class Estimate(Frozen):
    """A figure with its interval. n: blocks. n_effective: the equivalent number of independent blocks."""

    value: float
    low: float
    high: float
    level: float = 0.95
    n: int
    n_effective: float | None = None
    method: str

    @property
    def half_width(self) -> float:
        """The value to show behind ±: the longer arm, because an interval that ends at a limit is not symmetric."""
        return max(self.high - self.value, self.value - self.low)

    def mapped(self, change: Callable[[float], float]) -> Self:
        """The same figure in another form, such as another unit. change: rises with its argument."""
        return self.model_copy(update={name: change(getattr(self, name)) for name in ("value", "low", "high")})

    def scaled(self, by: float) -> Self:
        """The same figure times a number that is not negative."""
        return self.mapped(lambda value: value * by)


class Outcome(StrEnum):
    """A verdict. Inconclusive never counts as a pass."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"


Emulated = Literal["victim", "neighbour"]
"""Which part of a figure was emulated: the victim, and with it absolute figures, or only a neighbour."""


class Span(Frozen):
    """A predicted figure, and the interval that should hold what comes in 90 of 100 moves."""

    value: float
    low: float
    high: float
