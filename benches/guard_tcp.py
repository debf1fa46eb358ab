"""Does TCP get its promise where no queue can stand before the hook? iperf3 at four places, alone and beside datagrams.

The places: the host's end of a tenant's veth; a tap, whose other side is a second tap with a TCP stack behind a process
that copies frames with their offloads, as QEMU does; a namespace that receives; and a tenant's own end with
`excess: drop`. At each, one connection is promised a rate that is also its ceiling. Beside it, another vif of the same
policy offers datagrams at three times its own promise. The long form tries `excess: drop` at the other places too, and
four connections that share one promise at the host's end. Goodput must be at least 95 % of the promise less the headers
of full frames. No vif may carry more than 102 % of its ceiling and a burst in any window of a second, counted at the
sink's port, or, where that port counts what is dropped too, by iperf3 over the whole time.

Then crowds share a link: 2 to 16 tenants with each congestion control of this kernel, alone and mixed, with each kind
of queue, and with bbr as the default of the whole host. Each must get 95 % of its fair share, and its packets may wait
no longer than docs/guard.md states. The short form has two crowds.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import struct
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import crowd
import guards
from common import read_meanwhile
from crowd import READ_EVERY_S, fullest
from disturbance import undisturbed
from frame import Options, Outcome, bench
from guards import PAYLOAD
from partywall.sandbox.lab import Lab, ip, lab, sender
from partywall.sandbox.networks import NETNS, in_namespace

BAR, MOST = 0.95, 1.02
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
CHECKSUM, TSO4, TSO6, ECN = 1, 2, 4, 8
FRAME_MAX = 70_000
TAPS = ("10.8.0.1", "10.8.0.2")
PLACES = ("host end", "tap", "received", "own end")


@dataclass(frozen=True)
class Round:
    """What is tried under one policy, at some places. drops: those with `excess: drop`."""

    drops: tuple[str, ...] = ()
    connections: int = 1
    places: tuple[str, ...] = PLACES

    def text(self, place: str) -> str:
        return ", ".join(
            [
                place,
                *(["excess: drop"] if place in self.drops else []),
                *([f"{self.connections} connections"] if self.connections > 1 else []),
            ]
        )


SHORT = (Round(drops=("own end",)),)
LONG = (*SHORT, Round(drops=PLACES, places=PLACES[:-1]), Round(connections=4, places=("host end",)))


def tap(name: str) -> int:
    """A tap whose frames may be as large as a virtual machine's."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(descriptor, TUNSETOFFLOAD, CHECKSUM | TSO4 | TSO6 | ECN)
    return descriptor


def copied(ends: tuple[int, int], until: int) -> None:
    """Copies frames from each tap to the other, with the description of their offloads, until `until` can be read."""
    frame = array.array("B", bytes(FRAME_MAX))
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    while True:
        ready, _, _ = select.select([*ends, until], [], [])
        if until in ready:
            return
        for end in ready:
            length = os.readv(end, [frame])
            with contextlib.suppress(OSError):
                os.write(other[end], memoryview(frame)[:length])


@contextlib.contextmanager
def cable(made: Lab) -> Iterator[None]:
    """Two taps that are one cable: `inside` in the namespace of tenant `tap`, `vnet0` in that of the bridge."""
    places = {"inside": made.namespace("tap"), "vnet0": made.namespace("switch")}
    first, second = (in_namespace(NETNS / space, lambda n=name: tap(n)) for name, space in places.items())
    for (name, space), address in zip(places.items(), TAPS, strict=True):
        ip("-n", space, "addr", "add", f"{address}/24", "dev", name)
        ip("-n", space, "link", "set", name, "up")
    ended, end = os.pipe()
    copier = threading.Thread(target=copied, args=((first, second), ended))
    copier.start()
    try:
        yield
    finally:
        os.close(end)
        copier.join()
        for descriptor in (first, second, ended):
            os.close(descriptor)


@dataclass(frozen=True)
class Way:
    """The ends of a connection, and its vif in the policy. counted: its sink's port sees only what passed."""

    sender: str
    receiver: str
    address: str
    vif: Mapping[str, Any]
    counted: bool


def ways(made: Lab, bps: float) -> dict[str, Way]:
    promise = {"guarantee": f"{bps:.0f}bit/s", "ceiling": f"{bps:.0f}bit/s"}
    switch = made.namespace("switch")

    def way(name: str, vif: Mapping[str, Any], *, counted: bool) -> Way:
        return Way(
            made.namespace(name), made.namespace(f"{name}-sink"), made.address(name, counted=False), vif, counted
        )

    host_end = {"interface": made.port("host-end"), "namespace": switch, "side": "outside", "send": promise}
    received = {"interface": "eth0", "namespace": made.namespace("received-sink"), "receive": promise}
    vnet = {"interface": "vnet0", "namespace": switch, "side": "outside", "send": promise}
    return {
        "host end": way("host-end", host_end, counted=True),
        "tap": Way(made.namespace("tap"), switch, TAPS[1], vnet, counted=False),
        "received": way("received", received, counted=False),
        "own end": way("own-end", {"send": promise}, counted=True),
    }


