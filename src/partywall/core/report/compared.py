"""The figures of a record beside those of others, each with a unit, and an interval where there is one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from partywall import units
from partywall.core.report.wording import interval

MISSING = "–"

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZES = tuple((1024.0**power, f"{prefix}B") for power, prefix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki"), (0, "")))
_DECIMAL = ("bit/s", "p/s", "W", "J", "Wh")
"""Units that take a decimal prefix."""


@dataclass(frozen=True)
class Figure:
    """One figure. of: what it is of, the same in every record that has it. low, high: its 95 % interval, if known.

    unit: ns, s, B, B/s, bit/s, p/s, %, for which the value is a share, or any other. n: values whose mean it is.
    """

    of: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    n: int = 1

    @property
    def text(self) -> str:
        """'12.3 ms ± 0.4', '28 610 responses/s', '5 Mbit/s'."""
        if self.value == 0 and not self.low and not self.high:
            return f"0 {self.unit}".strip()
        if self.unit == "s":
            low, high = (None if end is None else end * 1e9 for end in (self.low, self.high))
            return replace(self, value=self.value * 1e9, unit="ns", low=low, high=high).text
        divisor, unit = _scale(self.value, self.unit)
        if self.low is None or self.high is None or not self.low < self.high:
            return f"{_number(self.value / divisor)} {unit}".strip()
        return interval(self.value / divisor, self.low / divisor, self.high / divisor, unit)


def _scale(value: float, unit: str) -> tuple[float, str]:
    """A divisor, and the unit of what is left."""
    if unit == "%":
        return 0.01, "%"
    if unit in _DECIMAL:
        divisor, prefix = units.decimal_prefix(abs(value))
        return divisor, f"{prefix}{unit}"
    steps = {"ns": _TIMES, "B": _SIZES, "B/s": _SIZES}.get(unit, ((1.0, unit),))
    divisor, shown = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return divisor, f"{shown}/s" if unit == "B/s" else shown


def _number(value: float) -> str:
    """Four digits, without zeros that say nothing."""
    text = units.format_decimals(value, 0) if abs(value) >= 1000 or value == 0 else units.format_number(value)
    return text.rstrip("0").rstrip(".") if "." in text else text
