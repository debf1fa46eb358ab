"""Whether our stressors hurt at least as much as those of stress-ng, and whether their rate follows their intensity.

Harm: for each family there is one victim. Every candidate of both sides is tried for a moment beside it, one
worker each, on the same CPU (two Partywall workers where one of stress-ng's starts several processes, as --fifo with
five and --futex with two, for on a shared core harm goes by how many want to run); the strongest of either side then
stay resident and take turns with the baseline in random slots (stress-ng is stopped and continued, ours is switched). A
block gives one loss of the victim for each side. The figure is the ratio of the losses, ours over theirs, with a
bootstrap interval over blocks.

Linearity: each kernel that can be a stressor is calibrated and held at 0.1 to 1.0 in random order, alone. The figure is
R² of a line through achieved rate over maximum against intensity.

--quick: two families with few blocks, of
which the upper end of the ratio's interval is judged, and some stressors with R² ≥ 0.95.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from agents import Command, Kernel, Resident, now_ns, rate, sleep_until
from common import work
from disturbance import undisturbed
from frame import Options, Outcome, bench
from partywall.agent.catalogue import shipped
from partywall.errors import PartywallError, TrialError
from partywall.host.label import Label

RATIO_LEAST, R2_LEAST, R2_LEAST_QUICK = 0.95, 0.99, 0.95
# On the victim's CPU, half of the intensity would be the whole effect.
PLANTED = 0.25
CPU, OTHER = 0, max(os.sched_getaffinity(0))
MIB = 1 << 20
SLOT_NS = 50_000_000
LEAD_NS = 60_000_000
CALIBRATION_S = 0.2
BASELINE = ""
LINEARITY = "linearity"
# One of each resource.
QUICK = ("integer", "memory-copy", "pipe", "disk-direct-read", "udp-send")


# stress-ng must stay on the aggressor's CPU: --cache moves over all CPUs unless forbidden, and --mcontend cannot be
# forbidden (strace shows both calling sched_setaffinity), which puts them on the victim's own.


@dataclass(frozen=True)
class Family:
    """A victim and those that may hurt it. on: the aggressor's CPU. theirs: options of stress-ng without the first --.

    guard_ns: left out after each switch.
    """

    name: str
    victim: Kernel
    on: int
    ours: Sequence[Kernel]
    theirs: str
    guard_ns: int = 15_000_000


DISK_FILE = {"file_bytes": 64 * MIB}

HUGE, LARGE = {"huge_pages": True}, {"bytes": 8 * MIB, "order": "random"}
SPACE = {"touch": True, "bound_bytes": 512 * MIB}


def kernels(name: str, *params: dict[str, Any], threads: int = 1) -> list[Kernel]:
    return [Kernel(name, each, threads) for each in params or ({},)]


FAMILIES = (
    Family(
        "cpu, same core",
        Kernel("integer", {}),
        CPU,
        [Kernel(name, {}) for name in ("integer", "float", "matrix-vector")],
        "cpu 1|cpu 1 --cpu-method matrixprod|cpu 1 --cpu-method int64|matrix 1|vecmath 1|branch 1",
    ),
    Family(
        "cache",
        Kernel("cache", LARGE),
        OTHER,
        [
            Kernel("cache", {"level": "L3", "order": "random", "chains": 16, "visit": "write"}),
            *kernels("memory-write", {}, HUGE),
            *kernels("memory-copy", {}, HUGE),
            Kernel("memory-triad", HUGE),
        ],
        "cache 1 --cache-no-affinity|cache 1 --cache-no-affinity --cache-level 3|l1cache 1|stream 1|memrate 1|"
        "vm 1 --vm-bytes 256M|matrix 1 --matrix-size 1024",
    ),
    Family(
        "memory bandwidth",
        Kernel("memory-copy", {}),
        OTHER,
        [
            *kernels("memory-copy", {}, {"stores": "non_temporal"} | HUGE),
            Kernel("memory-triad", HUGE),
            Kernel("memory-write", HUGE),
        ],
        "stream 1|memcpy 1|memrate 1|vm 1 --vm-bytes 256M|memthrash 1|cache 1 --cache-no-affinity",
    ),
    # Not beside its like: two that fault pages on cores of their own do not meet (losses within ±2 % on both sides).
    Family(
        "memory space",
        Kernel("cache", LARGE),
        OTHER,
        kernels("memory-space", SPACE, SPACE | {"chunk_bytes": 4 * MIB}),
        "vm 1 --vm-bytes 512M|mmap 1 --mmap-bytes 512M|malloc 1 --malloc-bytes 512M|brk 1 --brk-notouch|shm 1|fault 1",
    ),
    Family(
        "disk",
        Kernel("disk-direct-read", {"order": "random", "request_bytes": 8192} | DISK_FILE),
        OTHER,
        [
            Kernel("disk-direct-write", {"request_bytes": MIB, "queue_depth": 32} | DISK_FILE),
            Kernel("disk-direct-read", {"request_bytes": MIB, "queue_depth": 32} | DISK_FILE),
            Kernel("disk-direct-read", {"request_bytes": 4096, "queue_depth": 64, "order": "random"} | DISK_FILE),
            Kernel("disk-write", {"request_bytes": 128 << 10, "sync": "fsync"} | DISK_FILE),
        ],
        "hdd 1 --hdd-bytes 64M|hdd 1 --hdd-bytes 64M --hdd-opts direct,wr-seq --hdd-write-size 1M|"
        "iomix 1 --iomix-bytes 64M|io-uring 1|aio 1|aiol 1|sync-file 1 --sync-file-bytes 64M",
        guard_ns=40_000_000,
    ),
    Family(
        "network, same core",
        Kernel("tcp-request", {}),
        CPU,
        [
            *kernels("udp-send", {"datagram_bytes": 0, "batch": 64}, {"datagram_bytes": 16384}),
            Kernel("tcp-stream", {"message_bytes": MIB}),
        ],
        "udp 1|udp-flood 1|sock 1|sockmany 1|netdev 1",
    ),
    Family(
        "local communication, same core",
        Kernel("pipe", {}),
        CPU,
        [
            *(Kernel(name, {}) for name in ("pipe", "unix-socket", "shared-memory", "tcp-loopback")),
            *(Kernel(name, {}, 2) for name in ("tcp-loopback", "unix-socket")),
        ],
        "pipe 1|sockpair 1|fifo 1|sock 1",
    ),
    Family(
        "system calls, same core",
        Kernel("syscall", {}),
        CPU,
        [Kernel(name, {}, threads) for threads in (1, 2) for name in ("syscall", "context-switch")],
        "get 1|switch 1|futex 1|yield 1|poll 1|eventfd 1",
    ),
    # On a core of its own neither side's storm has an effect on the victim that can be seen (±2 %).
    Family(
        "process creation, same core",
        Kernel("process-creation", {}),
        CPU,
        [kernel for threads in (1, 2) for kernel in kernels("process-creation", {}, {"how": "vfork"}, threads=threads)],
        "fork 1|vfork 1|clone 1 --clone-max 64|exec 1|spawn 1",
    ),
)


@dataclass(frozen=True)
class Losses:
    """Of the victim, one a block, for each aggressor."""

    by: dict[str, np.ndarray]

    def typical(self, name: str) -> float:
        return float(_mean(self.by[name]))

    def ratio(self, ours: str, theirs: str) -> tuple[float, float, float]:
        """(low, value, high) of the ratio of mean losses; 95 %, bootstrap over blocks."""
        mine, other = self.by[ours], self.by[theirs]
        drawn = np.random.default_rng(1).integers(0, len(mine), (2000, len(mine)))
        ratios = _mean(mine[drawn]) / _mean(other[drawn])
        low, high = np.quantile(ratios, [0.025, 0.975])
        return float(low), self.typical(ours) / self.typical(theirs), float(high)


def _mean(losses: np.ndarray) -> np.ndarray:
    """Along the last axis. Not a median, for some stressors hurt in bursts; but without a twentieth at either end."""
    return np.asarray(stats.trim_mean(losses, 0.05, axis=-1))


def measure(
    family: Family, victim: Resident, aggressors: dict[str, Resident], blocks: int, seed: int, ours: float = 1.0
) -> Losses:
    """ours: intensity of our stressors. Each aggressor and the baseline get one slot a block, in random order."""
    chance = random.Random(seed)
    if ours < 1:
        for aggressor in aggressors.values():
            if aggressor.is_kernel:
                aggressor.calibrate(CALIBRATION_S)
    at = now_ns() + LEAD_NS
    slots: list[dict[str, int]] = []
    switches: dict[str, list[tuple[int, float]]] = {name: [] for name in aggressors}
    for _ in range(blocks):
        block = {}
        for name in chance.sample([BASELINE, *aggressors], len(aggressors) + 1):
            end = at + family.guard_ns + SLOT_NS
            if name:
                switches[name] += [(at, ours if aggressors[name].is_kernel else 1.0), (end, 0.0)]
            block[name] = at + family.guard_ns
            at = end
        slots.append(block)
    for name, moments in switches.items():
        aggressors[name].schedule(moments)
    sleep_until(at)
    slices = victim.slices(at)
    victim.forget()
    for aggressor in aggressors.values():
        aggressor.alive()
        aggressor.forget()
    rates = {name: np.array([rate(slices, block[name], block[name] + SLOT_NS) for block in slots]) for name in slots[0]}
    # A host that is busy with other work may give the victim no turn in a slot; such a block says nothing.
    ran = rates[BASELINE] > 0
    if not ran.any():
        raise TrialError(f"{family.name}: the victim did nothing in any baseline slot")
    return Losses({name: 1 - rates[name][ran] / rates[BASELINE][ran] for name in aggressors})


def stress_ng(options: str, folder: str) -> Command:
    # Quiet, for lines of output would be work of the agent's; its own end after an hour is out of reach.
    argv = ["stress-ng", *options.split(), "--quiet", "--temp-path", folder, "--timeout", "3600"]
    return Command(argv, warm_up_s=0.7)


class Trials:
    def __init__(self, label: Label, intensity: float) -> None:
        self.label, self.intensity = label, intensity
        self.folder = str(label.work)

    def workload(self, name: str | Kernel) -> Kernel | Command:
        return name if isinstance(name, Kernel) else stress_ng(name, self.folder)

    @contextlib.contextmanager
    def aggressor(self, family: Family, name: str | Kernel) -> Iterator[Resident]:
        workload = self.workload(name)
        with Resident(self.label, workload, [family.on]) as resident:
            if isinstance(workload, Command):
                sleep_until(now_ns() + int((workload.warm_up_s + 0.1) * 1e9))
            yield resident

    def strongest(
        self, family: Family, victim: Resident, candidates: Sequence[str | Kernel], blocks: int
    ) -> str | Kernel:
        """By a short trial of each. What does not run here is left out, and said."""
        measured: list[tuple[float, str | Kernel]] = []
        for number, candidate in enumerate(candidates):
            try:
                with self.aggressor(family, candidate) as resident:
                    losses = measure(family, victim, {str(candidate): resident}, blocks, number)
                measured.append((losses.typical(str(candidate)), candidate))
            except PartywallError as error:
                print(f"    {candidate}: left out, {error}", flush=True)
        measured.sort(key=lambda pair: -pair[0])
        for loss, candidate in measured:
            print(
                f"    {'ours' if isinstance(candidate, Kernel) else 'stress-ng'} {candidate}: loss {loss:.1%}",
                flush=True,
            )
        return measured[0][1]

    def family(self, family: Family, screening: int, blocks: int) -> tuple[float, float, float]:
        print(f"{family.name}: victim {family.victim} on CPU {CPU}, aggressor on CPU {family.on}", flush=True)
        with Resident(self.label, family.victim, [CPU], flat_out=True) as victim:
            theirs = self.strongest(family, victim, [f"--{each}" for each in family.theirs.split("|")], screening)
            ours = self.strongest(family, victim, family.ours, screening)
            with self.aggressor(family, ours) as first, self.aggressor(family, theirs) as other:
                losses = measure(family, victim, {str(ours): first, str(theirs): other}, blocks, 7, self.intensity)
        ratio = losses.ratio(str(ours), str(theirs))
        print(
            f"  {family.name}: ours {ours} loss {losses.typical(str(ours)):.1%}, "
            f"stress-ng {theirs} loss {losses.typical(str(theirs)):.1%}; "
            f"ratio {ratio[1]:.2f} ({ratio[0]:.2f} to {ratio[2]:.2f}, {blocks} blocks)",
            flush=True,
        )
        return ratio

    def linearity(self, kernel: Kernel, seconds: float, rounds: int, seed: int) -> float:
        """R² of achieved/maximum against intensity; medians over rounds.

        Calibrated just before each stretch, since what a host can give drifts within seconds. Both ends of a
        kernel that talks to itself are on one CPU, or its maximum would depend on where the scheduler puts them.
        """
        chance = random.Random(seed)
        steps = [step / 10 for step in range(1, 11)]
        seen: dict[float, list[float]] = {intensity: [] for intensity in steps}
        # Held rates hardly scatter; flat out a kernel is as unsteady as the host: a disk by 40 % from try to try, so
        # that it takes 60 to know their median to 3 %.
        tried = [*steps, *[1.0] * (11 if kernel.name.startswith("disk-") else 3)]
        with Resident(self.label, kernel, [CPU]) as resident:
            for _ in range(rounds):
                for intensity in chance.sample(tried, len(tried)):
                    maximum = resident.calibrate(seconds)
                    seen[intensity].append(resident.stretch(seconds, intensity=intensity, settle_s=0.02) / maximum)
        got = np.array([statistics.median(seen[intensity]) for intensity in steps])
        fit = np.polyfit(steps, got, 1)
        rest = got - np.polyval(fit, steps)
        r2 = 1 - float(np.sum(rest**2) / np.sum((got - got.mean()) ** 2))
        shown = " ".join(f"{share:.3f}" for share in got)
        print(f"  {kernel.name:<18} R² {r2:.4f}, slope {fit[0]:.3f}: {shown}", flush=True)
        return r2


def stressors() -> list[Kernel]:
    """All that can be paced. Memory and files are bounded, so that they are soon touched and written."""
    special = {"memory-space": {"bound_bytes": 256 * MIB, "touch": True}}
    names = [name for name in shipped().names("stressor") if name != "null"]
    return [Kernel(name, special.get(name, DISK_FILE if name.startswith("disk-") else {})) for name in names]


@bench(
    parts=[*(family.name for family in FAMILIES), LINEARITY],
    plants={"quarter": "our stressors press at a quarter of the intensity"},
    needs=("stress-ng",),
)
def main(options: Options) -> Outcome:
    families = [f for f in FAMILIES if f.name in ("cpu, same core", "memory bandwidth")] if options.quick else FAMILIES
    screening, blocks, seconds, rounds = (3, 28, 0.05, 4) if options.quick else (20, 120, 0.12, 5)
    if options.only:
        families = [family for family in FAMILIES if family.name in options.only]
    paced = [k for k in stressors() if not options.quick or k.name in QUICK]
    paced = [] if options.only and LINEARITY not in options.only else paced
    # Of the ratio's lower end, value and upper end.
    judged = 2 if options.quick else 1
    with work("harm") as label:
        trials = Trials(label, PLANTED if options.plant else 1.0)

        def ratio_of(family: Family) -> tuple[float, float, float]:
            return undisturbed(
                lambda: trials.family(family, screening, blocks), lambda ratio: bool(ratio[judged] >= RATIO_LEAST)
            )

        ratios = {family.name: ratio_of(family) for family in families}
        if paced:
            print("rate against intensity, 0.1 to 1.0:", flush=True)
        r2 = {kernel.name: trials.linearity(kernel, seconds, rounds, seed) for seed, kernel in enumerate(paced)}
    weak = [f"{name} {ratio[1]:.2f}" for name, ratio in ratios.items() if not ratio[judged] >= RATIO_LEAST]
    least_r2 = R2_LEAST_QUICK if options.quick else R2_LEAST
    crooked = [f"{name} {value:.4f}" for name, value in r2.items() if not value >= least_r2]
    figures = []
    if ratios:
        values = [ratio[1] for ratio in ratios.values()]
        figures.append(
            f"ratio of losses, ours over stress-ng's strongest: least {min(values):.2f}, "
            f"median {statistics.median(values):.2f} of {len(values)} families"
        )
    if r2:
        figures.append(f"R² of rate against intensity: least {min(r2.values()):.4f} of {len(r2)} stressors")
    figures += [f"below: {', '.join(names)}" for names in (weak, crooked) if names]
    straight = not crooked and all(map(math.isfinite, r2.values()))
    parts = {LINEARITY: (f"R² ≥ {min(r2.values()):.4f} for {len(r2)} stressors", straight)} if r2 else {}
    return Outcome("; ".join(figures), not weak and straight, parts)


if __name__ == "__main__":
    main()
