"""The format of a network policy: links, service classes, and the guarantees and ceilings of each vif.

`partywall.guard.check` reads files and checks across keys. `partywall.guard.measure.flatten` converts a policy for the
agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from partywall import units
from partywall.values import BitRate, DurationNs, Frozen, Name

PacketRate = Annotated[int, BeforeValidator(units.parse_packet_rate), Field(gt=0)]


def _source(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"[\w.-]+/[^\s/:]{1,15}", value):
        raise ValueError(f"{value!r} is not AGENT/INTERFACE; write for example vm1/eth0")
    return value


Source = Annotated[str, BeforeValidator(_source)]
Protocol = Literal["tcp", "udp", "icmp", "sctp"]


class Promise(Frozen):
    """Guarantees and ceilings in one direction."""

    guarantee: BitRate | None = Field(None, description="bit/s available whenever needed, e.g. 150Mbit/s")
    ceiling: BitRate | None = Field(None, description="bit/s never exceeded; default: the link's capacity")
    packets: PacketRate | None = Field(None, description="packets/s never exceeded, e.g. 20k/s")
    packets_guarantee: PacketRate | None = Field(
        None, description="packets/s available whenever needed; a part of link.packets, which it needs"
    )


class Flow(Promise):
    """A flow class inside a vif, with a part of the vif's guarantees."""

    way: Literal["send", "receive"] = Field(
        "send", description="send: for packets that the vif sends; receive: for packets that it receives"
    )

    protocol: Protocol | None = None
    ports: Annotated[str, BeforeValidator(str)] | None = Field(
        None, description="a port or a range, of source or destination, e.g. 5000-5100"
    )
    dscp: int | None = Field(None, ge=0, le=63, description="differentiated services code point, e.g. 46")
    service_class: Name | None = Field(None, description="default: the vif's")


class Vif(Frozen):
    """A tenant's interface, found by name and namespace, by libvirt domain, or by sandbox."""

    interface: str | None = Field(None, description="its name, e.g. eth0 or vnet3", min_length=1, max_length=15)
    namespace: str | None = Field(
        None, description="its network namespace: a name of 'ip netns', a path, or pid:NUMBER"
    )
    domain: str | None = Field(None, description="libvirt domain, instead of interface: one of its taps")
    tap: int = Field(1, strict=True, ge=1, description="which of the domain's taps, in the order of virsh domiflist")
    sandbox: str | None = Field(
        None,
        description="sandbox of a current run, instead of a namespace: RUN/NAME, or NAME if it is unique",
    )
    side: Literal["inside", "outside"] | None = Field(
        None,
        description="inside: sent packets leave this interface (in the tenant's namespace); outside: they enter "
        "it (a tap, or the host's end of a veth). Default: inside with a namespace, else outside",
    )
    service_class: Name | None = Field(None, description="one of service_classes; default: the only one")
    link: Name | None = Field(None, description="one of links; default: the only one")
    tenant: Name | None = Field(None, description="the tenant whose totals it shares")
    send: Promise = Promise()
    receive: Promise | None = Field(None, description="default: not limited")
    flows: dict[Name, Flow] = Field(default_factory=dict, description="flow classes inside the vif")
    excess: Literal["hold", "drop"] = Field(
        "hold",
        description="excess packets; hold: they wait in a queue that the sender's kernel can see, where that is "
        "possible; drop: only TCP waits",
    )
    source: Source | None = Field(
        None,
        description="AGENT/INTERFACE: the interface inside the guest, through an agent there (guard run --agent). "
        "Excess packets of a guest that you trust stop there, before they are copied out of it",
    )
    burst: DurationNs | None = Field(
        None,
        ge=100_000,
        le=1_000_000_000,
        description="size of a burst, as time at the granted rate; default: the policy's",
    )


class Ceilings(Frozen):
    """Ceilings over all vifs of one tenant together, on all links, in one direction."""

    ceiling: BitRate | None = None
    packets: PacketRate | None = Field(None, description="divided among the vifs by use")


class Total(Ceilings):
    """Ceilings of the packets that a tenant's vifs send, and of the packets that they receive."""

    receive: Ceilings | None = Field(None, description="ceilings of received packets; default: none")


