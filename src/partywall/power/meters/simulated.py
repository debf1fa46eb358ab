"""A meter without hardware: a stated physical model, driven by the CPU time that this host really uses.

simulated:PROFILE, such as simulated:cervera-dl120-g6. Options: `lag` and `refresh` in ms, `noise` and `step` in watts.
With `of=load` the machine has the cores of its profile, and consists of the processes that Partywall starts.
Everything that is derived from it is marked `simulated`.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from partywall.host import Host
from partywall.power import profiles
from partywall.power.activity import HostCpus
from partywall.power.address import Address, unusable
from partywall.power.machine import Display, Machine
from partywall.power.meters.base import Place, now_ns
from partywall.power.values import MeterFacts, NodeModel, Reading

SCHEMES = ("simulated",)
FIELDS = {"lag": "lag_s", "refresh": "refresh_s", "noise": "noise", "step": "step"}
"""Options, and the field of a display that each sets."""
MOST_MS = 600_000


class Simulated:
    """Reads a machine that runs in a thread from the first reading on."""

    def __init__(self, address: Address, machine: Machine, display: Display, *, of_load: bool = False) -> None:
        self._machine, self._display, self._of_load = machine, display, of_load
        about = f"{machine.model.name}: {machine.stated}; {display.stated}"
        self.facts = MeterFacts(meter=address.text, origin=address.origin, step=display.step, about=about)

    @property
    def cores(self) -> int | None:
        """How many cores the machine has; None if they are the host's."""
        return self._machine.cpus if self._of_load else None

    @property
    def cpus(self) -> Callable[[], tuple[float, ...]] | None:
        """CPU seconds of the machine's own cores; None if they are the host's."""
        return (lambda: tuple(self._machine.busy_s())) if self._of_load else None

    def follow(self, busy_s: Callable[[], Sequence[float]]) -> None:
        """Takes the CPU seconds of a load as those of the machine, if that was requested."""
        if self._of_load:
            self._machine.busy_s = busy_s

    def read(self) -> Reading:
        if self._machine.start():
            # The first value describes the machine after its start.
            time.sleep(self._display.lag_s + self._display.refresh_s)
        at_ns = now_ns()
        return Reading(meter=self.facts.meter, time_ns=at_ns, watts=self._machine.shown(self._display, at_ns))

    def close(self) -> None:
        self._machine.stop()


def check(address: Address) -> None:
    _parts(address)


def make(address: Address, host: Host) -> Simulated:
    model, is_of_load, display = _parts(address)
    machine = Machine(model, HostCpus(host), cpus=model.cpus if is_of_load else None)
    return Simulated(address, machine, display, of_load=is_of_load)


def _parts(address: Address) -> tuple[NodeModel, bool, Display]:
    """The profile, whether the machine is that of the load, and the display. UsageError."""
    name, _, query = address.path.partition("?")
    options = dict(urllib.parse.parse_qsl(query))
    of = options.pop("of", "host")
    if of not in ("host", "load"):
        raise unusable(address.text, f"option of={of} is not known", "give of=host or of=load")
    return profiles.find(name or "cervera-dl120-g6"), of == "load", _display(address, options)


def _display(address: Address, options: Mapping[str, str]) -> Display:
    display = Display()
    for key, text in options.items():
        field = FIELDS.get(key)
        if field is None:
            raise unusable(address.text, f"option {key}={text} is not known", "there is of, lag, refresh, noise, step")
        is_time = field.endswith("_s")
        value = address.number(key, text, most=MOST_MS) if is_time else address.number(key, text)
        changes: dict[str, Any] = {field: value / 1e3 if is_time else value}
        display = replace(display, **changes)
    if display.refresh_s <= 0:
        raise unusable(address.text, "refresh must be greater than 0", "give for example refresh=500")
    return display


def find(host: Host) -> list[Place]:
    del host
    return [Place("simulated:PROFILE", "no meter: a model driven by this host's CPU time; marked simulated")]
