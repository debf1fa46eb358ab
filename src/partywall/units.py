"""Conversion of durations, sizes, rates and shares between text and numbers. Pure.

`parse_*` raise ValueError with the given text and a valid example, also for values that no host can have.
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

N = TypeVar("N", int, float)

_NUMBER = re.compile(r"^\s*([+-]?(?:\d+(?:[_\d]*)(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/%]*)\s*$")

_RANGE = re.compile(r"^\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?$")
CPU_MAX = 8191
NODE_MAX = 1023
WH = 3600.0
"""Joules of a watt-hour."""

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SECONDS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_SECONDS |= {"m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_BYTES = {"": 1, "B": 1}
for _power, _prefix in enumerate("kMGT", start=1):
    _BYTES |= {f"{_prefix}B": 1000**_power, f"{_prefix.upper()}iB": 1024**_power}
_BYTES["KB"] = 1000
DURATION_NS_MOST = 366 * 24 * 3600 * 10**9
BYTES_MOST = 2**60
BIT_RATE_MOST = 10**15
PACKET_RATE_MOST = 10**12
SHARE_MOST = 10**6
DURATION_UNITS = tuple(_SECONDS)
BYTE_UNITS = tuple(unit for unit in _BYTES if unit)


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not {what}; write for example {example}")
    try:
        number = float(match[1])
    except ValueError:  # underscores in places that Python does not allow
        raise ValueError(f"{text!r} is not {what}; write for example {example}") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is too large; write for example {example}")
    return number, match[2]


def _within(value: N, most: float, text: str | float, more: str, example: str) -> N:
    """The value, if no more than any host can have. more: what it is otherwise."""
    if abs(value) > most:
        raise ValueError(f"{text!r} is {more}; write for example {example}")
    return value


def parse_duration_ns(value: str | float) -> int:
    """'100ms', '2.5s', '3min' → nanoseconds. A number without a unit is refused, because the unit would be a guess."""
    number, unit = _split(str(value), "a duration", "100ms, 2s or 3min")
    if unit not in _SECONDS:
        units = ", ".join(_SECONDS)
        raise ValueError(f"{value!r} is not a duration; write a number and one of {units}, for example 100ms")
    return _within(round(number * _SECONDS[unit]), DURATION_NS_MOST, value, "longer than a year", "10min or 24h")


def parse_bytes(value: str | float) -> int:
    """'64MiB', '8kB', 4096 → bytes. MiB is 1024², MB is 1000²."""
    number, unit = _split(str(value), "a size", "64MiB, 8kB or 4096")
    if unit not in _BYTES:
        raise ValueError(f"{value!r} is not a size; units are {', '.join(u for u in _BYTES if u)}, for example 64MiB")
    return _within(round(number * _BYTES[unit]), BYTES_MOST, value, "more than 1 EiB", "64MiB or 2TiB")


def parse_share(value: str | float) -> float:
    """'25%' or 0.25 → 0.25."""
    number, unit = _split(str(value), "a share", "25% or 0.25")
    if unit not in ("", "%"):
        raise ValueError(f"{value!r} is not a share; write for example 25% or 0.25")
    share = number / 100 if unit == "%" else number
    return _within(share, SHARE_MOST, value, f"more than {100 * SHARE_MOST}%", "25% or 0.25")


def parse_bps(value: str | float) -> int:
    """'5MB/s' → bytes a second, for disks. For network rates in bit/s, see `parse_bit_rate`."""
    return parse_bytes(str(value).strip().removesuffix("/s"))


def parse_bit_rate(value: str | float) -> int:
    """'150Mbit/s', '1Gbit/s' → bit/s. A number without a unit is refused: bits and bytes are easily confused."""
    number, unit = _split(str(value), "a bit rate", "150Mbit/s or 1Gbit/s")
    prefix = unit.removesuffix("/s").removesuffix("ps").removesuffix("it").removesuffix("b")
    known = unit.removesuffix("/s").endswith("bit") or unit.endswith("bps")
    if not known or prefix not in _DECIMAL:
        raise ValueError(f"{value!r} is not a bit rate; write bit/s, kbit/s, Mbit/s or Gbit/s, for example 150Mbit/s")
    rate = round(number * _DECIMAL[prefix])
    return _within(rate, BIT_RATE_MOST, value, "more than 1000 Tbit/s", "150Mbit/s or 1Gbit/s")


def parse_packet_rate(value: str | float) -> int:
    """'20k/s', '20kp/s', 20000 → packets a second."""
    number, unit = _split(str(value), "a packet rate", "20k/s or 20000")
    prefix = unit.removesuffix("/s").removesuffix("ps").removesuffix("p")
    if prefix not in _DECIMAL:
        raise ValueError(f"{value!r} is not a packet rate; write for example 20k/s or 20000")
    rate = round(number * _DECIMAL[prefix])
    return _within(rate, PACKET_RATE_MOST, value, "more than 1 Tp/s", "20k/s or 20000")


def format_bit_rate(bps: float) -> str:
    """A bit rate for people: '150 Mbit/s'."""
    divisor, prefix = decimal_prefix(bps)
    return f"{bps / divisor:.4g} {prefix}bit/s"


def format_packet_rate(pps: float) -> str:
    """A packet rate for people: '20 kp/s'."""
    divisor, prefix = decimal_prefix(pps)
    return f"{pps / divisor:.4g} {prefix}p/s"


def parse_cpus(text: str) -> tuple[int, ...]:
    """'0,2-3' → (0, 2, 3). This is the kernel's list format."""
    return _parse_numbers(text, "CPU", CPU_MAX)


