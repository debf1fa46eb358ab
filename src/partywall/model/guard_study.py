"""A study of bandwidth promises: tenants, what they send, what keeps their promises; and what was measured.

Deliberately not here: carrying it out (`partywall.guard.study`) and what is made of it (`partywall.stats.guard`).
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from partywall.model.policy import BitRate, PacketRate
from partywall.model.scenario import DurationNs, Frozen, Name

Way = Literal["native", "htb", "tbf", "guard"]


class Promised(Frozen):
    """A tenant and its SLA in bit/s."""

    service_class: Name
    guarantee: BitRate


class Sending(Frozen):
    """What the tenants send, and what they may send of packets."""

    frame_bytes: dict[Name, int] = Field(description="size on the link, with all headers")
    packets: dict[Name, PacketRate] = Field(default_factory=dict, description="packets/s never exceeded")


class Periods(Frozen):
    """Readjust periods that are compared, in one scenario."""

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
    periods: Periods
    emulated_scale: float = Field(
        0.05, gt=0, le=1, description="of link, promises and offers where tenants are emulated guests, which send less"
    )
    short: Extent
    long: Extent

    def scaled(self, share: float) -> Self:
        """The same in small: rates of bits and packets are so many times what they were."""
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
        return self.model_copy(update={**rates, "tenants": tenants, "scenarios": scenarios})


class TenantCell(Frozen):
    """What one tenant got in one slot. Delays are None if no probe came through."""

    bps: float
    pps: float
    lost: float | None = Field(description="share of what it sent; None if it sent nothing")
    delay_ns: float | None
    jitter_ns: float | None


class Cell(Frozen):
    """One slot. period_ns: of the guard, where periods are compared; 0 for what stands beside them."""

    scenario: str
    way: str
    block: int
    period_ns: int | None = None
    cpu_ns: float = Field(description="CPU time of the whole host, per delivered packet")
    emulated: bool = Field(False, description="whether tenants are guests whose processor is emulated")
    tenants: dict[str, TenantCell]
