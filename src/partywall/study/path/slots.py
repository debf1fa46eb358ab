"""Measures a target's datagrams beside a neighbour's, on one link of a lab.

Target and neighbour are agents in their own namespaces, with a sender for each size. In each block every size, and a
quiet neighbour, has one slot in random order. Delivered traffic is read from the kernel's counters at the sink's port.
Traces are separate runs, made elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from partywall.agent.client import AgentClient
from partywall.clock import Clock, Monotonic
from partywall.errors import TrialError
from partywall.model.trace import TraceRequest
from partywall.plan import rounds
from partywall.sandbox.lab import Lab, agent, ip, lab
from partywall.scenario.documents import validated
from partywall.study.path.model import Cell, Extent, Size, Study
from partywall.trace.hops import ask

PORT = 9
LEAD_NS, SETTLE_NS, TAIL_NS, DRAIN_NS = 3_000_000, 30_000_000, 2_000_000, 25_000_000
"""Times around a slot: until its senders react, until rates are steady, before its end, and until queues are empty."""
CALIBRATE_NS = 20_000_000
START_S = 1.5
"""Set-up time of the lab, for the estimate of the time left."""
TRACE_S = 1.0
"""Time of a trace beside the traced time."""
PLACES = (
    ("target", "eth0", "out", "the target's interface"),
    ("switch", "p1", "in", "the bridge's port"),
    ("switch", "nic", "out", "the uplink"),
    ("far", "uplink", "in", "the uplink's far end"),
    ("far", "p1", "out", "the sink's port"),
)
"""The target's path: namespace, interface, hook, and a name for people."""


def load(content: bytes, file: str) -> Study:
    """Reads a study file. UsageError with all mistakes in it."""
    return validated(Study, content, file, "see scenarios/papers/vits-network.yaml")


class Bench:
    """Target and neighbour in a lab, started and quiet."""

    def __init__(self, study: Study, made: Lab, target: AgentClient, neighbour: AgentClient, clock: Clock) -> None:
        self.study = study
        self.made = made
        self._target, self._neighbour, self._clock = target, neighbour, clock

    def slot(self, size: Size, for_ns: int) -> tuple[float, float, float | None]:
        """While the neighbour sends datagrams of one size: (bit/s, packets/s) delivered of the target.

        Also the CPU time of one of the neighbour's datagrams in ns, or None.
        """
        start = self._clock.now_ns() + LEAD_NS
        end = start + SETTLE_NS + for_ns
        _on(self._target, "target", start, end)
        if size is not None:
            _on(self._neighbour, str(size), start, end)
        self._clock.sleep_until(start + SETTLE_NS)
        before, spent = self.made.read(), self._spent()
        self._clock.sleep_until(end - TAIL_NS)
        after, spent_after = self.made.read(), self._spent()
        self._clock.sleep_until(end + DRAIN_NS)
        cpu_ns, packets = (now - then for now, then in zip(spent_after, spent, strict=True))
        each_ns = cpu_ns / packets * self.study.packets(size) if size is not None and packets else None
        return (*before.rates(after)["target"], each_ns)

    def _spent(self) -> tuple[int, int]:
        """CPU time of the neighbour's agent so far in ns, and packets that it has sent."""
        pid = self._neighbour.process.pid
        tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
        cpu_ns = sum(int(task.read_text().split()[0]) for task in tasks)
        return cpu_ns, _sent(self.made.namespace("neighbour"), "eth0")

    def trace_request(self, packets: int) -> TraceRequest:
        """A trace of the target's path. packets: number a second that are stored for the pcapng file."""
        path = [f"{self.made.namespace(space)}/{port}:{hook}" for space, port, hook, _ in PLACES]
        return ask(path, budget="100%", protocol="udp", port=PORT, packets=packets)

    def gone(self) -> int:
        """Packets that left the target so far but did not leave through its sink's port."""
        left, arrived = (_sent(self.made.namespace(space), port) for space, port, *_ in (PLACES[0], PLACES[-1]))
        return left - arrived


@contextlib.contextmanager
def _lab(study: Study) -> Iterator[Lab]:
    names = ["target", "neighbour"]
    with lab(names, f"{study.link}bit") as made:
        for name in names:
            ip("-n", made.namespace(name), "link", "set", "eth0", "mtu", str(study.mtu))
        yield made


@contextlib.contextmanager
def bench(study: Study) -> Iterator[Bench]:
    """A bench while the block runs; nothing of it is left on the host. CapabilityError if it cannot be created."""
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    mine = {"target": {"datagram_bytes": study.target_bytes, "marker": True}}
    theirs = {str(size): {"datagram_bytes": size, "rate_pps": study.neighbour_rate} for size in study.neighbour_bytes}
    with (
        _lab(study) as made,
        _tenant(made, "target", first, mine) as target,
        _tenant(made, "neighbour", last, theirs) as neighbour,
    ):
        ready = Bench(study, made, target, neighbour, Monotonic())
        ready.slot(None, 10 * SETTLE_NS)
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
        take(Cell(block=block, bytes=size, bps=bps, pps=pps, cpu_ns=cpu_ns))


def plan(study: Study, extent: Extent, seed: int, done: Sequence[Cell] = ()) -> list[tuple[int, Size]]:
    """(block, size) in order. An incomplete block is measured again as a whole, because its slots are compared."""
    sizes: list[Size] = [None, *study.neighbour_bytes]
    whole = {b for b in range(extent.blocks) if {cell.bytes for cell in done if cell.block == b} == set(sizes)}
    return [(block, size) for block, size in rounds(sizes, extent.blocks, seed) if block not in whole]


def slot_s(extent: Extent) -> float:
    """Total time of a slot."""
    return (LEAD_NS + SETTLE_NS + extent.slot + DRAIN_NS) / 1e9


def trace_s(extent: Extent) -> float:
    """Total time of a trace."""
    return extent.traced / 1e9 + TRACE_S


@contextlib.contextmanager
def _tenant(made: Lab, name: str, cpu: int, senders: dict[str, dict[str, Any]]) -> Iterator[AgentClient]:
    """An agent in a tenant's namespace with senders, started but off."""
    with agent(made, name, "--cpus", str(cpu)) as client:
        for id_, params in senders.items():
            kernel = {"name": "udp-send", "params": {"to": f"{made.address(name)}:{PORT}", "batch": 1} | params}
            work: dict[str, Any] = {"work": {"kernel": kernel}, "pace": "scheduled"}
            client.call("workload.start", id=id_, **work, work_dir=str(made.label.work))
            client.call("workload.calibrate", timeout_s=60, id=id_, for_ns=CALIBRATE_NS)
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
