"""A study of policies: parts with streams of datagrams and ways to divide links among them, and the observations.

Carrying it out is in `slots`, processing of results in `findings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from partywall.guard.check import check
from partywall.guard.document import ONLY_LINK, PacketRate, Policy
from partywall.values import BitRate, DurationNs, Frozen, Name

FRAME_LEAST, FRAME_MOST = 42, 1514
"""Sizes of the headers of Ethernet, IPv4 and UDP, and of a whole frame."""
PROMISED = "promised"
"""The series of the promises."""
ALL = "all"
"""The sum of all streams."""


Load = Annotated[float, Field(gt=0)]


class Stream(Frozen):
    """Datagrams that a vif sends. Each stream has a sink of its own."""

    vif: Name
    frame_bytes: int = Field(ge=FRAME_LEAST, le=FRAME_MOST, description="size on the link, with all headers")
    offered: PacketRate
    port: int = Field(9, ge=1, le=65535, description="destination port")


class Loads(Frozen):
    """What one stream offers, as multiples of its `offered`. Every way is measured at each."""

    stream: Name
    times: tuple[Load, ...] = Field(min_length=1)


class Way(Frozen):
    """Which streams send, and what divides the links among them.

    policy: keys that replace the part's; None: without the guard. tc: HTB at the card with the policy's guarantees, in
    place of the guard. loads: those of the part's that are measured, if not all.
    """

    sends: tuple[Name, ...] = Field(min_length=1)
    policy: dict[str, Any] | None = Field(default_factory=dict)
    tc: Literal["htb"] | None = None
    loads: tuple[Load, ...] = ()


Turn = tuple[str, float | None]
"""A way and a load; None where loads do not vary."""


class Part(Frozen):
    """Links that vifs share. promised: what a stream, or all together, should get, in the unit of the values.

    value: of each stream, what is delivered; or "%": what is lost of one stream, at each of its loads.
    """

    exhibit: str = Field(description="table or figure of the paper's file")
    value: Literal["kp/s", "Mb/s", "%"]
    link: BitRate | None = Field(None, description="capacity of the link; exactly one of link and links")
    links: dict[Name, BitRate] = Field(default_factory=dict, description="capacities of several links, by name")
    policy: dict[str, Any] = Field(description="a policy without its name, its links and the places of its vifs")
    streams: dict[Name, Stream] = Field(min_length=1)
    ways: dict[Name, Way] = Field(min_length=1)
    promised: dict[Name, float] = Field(default_factory=dict)
    loads: Loads | None = None

    @property
    def turns(self) -> list[Turn]:
        """What is measured in each block."""
        every = self.loads.times if self.loads else (None,)
        return [(name, load) for name, way in self.ways.items() for load in way.loads or every]

    def offered(self, stream: str, load: float | None) -> float:
        """Packets/s that a stream offers at a load."""
        varies = load is not None and self.loads is not None and stream == self.loads.stream
        return self.streams[stream].offered * (load if load is not None and varies else 1.0)

    @property
    def vifs(self) -> Mapping[str, Any]:
        return dict(self.policy.get("vifs", {}))

    @property
    def by_link(self) -> Mapping[str, int]:
        """The capacity of every link in bit/s, by its name as in `Policy.by_link`."""
        return self.links if self.link is None else {ONLY_LINK: self.link}

    def link_of(self, vif: str) -> str:
        """The link of a vif, a key of `by_link`."""
        return str(self.vifs[vif].get("link", ONLY_LINK))

    def policy_of(self, way: str, name: str, places: Mapping[str, Mapping[str, str]]) -> Policy | None:
        """The policy of a way; None without the guard. places: interface and namespace of each vif."""
        changed = self.ways[way].policy
        if changed is None:
            return None
        content = {"partywall_guard": 1, "name": name, **self.policy, **changed}
        vifs = {key: {**places[key], **vif} for key, vif in content["vifs"].items()}
        return Policy.model_validate({**content, **self._links(content), "vifs": vifs})

    def _links(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The links of a policy: their capacities, and what else its content says of them."""
        if self.link is not None:
            return {"link": {"capacity": f"{self.link}bit/s", **content.get("link", {})}}
        own = content.get("links", {})
        return {"links": {name: {"capacity": f"{bps}bit/s", **own.get(name, {})} for name, bps in self.links.items()}}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Checks that all names exist, and that each policy is one that the guard accepts."""
        if mistakes := [*self._mistakes_of_links(), *self._mistakes_of_loads()]:
            raise ValueError(mistakes[0])
        for name, stream in self.streams.items():
            if stream.vif not in self.vifs:
                raise ValueError(f"streams.{name}.vif: the policy has no vif {stream.vif!r}")
        if unknown := sorted(set(self.promised) - {*self.streams, ALL}):
            raise ValueError(f"promised: there is no stream {unknown[0]!r}")
        for name, way in self.ways.items():
            if strangers := sorted(set(way.sends) - set(self.streams)):
                raise ValueError(f"ways.{name}.sends: there is no stream {strangers[0]!r}")
            if mistakes := list(self._mistakes(name)):
                raise ValueError(f"ways.{name}.policy: {mistakes[0]}")
        return self

    def _mistakes_of_links(self) -> Iterator[str]:
        if (self.link is None) == (not self.links):
            yield "links: give one of link and links"
        for name in self.vifs:
            if self.link_of(name) not in self.by_link:
                there = ", ".join(self.links) or "one, without a name"
                yield f"policy.vifs.{name}.link: {self.link_of(name)!r} is none of the links; there are {there}"

    def _mistakes_of_loads(self) -> Iterator[str]:
        """Losses are counted by vif, at the loads of one stream."""
        if (self.value == "%") != (self.loads is not None):
            yield "loads: give them if value is %, and only then"
        for name, way in self.ways.items():
            if strangers := sorted(set(way.loads) - set(self.loads.times if self.loads else ())):
                yield f"ways.{name}.loads: {strangers[0]:g} is not one of the part's loads.times"
        if self.loads is None:
            return
        if self.loads.stream not in self.streams:
            yield f"loads.stream: there is no stream {self.loads.stream!r}"
        if self.promised:
            yield "promised: losses are compared between ways; leave it out"
        vifs = [stream.vif for stream in self.streams.values()]
        if several := [vif for vif in vifs if vifs.count(vif) > 1]:
            yield f"streams: losses are counted by vif, and {several[0]!r} has several streams; give one to each"
        for name, way in self.ways.items():
            if self.loads.stream not in way.sends:
                yield f"ways.{name}.sends: {self.loads.stream!r}, whose loads vary, is not among them"

    def _mistakes(self, way: str) -> Iterator[str]:
        policy = self.policy_of(way, "study", {key: {"interface": "eth0", "namespace": key} for key in self.vifs})
        if self.ways[way].tc:
            yield from self._mistakes_of_tc(policy)
        if policy is None:
            return
        yield from (f"{'.'.join(map(str, mistake.path))}: {mistake.message}" for mistake in check(policy))
        for name, vif in policy.vifs.items():
            if (vif.link or ONLY_LINK) != self.link_of(name):
                yield f"vifs.{name}.link: {vif.link!r} is not the link of the part's policy, {self.link_of(name)!r}"

    def _mistakes_of_tc(self, policy: Policy | None) -> Iterator[str]:
        if self.link is None:
            yield "tc is set up on one link; give link in place of links"
        if policy is None:
            yield "tc has the guarantees of the policy; leave policy out"
            return
        for name, vif in policy.vifs.items():
            if vif.send.guarantee is None:
                yield f"vifs.{name}.send.guarantee: tc needs one"


class Extent(Frozen):
    """How much is measured: in each block every way of a part gets one slot."""

    blocks: int = Field(ge=2)
    slot: DurationNs = Field(gt=0)


class Study(Frozen):
    """A study file."""

    partywall_policy_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    parts: dict[Name, Part] = Field(min_length=1)
    short: Extent
    long: Extent


class Rate(Frozen):
    """Delivered traffic of one stream in one slot.

    lost: share of all datagrams that its sender passed to its kernel, from the first until its queues were empty.
    handed_pps: those that it passed to its kernel in the time of bps and pps. Both None if losses are not counted.
    """

    bps: float
    pps: float
    lost: float | None = None
    handed_pps: float | None = None


class Cell(Frozen):
    """One slot. streams: those that sent. load: of the part's, if it has any."""

    part: str
    way: str
    block: int
    load: float | None = None
    streams: dict[str, Rate]