class Link(Frozen):
    """A physical interface that vifs share."""

    interface: str = Field("", description="its name; delays are measured at its queue", max_length=15)
    namespace: str | None = Field(None, description="its namespace if not the guard's; written as for a vif")
    capacity: BitRate = Field(description="its capacity in each direction, e.g. 1Gbit/s")
    packets: PacketRate | None = Field(
        None, description="packets/s that it, or this host, can carry in each direction; default: not divided"
    )


class ServiceClass(Frozen):
    """A group of vifs with a priority and goals for delay."""

    priority: int = Field(strict=True, ge=0, le=1000, description="higher is served first")
    delay: DurationNs | None = Field(
        None, gt=0, description="longest mean time in queues, e.g. 2ms; others borrow less to meet it"
    )
    jitter: DurationNs | None = Field(
        None, gt=0, description="largest mean difference between consecutive times in queues"
    )


DEFAULT_CLASS = "default"
ONLY_LINK = ""
"""Stands for the name of a policy's only link, which has none."""


RECEIVES = " (receives)"
"""Ends the name of the direction in which a vif receives."""


def on_link(what: str, link: str) -> str:
    """A name that also tells the link, if the links have names: 'send on left'."""
    return f"{what} on {link}" if link else what


def link_path(name: str) -> tuple[str, ...]:
    """The keys that lead to a link in a policy file, by its name in `Policy.by_link`."""
    return ("link",) if name == ONLY_LINK else ("links", name)


def _service_class(value: object) -> object:
    """A plain value is a priority."""
    return value if isinstance(value, dict | ServiceClass) else {"priority": value}


_Class = Annotated[ServiceClass, BeforeValidator(_service_class, json_schema_input_type=int | ServiceClass)]


class Policy(Frozen):
    """A policy file."""

    partywall_guard: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    link: Link | None = Field(None, description="the link that all vifs share; exactly one of link and links")
    links: dict[Name, Link] = Field(
        default_factory=dict, description="several links by name, instead of link; each vif names its own"
    )
    service_classes: dict[Name, _Class] = Field(
        default_factory=lambda: {DEFAULT_CLASS: ServiceClass(priority=1)},
        min_length=1,
        description="priority of each, or priority, delay and jitter; higher is served first. Default: one class",
    )
    tenants: dict[Name, Total] = Field(default_factory=dict)
    vifs: dict[Name, Vif] = Field(min_length=1)
    period: DurationNs = Field(50_000_000, ge=1_000_000, le=10_000_000_000, description="how often rates are set")
    burst: DurationNs = Field(
        10_000_000, ge=100_000, le=1_000_000_000, description="size of a burst, as time at the granted rate"
    )
    hold: DurationNs = Field(
        20_000_000,
        ge=1_000_000,
        le=1_000_000_000,
        description="how long packets may wait in a vif's queue before they are dropped",
    )
    if_daemon_dies: Literal["guarantees", "keep"] = Field(
        "guarantees",
        description="guarantees: after fallback_after every vif has its guarantee; keep: the last rates stay",
    )
    fallback_after: DurationNs = Field(1_000_000_000, ge=10_000_000)
    queue: Literal["fq", "tbf"] | None = Field(
        None,
        description="queue that delays packets; fq: until each packet's departure time; tbf: at a rate. "
        "Default: fq if the kernel has it, else tbf",
    )
    policy: Literal["max-min", "published"] = Field(
        "max-min",
        description="how capacities are divided; max-min: by demand, and idle guarantees are lent; published: by the "
        "algorithm of DBA-VM as its authors print it, to compare with",
    )

    @property
    def by_link(self) -> Mapping[str, Link]:
        """Every link by its name; `ONLY_LINK` stands for the name of `link`."""
        return {ONLY_LINK: self.link} if self.link else self.links

    def link_name(self, vif: Vif) -> str:
        """The name of a vif's link, a key of `by_link`."""
        return vif.link or next(iter(self.by_link))

    def link_of(self, vif: Vif) -> Link:
        """The link that carries a vif's traffic."""
        return self.by_link[self.link_name(vif)]

    @property
    def has_default_class(self) -> bool:
        """True if the file has no service_classes, so all vifs are in one class."""
        return "service_classes" not in self.model_fields_set

    def class_of(self, vif: Vif, flow: Flow | None = None) -> str:
        """The service class of a vif, or of one of its flow classes."""
        own = flow.service_class if flow else None
        return own or vif.service_class or next(iter(self.service_classes))
