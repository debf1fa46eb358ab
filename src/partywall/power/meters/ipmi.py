"""IPMI: the power that a management controller reports, through `ipmitool`.

`ipmi` is the controller of this host, `ipmi://USER@HOST` one in the network. Without a path the DCMI power reading is
used (1 W steps); with one, the sensor of that name, such as ipmi://admin@bmc/Total_Power. The steps of a sensor depend
on its controller. The password is passed in the environment, where other users cannot see it.
"""

from __future__ import annotations

import os
import re
import subprocess

from partywall.host import Host
from partywall.model.meter import Address, unusable
from partywall.model.power import MeterFacts, Reading
from partywall.power.meters.base import TIMEOUT_S, MeterError, Place, now_ns, number, password_of

SCHEMES = ("ipmi",)
DCMI = re.compile(r"Instantaneous power reading:\s+(\d+) Watts")
STATE = re.compile(r"Power reading state is:\s+(\w+)")
SENSOR = re.compile(r"Sensor Reading\s*:\s*(\S+)(?:\s*\(\+/-[^)\n]*\))?[ \t]*(.*)")
UNIT = "Watts"
DEVICE = "/dev/ipmi0"
PACKAGE = "apt-get install ipmitool"


class Ipmi:
    """One controller, by one short process a reading."""

    def __init__(self, address: Address, password: str) -> None:
        self._sensor = address.path
        self._environment = os.environ | {"IPMI_PASSWORD": password}
        remote = ["-I", "lanplus", "-C", "3", "-H", address.host, "-p", str(address.port or 623), "-E"]
        remote += ["-U", address.user, "-N", "1", "-R", "1"]
        what = ["sensor", "get", self._sensor] if self._sensor else ["dcmi", "power", "reading"]
        self._argv = ["ipmitool", *(remote if address.host else []), *what]
        step = None if self._sensor else 1.0
        self.facts = MeterFacts(meter=address.text, step=step, about=self._sensor or "DCMI power reading")

    def read(self) -> Reading:
        begin_ns = now_ns()
        output = self._output()
        end_ns = now_ns()
        watts = sensor_watts(output, self._sensor) if self._sensor else dcmi_watts(output)
        # Most of the time passes before the request is sent: the program starts, and opens a session.
        return Reading(meter=self.facts.meter, time_ns=end_ns, watts=watts, took_ns=end_ns - begin_ns)

    def close(self) -> None:
        pass

    def _output(self) -> str:
        try:
            done = subprocess.run(
                self._argv, env=self._environment, capture_output=True, text=True, errors="replace",
                timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MeterError("silent", f"ipmitool did not end within {TIMEOUT_S:g} s") from None
        except OSError as error:
            raise MeterError("gone", f"ipmitool cannot be started: {error.strerror}; {PACKAGE}") from None
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().partition("\n")[0]
            raise MeterError("gone", f"ipmitool failed: {said or done.returncode}")
        return done.stdout


def dcmi_watts(output: str) -> float:
    """The reading of `ipmitool dcmi power reading`. MeterError if there is none."""
    match = DCMI.search(output)
    if match is None:
        raise MeterError("garbage", f"ipmitool printed no power reading: {output.strip()[:60]!r}")
    state = STATE.search(output)
    if state is not None and state.group(1) != "activated":
        raise MeterError("garbage", f"the DCMI power reading is {state.group(1)}: its controller measures nothing")
    return number(match.group(1), "the DCMI power reading")


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
    address.option("password")


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
