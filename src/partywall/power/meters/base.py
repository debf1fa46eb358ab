"""What every meter has in common: its interface, its password, and counters that wrap."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from partywall.errors import TrialError
from partywall.host import Host
from partywall.power.address import PASSWORD, PASSWORD_FILE, Address, unusable
from partywall.power.values import FaultKind, MeterFacts, Reading

TIMEOUT_S = 2.0
"""How long a meter may take to answer."""
LEAST_MEAN_S = 0.5
"""The shortest time over which the power of a counter is averaged."""
LATE_S = 1.0
"""Readings may be this much later than their time stamps say."""
STILL_S = 2.0
"""A counter of something that always takes power has moved after this time."""


class MeterError(TrialError):
    """A meter that could not be read."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind


class Meter(Protocol):
    """Something that reads power or energy. It is used by one thread."""

    @property
    def facts(self) -> MeterFacts: ...

    def read(self) -> Reading:
        """One reading. MeterError if there is none within TIMEOUT_S."""
        ...

    def close(self) -> None: ...


class Watts:
    """The watts of a meter, also of one that counts joules: then it is the mean since its last reading."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._last: Reading | None = None

    def read(self) -> float:
        """MeterError if there is no reading. After one of a counter, the mean begins again."""
        last, self._last = self._last, None
        now = self._meter.read()
        if now.joules is None:
            return now.watts or 0.0
        while last is None or now.time_ns - last.time_ns < LEAST_MEAN_S * 1e9:
            last = last or now
            time.sleep(LEAST_MEAN_S)
            now = self._meter.read()
        self._last = now
        return ((now.joules or 0.0) - (last.joules or 0.0)) / (now.time_ns - last.time_ns) * 1e9

    def close(self) -> None:
        self._meter.close()


@dataclass(frozen=True)
class Place:
    """A meter that this host has, or could have. missing: why it cannot be used; empty if it can."""

    name: str
    what: str
    missing: str = ""
    remedy: str = ""


def password_of(address: Address, otherwise: str | None = None) -> str:
    """The password from the option `password` (env:NAME or file:PATH), or from the usual variables.

    UsageError if there is none and `otherwise` is None.
    """
    kind, _, where = address.options.get("password", "").partition(":")
    if kind == "env" or (not kind and PASSWORD in os.environ):
        value = os.environ.get(where or PASSWORD)
    elif kind == "file" or (not kind and PASSWORD_FILE in os.environ):
        value = _from_file(where or os.environ[PASSWORD_FILE], address.text)
    elif kind:
        raise unusable(address.text, "option password must be env:NAME or file:PATH")
    else:
        value = otherwise
    if value is None:
        raise unusable(address.text, "it needs a password", f"set {PASSWORD} or {PASSWORD_FILE}")
    return value


def _from_file(path: str, meter: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise unusable(meter, f"its password file {path} cannot be read: {error}") from None


Clock = Callable[[], int]


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def number(text: str | float, what: str, most: float = 1e6) -> float:
    """A reading as a number. MeterError if it is not a plausible one."""
    try:
        # Python counts with truth values; a meter does not.
        value = float("" if isinstance(text, bool) else text)
    except (TypeError, ValueError, OverflowError):
        raise MeterError("garbage", f"{what} is {str(text)[:40]!r}, which is not a number") from None
    if not 0 <= value <= most:
        raise MeterError("garbage", f"{what} is {value:g}, which is not between 0 and {most:g}")
    return value


@dataclass
class Counter:
    """A counter of energy that begins again at `wrap`. Its total only grows.

    least_wrap_s: the shortest time in which it can wrap. After a longer time without a reading the energy between is
    not known. A reset of a counter is distinguished from its wrap by the power that the wrap would have taken.
    moves: whether what it counts always takes power. Then a counter that stands still counts nothing, as some do that
    firmware or a hypervisor only shows.
    """

    wrap: float | None
    least_wrap_s: float | None = None
    moves: bool = False
    total: float = 0.0
    _last: tuple[int, float] | None = None
    _moved_ns: int = 0

    def add(self, time_ns: int, value: float) -> float:
        """The total after this value.

        MeterError if the counter may have wrapped more than once, was reset, or stands still.
        """
        last, self._last = self._last, (time_ns, value)
        if last is None or value != last[1]:
            self._moved_ns = time_ns
        still_s = (time_ns - self._moved_ns) / 1e9
        if self.moves and still_s >= STILL_S:
            raise MeterError("garbage", f"the counter stands at {value:g} J for {still_s:.0f} s: it counts nothing")
        if last is None:
            return self.total
        passed_s = (time_ns - last[0]) / 1e9
        if self.least_wrap_s is not None and passed_s > self.least_wrap_s:
            raise MeterError("gap", f"{passed_s:.0f} s without a reading: the counter may have wrapped more than once")
        step = value - last[1]
        if step < 0:
            most = self._most_joules(passed_s)
            if self.wrap is None or step + self.wrap > most:
                raise MeterError("gap", f"the counter fell from {last[1]:g} to {value:g} J: it was reset")
            step += self.wrap
        self.total += step
        return self.total

    def _most_joules(self, passed_s: float) -> float:
        """What it can count in this time. Readings come late at times."""
        if self.wrap is None or self.least_wrap_s is None:
            return math.inf
        return self.wrap / self.least_wrap_s * max(passed_s, LATE_S)


def text_of(path: Path, what: str) -> str:
    """The text of a meter's file. MeterError if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise MeterError("gone", f"{what}: {path} cannot be read: {error.strerror}") from None


def listed(host: Host, folder: str, pattern: str) -> list[Path]:
    """The paths below a folder of the host that match, in order."""
    return sorted(host.path(folder).glob(pattern))
