"""IPMI: the power that a management controller reports, through `ipmitool`.

`ipmi` is the controller of this host, `ipmi://USER@HOST` one in the network. Without a path the DCMI power reading is
used (1 W steps); with one, the sensor of that name, such as ipmi://admin@bmc/Total_Power. The steps of a sensor depend
on its controller. Options: `cipher=NUMBER`, the cipher suite; `password`.
"""

from __future__ import annotations

import re

from partywall.host import Host
from partywall.power import bmc
from partywall.power.address import Address, unusable
from partywall.power.meters.base import TIMEOUT_S, MeterError, Place, now_ns, number, password_of
from partywall.power.values import MeterFacts, Reading

SCHEMES = ("ipmi",)
DCMI = re.compile(r"Instantaneous power reading:\s+(\d+) Watts")
STATE = re.compile(r"Power reading state is:\s+(\w+)")
SENSOR = re.compile(r"Sensor Reading\s*:\s*(\S+)(?:\s*\(\+/-[^)\n]*\))?[ \t]*(.*)")
UNIT = "Watts"
DEVICE = "/dev/ipmi0"
PACKAGE = bmc.INSTALL
NO_FIGURE = 0xFFFF
"""Watts of a controller that has no figure: all bits of the field are set."""
ONE_TRY = ("-N", "1", "-R", "1")
"""A reading that is repeated would be late: wait a second for an answer, once."""
CIPHERS = range(18)
"""Cipher suites of IPMI 2.0, table 22-20."""


class Ipmi:
    """One controller, by one short process a reading."""

    def __init__(self, address: Address, password: str) -> None:
        self._sensor = address.path
        self._tool = bmc.Ipmitool(
            address.host, address.port, user=address.user, password=password, cipher=_cipher(address), more=ONE_TRY
        )
        step = None if self._sensor else 1.0
        self.facts = MeterFacts(meter=address.text, step=step, about=self._sensor or "DCMI power reading")

    def read(self) -> Reading:
        what = ("sensor", "get", self._sensor) if self._sensor else ("dcmi", "power", "reading")
        begin_ns = now_ns()
        try:
            output = self._tool.run(*what, timeout_s=TIMEOUT_S)
        except bmc.ControllerError as error:
            raise MeterError(error.kind, str(error)) from None
        end_ns = now_ns()
        watts = sensor_watts(output, self._sensor) if self._sensor else dcmi_watts(output)
        # Most of the time passes before the request is sent: the program starts, and opens a session.
        return Reading(meter=self.facts.meter, time_ns=end_ns, watts=watts, took_ns=end_ns - begin_ns)

    def close(self) -> None:
        pass


def dcmi_watts(output: str) -> float:
    """The reading of `ipmitool dcmi power reading`. MeterError if there is none.

    Some controllers measure and never say so: all that they report is real, but the state is `deactivated` (OpenBMC).
    So the state decides only about 0 W.
    """
    match = DCMI.search(output)
    if match is None:
        raise MeterError("garbage", f"ipmitool printed no power reading: {output.strip()[:60]!r}")
    watts = number(match.group(1), "the DCMI power reading")
    state = STATE.search(output)
    if watts == 0 and state is not None and state.group(1) != "activated":
        raise MeterError("garbage", f"the DCMI power reading is {state.group(1)}: its controller measures nothing")
    if watts == NO_FIGURE:
        raise MeterError(
            "garbage", f"the DCMI power reading is {NO_FIGURE} W, with which controllers say that they have none"
        )
    return watts


def sensor_watts(output: str, sensor: str) -> float:
    """The reading of `ipmitool sensor get NAME`. MeterError if there is none, or if it is not in watts."""
    match = SENSOR.search(output)
    if match is None:
        raise MeterError("garbage", f"ipmitool printed no value of {sensor}: {output.strip()[:60]!r}")
    value, unit = number(match.group(1), sensor), match.group(2).strip()
    if unit != UNIT:
        raise MeterError("garbage", f"{sensor} is in {unit[:40] or 'no unit'}, not in watts")
    return value


def check(address: Address) -> None:
    address.option("password", "cipher")
    _cipher(address)
    if address.options and not address.host:
        raise unusable(address.text, "options are for a controller in the network", "give ipmi://USER@HOST")


def _cipher(address: Address) -> int | None:
    """The cipher suite that a name demands; None if any may be used."""
    text = address.options.get("cipher")
    if text is None:
        return None
    if text not in map(str, CIPHERS):
        raise unusable(
            address.text, f"cipher={text} is not known", f"give a suite of IPMI, {CIPHERS[0]} to {CIPHERS[-1]}"
        )
    return int(text)


def make(address: Address, host: Host) -> Ipmi:
    if not host.which("ipmitool"):
        raise unusable(address.text, "ipmitool is not installed", PACKAGE)
    if not address.host:
        if not host.exists(DEVICE):
            raise unusable(address.text, f"this host has no {DEVICE}", "modprobe ipmi_si ipmi_devintf")
        return Ipmi(address, "")
    return Ipmi(address, password_of(address))


def find(host: Host) -> list[Place]:
    tool = "" if host.which("ipmitool") else "ipmitool is not installed"
    local = tool or ("" if host.exists(DEVICE) else f"{DEVICE} does not exist")
    return [
        Place("ipmi", "this host's management controller", local, PACKAGE if tool else "modprobe ipmi_si ipmi_devintf"),
        Place("ipmi://USER@HOST", "a management controller in the network", tool, PACKAGE if tool else ""),
    ]
