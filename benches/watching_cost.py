"""What watching costs: an idle agent, slices, and monitors.

Idle: CPU time of an agent with no workload over some seconds. Slices: two stressors of the same kernel on the same CPU
take turns in random slots, one with slices, one with next to none; what the first one loses, and the CPU time that its
other threads use to send slices. Monitors: what a kernel loses in slots in which counters are read where a run reads
them, on another CPU than the victim's. Both costs are far below what a host's noise lets one see, so slices are cut and
counters read many times more often than in a run, and the loss is divided by that. Also printed, though not in the bar:
the CPU time of reading, which is what the victim would lose on a host with one CPU.
"""

from __future__ import annotations

import math
import random
import time
from typing import Any

import numpy as np

from common import cpu_ns, work
from frame import NotMeasured, Options, Outcome, bench
from partywall.core.stats.interval import ratio_of_means
from partywall.host.label import Label
from partywall.sandbox import Sandbox, Settings, make

SLICE_NS = 2_000_000
FINER = 20
"""How many times finer slices are cut here."""
READINGS = 15.0
"""A second in a run, at the most: one a slot of its long blocks, which take a third to a half of the time."""
READ_EVERY_NS = 5_000_000
SLOT_NS, GUARD_NS = 20_000_000, 5_000_000


def start(label: Label, name: str, sink: list[dict[str, Any]], cpu: int) -> Sandbox:
    sandbox = make(Settings(name=name, backend="process", cpus=(cpu,)), label)
    sandbox.start(lambda method, params: sink.append(params) if method == "slices" else None)
    return sandbox


