"""What a tracer is told: hops in forward order, which packets, and bounds. Frozen, and the same in the contract."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Hook = Literal["in", "out"]
WAYS = ("forward", "backward")
PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58}
HOPS_MOST = 8


class Frozen(BaseModel):
    """An immutable value. Keys of newer versions are ignored."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class Hop(Frozen):
    """One place on the path.

    agent: the agent that traces it if not this host's; namespace: a name, a process ID or a path.
    """

    name: str
    interface: str
    agent: str | None = None
    namespace: str | None = None
    hook: Hook | None = None


class End(Frozen):
    """An address, with a port if it matters."""

    address: str
    port: int | None = None


class Translation(Frozen):
    """NAT on the path: the outside address at some hops is the inside one at others."""

    outside: End
    inside: End


class Only(Frozen):
    """Which packets to trace; all if empty."""

    protocol: int | None = None
    port: int | None = None
    address: str | None = None


class TraceRequest(Frozen):
    """What to trace.

    budget: share of the host's CPU time; one_in: one packet in this many is recorded, the others are counted; agents:
    command lines of agents elsewhere, by name.
    """

    hops: tuple[Hop, ...]
    horizon_ns: int
    budget: float | None = None
    one_in: int = 1
    only: Only = Only()
    translations: tuple[Translation, ...] = ()
    packets: int = 2000
    agents: dict[str, tuple[str, ...]] = {}

    @property
    def one_way(self) -> bool:
        """True if a hop names its hook: then only forward packets are traced."""
        return any(hop.hook for hop in self.hops)

    def names(self, way: int) -> tuple[str, ...]:
        """The hops in the order in which packets of a direction pass them."""
        names = tuple(hop.name for hop in self.hops)
        return names if way == 0 else names[::-1]