@contextlib.contextmanager
def guarded(made: Lab, every: Mapping[str, Way], drops: Collection[str], bps: float, part: float) -> Iterator[None]:
    vifs = {
        name.replace(" ", "-"): _scaled(way.vif, part) | ({"excess": "drop"} if name in drops else {})
        for name, way in every.items()
    }
    vifs["other"] = {"send": {"guarantee": f"{bps:.0f}bit/s", "ceiling": f"{bps:.0f}bit/s"}}
    with guards.guarded(made, vifs, f"{5 * bps:.0f}bit/s"):
        time.sleep(0.2)
        yield


def _scaled(vif: Mapping[str, Any], part: float) -> dict[str, Any]:
    scaled = {
        way: {key: f"{float(rate.removesuffix('bit/s')) * part:.0f}bit/s" for key, rate in vif[way].items()}
        for way in ("send", "receive")
        if way in vif
    }
    return {**vif, **scaled}


def goodput(way: Way, connections: int, seconds: float) -> float:
    """What the connections brought to their receiver, in bit/s."""
    with guards.server(way.receiver):
        return guards.received(guards.client(way.sender, way.address, seconds, "-P", str(connections)), seconds + 60)


def measured(made: Lab, tried: Round, bps: float, seconds: float, part: float) -> tuple[float, float]:
    """The least goodput over the promise less headers, and the most that a vif carried over its ceiling."""
    every = ways(made, bps)
    least, most = float("inf"), 0.0
    with guarded(made, every, tried.drops, bps, part):
        for beside in (False, True):
            with contextlib.ExitStack() as stack:
                if beside:
                    stack.enter_context(sender(made, "other", 1514, 3 * bps / 8 / 1514))
                for name in tried.places:
                    way = every[name]
                    with read_meanwhile(made.read, READ_EVERY_S) as readings:
                        got = goodput(way, tried.connections, seconds)
                    share = got / (bps * PAYLOAD)
                    carried = fullest(readings, name.replace(" ", "-"), bps) if way.counted else share
                    least, most = min(least, share), max(most, carried)
                    with_what = "beside datagrams" if beside else "alone"
                    print(
                        f"{tried.text(name)}, {bps / 1e6:.0f} Mb/s, {with_what}: goodput {got / 1e6:.2f} Mb/s, "
                        f"{share:.1%} of the promise less headers; at most {carried:.1%} of the ceiling",
                        flush=True,
                    )
    return least, most


def at_places(*, quick: bool, part: float) -> tuple[float, float]:
    """As `measured`, at all rates and in all rounds."""
    rates, seconds, rounds = ((50e6,), 3.0, SHORT) if quick else ((10e6, 50e6, 400e6), 30.0, LONG)
    names = ["host-end", "received", "own-end", "tap", "other"]
    with lab(names, None) as made, cable(made):

        def shares(bps: float, tried: Round) -> tuple[float, float]:
            def is_met(shares_now: tuple[float, float]) -> bool:
                return shares_now[0] >= BAR and shares_now[1] <= MOST

            return undisturbed(lambda: measured(made, tried, bps, seconds, part), is_met)

        results = [shares(bps, tried) for bps in rates for tried in rounds]
    return min(least for least, _ in results), max(most for _, most in results)


def is_served(got: list[crowd.Got]) -> bool:
    return all(each.share >= BAR and each.most <= MOST and each.waits <= 1 for each in got)


@bench(
    plants={
        "promise": "a promise of a tenth less in the kernel",
        "demand": "demand is what arrived, and what waits does not count",
    },
    needs=("iperf3",),
)
def main(options: Options) -> Outcome:
    seconds = 8.0 if options.quick else 20.0
    demand = "arrived" if options.plant == "demand" else None
    tried = crowd.crowds(quick=options.quick)
    got = [
        each
        for one in tried
        for each in undisturbed(lambda one=one: crowd.measured(one, seconds, demand=demand), is_served)  # type: ignore[misc]
    ]
    least, most = at_places(quick=options.quick, part=0.9 if options.plant == "promise" else 1.0)
    more = "" if options.quick else ", each also with excess: drop, one with 4 connections"
    figure = (
        f"TCP gets at least {least:.1%} of its promise less headers (bar {BAR:.0%}) at {len(PLACES)} places{more}, "
        f"alone and beside datagrams; no vif carries more than {most:.1%} of its ceiling beside a burst "
        f"(bar {MOST:.0%}); {len(got)} tenants of {len(tried)} crowds with {', '.join(crowd.controls())} get at least "
        f"{min(each.share for each in got):.1%} of their fair shares (bar {BAR:.0%}), at most "
        f"{max(each.most for each in got):.1%} of their ceilings, and wait {max(each.waits for each in got):.2f} times "
        "as long as stated (bar 1)"
    )
    return Outcome(figure, least >= BAR and most <= MOST and is_served(got))


if __name__ == "__main__":
    main()
