"""The name of a power meter in parts, and all that the name alone says. Nothing here touches a meter or a host."""

from __future__ import annotations

import math
import urllib.parse
from dataclasses import dataclass, field

from partywall.errors import Problem, UsageError
from partywall.power.values import Origin

PASSWORD, PASSWORD_FILE = "PARTYWALL_METER_PASSWORD", "PARTYWALL_METER_PASSWORD_FILE"
IN_SOFTWARE = ("replay", "simulated")
"""Kinds of meters that exist only in software."""
OF_THIS_HOST = ("rapl", "hwmon", "resctrl")
"""Kinds of meters that are files of the host that reads them."""


def unusable(meter: str, why: str, remedy: str = "see partywall power meters") -> UsageError:
    """The error for a meter's name that cannot be used."""
    return UsageError(Problem(f"meter {meter}: {why}", remedy))


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

    @property
    def origin(self) -> Origin:
        """Where its watts come from."""
        return "simulated" if self.scheme in IN_SOFTWARE else "measured"

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

    def number(self, name: str, text: str, least: float = 0.0, most: float = 1e6) -> float:
        """An option as a number. UsageError if it is not one from `least` to `most`."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise unusable(self.text, f"option {name}={text} is not a number from {least:g} to {most:g}", "correct it")
        return value
