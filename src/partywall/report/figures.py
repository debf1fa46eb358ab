"""How a figure is written for people: as many digits as its interval warrants, with its unit.

Numbers for machines (JSON, CSV, Parquet) do not pass through here; they keep every digit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partywall.model.evidence import Counter, Emulated
from partywall.model.finding import Estimate
from partywall.model.scenario import Victim
from partywall.units import format_decimals, format_number, magnitude

ASYMMETRY = 1.5
"""Arms of an interval that differ by more than this are written out instead of as ±."""

TIMES = 5.0
"""Multiple of the baseline's latency from which an impact is written as such, and not in percent."""

EMULATED = "E: emulated, and an absolute figure is the emulator's; (E): not the victim, but a neighbour is emulated."

UNTOLD_REACH = 10.0
UNTOLD = "not known"


def mark(emulated: Emulated | None) -> str:
    """What stands behind a figure that is emulated, as `EMULATED` explains it; empty behind others."""
    return {"victim": " E", "neighbour": " (E)"}[emulated] if emulated else ""


@dataclass(frozen=True)
class Scale:
    """How a rate of work is shown: `rate / divisor`, or nanoseconds per operation where `inverse`."""

    label: str
    divisor: float = 1.0
    inverse: bool = False

    def show(self, rate: float) -> float:
        """A rate in the unit people know; an operation that never ends takes for ever."""
        if self.inverse:
            return 1e9 / rate if rate > 0 else math.inf
        return rate / self.divisor

    def show_estimate(self, rate: Estimate) -> Estimate:
        """The interval turns round with the figure when it is time per operation."""
        ends = sorted((self.show(rate.low), self.show(rate.high)))
        return rate.model_copy(update={"value": self.show(rate.value), "low": ends[0], "high": ends[1]})

    @property
    def direction(self) -> str:
        return "less is better" if self.inverse else "more is better"


def scale_of(victim: Victim, kernels: Mapping[str, Mapping[str, Any]]) -> Scale:
    """The scale of a victim: its kernel's figure, or the unit its metric names."""
    if victim.load is not None:
        return Scale("responses/s")
    if victim.probe is None:
        return Scale(victim.metric.unit if victim.metric else "work/s")
    return scale_of_kernel(kernels.get(victim.probe, {}).get("figure", {}))


def scale_of_kernel(figure: Mapping[str, Any]) -> Scale:
    """The scale that a kernel's catalogue entry names; bare work per second if it names none."""
    if figure.get("kind") == "per_operation":
        return Scale(figure["label"], inverse=True)
    return Scale(figure.get("label", "work/s"), float(figure.get("divisor", 1.0)))


def latency_of(victim: Victim, kernels: Mapping[str, Mapping[str, Any]]) -> str:
    """What the latency histogram of a victim holds, as its kernel says it."""
    if victim.load is not None:
        return "response time from the intended start"
    latency = kernels.get(victim.probe or "", {}).get("latency", {})
    return str(latency.get("of", "one operation"))


def interval(value: float, low: float, high: float, unit: str = "", *, sign: bool = False) -> str:
    """'0.82 ± 0.01', '18 % ± 1', or '0.82 (0.75 to 0.84)' when the arms differ."""
    if not all(map(math.isfinite, (value, low, high))):
        return f"{format_decimals(value, 3 - magnitude(value), sign=sign)}{_spaced(unit)} (no interval yet)"
    below, above = value - low, high - value
    if high > low and (min(below, above) <= 0 or max(below, above) > ASYMMETRY * min(below, above)):
        return _lopsided(value, low, high, unit, sign=sign)
    half, decimals = _rounded_half((high - low) / 2, value)
    text = f"{format_decimals(value, decimals, sign=sign)}{_spaced(unit)}"
    return f"{text} ± {format_decimals(half, decimals)}"


def _lopsided(value: float, low: float, high: float, unit: str, *, sign: bool) -> str:
    """The fewest digits with which the ends, rounded outwards, are at most a tenth further apart than found."""
    fewest = -magnitude(high - low)
    for decimals in (fewest, fewest + 1, fewest + 2):
        step = 10.0**decimals
        ends = (math.floor(low * step + 1e-9) / step, math.ceil(high * step - 1e-9) / step)
        if ends[1] - ends[0] <= 1.1 * (high - low):
            break
    written = " to ".join(format_decimals(end, decimals, sign=sign) for end in ends)
    return f"{format_decimals(value, decimals, sign=sign)}{_spaced(unit)} ({written})"


