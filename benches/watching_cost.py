"""What watching costs: an idle agent, slices, and monitors.

Idle: CPU time of an agent with no workload over some seconds. Slices: two stressors of the same kernel on the same CPU take
turns in random slots, one with slices of 10 ms, one with slices of 10 s; the difference of their rates, plus the CPU time
that the first one's other threads use to send slices. Monitors: CPU time of the monitoring agent at the rate of readings
of a run (two a slot of 110 ms), as if it ran on the victim's own core, which it does only where there is no other.

Bar: idle under 0.1 % of a core; slices and monitors together under 0.5 %.
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


def monitors(label: Label, seconds: float) -> float:
    sandbox = start(label, "monitor", [], 1)
    client = sandbox.client
    assert client is not None
    client.call("monitor.start", id="m", pids=[sandbox.pid])
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    moments = [now + n * 55_000_000 for n in range(math.ceil(seconds / 0.055))]
    client.call("monitor.schedule", id="m", at_ns=moments)
    pid = sandbox.pid or 0
    before = cpu_ns(pid)
    time.sleep(seconds)
    share = (cpu_ns(pid) - before) / (seconds * 1e9)
    sandbox.stop()
    return share


def main() -> None:
    options = arguments(__doc__ or "")
    seconds, pairs = (8.0, 80) if options.quick else (30.0, 600)
    reap()
    label = Label.create("watching-cost", pipeline.WORK_ROOT)
    try:
        idle_share = idle(label, seconds)
        ratio, sending = slices(label, pairs)
        reading = monitors(label, seconds)
    finally:
        reaper.clean(label)
    lost = max(0.0, 1 - ratio.value)
    print(f"idle agent: {idle_share:.4%} of a core over {seconds:g} s")
    print(
        f"slices of 10 ms against 10 s: rate × {ratio.value:.5f} ({ratio.low:.5f} to {ratio.high:.5f}); sending takes {sending:.3%} of a core"
    )
    print(f"monitors: {reading:.3%} of a core at 18 readings a second")
    total = lost + sending + reading
    figure = f"idle {idle_share:.4%}; slices and monitors {total:.3%} ({lost:.3%} + {sending:.3%} + {reading:.3%}, slices ± {ratio.half_width:.3%})"
    conclude("watching-cost", figure, met=idle_share < 0.001 and total < 0.005)


if __name__ == "__main__":
    main()
