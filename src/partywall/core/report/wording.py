"""Formats estimates for people: with as many digits as the interval warrants, and the same words everywhere.

The headline, the terminal, the pages and the tables all use these functions.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping

from partywall.core.stats.estimate import Estimate
from partywall.units import format_decimals, magnitude

ASYMMETRY = 1.5
"""Arms of an interval that differ by more than this factor are written out instead of as ±."""

TIMES = 5.0
"""Multiple of the baseline's latency from which an impact is written as a multiple instead of in percent."""

UNTOLD = "not known"
UNTOLD_REACH = 10.0
"""If the ends of a ratio's interval differ by more than this factor, no digit of it is reliable."""

WIDTH, LINES = 80, 3
"""The room of a headline on a terminal. Long names may need more."""


def fits(headline: str) -> bool:
    """True if a terminal shows it in so many lines."""
    return len(textwrap.wrap(headline, WIDTH)) <= LINES


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
    """The fewest digits with which the ends, rounded outwards, are at most a tenth further apart than before."""
    fewest = -magnitude(high - low)
    for decimals in (fewest, fewest + 1, fewest + 2):
        step = 10.0**decimals
        ends = (math.floor(low * step + 1e-9) / step, math.ceil(high * step - 1e-9) / step)
        if ends[1] - ends[0] <= 1.1 * (high - low):
            break
    written = " to ".join(format_decimals(end, decimals, sign=sign) for end in ends)
    return f"{format_decimals(value, decimals, sign=sign)}{_spaced(unit)} ({written})"


def ratio(estimate: Estimate) -> str:
    """An isolation factor or an efficiency: '0.82 ± 0.01', or a bound if little is known."""
    if estimate.low < 0 or not math.isfinite(estimate.high):
        return interval(estimate.value, estimate.low, estimate.high)
    return multiple(estimate)


def percent(estimate: Estimate, *, sign: bool = False) -> str:
    """A share: '18 % ± 1'."""
    return interval(100 * estimate.value, 100 * estimate.low, 100 * estimate.high, "%", sign=sign)


def impact(estimate: Estimate, *, sign: bool = True) -> str:
    """A latency impact: '+12 % ± 2', '25 times (11 to 53)', or 'not known'.

    Large values are hard to read as a percentage: from TIMES on, they are multiples of the baseline's latency.
    """
    times = estimate.mapped(lambda change: 1 + change)
    if times.value < TIMES and not _wide(times):
        return percent(estimate, sign=sign)
    return multiple(times, "times")


def multiple(times: Estimate, unit: str = "") -> str:
    """A ratio: '1.12 ± 0.02'. If no digit is reliable, its nearer end, or 'not known'."""
    if not _wide(times):
        return interval(times.value, times.low, times.high, unit)
    if times.low <= 1 <= times.high:
        return UNTOLD
    words, end, towards = ("at least", times.low, math.floor) if times.low > 1 else ("at most", times.high, math.ceil)
    decimals = 1 - magnitude(end)
    # Rounded only towards the known side. Errors of binary fractions must not change the digit.
    bound = towards(round(end * 10.0**decimals, 6)) / 10.0**decimals
    written = format_decimals(bound, decimals)
    return f"{words} {written.rstrip('0').rstrip('.') if '.' in written else written}{_spaced(unit)}"


def _wide(times: Estimate) -> bool:
    """True if the ends are so far apart that only a bound can be given."""
    return times.high > UNTOLD_REACH * times.low


def loss(isolation: Estimate) -> Estimate:
    """The loss for an isolation factor: 1 − factor, with the interval reversed."""
    return isolation.model_copy(
        update={"value": 1 - isolation.value, "low": 1 - isolation.high, "high": 1 - isolation.low}
    )


def _rounded_half(half: float, value: float) -> tuple[float, int]:
    """The half-width as written, and the number of decimals.

    One digit if that is at most 5 % too narrow or 25 % too wide, else two.
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


def levels_text(levels: Mapping[str, object]) -> str:
    """The levels of a trial, by the last part of their paths."""
    return ", ".join(f"{path.rsplit('.', 1)[-1]} {level}" for path, level in levels.items())
