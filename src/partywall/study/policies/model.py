"""A study of policies: parts with streams of datagrams and ways to divide links among them, and the observations.

Carrying it out is in `slots`, processing of results in `findings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from partywall.guard.load import check
from partywall.model.policy import ONLY_LINK, PacketRate, Policy
from partywall.model.scenario import BitRate, DurationNs, Frozen, Name

FRAME_LEAST, FRAME_MOST = 42, 1514
"""Sizes of the headers of Ethernet, IPv4 and UDP, and of a whole frame."""
PROMISED = "promised"
"""The series of the promises."""
ALL = "all"
"""The sum of all streams."""


class Stream(Frozen):
    """Datagrams that a vif sends. Each stream has a sink of its own."""

    vif: Name
    frame_bytes: int = Field(ge=FRAME_LEAST, le=FRAME_MOST, description="size on the link, with all headers")
    offered: PacketRate
    port: int = Field(9, ge=1, le=65535, description="destination port")


class Way(Frozen):
    """Which streams send, and under which policy. policy: keys that replace the part's; None: without the guard."""

    sends: tuple[Name, ...] = Field(min_length=1)
    policy: dict[str, Any] | None = Field(default_factory=dict)


class Part(Frozen):
    """Links that vifs share. promised: what a stream, or all together, should get, in the unit of the values."""

    exhibit: str = Field(description="table or figure of the paper's file")
    value: Literal["kp/s", "Mb/s"]
    link: BitRate | None = Field(None, description="capacity of the link; exactly one of link and links")
    links: dict[Name, BitRate] = Field(default_factory=dict, description="capacities of several links, by name")
    policy: dict[str, Any] = Field(description="a policy without its name, its links and the places of its vifs")
    streams: dict[Name, Stream] = Field(min_length=1)
    ways: dict[Name, Way] = Field(min_length=1)
    promised: dict[Name, float] = Field(default_factory=dict)

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
        if (self.link is None) == (not self.links):
            raise ValueError("links: give one of link and links")
        for name in self.vifs:
            if self.link_of(name) not in self.by_link:
                there = ", ".join(self.links) or "one, without a name"
                said = f"policy.vifs.{name}.link: {self.link_of(name)!r} is none of the links"
                raise ValueError(f"{said}; there are {there}")
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

    def _mistakes(self, way: str) -> Iterator[str]:
        policy = self.policy_of(way, "study", {key: {"interface": "eth0", "namespace": key} for key in self.vifs})
        if policy is None:
            return
        yield from (f"{'.'.join(map(str, mistake.path))}: {mistake.message}" for mistake in check(policy))
        for name, vif in policy.vifs.items():
            if (vif.link or ONLY_LINK) != self.link_of(name):
                yield f"vifs.{name}.link: {vif.link!r} is not the link of the part's policy, {self.link_of(name)!r}"


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
    """Delivered traffic of one stream in one slot."""

    bps: float
    pps: float


class Cell(Frozen):
    """One slot. streams: those that sent."""

    part: str
    way: str
    block: int
    streams: dict[str, Rate]
