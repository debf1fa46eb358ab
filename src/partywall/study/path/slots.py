"""Measures a target's datagrams beside a neighbour's, on one link of a lab.

Target and neighbour are agents in their own namespaces or guests, with a sender for each size. In each block every
size, and a quiet neighbour, has one slot in random order. Delivered traffic is read from the kernel's counters at the
sink's port. Traces are separate runs, made elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall import units
from partywall.agent.client import AgentClient
from partywall.clock import Clock, Monotonic
from partywall.core.design import rounds
from partywall.core.document.formats import validated
from partywall.errors import TrialError
from partywall.sandbox.clock import STEERED_PPB
from partywall.sandbox.lab import BOOT_S, LINK_LATENCY, Lab, ip, lab, tenant
from partywall.study.path.model import Cell, Extent, Size, Study
from partywall.trace.hops import ask
from partywall.trace.measure.tracing import Present
from partywall.trace.request import TraceRequest

PORT = 9
TARGET = "target"


@dataclass(frozen=True)
class Times:
    """Times around the measured part of a slot, in ns.

    lead: until its senders react; settle: until rates are steady; tail: before the senders' end; drain: until queues
    are empty. calibrate: for a sender's calibration before the first slot.
    """

    lead: int
    settle: int
    tail: int
    drain: int
    calibrate: int

    @property
    def around_s(self) -> float:
        return (self.lead + self.settle + self.tail + self.drain) / 1e9


TIMES = Times(3_000_000, 30_000_000, 2_000_000, 25_000_000, 20_000_000)
GUEST_TIMES = Times(50_000_000, 100_000_000, 30_000_000, 100_000_000, 100_000_000)
"""Agents in guests react later, and their clocks may be off by some milliseconds."""
TRIES = 5
"""How often a slot is started whose senders were scheduled too late."""
BURST_S = 0.002
"""The link's burst as time at its rate, the same at every rate: a slower link empties a larger one too late."""
LOOK_S = 0.1
"""Time for reading the guests' clocks before a slot, for the estimate of the time left."""
START_S = 1.5
"""Set-up time of the lab, for the estimate of the time left."""
TRACE_S = 1.0
"""Time of a trace beside the traced time."""
PLACES = (
    (TARGET, "eth0", "out", "the target's interface"),
    ("switch", "p1", "in", "the bridge's port"),
    ("switch", "nic", "out", "the uplink"),
    ("far", "uplink", "in", "the uplink's far end"),
    ("far", "p1", "out", "the sink's port"),
)
"""The target's path: namespace or guest, interface, hook, and a name for people. A guest's port is its tap."""


def load(content: bytes, file: str) -> Study:
    """Reads a study file. UsageError with all mistakes in it."""
    return validated(Study, content, file, "see scenarios/papers/vits-network.yaml")


class Bench:
    """Target and neighbour in a lab, started and quiet."""

    def __init__(self, study: Study, made: Lab, target: AgentClient, neighbour: AgentClient, clock: Clock) -> None:
        self.study = study
        self.made = made
        self.times = times(virtual=bool(made.guests))
        self._target, self._neighbour, self._clock = target, neighbour, clock

    def slot(
        self, size: Size, for_ns: int, wait: Callable[[int], None] | None = None
    ) -> tuple[float, float, float | None]:
        """While the neighbour sends datagrams of one size: (bit/s, packets/s) delivered of the target.

        Also the CPU time of one of the neighbour's datagrams in ns, or None. TrialError if the agents are too slow.
        wait: waits until a time; by default nothing else is done meanwhile.
        """
        wait = wait or self._clock.sleep_until
        steady, end = self._begun(size, for_ns)
        wait(steady)
        before, spent = self.made.read(), self._spent()
        wait(steady + for_ns)
        after, spent_after = self.made.read(), self._spent()
        wait(end + self.times.drain)
        each_ns = None
        if size is not None and spent and spent_after:
            cpu_ns, packets = (now - then for now, then in zip(spent_after, spent, strict=True))
            each_ns = cpu_ns / packets * self.study.packets(size) if packets else None
        return (*before.rates(after)["target"], each_ns)

    def _begun(self, size: Size, for_ns: int) -> tuple[int, int]:
        """Tells the agents about a slot. Returns when its rates are steady, and when its senders end."""
        for _ in range(TRIES):
            self.made.look()
            start = self._clock.now_ns() + self.times.lead
            steady = start + self.times.settle
            end = steady + for_ns + self.times.tail
            _on(self._target, "target", start, end)
            if size is not None:
                _on(self._neighbour, str(size), start, end)
            if self._clock.now_ns() < steady:
                return steady, end
            self._clock.sleep_until(end + self.times.drain)
        within = units.format_duration(self.times.lead + self.times.settle)
        raise TrialError(
            f"the senders' agents did not answer within {within}, {TRIES} times in a row; leave the host less to do, "
            "then continue the study"
        )

    def _spent(self) -> tuple[int, int] | None:
        """CPU time of the neighbour's agent so far in ns, and packets that it has sent.

        None for a guest: its CPU time contains its other work, and the hypervisor's.
        """
        if self.made.guests:
            return None
        pid = self._neighbour.process.pid
        tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
        cpu_ns = sum(int(task.read_text().split()[0]) for task in tasks)
        return cpu_ns, _sent(self.made.namespace("neighbour"), "eth0")

    def trace_request(self, packets: int) -> TraceRequest:
        """A trace of the target's path. packets: number a second that are stored for the pcapng file."""
        path = [
            f"{space if space in self.made.guests else self.made.namespace(space)}/{port}:{hook}"
            for space, port, hook, _ in PLACES
        ]
        return ask(path, budget="100%", protocol="udp", port=PORT, packets=packets, present=tuple(self.present))

    @property
    def present(self) -> dict[str, Present]:
        """The target's agent, if it traces inside its guest."""
        if TARGET not in self.made.guests:
            return {}
        listen = functools.partial(self.made.listen, TARGET)
        return {TARGET: Present(self._target, listen, STEERED_PPB)}

    def gone(self) -> int:
        """Packets that the target's own interface sent so far and that did not leave through its sink's port."""
        (space, port, *_), (last, sink, *_) = PLACES[0], PLACES[-1]
        inside = space in self.made.guests
        left = self.made.sent(space, port) if inside else _sent(self.made.namespace(space), port)
        return left - _sent(self.made.namespace(last), sink)