def idle(label: Label, seconds: float, intensity: float) -> float:
    """intensity: of a stressor that computes in it."""
    sandbox = start(label, "idle", [], 0)
    if intensity and sandbox.client is not None:
        work = {"kernel": {"name": "integer", "params": {}}}
        sandbox.client.call("workload.start", id="idle", work=work, pace="scheduled", work_dir="/var/tmp")
        sandbox.client.call("workload.calibrate", id="idle", for_ns=200_000_000)
        switches = [{"at_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC), "intensity": intensity}]
        sandbox.client.call("workload.schedule", id="idle", switches=switches)
    pid = sandbox.pid or 0
    before = cpu_ns(pid)
    time.sleep(seconds)
    share = (cpu_ns(pid) - before) / (seconds * 1e9)
    sandbox.stop()
    return share


def slices(label: Label, pairs: int) -> tuple[Any, float]:
    """(ratio of rates with an interval, share of a core that sending takes), with slices FINER times finer."""
    kinds = {"fine": SLICE_NS // FINER, "coarse": 10_000_000_000}
    sinks: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    agents = {kind: start(label, kind, sinks[kind], 0) for kind in kinds}
    for kind, slice_ns in kinds.items():
        work = {"kernel": {"name": "integer", "params": {}}}
        client = agents[kind].client
        assert client is not None
        client.call("workload.start", id=kind, work=work, pace="scheduled", slice_ns=slice_ns, work_dir="/var/tmp")
    chance = random.Random(1)
    at = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + 200_000_000
    slots: list[tuple[str, int, int]] = []
    switches: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for _ in range(pairs):
        for kind in chance.sample(list(kinds), 2):
            switches[kind] += [{"at_ns": at, "intensity": 1.0}, {"at_ns": at + SLOT_NS, "intensity": 0.0}]
            slots.append((kind, at, at + SLOT_NS))
            at += SLOT_NS + GUARD_NS
    for kind in kinds:
        agents[kind].client.call("workload.schedule", id=kind, switches=switches[kind])
    pid = agents["fine"].pid or 0
    before, began = cpu_ns(pid, but="stress"), time.monotonic()
    time.sleep(max(0.0, at / 1e9 - time.clock_gettime(time.CLOCK_MONOTONIC)) + 0.5)
    # It has slices to send in half of the time.
    sending = 2 * (cpu_ns(pid, but="stress") - before) / ((time.monotonic() - began) * 1e9)
    for agent in agents.values():
        agent.stop()
    pieces = {kind: Pieces(sinks[kind]) for kind in kinds}
    rates = {kind: [pieces[kind].rate(first, last) for k, first, last in slots if k == kind] for kind in kinds}
    return paired(rates["fine"], rates["coarse"]), sending


def paired(treated: list[float], baseline: list[float]) -> Any:
    """The ratio over pairs of slots in both of which the kernel ran: a busy host leaves some slots without CPU time."""
    both = np.array([treated, baseline])
    known = both[:, np.isfinite(both).all(axis=0)]
    if 2 * known.shape[1] < both.shape[1]:
        raise NotMeasured("others had the CPU in most slots; run it while the host is idle")
    return ratio_of_means(*known)


class Pieces:
    """The slices of an agent's messages that did work, in order."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        rows = [s for m in messages for s in m["slices"] if s["intensity"] > 0]
        self.start, self.end, self.work = (np.array([s[key] for s in rows]) for key in ("start_ns", "end_ns", "work"))

    def rate(self, first: int, last: int) -> float:
        inside = slice(*np.searchsorted(self.start, [first, last]))
        return float(self.work[inside].sum() / (self.end[inside] - self.start[inside]).sum())


def monitors(label: Label, pairs: int) -> tuple[Any, float]:
    """(ratio of the rate while counters are read to the rate while not, share of a core that reading takes).

    Both at one reading every READ_EVERY_NS.
    """
    sink: list[dict[str, Any]] = []
    victim, monitor = start(label, "watched", sink, 0), start(label, "monitor", [], 1)
    work = {"kernel": {"name": "integer", "params": {}}}
    assert victim.client is not None
    assert monitor.client is not None
    victim.client.call("workload.start", id="v", work=work, pace="flat_out", slice_ns=SLICE_NS, work_dir="/var/tmp")
    monitor.client.call("monitor.start", id="m", pids=[victim.pid])
    chance = random.Random(2)
    at = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 10_000_000 + 40) * 10_000_000
    slots: list[tuple[bool, int, int]] = []
    for _ in range(pairs):
        for read in chance.sample([True, False], 2):
            slots.append((read, at + GUARD_NS, at + GUARD_NS + SLOT_NS))
            at += GUARD_NS + SLOT_NS
    ends = [(first - GUARD_NS, last - READ_EVERY_NS) for read, first, last in slots if read]
    moments = sorted({moment for first, last in ends for moment in range(first, last + 1, READ_EVERY_NS)})
    monitor.client.call("monitor.schedule", id="m", at_ns=moments)
    pid = monitor.pid or 0
    before = cpu_ns(pid)
    time.sleep(max(0.0, at / 1e9 - time.clock_gettime(time.CLOCK_MONOTONIC)) + 0.5)
    reading = (cpu_ns(pid) - before) / (pairs * (GUARD_NS + SLOT_NS))
    for agent in (victim, monitor):
        agent.stop()
    pieces = Pieces(sink)
    rates = {kind: [pieces.rate(first, last) for k, first, last in slots if k == kind] for kind in (True, False)}
    return paired(rates[True], rates[False]), reading


@bench(plants={"awake": "the idle agent computes for 1 % of the time"})
def main(options: Options) -> Outcome:
    seconds, pairs = (8.0, 300) if options.quick else (30.0, 1500)
    with work("watching-cost") as label:
        idle_share = idle(label, seconds, 0.01 if options.plant else 0.0)
        ratio, sending = slices(label, pairs)
        watched, reading = monitors(label, pairs)
    rarer = READ_EVERY_NS / 1e9 * READINGS
    print(f"idle agent: {idle_share:.4%} of a core over {seconds:g} s")
    print(f"slices, {FINER} times finer: rate × {ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f})")
    print(f"sending them: {sending:.2%} of a core; in a run {sending / FINER:.3%}")
    print(
        f"counters read {1 / rarer:.0f} times as often, on another CPU: rate × {watched.value:.4f} "
        f"({watched.low:.4f} to {watched.high:.4f})"
    )
    print(f"reading them in a run takes {reading * rarer:.3%} of a core, which a victim on the only CPU would lose")
    total = ((1 - ratio.value) + sending) / FINER + (1 - watched.value) * rarer
    margin = math.hypot(ratio.half_width / FINER, watched.half_width * rarer)
    figure = f"idle {idle_share:.4%} of a core; slices and monitors take {total:.3%} ± {margin:.3%} of the throughput"
    return Outcome(figure, idle_share < 0.001 and total + margin < 0.005)


if __name__ == "__main__":
    main()