def parse_nodes(text: str) -> tuple[int, ...]:
    """NUMA nodes in the kernel's list format, like CPUs."""
    return _parse_numbers(text, "NUMA node", NODE_MAX)


def _parse_numbers(text: str, noun: str, most: int) -> tuple[int, ...]:
    """noun: what is numbered, in the singular. most: the largest number that Linux supports."""
    if not text.strip():
        raise ValueError(f"the list of {noun}s is empty; write for example 0,2-3")
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise ValueError(f"{text!r} is not a list of {noun}s; write for example 0,2-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{text!r} is not a list of {noun}s: {part.strip()} runs backwards; write {last}-{first}")
        if last > most:
            raise ValueError(f"{text!r} names {noun} {last}; Linux supports at most {most}")
        numbers.extend(range(first, last + 1))
    twice = sorted({number for number in numbers if numbers.count(number) > 1}) if len(numbers) <= most else numbers
    if twice:
        raise ValueError(f"{text!r} names {noun} {twice[0]} twice; name it once")
    return tuple(numbers)


def cpus_as_text(value: Any) -> Any:
    """Converts 0, [0, 2] or [0, 2-3] from YAML to text for `parse_cpus`; text and None stay as they are."""
    return _numbers_as_text(value, "CPU")


def nodes_as_text(value: Any) -> Any:
    """The same for NUMA nodes and `parse_nodes`."""
    return _numbers_as_text(value, "NUMA node")


def _numbers_as_text(value: Any, noun: str) -> Any:
    if value is None or isinstance(value, str):
        return value
    given = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(number, bool) or not isinstance(number, int | str) for number in given):
        shown = "a list with other values" if isinstance(value, list | tuple) else f"{value!r:.60}"
        raise ValueError(f"{noun}s must be whole numbers or text, not {shown}; write for example 0, [0, 2] or 0,2-3")
    return ",".join(map(str, given))


def switch_as_text(value: Any) -> Any:
    """Converts true and false, which other YAML writes as on and off, to these words; other values stay as they are."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def format_duration(ns: float) -> str:
    """A duration for people: '43 h 32 min', '45 s', '2 min 30 s', '120 ms', '\u221219 µs'."""
    if ns < 0:
        return f"\u2212{format_duration(-ns)}"
    seconds = ns / 1e9
    if seconds >= 2 * 3600:
        hours, rest = divmod(round(seconds / 60), 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    # Rounded first, so that 999.6 ms become 1 s.
    seconds = float(f"{seconds:.3g}")
    for limit, divisor, unit in ((1, 1, "s"), (1e-3, 1e-3, "ms"), (1e-6, 1e-6, "µs")):
        if seconds >= limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{ns:.3g} ns"


def format_bytes(count: float) -> str:
    """Bytes with a binary prefix: '64 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def format_number(number: float, digits: int = 4) -> str:
    """A number with this many significant digits and no exponent: '12\u202f340', '0.1234'."""
    if not math.isfinite(number):
        return "?" if math.isnan(number) else ("∞" if number > 0 else "−∞")
    return format_decimals(number, digits - 1 - magnitude(number))


def counted(number: int, noun: str) -> str:
    """'1 victim', '2 victims'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_decimals(number: float, decimals: int, *, sign: bool = False) -> str:
    """A number with this many decimals. A negative value rounds it before the point."""
    if not math.isfinite(number):
        return format_number(number)
    rounded = round(number, decimals) + 0.0
    text = f"{rounded:{'+' if sign and rounded else ''},.{max(decimals, 0)}f}"
    # A thin space separates thousands, because a comma or point could be read as a decimal mark.
    return text.replace("-", "−").replace(",", "\u202f")


def magnitude(number: float) -> int:
    """The power of ten of the first digit; 0 for 0, NaN and infinity."""
    return math.floor(math.log10(abs(number))) if number and math.isfinite(number) else 0


def decimal_prefix(largest: float) -> tuple[float, str]:
    """A divisor and its prefix: (1e6, 'M') for 47 million."""
    power = max(0, min(magnitude(largest) // 3, len(_PREFIXES) - 1))
    return 1000.0**power, _PREFIXES[power]


_PREFIXES = ("", "k", "M", "G", "T")
