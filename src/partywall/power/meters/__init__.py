"""The meters, in one list. A meter is one module: `SCHEMES`, `make(address, host)` and `find(host)`.

A meter is named by a text such as `rapl`, `redfish://admin@bmc/Chassis/1` or `wattsup:/dev/ttyUSB0`.
"""

from __future__ import annotations

from types import ModuleType

from partywall.host import Host
from partywall.power.meters import hwmon, ipmi, nut, rapl, redfish, replay, resctrl, simulated, snmp, wattsup
from partywall.power.meters.base import Address, Meter, MeterError, Place, unusable
from partywall.scenario.explain import did_you_mean

__all__ = ["METERS", "Address", "Meter", "MeterError", "Place", "find", "make"]

METERS: tuple[ModuleType, ...] = (rapl, hwmon, resctrl, ipmi, redfish, snmp, nut, wattsup, replay, simulated)
"""Adding a meter is one module and one entry."""


def make(name: str, host: Host) -> Meter:
    """A meter by its name. Raises UsageError."""
    address = Address.parse(name)
    for module in METERS:
        if address.scheme in module.SCHEMES:
            made: Meter = module.make(address, host)
            return made
    known = [scheme for module in METERS for scheme in module.SCHEMES]
    raise unusable(name, f"there is no kind {address.scheme[:40]!r}", did_you_mean(address.scheme, known))


def find(host: Host) -> list[Place]:
    """Every meter that this host has or could have."""
    return [place for module in METERS for place in module.find(host)]
