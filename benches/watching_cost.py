"""What watching costs: an idle agent, slices, and monitors.

Idle: CPU time of an agent with no workload over some seconds. Slices: two stressors of the same kernel on the same CPU
take turns in random slots, one with slices of 10 ms, one with slices of 10 s; what the first one loses, and the CPU
time that its other threads use to send slices. Monitors: what a kernel loses in slots in which counters are read, at
the rate of a run (9 readings a second) and where a run reads them, on another CPU than the victim's. Also told, though
not in the bar: the CPU time of reading, which is what the victim would lose on a host with one CPU.

Bar: idle under 0.1 % of a core; slices and monitors together under 0.5 % of the kernel's throughput.
"""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments, conclude
from partywall import pipeline
from partywall.sandbox import Label, Sandbox, Settings, make, reap, reaper
from partywall.stats.interval import factor_interval


def cpu_ns(pid: int, *, but: str = "") -> int:
    """CPU time of all threads of a process whose name does not start with `but`."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if not but or not (task / "comm").read_text().startswith(but):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def start(label: Label, name: str, sink: list[dict[str, Any]], cpu: int) -> Sandbox:
    sandbox = make(Settings(name=name, backend="process", cpus=(cpu,)), label)
    sandbox.start(lambda method, params: sink.append(params) if method == "slices" else None)
    return sandbox


def idle(label: Label, seconds: float) -> float:
    sandbox = start(label, "idle", [], 0)
    pid = sandbox.pid or 0
    before = cpu_ns(pid)
    time.sleep(seconds)
    share = (cpu_ns(pid) - before) / (seconds * 1e9)
    sandbox.stop()
    return share


def slices(label: Label, pairs: int) -> tuple[Any, float]:
    """(ratio of rates with an interval, share of a core that sending takes)."""
    kinds = {"fine": 10_000_000, "coarse": 10_000_000_000}
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
            switches[kind] += [{"at_ns": at, "intensity": 1.0}, {"at_ns": at + 100_000_000, "intensity": 0.0}]
            slots.append((kind, at, at + 100_000_000))
            at += 110_000_000
    for kind in kinds:
        agents[kind].client.call("workload.schedule", id=kind, switches=switches[kind])
    pid = agents["fine"].pid or 0
    before, began = cpu_ns(pid, but="stress"), time.monotonic()
    time.sleep(max(0.0, at / 1e9 - time.clock_gettime(time.CLOCK_MONOTONIC)) + 0.5)
    sending = (cpu_ns(pid, but="stress") - before) / ((time.monotonic() - began) * 1e9)
    for agent in agents.values():
        agent.stop()
    rates = {kind: [rate_in(sinks[kind], first, last) for k, first, last in slots if k == kind] for kind in kinds}
    return factor_interval(np.log(np.array(rates["fine"]) / np.array(rates["coarse"]))), sending


def rate_in(messages: list[dict[str, Any]], first: int, last: int) -> float:
    inside = [
        s
        for m in messages
        for s in m["slices"]
        if s["intensity"] > 0 and first <= s["start_ns"] and s["start_ns"] < last
    ]
    return sum(s["work"] for s in inside) / sum(s["end_ns"] - s["start_ns"] for s in inside)


def monitors(label: Label, pairs: int) -> tuple[Any, float]:
    """(ratio of the rate while counters are read to the rate while not, share of a core that reading takes)."""
    sink: list[dict[str, Any]] = []
    victim, monitor = start(label, "watched", sink, 0), start(label, "monitor", [], 1)
    work = {"kernel": {"name": "integer", "params": {}}}
    assert victim.client is not None
    assert monitor.client is not None
    victim.client.call("workload.start", id="v", work=work, pace="flat_out", slice_ns=10_000_000, work_dir="/var/tmp")
    monitor.client.call("monitor.start", id="m", pids=[victim.pid])
    chance = random.Random(2)
    at = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 10_000_000 + 40) * 10_000_000
    slots: list[tuple[bool, int, int]] = []
    for _ in range(pairs):
        for read in chance.sample([True, False], 2):
            slots.append((read, at, at + 440_000_000))
            at += 440_000_000
    moments = [first + n * 110_000_000 for read, first, _ in slots if read for n in range(4)]
    monitor.client.call("monitor.schedule", id="m", at_ns=moments)
    pid = monitor.pid or 0
    before = cpu_ns(pid)
    time.sleep(max(0.0, at / 1e9 - time.clock_gettime(time.CLOCK_MONOTONIC)) + 0.5)
    reading = (cpu_ns(pid) - before) / (pairs * 440e6)
    for agent in (victim, monitor):
        agent.stop()
    rates = {kind: [rate_in(sink, first, last) for k, first, last in slots if k == kind] for kind in (True, False)}
    return factor_interval(np.log(np.array(rates[True]) / np.array(rates[False]))), reading


def main() -> None:
    options = arguments(__doc__ or "")
    seconds, pairs = (8.0, 80) if options.quick else (30.0, 500)
    reap()
    label = Label.create("watching-cost", pipeline.WORK_ROOT)
    try:
        idle_share = idle(label, seconds)
        ratio, sending = slices(label, pairs)
        watched, reading = monitors(label, pairs // 4)
    finally:
        reaper.clean(label)
    sliced, monitored = max(0.0, 1 - ratio.value), max(0.0, 1 - watched.value)
    print(f"idle agent: {idle_share:.4%} of a core over {seconds:g} s")
    print(f"slices of 10 ms against 10 s: rate × {ratio.value:.5f} ({ratio.low:.5f} to {ratio.high:.5f})")
    print(f"sending slices: {sending:.3%} of a core")
    print(f"counters read on another CPU: rate × {watched.value:.5f} ({watched.low:.5f} to {watched.high:.5f})")
    print(f"reading them takes {reading:.3%} of a core, which a victim on the only CPU would lose")
    total = sliced + sending + monitored
    doubt = math.hypot(ratio.half_width, watched.half_width)
    figure = f"idle {idle_share:.4%} of a core; slices and monitors take {total:.3%} ± {doubt:.3%} of the throughput"
    conclude("watching-cost", figure, met=idle_share < 0.001 and total < 0.005)


if __name__ == "__main__":
    main()
