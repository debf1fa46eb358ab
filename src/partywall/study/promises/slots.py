"""Carries out a study of bandwidth guarantees in a lab.

In each block, every way of enforcing them gets one slot, in random order, while the tenants send all the time.
Delivered traffic is read at the sinks' ports, losses from the senders' kernels, delay from probes beside the tenants'
packets, and CPU time from the whole host's. All of these come from the kernel, not from the guard.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

from partywall.agent.client import AgentClient
from partywall.core.design import rounds
from partywall.core.document.formats import validated
from partywall.errors import TrialError
from partywall.events import Doing, Emit, Left
from partywall.guard.document import Policy
from partywall.guard.measure.flatten import flatten
from partywall.guard.measure.resolve import resolve
from partywall.guard.measure.run import Kept, keep
from partywall.guard.measure.source import AtSource
from partywall.sandbox.lab import BOOT_S, LINK_BURST, LINK_LATENCY, Lab, ip, lab, sender, tc
from partywall.sandbox.networks import NETNS
from partywall.study.promises import delay
from partywall.study.promises.lab import Class, htb, policy
from partywall.study.promises.model import Cell, Extent, Study, TenantCell
from partywall.study.promises.traffic import Counters, most_per_s

SETTLE_S = 0.3
START_S = 0.4
"""Time for changing the way, for the estimate of the time left."""


def load(content: bytes, file: str) -> Study:
    """Reads a study file. UsageError with all mistakes in it."""
    return validated(Study, content, file, "see scenarios/papers/dba-vm.yaml")


class Bench:
    """A lab with tenants that send as a scenario defines.

    most: memory transactions a second that the host can carry; None if it does not count them.
    """

    def __init__(
        self, study: Study, scenario: str, made: Lab, senders: Mapping[str, AgentClient], most: float | None
    ) -> None:
        self.study, self.scenario, self.made, self.most = study, scenario, made, most
        self.sending = study.scenarios[scenario]
        self.senders = senders
        self._traffic = Counters.where_there_are()
        # A guest has its own clock, and if emulated it wakes up late, so no probe is sent from it.
        self.probes = {
            name: delay.Probe(
                NETNS / made.namespace(name), NETNS / made.namespace(f"{name}-sink"), made.address(name, counted=False)
            )
            for name in study.tenants
            if name not in made.guests
        }

    def sent(self) -> dict[str, int]:
        """Datagrams passed to each tenant's kernel, including those it dropped; for a guest, those it sent."""
        if self.made.guests:
            return self.made.given()
        return {name: self.made.handed(name) for name in self.senders}

    def close(self) -> None:
        for probe in self.probes.values():
            probe.close()
        if self._traffic:
            self._traffic.close()

    def _missed(self) -> int | None:
        return self._traffic.read() if self._traffic else None

    def slot(self, way: str, block: int, seconds: float, period_ns: int | None = None) -> Cell:
        """Measures one way for this long."""
        with _way(self, way, period_ns or None):
            delay.run(list(self.probes.values()), SETTLE_S + (2 * (period_ns or 0)) / 1e9)
            for probe in self.probes.values():
                probe.take()
            before, sent, cpu, missed = self.made.read(), self.sent(), _cpu_ns(), self._missed()
            began_s = time.monotonic()
            delay.run(list(self.probes.values()), seconds)
            took_s = time.monotonic() - began_s
            after, sent_after, cpu_after, missed_after = self.made.read(), self.sent(), _cpu_ns(), self._missed()
        rates = before.rates(after)
        packets = {name: after.packets[name] - before.packets[name] for name in rates}
        tenants = {}
        for name, (bps, pps) in rates.items():
            handed = sent_after[name] - sent[name]
            lost = max(0.0, 1 - packets[name] / handed) if handed else None
            wait, jitter = self.probes[name].take() if name in self.probes else (None, None)
            tenants[name] = TenantCell(bps=bps, pps=pps, lost=lost, delay_ns=wait, jitter_ns=jitter)
        delivered = max(1, sum(packets.values()))
        fetched = missed_after - missed if missed is not None and missed_after is not None else None
        return Cell(
            scenario=self.scenario,
            way=way,
            block=block,
            period_ns=period_ns,
            cpu_ns=(cpu_after[0] - cpu[0]) / delivered,
            cpu_share=(cpu_after[0] - cpu[0]) / max(1.0, cpu_after[1] - cpu[1]),
            memory=None if fetched is None else fetched / delivered,
            memory_share=None if fetched is None or not self.most else fetched / took_s / self.most,
            emulated=self.made.emulated,
            tenants=tenants,
        )


