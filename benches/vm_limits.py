"""Whether CPU limits deliver what they say: efficiency q at 10, 25, 50 and 75 %, in a container and in a guest.

q is the rate under the limit over the unlimited rate of the same blocks and the limit (Rzecki et al., equation 1).
Idle CPUs poll meanwhile: a limit lets its CPU sleep, and one that comes back slower is no matter of the limit.
Where q differs from 1 in a guest the reason is measured, not guessed. First, what the limit let its virtual CPU have,
by the kernel's count of that thread alone; the emulator's other threads are not held back and are printed beside.
Second, how much of that time made no work: a guest at a quarter of a CPU, handed out every 100 ms and every 400 ms,
against itself without a limit in turn. What is lost every second whatever the limit, and what is lost each time the
guest may go on (its timers are due, its messages wait, and an emulator does that slowly), follow from the two. Both are
the same at every limit, so the smaller the share, the larger a part of it they take; how far that goes is predicted
from the quarter for the other limits, and held against what was found there.

Bar: q within 0.97 to 1.03 in the container at every limit, known to 0.03; in the guest the same, or its virtual CPU had
the limit within 0.03 and q is what the loss predicts, within 0.03 or the interval of their difference, both being known
to 0.06.

--quick: two limits, for a tenth of the time. q is then known to some 0.2 only. Its value has to be within 0.15 of 1 in
the container and in the guest, and the CPU time used within 0.03 of the limit. Losses are not measured.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import busy_cpu, measure
from disturbance import undisturbed
from frame import Options, Outcome, bench
from guests import client, lacking
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.rounds import student
from partywall.host import Host
from partywall.host.label import WORK_ROOT, Label
from partywall.host.settings import idle
from partywall.run.values.evidence import Evidence
from partywall.sandbox import Sandbox, Settings, cgroups, make, reaper

LIMITS = (0.1, 0.25, 0.5, 0.75)
QUICK_LIMITS = (0.1, 0.5)
BACKENDS = {"container": "container", "guest": "qemu"}
LOW, HIGH, KNOWN = 0.97, 1.03, 0.03
QUICK_OFF = 0.15
USED = "victim.cgroup_cpu_usage_ns"
ALL_THREADS = "victim.process_run_ns"
# Limits are handed out by such periods, see `partywall.sandbox.oci`.
PERIOD_S = 0.1
LONG_PERIOD_S = 0.4
QUARTER = 0.25
# Whole periods, either of them.
CHUNK_S = 1.2
ROUNDS = 24


def scenario(backend: str, limit: float, seconds: int) -> dict[str, Any]:
    """One limit a run: blocks of two are short beside the seconds for which a host's neighbour slows a core down."""
    return {
        "name": f"limit-{backend}",
        "victims": {backend: {"probe": "integer", "sandbox": {"backend": backend}}},
        "factors": {"victim.sandbox.cpu_limit": [limit]},
        "min_blocks": 8,
        "precision": 0.002,
        "budget": f"{seconds}s",
    }


def mean_of(evidence: Evidence, limit: float, *names: str) -> float | None:
    """CPUs used at a limit by the first counter, less those by the others; None if they were not read."""
    mine = [o.counters for seen in evidence.observations.values() for o in seen if _is(o.treatment, limit)]
    counted = [[counters[name] / 1e9 for name in names] for counters in mine if set(names) <= counters.keys()]
    return statistics.mean(first - sum(others) for first, *others in counted) if counted else None


def _is(treatment: str, limit: float) -> bool:
    name, _, value = treatment.partition("=")
    return name == "cpu_limit" and "," not in value and math.isclose(float(value), limit)


def half(estimate: Estimate) -> float:
    """How far the interval reaches."""
    return (estimate.high - estimate.low) / 2


@dataclass(frozen=True)
class Held:
    """Efficiency at a limit, and the share of the limit that was used, if it was counted."""

    q: Estimate
    used: float | None

    @property
    def as_promised(self) -> bool:
        return LOW <= self.q.value <= HIGH and half(self.q) <= KNOWN

    @property
    def had(self) -> bool:
        """Whether it used what the limit grants."""
        return self.used is not None and LOW <= self.used <= HIGH

    @property
    def roughly_as_promised(self) -> bool:
        return abs(self.q.value - 1) <= QUICK_OFF and self.had

    def explained(self, predicted: Estimate) -> bool:
        """Whether what it used and what is lost leave nothing to explain."""
        reaches = half(self.q), half(predicted)
        fits = abs(self.q.value - predicted.value) <= max(KNOWN, math.hypot(*reaches))
        return self.had and fits and max(reaches) <= 2 * KNOWN


