"""A study of bandwidth guarantees: tenants, their traffic, ways to enforce the guarantees, and the observations.

Carrying it out is in `slots`, processing of results in `findings`.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from partywall.guard.document import PacketRate
from partywall.study.document import EMULATED_SCALE, EmulatedScale
from partywall.values import BitRate, DurationNs, Frozen, Name

Way = Literal["native", "htb", "tbf", "published", "guard", "guard-drop", "guard-source"]
"""published: the guard divides as DBA-VM's authors print it, and drops excess datagrams, as they do. guard: excess
packets wait if possible; guard-drop: datagrams are dropped; guard-source: they stop in the guest."""
FRAME_LEAST, FRAME_MOST = 42, 1514
"""Sizes of the headers of Ethernet, IPv4 and UDP, and of a whole frame."""


class Promised(Frozen):
    """A tenant and its SLA in bit/s."""

    service_class: Name
    guarantee: BitRate


class Sending(Frozen):
    """The tenants' traffic, and their packet limits."""

    frame_bytes: dict[Name, int] = Field(description="size on the link, with all headers")
    packets: dict[Name, PacketRate] = Field(default_factory=dict, description="packets/s never exceeded")


class Periods(Frozen):
    """Periods of the guard that are compared, in one scenario."""

    scenario: Name
    every: tuple[DurationNs, ...] = Field(min_length=1)


class Extent(Frozen):
    """How much is measured: in each block every way gets one slot."""

    blocks: int = Field(ge=2)
    slot: DurationNs


class Study(Frozen):
    """A study file."""

    partywall_guard_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    link: BitRate
    offered: BitRate = Field(description="what each tenant tries to send")
    service_classes: dict[Name, int]
    tenants: dict[Name, Promised] = Field(min_length=1)
    scenarios: dict[Name, Sending] = Field(min_length=1)
    ways: tuple[Way, ...] = Field(min_length=1)
    hold: DurationNs = Field(20_000_000, ge=1_000_000, description="how long the guard lets packets wait")
    periods: Periods
    emulated_scale: EmulatedScale = EMULATED_SCALE
    short: Extent
    long: Extent

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Checks that all names exist and the guarantees fit the link."""
        if self.periods.scenario not in self.scenarios:
            known = ", ".join(self.scenarios)
            raise ValueError(f"periods.scenario: there is no scenario {self.periods.scenario!r}; there are {known}")
        for name, promised in self.tenants.items():
            if promised.service_class not in self.service_classes:
                known = ", ".join(self.service_classes)
                said = f"there is no {promised.service_class!r}; there are {known}"
                raise ValueError(f"tenants.{name}.service_class: {said}")
        for name, sending in self.scenarios.items():
            if set(sending.frame_bytes) != set(self.tenants):
                raise ValueError(f"scenarios.{name}.frame_bytes: give one size for each of {', '.join(self.tenants)}")
            if unknown := sorted(set(sending.packets) - set(self.tenants)):
                raise ValueError(f"scenarios.{name}.packets: there is no tenant {unknown[0]!r}")
            if wrong := [of for of, size in sending.frame_bytes.items() if not FRAME_LEAST <= size <= FRAME_MOST]:
                said = f"a frame has {FRAME_LEAST} to {FRAME_MOST} bytes"
                raise ValueError(f"scenarios.{name}.frame_bytes.{wrong[0]}: {said}")
        total = sum(promised.guarantee for promised in self.tenants.values())
        if total > self.link:
            raise ValueError(f"tenants: {total} bit/s are promised on a link of {self.link}; promise less")
        return self

    def ways_of(self, *, virtual: bool) -> tuple[Way, ...]:
        """The ways that can be measured. virtual: tenants are guests; others send from where their hook is."""
        return tuple(way for way in self.ways if virtual or way != "guard-source")

    @property
    def ways_by_period(self) -> tuple[Way, ...]:
        """The ways that have a period: the guard's, and the paper's own."""
        return tuple(way for way in self.ways if way in ("published", "guard"))

    def scaled(self, share: float) -> Self:
        """The same study with all rates of bits and packets multiplied by `share`. As many bytes may wait as before."""
        tenants = {
            name: promised.model_copy(update={"guarantee": round(promised.guarantee * share)})
            for name, promised in self.tenants.items()
        }
        scenarios = {
            name: sending.model_copy(
                update={"packets": {of: round(rate * share) for of, rate in sending.packets.items()}}
            )
            for name, sending in self.scenarios.items()
        }
        rates = {"link": round(self.link * share), "offered": round(self.offered * share)}
        hold = min(round(self.hold / share), 1_000_000_000)
        return self.model_copy(update={**rates, "hold": hold, "tenants": tenants, "scenarios": scenarios})


class TenantCell(Frozen):
    """The results of one tenant in one slot. Delays are None if no probe arrived."""

    bps: float
    pps: float
    lost: float | None = Field(description="share of its traffic; None if it sent nothing")
    delay_ns: float | None
    jitter_ns: float | None


class Cell(Frozen):
    """One slot. period_ns: of the guard, if periods are compared; 0 for the ways beside them."""

    scenario: str
    way: str
    block: int
    period_ns: int | None = None
    cpu_ns: float = Field(description="CPU time of the whole host, per delivered packet")
    cpu_share: float | None = Field(
        None, description="CPU time of the whole host, as a share of the time of all its CPUs"
    )
    memory: float | None = Field(
        None, description="misses of the last-level cache of the whole host, per delivered packet; None: not counted"
    )
    memory_share: float | None = Field(
        None, description="the same misses, as a share of the misses of memory copies on all CPUs"
    )
    emulated: bool = Field(False, description="whether tenants are guests whose processor is emulated")
    tenants: dict[str, TenantCell]