def ratio(estimate: Estimate) -> str:
    """An isolation factor or an efficiency: '0.82 ± 0.01', or what is known of it where that is little."""
    if estimate.low < 0 or not math.isfinite(estimate.high):
        return interval(estimate.value, estimate.low, estimate.high)
    return multiple(estimate)


def percent(estimate: Estimate, *, sign: bool = False) -> str:
    """A share: '18 % ± 1'."""
    return interval(100 * estimate.value, 100 * estimate.low, 100 * estimate.high, "%", sign=sign)


def impact(estimate: Estimate) -> str:
    """A latency impact: '+12 % ± 2', '25 times (11 to 53)', or 'not known'.

    Nobody reads +2356 %: from TIMES on it is told as a multiple of the baseline's latency.
    """
    times = estimate.model_copy(update={name: 1 + getattr(estimate, name) for name in ("value", "low", "high")})
    if times.value < TIMES and not _wide(times):
        return percent(estimate, sign=True)
    return multiple(times, "times")


def multiple(times: Estimate, unit: str = "") -> str:
    """A ratio: '1.12 ± 0.02'; where no digit of it means anything its nearer end, or 'not known'."""
    if not _wide(times):
        return interval(times.value, times.low, times.high, unit)
    if times.low <= 1 <= times.high:
        return UNTOLD
    words, end = ("at least", times.low) if times.low > 1 else ("at most", times.high)
    return f"{words} {end:.2g}{_spaced(unit)}"


def _wide(times: Estimate) -> bool:
    """Whether the ends lie so far apart that only a bound can be told."""
    return times.high > UNTOLD_REACH * times.low


def loss(isolation: Estimate) -> Estimate:
    """What an isolation factor takes away: 1 − factor, the interval turned round."""
    return isolation.model_copy(
        update={"value": 1 - isolation.value, "low": 1 - isolation.high, "high": 1 - isolation.low}
    )


def rate(estimate: Estimate, scale: Scale) -> str:
    """A rate in its kernel's figure: '7.9 ± 0.2 GB/s'."""
    shown = scale.show_estimate(estimate)
    return f"{interval(shown.value, shown.low, shown.high)} {scale.label}"


def value(number: float, scale: Scale) -> str:
    """One rate without an interval, with four digits: for single slots."""
    return f"{format_number(scale.show(number))} {scale.label}"


def reading(difference: Estimate, counter: Counter) -> str:
    """A difference between two readings of a counter: '+57 % ± 4 of a core'."""
    low, high = difference.low, difference.high
    divisor, unit = counter.scale(max(abs(low), abs(high)))
    mark, rest = ("%", unit.removeprefix("%").strip()) if unit.startswith("%") else ("", unit)
    text = interval(difference.value / divisor, low / divisor, high / divisor, mark, sign=True)
    return f"{text} {rest}".strip()


def span(low: float, high: float) -> str:
    """The ends of a band, with digits that follow its width: '0.994 to 1.006', or 'not known'."""
    if high > UNTOLD_REACH * low:
        return UNTOLD
    width = high - low
    decimals = max(1 - magnitude(width), 0) if width > 0 else 4
    return f"{format_decimals(low, decimals)} to {format_decimals(high, decimals)}"


def change_span(low: float, high: float) -> str:
    """The ends of a band of changes, as shares: '−8.5 to +9.3 %'."""
    decimals = max(1 - magnitude(100 * (high - low)), 0) if high > low else 1
    ends = (format_decimals(100 * end, decimals, sign=True) for end in (low, high))
    return f"{' to '.join(ends)} %"


def bare_percent(share: float, digits: int = 1) -> str:
    """A share without an interval, such as an intensity: '50 %'."""
    text = f"{100 * share:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %".replace("-", "−")


def _rounded_half(half: float, value: float) -> tuple[float, int]:
    """The half-width as it is written, and the decimals both get.

    One digit where that is at most 5 % too narrow or 25 % too wide, else two.
    """
    if half <= 0:
        return 0.0, 3 - magnitude(value)
    decimals = -magnitude(half)
    nearest = round(half, decimals)
    upwards = math.ceil(half * 10.0**decimals) / 10.0**decimals
    for candidate in (nearest, upwards):
        if 0.95 <= candidate / half <= 1.25:
            return candidate, decimals
    return round(half, decimals + 1), decimals + 1


def _spaced(unit: str) -> str:
    return f" {unit}" if unit else ""
