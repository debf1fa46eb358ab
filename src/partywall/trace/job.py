"""What is traced: the job, from which the command, the Python function and the form are made."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from partywall.core.job import Duration, Job, Option
from partywall.trace.hops import ask
from partywall.trace.request import TraceRequest

PLAIN_HOP = r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}"


class TraceJob(Job):
    """Follow packets along a path of interfaces: delay, loss and reordering from hop to hop.

      partywall trace web/eth0 veth-web veth-db db/eth0 --protocol tcp --for 10s

    Packets are identified by a tag that does not change on the path: TCP's sequence numbers, a marker set by
    Partywall's own senders, or a hash of the unchanging fields. Both directions are traced. The report shows the delay
    and loss of each step. packets.pcapng opens in Wireshark. All hooks are removed at the end.

    Needs root. Exit code: 0 traced, 3 no packet was seen or the hops are in the wrong order, 2 bad hop or option, 4 the
    host or a permission lacks something, 5 an agent ended.
    """

    hops: Annotated[
        tuple[str, ...],
        Option(
            "Interfaces in the order in which packets pass: eth0, NETNS/eth0 (a name of 'ip netns', a process "
            "number or a path), AGENT/eth0. With :in or :out, only packets that enter or leave, and only forward ones.",
            metavar="HOP...",
            example="eth0 br0",
            page=PLAIN_HOP,
        ),
    ]
    for_ns: Annotated[
        Duration | None, Option("Duration, e.g. 10s. Default: until Ctrl-C.", flag="--for", example="10s")
    ] = None
    protocol: Annotated[str | None, Option("Only tcp, udp, icmp, icmpv6, or a number.")] = None
    address: Annotated[str | None, Option("Only packets from or to this address.", flag="--host")] = None
    port: Annotated[int | None, Field(ge=1, le=65535), Option("Only packets from or to this port.")] = None
    nat: Annotated[
        tuple[str, ...],
        Option("OUTSIDE=INSIDE, e.g. 198.51.100.1:4000=10.0.0.5:4000, if NAT changes addresses on the path."),
    ] = ()
    agents: Annotated[
        tuple[str, ...],
        Option(
            "NAME=COMMAND of an agent elsewhere, e.g. vm1='ssh vm1 sudo partywall-agent serve'.",
            flag="--agent",
            keyword="agents",
            page="",
        ),
    ] = ()
    horizon: Annotated[str, Option("A packet not seen for this long counts as lost.")] = "500ms"
    budget: Annotated[
        str,
        Option("Limit on the share of this host's CPU time. Above it, fewer flows are sampled, and a note reports it."),
    ] = "10%"
    one_in: Annotated[
        int,
        Option(
            "Record one packet in this many, and only count the others at each hop: cheaper. Losses are the "
            "difference of counts; delays and order are those of the recorded packets."
        ),
    ] = 1
    packets: Annotated[int, Option("Packets a second, in each direction, to keep in the pcapng file.")] = 2000

    @model_validator(mode="after")
    def _is_a_path(self) -> Self:
        _ = self.request
        return self

    @property
    def ends(self) -> bool:
        """False without a duration: then Ctrl-C is the end."""
        return self.for_ns is not None

    @property
    def request(self) -> TraceRequest:
        """What the tracer is told. UsageError with every mistake."""
        asked = self.model_dump(exclude={"for_ns"})
        return ask(asked.pop("hops"), **asked)
