"""The meters, in one list. A meter is one module: `SCHEMES`, `check(address)`, `make(address, host)` and `find(host)`.

A meter is named by a text such as `rapl`, `redfish://admin@bmc/Chassis/1` or `wattsup:/dev/ttyUSB0`.
"""

from __future__ import annotations

from types import ModuleType

from partywall.core.document.explain import did_you_mean
from partywall.host import Host
from partywall.power.address import Address, unusable
from partywall.power.meters import hwmon, ipmi, nut, rapl, redfish, replay, resctrl, simulated, snmp, wattsup
from partywall.power.meters.base import Meter, MeterError, Place, Watts

__all__ = ["METERS", "Address", "Meter", "MeterError", "Place", "Watts", "check", "find", "make"]

METERS: tuple[ModuleType, ...] = (rapl, hwmon, resctrl, ipmi, redfish, snmp, nut, wattsup, replay, simulated)
"""Adding a meter is one module and one entry."""


def check(name: str) -> tuple[Address, ModuleType]:
    """The parts of a meter's name, and its module. UsageError for all that is wrong with the name itself.

    Whether there is such a meter is not checked, nor its password.
    """
    address = Address.parse(name)
    for module in METERS:
        if address.scheme in module.SCHEMES:
            module.check(address)
            return address, module
    known = [scheme for module in METERS for scheme in module.SCHEMES]
    raise unusable(name, f"there is no kind {address.scheme[:40]!r}", did_you_mean(address.scheme, known))


def make(name: str, host: Host) -> Meter:
    """A meter by its name. Raises UsageError."""
    address, module = check(name)
    made: Meter = module.make(address, host)
    return made


def find(host: Host) -> list[Place]:
    """Every meter that this host has or could have."""
    return [place for module in METERS for place in module.find(host)]