@contextlib.contextmanager
def bench(
    study: Study,
    scenario: str,
    accel: str | None,
    most: float | None = None,
    check: Callable[[Lab], None] | None = None,
) -> Iterator[Bench]:
    """A bench of one scenario while the block runs. accel: of tenants that are guests. most: see `Bench`.

    check: called with the lab before anything is sent.
    """
    with lab(list(study.tenants), f"{study.link}bit", accel=accel) as made, contextlib.ExitStack() as stack:
        if check:
            check(made)
        senders = {
            name: stack.enter_context(sender(made, name, size, study.offered / 8 / size))
            for name, size in study.scenarios[scenario].frame_bytes.items()
        }
        ready = Bench(study, scenario, made, senders, most)
        stack.callback(ready.close)
        yield ready


def carry_out(
    study: Study,
    extent: Extent,
    seed: int,
    take: Callable[[Cell], None],
    emit: Emit,
    done: Container[Slot] = (),
    accel: str | None = None,
    check: Callable[[Lab], None] | None = None,
) -> None:
    """Measures all blocks that are not done. take: receives each slot.

    accel: tenants are guests with this accelerator, each behind a tap, instead of namespaces. check: see `bench`.
    """
    left, most = duration_s(study, extent, done, virtual=accel is not None), most_per_s()
    for scenario, slots in plan(study, extent, seed, virtual=accel is not None):
        wanted = _left(scenario, slots, done)
        if not wanted:
            continue
        emit(Doing(f"scenario {scenario}: making tenants, link and sinks"))
        emit(Left(left))
        with bench(study, scenario, accel, most, check) as ready:
            left -= BOOT_S if accel else 0
            for way, block, period_ns in wanted:
                period = f", period {period_ns / 1e9:g} s" if period_ns else ""
                emit(Doing(f"scenario {scenario}, {way}{period}, block {block + 1} of {extent.blocks}"))
                emit(Left(left))
                take(ready.slot(way, block, _slot_s(extent, period_ns), period_ns))
                left -= _spent_s(extent, period_ns)


def duration_s(study: Study, extent: Extent, done: Container[Slot] = (), *, virtual: bool = False) -> float:
    """Time for the remaining slots. virtual: includes starting guests for each scenario."""
    left = [_left(scenario, slots, done) for scenario, slots in plan(study, extent, 0, virtual=virtual)]
    boots = sum(map(bool, left)) if virtual else 0
    return boots * BOOT_S + sum(_spent_s(extent, period_ns) for slots in left for _, _, period_ns in slots)


Slot = tuple[str, str, int, int | None]
"""(scenario, way, block, period)."""


def slot_of(cell: Cell) -> Slot:
    return cell.scenario, cell.way, cell.block, cell.period_ns


Ways = Sequence[tuple[str, int, int | None]]


def _left(scenario: str, slots: Ways, done: Container[Slot]) -> Ways:
    """Slots of incomplete blocks. A block is measured again as a whole, because its slots are compared."""
    lacking = {block for way, block, period_ns in slots if (scenario, way, block, period_ns) not in done}
    return [slot for slot in slots if slot[1] in lacking]


def plan(study: Study, extent: Extent, seed: int, *, virtual: bool = False) -> Iterator[tuple[str, Ways]]:
    """(scenario, [(way, block, period)]) in order. Each block contains every way once. virtual: tenants are guests."""
    ways = study.ways_of(virtual=virtual)
    for scenario in study.scenarios:
        yield scenario, _shuffled([(way, None) for way in ways], extent.blocks, seed, scenario)
    periods: list[tuple[str, int | None]] = [
        (way, period) for way in study.ways_by_period for period in study.periods.every
    ]
    # Native is measured once in every block, for all periods.
    yield study.periods.scenario, _shuffled([("native", 0), *periods], extent.blocks, seed, "periods")


def _shuffled(ways: Sequence[tuple[str, int | None]], blocks: int, seed: int, part: str) -> Ways:
    return [(way, block, period) for block, (way, period) in rounds(ways, blocks, seed, part)]


def _slot_s(extent: Extent, period_ns: int | None) -> float:
    """At least two rounds of the control loop."""
    return max(extent.slot, 2 * (period_ns or 0)) / 1e9


def _spent_s(extent: Extent, period_ns: int | None) -> float:
    return SETTLE_S + START_S + 2 * (period_ns or 0) / 1e9 + _slot_s(extent, period_ns)


