"""A meter without hardware: a stated physical model, driven by the CPU time that this host really uses.

simulated:PROFILE, such as simulated:cervera-dl120-g6. Options: `lag` and `refresh` in ms, `noise` in watts, `step` in
watts. Everything that is derived from it is marked `simulated`.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import replace

from partywall.errors import UsageError
from partywall.host import Host
from partywall.model.power import MeterFacts, Reading
from partywall.power import profiles
from partywall.power.activity import HostCpus
from partywall.power.machine import Display, Machine
from partywall.power.meters.base import Address, Place, now_ns, unusable

SCHEMES = ("simulated",)
OPTIONS = {"lag": "lag_s", "refresh": "refresh_s"}


class Simulated:
    """Reads a machine that runs in a thread from the first reading on."""

    def __init__(self, address: Address, machine: Machine, display: Display) -> None:
        self._machine, self._display = machine, display
        about = f"{machine.model.name}: {machine.stated}; {display.stated}"
        self.facts = MeterFacts(meter=address.text, origin="simulated", step=display.step, about=about)

    def read(self) -> Reading:
        self._machine.start()
        at_ns = now_ns()
        return Reading(meter=self.facts.meter, time_ns=at_ns, watts=self._machine.shown(self._display, at_ns))

    def close(self) -> None:
        self._machine.stop()


def make(address: Address, host: Host) -> Simulated:
    name, _, query = address.path.partition("?")
    options = dict(urllib.parse.parse_qsl(query))
    display = Display()
    try:
        for key, text in options.items():
            value = float(text)
            if value < 0 or key not in (*OPTIONS, "noise", "step"):
                raise unusable(address.text, f"option {key}={text} is not known", "there is lag, refresh, noise, step")
            change = {OPTIONS[key]: value / 1e3} if key in OPTIONS else {key: value}
            display = replace(display, **change)
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise unusable(address.text, f"its options are not numbers: {query}") from None
    return Simulated(address, Machine(profiles.find(name or "cervera-dl120-g6"), HostCpus(host)), display)


def find(host: Host) -> list[Place]:
    del host
    return [Place("simulated:PROFILE", "no meter: a model driven by this host's CPU time; marked simulated")]
