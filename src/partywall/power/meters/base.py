"""What every meter has in common: its interface, its address, its password, and counters that wrap."""

from __future__ import annotations

import os
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from partywall.errors import Problem, TrialError, UsageError
from partywall.host import Host
from partywall.model.power import FaultKind, MeterFacts, Reading

TIMEOUT_S = 2.0
"""How long a meter may take to answer."""
PASSWORD, PASSWORD_FILE = "PARTYWALL_METER_PASSWORD", "PARTYWALL_METER_PASSWORD_FILE"


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


@dataclass(frozen=True)
class Place:
    """A meter that this host has, or could have. missing: why it cannot be used; empty if it can."""

    name: str
    what: str
    missing: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Address:
    """A meter's name in parts, such as redfish://admin@bmc:443/Chassis/1?tls=insecure."""

    text: str
    scheme: str
    user: str = ""
    host: str = ""
    port: int | None = None
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Address:
        """UsageError if it cannot be understood, or contains a password."""
        scheme, _, rest = text.partition(":")
        if not rest.startswith("//"):
            return cls(text, scheme, path=rest)
        try:
            parts = urllib.parse.urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise unusable(scheme, f"{error}") from None
        if parts.password is not None:
            # The text is not repeated, because it contains the password.
            raise UsageError(
                Problem(
                    f"the name of a {scheme} meter contains a password, which every user of this host can see",
                    f"leave it out of the name, and set {PASSWORD} or {PASSWORD_FILE}",
                )
            )
        user = urllib.parse.unquote(parts.username or "")
        options = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        return cls(text, scheme, user, parts.hostname or "", port, parts.path.strip("/"), options)

    def option(self, *known: str) -> None:
        """UsageError if it has an option that is not `known`."""
        for name in self.options:
            if name not in known:
                remedy = f"there is {', '.join(known)}" if known else "leave it out"
                raise unusable(self.text, f"it has no option {name!r}", remedy)

    def password(self, otherwise: str | None = None) -> str:
        """The password from the option `password` (env:NAME or file:PATH), or from the usual variables.

        UsageError if there is none and `otherwise` is None.
        """
        kind, _, where = self.options.get("password", "").partition(":")
        if kind == "env" or (not kind and PASSWORD in os.environ):
            value = os.environ.get(where or PASSWORD)
        elif kind == "file" or (not kind and PASSWORD_FILE in os.environ):
            value = _from_file(where or os.environ[PASSWORD_FILE], self.text)
        elif kind:
            raise unusable(self.text, "option password must be env:NAME or file:PATH")
        else:
            value = otherwise
        if value is None:
            raise unusable(self.text, "it needs a password", f"set {PASSWORD} or {PASSWORD_FILE}")
        return value


def _from_file(path: str, meter: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise unusable(meter, f"its password file {path} cannot be read: {error}") from None


def unusable(meter: str, why: str, remedy: str = "see partywall power meters") -> UsageError:
    """The error for a meter's name that cannot be used."""
    return UsageError(Problem(f"meter {meter}: {why}", remedy))


Clock = Callable[[], int]


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def number(text: str | float, what: str, most: float = 1e6) -> float:
    """A reading as a number. MeterError if it is not a plausible one."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise MeterError("garbage", f"{what} is {str(text)[:40]!r}, which is not a number") from None
    if not 0 <= value <= most:
        raise MeterError("garbage", f"{what} is {value:g}, which is not between 0 and {most:g}")
    return value


@dataclass
class Counter:
    """A counter of energy that begins again at `wrap`. Its total only grows.

    least_wrap_s: the shortest time in which it can wrap. After a longer time without a reading the energy between is
    not known.
    """

    wrap: float | None
    least_wrap_s: float | None = None
    total: float = 0.0
    _last: tuple[int, float] | None = None

    def add(self, time_ns: int, value: float) -> float:
        """The total after this value. MeterError if the counter may have wrapped more than once, or was reset."""
        last, self._last = self._last, (time_ns, value)
        if last is None:
            return self.total
        passed_s = (time_ns - last[0]) / 1e9
        if self.least_wrap_s is not None and passed_s > self.least_wrap_s:
            raise MeterError("gap", f"{passed_s:.0f} s without a reading: the counter may have wrapped more than once")
        step = value - last[1]
        if step < 0:
            if self.wrap is None:
                raise MeterError("gap", f"the counter fell from {last[1]:g} to {value:g} J: it was reset")
            step += self.wrap
        self.total += step
        return self.total


def text_of(path: Path, what: str) -> str:
    """The text of a meter's file. MeterError if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise MeterError("gone", f"{what}: {path} cannot be read: {error.strerror}") from None


def listed(host: Host, folder: str, pattern: str) -> list[Path]:
    """The paths below a folder of the host that match, in order."""
    return sorted(host.path(folder).glob(pattern))
