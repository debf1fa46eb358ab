"""The format of a cluster file: hosts with their power, guests with their promises, and limits of the manager.

`partywall.consolidate.check` reads files and checks across keys. CPU is counted in cores of one reference speed.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from partywall import units
from partywall.power.published import CERVERA, PROFILES
from partywall.power.values import NodeModel
from partywall.values import Bytes, BytesPerSecond, DurationNs, Frozen, Name, Rate, Share

_ENERGY = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(J|kJ|Wh|kWh)\s*$")
_JOULES = {"J": 1.0, "kJ": 1e3, "Wh": units.WH, "kWh": 1000 * units.WH}


def parse_joules(value: str | float) -> float:
    """'1.42Wh', '5kJ' → joules. A number without a unit is refused, because the unit would be a guess."""
    match = _ENERGY.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not an energy; write a number and one of {', '.join(_JOULES)}, e.g. 1.42Wh")
    return float(match[1]) * _JOULES[match[2]]


Joules = Annotated[
    float,
    BeforeValidator(parse_joules),
    PlainSerializer(lambda joules: f"{joules!r}J", return_type=str, when_used="json"),
    Field(ge=0),
]
Cores = Annotated[float, Field(ge=0, le=8192, allow_inf_nan=False)]
Portion = Annotated[float, BeforeValidator(units.parse_share), Field(ge=0, lt=1)]
Factor = Annotated[float, BeforeValidator(units.parse_share), Field(gt=0, le=1.5)]
Risk = Annotated[float, BeforeValidator(units.parse_share), Field(gt=0, lt=0.5)]
Watts = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class Transition(Frozen):
    """Switching a host on or off: how long it takes, and the energy of all that time."""

    time: DurationNs = Field(description="e.g. 75s")
    energy: Joules = Field(description="e.g. 1.42Wh")

    @property
    def seconds(self) -> float:
        return self.time / 1e9


class PowerCurve(Frozen):
    """The power of a host. watts: at evenly spaced loads, from idle to all CPUs busy."""

    watts: tuple[Watts, ...] = Field(min_length=2, max_length=1000, description="e.g. [50, 72, 90, 100, 110]")
    off: Watts = Field(0.0, description="watts while switched off")
    boot: Transition
    shutdown: Transition
    error: Portion = Field(0.05, description="relative error of the curve, either way")
    source: str = Field("", description="where the figures come from")

    @property
    def break_even_s(self) -> float:
        """The shortest time for which switching an idle host off and on again saves energy; inf if none does."""
        cycle_s = self.boot.seconds + self.shutdown.seconds
        saved_w = self.watts[0] - self.off
        if saved_w <= 0:
            return math.inf
        return max(cycle_s, (self.boot.energy + self.shutdown.energy - self.off * cycle_s) / saved_w)


def _curve(profile: NodeModel) -> PowerCurve:
    """A published profile as a curve. What a profile does not have is that of Cervera's node."""
    known = profile if profile.off_watts is not None else CERVERA
    assumed = "" if known is profile else "; off, boot and shutdown: assumed"
    return PowerCurve(
        watts=tuple(watts for _, watts in profile.points),
        off=known.off_watts,
        boot=Transition(time=f"{known.boot_s}s", energy=f"{known.boot_joules}J"),
        shutdown=Transition(time=f"{known.shutdown_s}s", energy=f"{known.shutdown_joules}J"),
        source=profile.source + assumed,
    )


POWER_CURVES = {name: _curve(profile) for name, profile in PROFILES.items()}
"""Named power curves. They come from other machines, so every figure derived from them is modelled."""

ControlKind = Literal["redfish", "ipmi", "wol", "command"]


class Control(Frozen):
    """How a host is switched on and off. Passwords are read from a file, never from this document."""

    kind: ControlKind
    address: str | None = Field(None, description="redfish: URL of the service; ipmi: host or host:port")
    system: str | None = Field(None, description="redfish: identifier of the system")
    user: str | None = None
    password_file: str | None = Field(None, description="a file with the password in its first line")
    certificate: str | None = Field(
        None,
        description="redfish: a PEM file with the controller's certificate, or that of its authority",
        min_length=1,
    )
    tls: Literal["insecure"] | None = Field(
        None, description="redfish: insecure accepts any certificate, and old versions of TLS"
    )
    cipher: int | None = Field(None, description="ipmi: the cipher suite, e.g. 17; default: 3, else 17", ge=0, le=17)
    mac: str | None = Field(None, description="wol: hardware address, e.g. 52:54:00:12:34:56")
    on: tuple[str, ...] | None = Field(None, description="command: switches the host on", min_length=1)
    off: tuple[str, ...] | None = Field(None, description="command, wol: switches the host off", min_length=1)
    state: tuple[str, ...] | None = Field(
        None, description="command, wol: exits with 0 if the host is on, with 1 if it is off", min_length=1
    )


class HostSpec(Frozen):
    """A host, or several alike."""

    count: int = Field(1, ge=1, le=100_000, description="number of such hosts; they are named NAME-1, NAME-2, …")
    cpus: Annotated[float, Field(gt=0, le=8192)]
    memory: Bytes = Field(ge=1 << 20, description="for guests, e.g. 64GiB")
    power: Name = Field(description="a power curve: its own under `power`, or a named one")
    state: Literal["on", "off"] = Field("on", description="without a hypervisor that knows it")
    control: Control | None = None
    uri: str | None = Field(None, description="libvirt: connection URI, e.g. qemu+ssh://host/system")
    meter: str | None = Field(
        None,
        description="its power meter, as partywall power names it, e.g. redfish://admin@bmc/Chassis/1",
        min_length=1,
    )