def _cpu_ns() -> tuple[float, float]:
    """CPU time of this host since boot: without idle time, and with it. Stolen time is neither."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, idle, iowait, irq, softirq = fields[:7]
    busy, tick_ns = user + nice + system + irq + softirq, 1e9 / os.sysconf("SC_CLK_TCK")
    return busy * tick_ns, (busy + idle + iowait) * tick_ns


# Ways of enforcing guarantees


@contextlib.contextmanager
def _way(ready: Bench, way: str, period_ns: int | None) -> Iterator[None]:
    with WAYS[way](ready, period_ns):
        yield


@contextlib.contextmanager
def _native(_ready: Bench, _period_ns: int | None) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _htb(ready: Bench, _period_ns: int | None) -> Iterator[None]:
    link = ready.study.link
    classes = {name: Class(promised.guarantee, link) for name, promised in ready.study.tenants.items()}
    with htb(ready.made, link, classes):
        yield


@contextlib.contextmanager
def _tbf(ready: Bench, _period_ns: int | None) -> Iterator[None]:
    """A fixed ceiling at each tenant's own interface. Nothing is lent."""
    with contextlib.ExitStack() as stack:
        for number, (name, promised) in enumerate(ready.study.tenants.items(), start=1):
            tbf = f"tbf rate {promised.guarantee}bit burst {LINK_BURST} latency {LINK_LATENCY}".split()
            if name in ready.made.guests:
                switch, ifb = ready.made.namespace("switch"), f"ifb-pw{number}"
                stack.enter_context(_redirected(switch, ready.made.port(name), ifb))
                tc(switch, "qdisc", "replace", "dev", ifb, "root", *tbf)
            else:
                inside = ready.made.namespace(name)
                tc(inside, "qdisc", "replace", "dev", "eth0", "root", *tbf)
                stack.callback(tc, inside, "qdisc", "del", "dev", "eth0", "root")
        yield


@contextlib.contextmanager
def _redirected(namespace: str, tap: str, ifb: str) -> Iterator[None]:
    """Redirects packets from a tap through an interface of its own, because ingress has no queue."""
    ip("-n", namespace, "link", "add", ifb, "type", "ifb")
    try:
        ip("-n", namespace, "link", "set", ifb, "up")
        tc(namespace, "qdisc", "add", "dev", tap, "handle", "ffff:", "ingress")
        match = "protocol all u32 match u32 0 0 action mirred egress redirect dev"
        tc(namespace, "filter", "add", "dev", tap, "parent", "ffff:", *match.split(), ifb)
        yield
    finally:
        with contextlib.suppress(TrialError):
            tc(namespace, "qdisc", "del", "dev", tap, "ingress")
        ip("-n", namespace, "link", "del", ifb)


def _guard(ready: Bench, period_ns: int | None) -> contextlib.AbstractContextManager[Kept]:
    wanted = _policy(ready, period_ns)
    return keep(flatten(wanted, resolve(wanted)))


def _guard_drop(ready: Bench, period_ns: int | None) -> contextlib.AbstractContextManager[Kept]:
    wanted = _policy(ready, period_ns, excess="drop")
    return keep(flatten(wanted, resolve(wanted)))


def _published(ready: Bench, period_ns: int | None) -> contextlib.AbstractContextManager[Kept]:
    """The paper's own algorithm. It drops excess, as the paper's does."""
    wanted = _policy(ready, period_ns, excess="drop").model_copy(update={"policy": "published"})
    return keep(flatten(wanted, resolve(wanted)))


def _guard_source(ready: Bench, period_ns: int | None) -> contextlib.AbstractContextManager[Kept]:
    """Packets stop in the guests, which trust the host with a hook of its own there."""
    wanted = _policy(ready, period_ns, source="guest/eth0")
    sources = {name: AtSource("eth0", client) for name, client in ready.senders.items()}
    return keep(flatten(wanted, resolve(wanted)), sources=sources)


def _policy(ready: Bench, period_ns: int | None, **each: str) -> Policy:
    """The tenants' guarantees. each: further keys of every vif."""
    packets = ready.sending.packets
    vifs = {
        name: {
            "service_class": promised.service_class,
            "send": {"guarantee": f"{promised.guarantee}bit/s"}
            | ({"packets": packets[name]} if name in packets else {}),
            **each,
        }
        for name, promised in ready.study.tenants.items()
    }
    more = {"hold": f"{ready.study.hold}ns"} | ({"period": f"{period_ns}ns"} if period_ns else {})
    content = policy(ready.made, vifs, f"{ready.study.link}bit/s", **more)
    return Policy.model_validate(content | {"service_classes": ready.study.service_classes})


WAYS: Mapping[str, Callable[[Bench, int | None], contextlib.AbstractContextManager[object]]] = {
    "native": _native,
    "htb": _htb,
    "tbf": _tbf,
    "published": _published,
    "guard": _guard,
    "guard-drop": _guard_drop,
    "guard-source": _guard_source,
}