def times(*, virtual: bool) -> Times:
    """virtual: for tenants that are guests."""
    return GUEST_TIMES if virtual else TIMES


@contextlib.contextmanager
def bench(study: Study, accel: str | None = None, check: Callable[[Lab], None] | None = None) -> Iterator[Bench]:
    """A bench while the block runs; nothing of it is left on the host. CapabilityError if it cannot be created.

    accel: of tenants that are guests; None for network namespaces. check: called with the lab before anything is sent.
    """
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    paced = {} if study.target_rate is None else {"rate_pps": study.target_rate}
    mine = {"target": {"datagram_bytes": study.target_bytes, "marker": True, **paced}}
    theirs = {str(size): {"datagram_bytes": size, "rate_pps": study.neighbour_rate} for size in study.neighbour_bytes}
    with lab(["target", "neighbour"], None, accel=accel, mtu=study.mtu) as made:
        if check:
            check(made)
        with _tenant(made, "target", first, mine) as target, _tenant(made, "neighbour", last, theirs) as neighbour:
            burst = max(2 * study.mtu, round(study.link / 8 * BURST_S))
            made.link("tbf", "rate", f"{study.link}bit", "burst", str(burst), "latency", LINK_LATENCY)
            ready = Bench(study, made, target, neighbour, Monotonic())
            ready.slot(None, 10 * ready.times.settle)
            yield ready


def measure(
    ready: Bench, order: Sequence[tuple[int, Size]], extent: Extent, take: Callable[[Cell], None]
) -> Iterator[tuple[int, Size]]:
    """Measures slots in order. Yields each before measuring it."""
    for block, size in order:
        yield block, size
        bps, pps, cpu_ns = ready.slot(size, extent.slot)
        if size is None and not bps:
            raise TrialError(
                f"block {block}: no datagram of the target arrived at its sink, although its neighbour was quiet"
            )
        take(Cell(block=block, bytes=size, bps=bps, pps=pps, cpu_ns=cpu_ns, emulated=ready.made.emulated))


def plan(study: Study, extent: Extent, seed: int, done: Sequence[Cell] = ()) -> list[tuple[int, Size]]:
    """(block, size) in order. An incomplete block is measured again as a whole, because its slots are compared."""
    sizes: list[Size] = [None, *study.neighbour_bytes]
    whole = {b for b in range(extent.blocks) if {cell.bytes for cell in done if cell.block == b} == set(sizes)}
    return [(block, size) for block, size in rounds(sizes, extent.blocks, seed) if block not in whole]


def start_s(*, virtual: bool) -> float:
    """Total time until the first slot. virtual: tenants are guests."""
    return START_S + (BOOT_S if virtual else 0)


def slot_s(extent: Extent, *, virtual: bool) -> float:
    """Total time of a slot."""
    return extent.slot / 1e9 + times(virtual=virtual).around_s + (LOOK_S if virtual else 0)


def trace_s(extent: Extent) -> float:
    """Total time of a trace."""
    return extent.traced / 1e9 + TRACE_S


@contextlib.contextmanager
def _tenant(made: Lab, name: str, cpu: int, senders: dict[str, dict[str, Any]]) -> Iterator[AgentClient]:
    """The agent in a tenant's namespace or guest with senders, started but off. cpu: of a new agent."""
    with tenant(made, name, "--cpus", str(cpu)) as (client, work_dir):
        for id_, params in senders.items():
            kernel = {"name": "udp-send", "params": {"to": f"{made.address(name)}:{PORT}", "batch": 1} | params}
            work: dict[str, Any] = {"work": {"kernel": kernel}, "pace": "scheduled"}
            client.call("workload.start", id=id_, **work, work_dir=work_dir)
            calibrate_ns = times(virtual=bool(made.guests)).calibrate
            client.call("workload.calibrate", timeout_s=60, id=id_, for_ns=calibrate_ns)
        yield client


def _on(client: AgentClient, id_: str, start_ns: int, end_ns: int) -> None:
    switches = [{"at_ns": start_ns, "intensity": 1.0}, {"at_ns": end_ns, "intensity": 0.0}]
    client.call("workload.schedule", id=id_, switches=switches)


def _sent(namespace: str, interface: str) -> int:
    """Packets that an interface should send.

    A veth counts packets separately that its other end dropped for lack of space.
    """
    shown = json.loads(ip("-n", namespace, "-s", "-j", "link", "show", interface))
    counted = shown[0]["stats64"]["tx"]
    return int(counted["packets"]) + int(counted["dropped"])