def efficiency(backend: str, limit: float, seconds: int) -> Held | None:
    """As measured, and printed; None if it could not be."""
    evidence, findings = measure(scenario(BACKENDS[backend], limit, seconds))
    cell = next((c for c in findings.cells if c.role == "limit" and _is(c.treatment, limit)), None)
    if cell is None or cell.efficiency is None:
        print(f"{backend} at {limit:.0%}: not measured", flush=True)
        return None
    q, used, beside = cell.efficiency, mean_of(evidence, limit, USED), mean_of(evidence, limit, ALL_THREADS, USED)
    usage = "its CPU time was not counted here" if used is None else f"it used {used / limit:.3f} of the limit"
    if backend == "guest" and beside is not None:
        usage += f", and the emulator's other threads {beside:.3f} of a CPU beside it"
    print(f"{backend} at {limit:.0%}: q {q.value:.3f} ({q.low:.3f} to {q.high:.3f}); {usage}", flush=True)
    return Held(q, None if used is None else used / limit)


def efficiencies(backend: str, limits: Sequence[float], seconds: int, *, quick: bool) -> dict[float, Held]:
    """By limit, if it could be measured."""

    def known(held: Held | None) -> bool:
        if quick:
            return held is not None and held.roughly_as_promised
        # A guest's efficiency may have a reason, which `judged` looks for; it must be known in any case.
        return held is not None and (held.as_promised or (backend == "guest" and half(held.q) <= 2 * KNOWN))

    def measured(limit: float) -> Held | None:
        return undisturbed(lambda: efficiency(backend, limit, seconds), known)

    by_limit = {limit: measured(limit) for limit in limits}
    return {limit: held for limit, held in by_limit.items() if held is not None}


@dataclass(frozen=True)
class Loss:
    """Seconds of a virtual CPU's time that made no work: in every second, and each time that it may go on.

    Both in seconds of unlimited work, which pays the first as well.
    """

    second: float
    turn: float

    @classmethod
    def of(cls, short: float, long: float) -> Loss:
        """From what a quarter lost in a second with either period, beside what an unlimited guest loses."""
        turn = (short - long) / (1 / PERIOD_S - 1 / LONG_PERIOD_S)
        return cls((short - turn / PERIOD_S) / (1 - QUARTER), turn)

    def predicts(self, limit: float) -> float:
        """Efficiency of a guest at a limit."""
        return 1 - (self.second * (1 - limit) + self.turn / PERIOD_S) / limit


def lost() -> list[Loss]:
    """As measured at a quarter, against the same guest without a limit just before and after; one a round."""
    label = Label.create(f"bench-vm-limits-{time.monotonic_ns()}", WORK_ROOT)
    slices: list[dict[str, Any]] = []
    settings = Settings(name="guest", backend="qemu", cpus=(1,), host_cpus=(0,), files=False)
    guest = make(settings, label)
    losses_by_period: dict[float, list[float]] = {PERIOD_S: [], LONG_PERIOD_S: []}
    try:
        guest.start(lambda method, params: slices.extend(params["slices"] if method == "slices" else ()))
        guest.settle()
        work = {"kernel": {"name": "integer", "params": {}}}
        client(guest).call("workload.start", id="w", work=work, pace="flat_out", work_dir=guest.work_dir)
        free = chunk(guest, None, PERIOD_S)
        for _ in range(ROUNDS):
            for period, losses in losses_by_period.items():
                before, held, free = free, chunk(guest, QUARTER, period), chunk(guest, None, period)
                # The last slices are still on their way.
                time.sleep(0.2)
                worth = sum(work_in(slices, turn) for turn in (before, free)) / (before.used_s + free.used_s)
                losses.append((held.used_s - work_in(slices, held) / worth) / held.lasted_s)
    finally:
        guest.stop()
        reaper.clean(label)
    for period, losses in losses_by_period.items():
        mean = student(losses)
        result = f"{1000 * mean.value:.1f} ± {1000 * half(mean):.1f} ms of its time a second without work"
        print(f"guest at {QUARTER:.0%} every {1000 * period:.0f} ms: {result}, {len(losses)} turns", flush=True)
    return [Loss.of(*both) for both in zip(*losses_by_period.values(), strict=True)]