class Loss(Frozen):
    """A guest's measured isolation factor while neighbours use a resource fully. 1: no loss."""

    factor: Factor
    low: Factor | None = Field(None, description="lower end of its 95 % interval")


class Slo(Frozen):
    """What a guest's owner was promised."""

    downtime: DurationNs | None = Field(None, description="longest blackout of a move, e.g. 500ms")
    p99: DurationNs | None = Field(None, description="p99 response time over the window, e.g. 200ms")
    window: DurationNs = Field(300_000_000_000, description="the window of the p99", ge=1_000_000_000)
    isolation: Share | None = Field(None, description="least isolation factor, e.g. 90%")


class GuestSpec(Frozen):
    """A guest, or several alike. demand, peak: cores."""

    count: int = Field(1, ge=1, le=100_000, description="number of such guests; they are named NAME-1, NAME-2, …")
    host: str | None = Field(None, description="where it runs; not needed for a simulation")
    cpus: Annotated[float, Field(gt=0, le=8192)] = Field(1, description="most CPU that it can use, in cores")
    memory: Bytes = Field(1 << 30, ge=1 << 20)
    demand: Cores | None = Field(None, description="mean CPU use, in cores; default: its cpus")
    peak: Cores | None = Field(None, description="its 99th percentile; default: its cpus")
    promise: Cores = Field(0.0, description="cores that are always available to it")
    content: Bytes | None = Field(None, description="memory that is not zero; default: all")
    dirty_rate: BytesPerSecond | None = Field(None, description="bytes that it changes per second, e.g. 4MB/s")
    working_set: Bytes | None = Field(None, description="bytes that it changes again and again; default: content")
    pinned: bool = Field(False, description="it never moves")
    slo: Slo = Slo()
    p99: DurationNs | None = Field(None, description="its p99 response time as measured")
    responses: str | None = Field(
        None, description="the record of a partywall load that goes on; watch shows its p99", min_length=1
    )
    uses: dict[str, Annotated[float, BeforeValidator(units.parse_share), Field(ge=0, le=1)]] = Field(
        default_factory=dict, description="share of a host's resource that it uses, e.g. memory_bandwidth: 0.3"
    )
    suffers: dict[str, Loss] = Field(default_factory=dict, description="its isolation factor by resource")


class LinkSpec(Frozen):
    """What moves go through."""

    rate: Rate = Field(1_000_000_000, description="e.g. 1Gbit/s")
    spread: Portion = Field(0.1, description="relative error of rates, either way")
    setup: DurationNs = Field(100_000_000, description="fixed time of a move")
    blackout: DurationNs = Field(
        60_000_000, description="how much longer clients wait than the memory of the last pass takes"
    )
    source_cores: Cores | None = Field(
        None, description="CPU that a move uses on the host that a guest leaves, if measured; else 1 ± 50 %"
    )
    destination_cores: Cores | None = Field(
        None, description="CPU that a move uses on the host that a guest goes to, if measured; else 0.5 ± 50 %"
    )


class Limits(Frozen):
    """What the manager may do."""

    moves_at_once: int = Field(2, ge=1, le=10_000)
    overload_risk: Risk = Field(
        0.005, description="chance that a host's demand exceeds its CPUs, above which no guest is added"
    )
    relief_risk: Risk = Field(0.05, description="chance above which guests are moved away")
    hold: DurationNs = Field(1_800_000_000_000, description="a guest or a host stays as it is for so long, e.g. 30min")
    horizon: DurationNs = Field(3_600_000_000_000, ge=60_000_000_000, description="how long a saving is counted")
    keep_on: int = Field(1, ge=0, description="hosts that always stay on")
    hours: str | None = Field(None, description="when hosts may be emptied, local time, e.g. 20:00-06:00")
    solver: DurationNs = Field(10_000_000_000, ge=100_000_000, description="longest time of the exact solver")


class Cluster(Frozen):
    """A cluster file."""

    partywall_cluster: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    hypervisor: Literal["recorded", "libvirt", "practice"] = Field(
        "recorded",
        description="recorded: the state is as written here, and no plan is applied; practice: files, no real hosts",
    )
    folder: str | None = Field(None, description="practice: the folder of its files", min_length=1)
    power: dict[Name, PowerCurve] = Field(default_factory=dict, description="power curves of its own")
    hosts: dict[Name, HostSpec] = Field(min_length=1)
    guests: dict[Name, GuestSpec] = Field(min_length=1)
    apart: tuple[tuple[str, ...], ...] = Field((), description="groups of guests that never share a host")
    link: LinkSpec = LinkSpec()
    limits: Limits = Limits()

    def curve(self, name: str) -> PowerCurve:
        """A power curve by its name. KeyError if there is none."""
        return self.power[name] if name in self.power else POWER_CURVES[name]

    def host_names(self) -> list[str]:
        return [each for name, host in self.hosts.items() for each in numbered(name, host.count)]

    def guest_names(self) -> list[str]:
        return [each for name, guest in self.guests.items() for each in numbered(name, guest.count)]


def numbered(name: str, count: int) -> list[str]:
    """The names of `count` hosts or guests alike."""
    return [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]
