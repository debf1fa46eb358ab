"""A trace from the wire into a guest: whether it finds a queue of known length at the right hop, and every loss.

Marked datagrams come over a link, through a bridge and a tap, into a guest of QEMU. Five hops are traced: the sender,
the wire's end, the card, the tap, and the guest's own interface, by the agent in the guest. The guest's clock is its
own; the trace states the bound of its error.

A token bucket (tbf) of 2 Mbit/s is put before the wire, and then before the guest's side of the tap. It gets more than
it lets through. Its queue holds N packets of T each and is always full, so every packet that it takes waits N T, less
the time since a place became free, which is at most the time between two packets that arrive. That is the known delay.
The same path without a queue is traced before and after; its median is what a hop takes anyway.

- Delay: the hop with the queue is longer by the known delay, within the stated bounds of the clocks and half of the
  time between two arrivals. All other hops together are longer by no more than those bounds and a millisecond.
- Loss: what the trace says was lost at each hop is what the queues and the tap say they dropped, to the packet; what it
  saw in the guest is what the guest's interface counted.
- Cost: what the programs take for a record on the host and in the guest, as each trace states it, and the share of the
  host's CPU time.

Bar: both delays within their bounds, losses exact, no packet before its time by more than the clock's bound, the costs
stated.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from frame import NotMeasured, Options, Outcome, bench
from guests import lacking
from partywall.agent.client import AgentClient
from partywall.host import Host
from partywall.sandbox import switch
from partywall.sandbox.lab import HEADERS, Lab, agent, ip, lab, tc
from partywall.trace.hops import ask
from partywall.trace.measure.tracing import Present, Tracing
from partywall.trace.record import ClockBound, Packet, Report, merged

NAME, GUEST = "target", "guest"
PLACES = ("the sender", "the wire", "the card", "the tap", "the guest")
# In the guest's network, and of nobody: the guest drops what comes for it, behind the hook, and answers nothing.
TO, PORT = "10.9.4.1", 9
MAC = "02:00:00:00:01:01"
DATA_BYTES = 256
WIRE_BYTES = DATA_BYTES + HEADERS
RATE_BPS, QUEUED = 2_000_000, 20
QUIET_PPS, OVERLOAD_PPS = 400.0, 1100.0
PACKET_S = WIRE_BYTES * 8 / RATE_BPS
KNOWN_S = QUEUED * PACKET_S
# A bucket begins full, and a queue empty.
FILL_S = 1.0
ELSEWHERE_MOST_S = 0.001


@dataclass(frozen=True)
class Traced:
    """What a trace found. delays_s: between neighbouring hops, for each packet that arrived once all was steady."""

    whole: Report
    bound_s: float
    delays_s: Sequence[Sequence[float]]
    costs_ns: tuple[int | None, int | None]

    def medians(self) -> list[float]:
        return [statistics.median(step) for step in zip(*self.delays_s, strict=True)]


class Path:
    """The hops, the sender at one end and the guest at the other."""

    def __init__(self, made: Lab, sender: AgentClient) -> None:
        self.made, self._sender = made, sender
        sink, far, near = (made.namespace(name) for name in (f"{NAME}-sink", "far", "switch"))
        self._near, self._far, self.tap = near, far, made.port(NAME)
        self.hops = (
            f"{sink}/eth0:out",
            f"{far}/uplink:out",
            f"{near}/nic:in",
            f"{near}/{self.tap}:out",
            f"{GUEST}/eth0:in",
        )

    @property
    def guest(self) -> AgentClient:
        client = self.made.guests[NAME].client
        assert client is not None
        return client

    def trace(self, rate_pps: float, seconds: float) -> Traced:
        """Traces what the sender sends for some seconds."""
        reports: list[Report] = []
        clocks: list[ClockBound] = []
        request = ask(self.hops, budget="100%", protocol="udp", port=PORT, packets=20_000, present=(GUEST,))
        there = Present(self.guest, functools.partial(self.made.listen, NAME))
        with Tracing(request, self.made.label, reports.append, clocks.append, present={GUEST: there}) as tracing:
            began_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            kernel = {
                "name": "udp-send",
                "params": {"to": f"{TO}:{PORT}", "marker": True, "datagram_bytes": DATA_BYTES, "batch": 1}
                | {"rate_pps": rate_pps},
            }
            self._sender.call("workload.start", id="s", work={"kernel": kernel}, pace="flat_out", work_dir="/tmp")
            tracing.pump(FILL_S + seconds)
            self._sender.call("workload.stop", id="s")
            tracing.finish()
            costs = tracing.record_ns, tracing.relays_record_ns[GUEST]
        whole = merged(reports)
        steady_ns = began_ns + int(FILL_S * 1e9)
        delays = [
            each for report in reports for packet in report.ways[0].packets if (each := _steps(packet, steady_ns))
        ]
        return Traced(whole, max(bound.bound_ns for bound in clocks) / 1e9, delays, costs)

    def wire(self) -> tuple[str, str]:
        return self._far, "uplink"

    def into_guest(self) -> tuple[str, str]:
        return self._near, self.tap

    def queue(self, where: tuple[str, str]) -> None:
        limit = str(QUEUED * WIRE_BYTES)
        tc(where[0], *_root("replace", where[1]), "tbf", "rate", f"{RATE_BPS}bit", "burst", "1600", "limit", limit)

    def unqueue(self, where: tuple[str, str]) -> None:
        tc(where[0], *_root("del", where[1]))

    def dropped(self, where: tuple[str, str]) -> int:
        """Packets that an interface and its queue have dropped."""
        space, name = where
        qdiscs = json.loads(ip("netns", "exec", space, "tc", "-s", "-j", "qdisc", "show", "dev", name))
        queued = sum(int(qdisc["drops"]) for qdisc in qdiscs if qdisc["kind"] == "tbf")
        return queued + int(_counters(space, name)["dropped"])

    def received(self) -> int:
        """Packets that the tap has handed to the guest."""
        return int(_counters(self._near, self.tap)["packets"])


def _counters(space: str, name: str) -> dict[str, int]:
    """What an interface has sent."""
    shown: dict[str, int] = json.loads(ip("-n", space, "-s", "-j", "link", "show", name))[0]["stats64"]["tx"]
    return shown


def _root(what: str, name: str) -> tuple[str, ...]:
    return "qdisc", what, "dev", name, "root"


def _steps(packet: Packet, since_ns: int) -> list[float]:
    """The time between neighbouring hops of a packet that arrived; empty for any other, and for an early one."""
    times = [at for at in packet.at_ns if at is not None]
    if packet.fate != "delivered" or len(times) < len(PLACES) or times[0] < since_ns:
        return []
    return [(after - before) / 1e9 for before, after in pairwise(times)]


@dataclass
class Judged:
    """What was found wrong, and figures for the last line."""

    wrong: list[str]
    figures: list[str]


def queued(path: Path, where: tuple[str, str], at: int, before: Traced, seconds: float, judged: Judged) -> None:
    """Traces a path with a queue before hop `at`, and judges delay and loss there."""
    path.queue(where)
    dropped, received = path.dropped(where), path.received()
    try:
        traced = path.trace(OVERLOAD_PPS, seconds)
        lost, arrived = path.dropped(where) - dropped, path.received() - received
    finally:
        path.unqueue(where)
    after = path.trace(QUIET_PPS, seconds)
    gap_s = 1 / OVERLOAD_PPS
    known_s = KNOWN_S - gap_s / 2
    usual = [min(first, second) for first, second in zip(before.medians(), after.medians(), strict=True)]
    longer = [now - then for now, then in zip(traced.medians(), usual, strict=True)]
    hop = longer.pop(at - 1)
    bound_s = traced.bound_s + max(before.bound_s, after.bound_s) if at == len(PLACES) - 1 else 0.0
    allowed_s = bound_s + gap_s / 2
    off_s = hop - known_s
    print(
        f"queue before {PLACES[at]}: {hop * 1e3:.3f} ms longer, known {known_s * 1e3:.3f} ms: "
        f"{off_s * 1e3:+.3f} ms of {allowed_s * 1e3:.3f} allowed; other hops {sum(longer) * 1e3:+.3f} ms; "
        f"clock within {traced.bound_s * 1e6:.0f} µs; {len(traced.delays_s)} packets",
        flush=True,
    )
    judged.figures.append(f"{PLACES[at]} {off_s * 1e3:+.2f} of ±{allowed_s * 1e3:.2f} ms at {known_s * 1e3:.1f}")
    if abs(off_s) > allowed_s:
        judged.wrong.append(f"the delay into {PLACES[at]} is off by {off_s * 1e3:.2f} ms")
    if abs(sum(longer)) > ELSEWHERE_MOST_S + traced.bound_s + before.bound_s:
        judged.wrong.append(f"other hops are longer by {sum(longer) * 1e3:.2f} ms")
    losses(traced.whole, at, lost, arrived, judged)
    negative = traced.whole.ways[0].steps[-1].delay
    if negative.negative and negative.negative_max_ns > traced.bound_s * 1e9:
        judged.wrong.append(
            f"{negative.negative} packets came {negative.negative_max_ns / 1e3:.0f} µs before their time"
        )


def losses(whole: Report, at: int, lost: int, arrived: int, judged: Judged) -> None:
    """Compares what was lost at each hop with the queue's own count, and what arrived with the tap's."""
    way = whole.ways[0]
    lost_by_hop = [step.lost + step.astray for step in way.steps]
    truth = [lost if number == at else 0 for number in range(len(lost_by_hop))]
    seen = way.steps[-1].packets + way.steps[-1].duplicates
    missed = sum(hop.missed + hop.untraced for hop in whole.hops)
    print(
        f"  lost by hop {lost_by_hop}, dropped {truth}; {seen} in the guest, {arrived} handed to it; {missed} missed",
        flush=True,
    )
    if lost_by_hop != truth or missed:
        judged.wrong.append(f"lost {lost_by_hop}, dropped {truth}, {missed} records missed")
    # The tap also carries what the bridge itself says now and then.
    if not seen <= arrived <= seen + 5:
        judged.wrong.append(f"{seen} seen in the guest, {arrived} handed to it")


@bench(
    plants={
        "rate": "the queue before the guest lets 5 % less through than it is said to",
        "loss": "the queue's count of dropped packets is one too high",
    },
    lacking=lacking,
)
def main(options: Options) -> Outcome:
    if why := switch.lacking(Host.here()):
        raise NotMeasured(why)
    seconds = 4.0 if options.quick else 15.0
    judged = Judged([], [])
    with lab([NAME], None, accel="tcg") as made, agent(made, f"{NAME}-sink") as sender:
        ip("-n", made.namespace(f"{NAME}-sink"), "neigh", "add", TO, "lladdr", MAC, "dev", "eth0")
        path = Path(made, sender)
        planted(path, options.plant)
        quiet = path.trace(QUIET_PPS, seconds)
        usual = ", ".join(f"{m * 1e6:.0f}" for m in quiet.medians())
        print(f"without a queue: {usual} µs from hop to hop; clock within {quiet.bound_s * 1e6:.0f} µs", flush=True)
        queued(path, path.wire(), 2, quiet, seconds, judged)
        queued(path, path.into_guest(), 4, quiet, seconds, judged)
        costs, share = quiet.costs_ns, quiet.whole.cost
    if None in costs or share is None:
        judged.wrong.append("a cost is not stated")
    stated = f"{costs[0]} ns a record here, {costs[1]} in the emulated guest, {share or 0:.2%} of the host"
    figure = f"{'; '.join(judged.figures)}; {f'WRONG: {judged.wrong}' if judged.wrong else 'losses exact'}; {stated}"
    return Outcome(figure, not judged.wrong)


def planted(path: Path, plant: str | None) -> None:
    """Plants a fault in what is measured."""
    if plant == "loss":
        honest: Callable[[tuple[str, str]], int] = path.dropped
        calls = iter(range(1, 100))
        path.dropped = lambda where: honest(where) + next(calls)  # type: ignore[method-assign]
    elif plant == "rate":

        def slower(where: tuple[str, str]) -> None:
            limit, rate = str(QUEUED * WIRE_BYTES), f"{RATE_BPS * 0.95:.0f}bit"
            tc(where[0], *_root("replace", where[1]), "tbf", "rate", rate, "burst", "1600", "limit", limit)

        path.queue = slower  # type: ignore[method-assign]


if __name__ == "__main__":
    if os.geteuid() != 0:
        raise NotMeasured("needs root (namespaces, taps, hooks)")
    main()