@dataclass(frozen=True)
class Chunk:
    """A stretch of time, and what the virtual CPU's thread ran in it."""

    start_ns: int
    end_ns: int
    used_s: float

    @property
    def lasted_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


def chunk(guest: Sandbox, limit: float | None, period: float) -> Chunk:
    hold(guest, limit, period)
    time.sleep(LONG_PERIOD_S)
    began, before = time.clock_gettime_ns(time.CLOCK_MONOTONIC), run_ns(guest)
    time.sleep(CHUNK_S)
    return Chunk(began, time.clock_gettime_ns(time.CLOCK_MONOTONIC), (run_ns(guest) - before) / 1e9)


def hold(guest: Sandbox, limit: float | None, period: float) -> None:
    """As the guest's own limit does, with a period of our choice. Source: the kernel's sched-bwc.rst."""
    mounted, period_us = cgroups.read(), round(period * 1e6)
    quota_us = None if limit is None else round(period_us * limit)
    own = str(guest.cgroup).lstrip("/")
    if mounted.is_v2 and mounted.unified is not None:
        (mounted.unified / own / "vcpus" / "cpu.max").write_text(f"{quota_us or 'max'} {period_us}")
        return
    folder = mounted.v1["cpu"] / own
    # In this order no pair of the two is ever refused.
    for name, value in (("quota", -1), ("period", period_us), ("quota", quota_us or -1)):
        (folder / f"cpu.cfs_{name}_us").write_text(str(value))


def run_ns(guest: Sandbox) -> int:
    return int(Path(f"/proc/{guest.pid}/task/{guest.cgroup_member}/schedstat").read_text().split()[0])


def work_in(slices: Sequence[dict[str, Any]], during: Chunk) -> float:
    def share(piece: dict[str, Any]) -> float:
        inside = min(piece["end_ns"], during.end_ns) - max(piece["start_ns"], during.start_ns)
        return max(0.0, inside / (piece["end_ns"] - piece["start_ns"]))

    return sum(float(piece["work"]) * share(piece) for piece in slices)


def judged(limits: Sequence[float], guest: dict[float, Held]) -> bool:
    """Whether the guest's efficiencies are as promised, or as what is lost predicts."""
    if all(limit in guest and guest[limit].as_promised for limit in limits):
        return True
    measured = lost()
    for what, values in (
        ("in every second", [loss.second for loss in measured]),
        ("each time that it may go on", [loss.turn for loss in measured]),
    ):
        mean = student(values)
        print(f"lost {what}: {1000 * mean.value:.2f} ± {1000 * half(mean):.2f} ms", flush=True)
    good = True
    for limit in limits:
        held = guest.get(limit)
        predicted = student([loss.predicts(limit) for loss in measured])
        fits = held is not None and (held.as_promised or held.explained(predicted))
        result = f"q {predicted.value:.3f} ± {half(predicted):.3f}"
        print(f"guest at {limit:.0%}: that predicts {result}{'' if fits else ', NOT found'}", flush=True)
        good &= fits
    return good


@bench(plants={"shared": "other programs on all CPUs"}, lacking=lacking)
def main(options: Options) -> Outcome:
    limits, seconds = (QUICK_LIMITS, 8) if options.quick else (LIMITS, 75)
    why = idle.why_not(Host.here())
    if why:
        print(f"idle CPUs sleep, and may come back slower: {why}")
    with contextlib.ExitStack() as stack:
        if not why:
            stack.enter_context(idle.polled())
        for cpu in os.sched_getaffinity(0) if options.plant else ():
            stack.enter_context(busy_cpu(cpu, 2))
        container, guest = (efficiencies(name, limits, seconds, quick=options.quick) for name in BACKENDS)
        if options.quick:
            kept = all(limit in by and by[limit].roughly_as_promised for by in (container, guest) for limit in limits)
            judgement = f"{'within' if kept else 'NOT within'} {QUICK_OFF} of 1"
        else:
            explained = judged(limits, guest)
            kept = explained and all(limit in container and container[limit].as_promised for limit in limits)
            judgement = f"{'as' if explained else 'NOT as'} what is lost predicts"
    texts = [
        ", ".join(f"{held.q.value:.3f} at {limit:.0%}" for limit, held in by_limit.items())
        for by_limit in (container, guest)
    ]
    return Outcome(f"q in a container {texts[0]}; in a guest {texts[1]}, {judgement}", kept)


if __name__ == "__main__":
    main()
