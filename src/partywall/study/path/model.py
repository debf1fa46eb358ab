"""A study of a sender of datagrams beside a neighbour on one link, with a trace of its path, and its observations.

Carrying it out is in `slots`, processing of results in `findings`.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from partywall.guard.document import PacketRate
from partywall.study.document import EMULATED_SCALE, EmulatedScale
from partywall.values import BitRate, DurationNs, Frozen, Name

IP_BYTES = 20
HEADERS = IP_BYTES + 8
"""Of IPv4 and UDP."""
Size = int | None
"""Bytes of data in the neighbour's datagrams; None for a quiet neighbour."""


class Extent(Frozen):
    """How much is measured: in each block every size gets one slot; then each traced size is traced once."""

    blocks: int = Field(ge=2)
    slot: DurationNs = Field(gt=0)
    traced: DurationNs = Field(gt=0)


class Study(Frozen):
    """A study file."""

    partywall_path_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    link: BitRate
    target_bytes: int = Field(
        ge=16, le=1472, description="data of the target's datagrams: space for the marker, and never fragmented"
    )
    target_rate: PacketRate | None = Field(None, description="datagrams a second; default: as fast as possible")
    neighbour_bytes: tuple[int, ...] = Field(min_length=1, description="sizes that are compared, 0 to 16384")
    neighbour_rate: PacketRate = Field(description="datagrams a second, at every size")
    mtu: int = Field(1500, ge=576, le=1500, description="of both tenants' interfaces: larger datagrams are fragmented")
    traced: tuple[Size, ...] = Field(min_length=1, description="sizes beside which the path is traced; null: quiet")
    emulated_scale: EmulatedScale = EMULATED_SCALE
    short: Extent
    long: Extent

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        wrong = [size for size in self.neighbour_bytes if not 0 <= size <= 16384]
        if wrong:
            raise ValueError(f"neighbour_bytes: a datagram of {wrong[0]} bytes cannot be sent; give 0 to 16384")
        for key, sizes in (("neighbour_bytes", self.neighbour_bytes), ("traced", self.traced)):
            if len(set(sizes)) < len(sizes):
                raise ValueError(f"{key}: a size is listed twice; give each once")
        if self.target_bytes > self.mtu - HEADERS:
            raise ValueError(
                f"target_bytes: with an MTU of {self.mtu}, at most {self.mtu - HEADERS} are not fragmented"
            )
        if unknown := sorted({size for size in self.traced if size is not None} - set(self.neighbour_bytes)):
            raise ValueError(f"traced: {unknown[0]} is not in neighbour_bytes; add it there, or leave it out here")
        return self

    def packets(self, size: int) -> int:
        """IP packets of a datagram with this much data."""
        each = (self.mtu - IP_BYTES) // 8 * 8
        return 1 if size <= self.mtu - HEADERS else -(-(size + HEADERS - IP_BYTES) // each)

    def scaled(self, share: float) -> Self:
        """The same study with all rates of bits and packets multiplied by `share`."""
        rates = {"link": self.link, "neighbour_rate": self.neighbour_rate, "target_rate": self.target_rate}
        update = {name: max(1, round(rate * share)) for name, rate in rates.items() if rate is not None}
        return self.model_copy(update=update)


class Cell(Frozen):
    """The target's delivered traffic in one slot, beside datagrams of this size.

    cpu_ns: CPU time that each of the neighbour's datagrams took its sender, the kernel's work for it included; None
    beside a quiet neighbour, and if tenants are guests. emulated: whether tenants are guests whose processor is
    emulated.
    """

    block: int
    bytes: Size
    bps: float
    pps: float
    cpu_ns: float | None = None
    emulated: bool = False


class Traced(Frozen):
    """One trace.

    run: its folder among the study's runs; missing: packets lost according to the interfaces' counters.
    """

    bytes: Size
    run: str
    missing: int
