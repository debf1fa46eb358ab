"""A run that never happened, as the store and the statistics would hand it to the report: drift, noise, latencies,
counters and slices are drawn from a seed, and figures are computed from the observations drawn."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from partywall.agent.catalogue import Warn
from partywall.core.report.latency import quantiles
from partywall.core.stats.estimate import Estimate, Outcome
from partywall.core.stats.histogram import Histogram, bucket_of
from partywall.run.document.scenario import Aggressor, Goal, Scenario, Victim
from partywall.run.findings.states import judged
from partywall.run.values.evidence import Counter, Evidence, SlicePoint
from partywall.run.values.finding import Band, CarryOver, Cause, Cell, Curve, Findings, Verdict
from partywall.run.values.observation import Observation, by_trial
from partywall.run.values.plan import Plan, Treatment, Trial
from partywall.sandbox.document import Limits, Sandbox

MS = 1_000_000
SLOT, GUARD, SLICE = 100 * MS, 10 * MS, 10 * MS
AGGRESSORS = ("memory-copy", "cache-ring", "disk-write", "system-calls")
INTENSITIES = (0.5, 1.0)
LOSS = {  # of throughput at intensity 1
    "copy": {"memory-copy": 0.18, "cache-ring": 0.06, "disk-write": 0.01, "system-calls": 0.0},
    "ring": {"memory-copy": 0.24, "cache-ring": 0.31, "disk-write": 0.02, "system-calls": 0.004},
    "files": {"memory-copy": 0.03, "cache-ring": 0.0, "disk-write": 0.62, "system-calls": 0.0},
}
NOISE = {"copy": 0.012, "ring": 0.02, "files": 0.06}
WORK = {"copy": 7.9e9, "ring": 1.15e7, "files": 210e6}
STEP_NS = {"copy": 33_000, "ring": 87_000, "files": 39_000}
PROBES = {"copy": "memory-copy", "ring": "cache-ring", "files": "disk-read"}

KERNELS = {
    "memory-copy": {
        "name": "memory-copy",
        "resource": "memory_bandwidth",
        "unit": "bytes",
        "summary": "Copies one block to another",
        "figure": {"kind": "rate", "label": "MB/s", "divisor": 1e6},
        "latency": {"kind": "step", "of": "a copy of 256 KiB"},
    },
    "cache-ring": {
        "name": "cache-ring",
        "resource": "cache",
        "unit": "accesses",
        "summary": "Walks a circular list",
        "figure": {"kind": "per_operation", "label": "ns per access"},
        "latency": {"kind": "step", "of": "1000 accesses"},
    },
    "disk-read": {
        "name": "disk-read",
        "resource": "disk",
        "unit": "bytes",
        "summary": "Reads a file",
        "figure": {"kind": "rate", "label": "MB/s", "divisor": 1e6},
        "latency": {"kind": "own", "of": "a read of 8 KiB"},
    },
}


@dataclass(frozen=True)
class Shape:
    """How large the run is."""

    blocks: int = 60
    seed: int = 7
    emulated: bool = False
    limits: bool = True


DEFAULT = Shape()


def scenario() -> Scenario:
    return Scenario(
        partywall=1,
        name="demo",
        description="How well does this host isolate its tenants?",
        victims={name: Victim(probe=probe, sandbox=Sandbox(backend="container")) for name, probe in PROBES.items()},
        aggressors={name: Aggressor(stressor=name, intensity=INTENSITIES) for name in AGGRESSORS},
        goals=(
            Goal(victim="copy", isolation_factor=0.9),
            Goal(victim="ring", aggressor="system-calls", isolation_factor=0.95),
        ),
        seed=42,
    )


def treatments(limits: bool) -> tuple[Treatment, ...]:
    times = {"guard_ns": GUARD, "slot_ns": SLOT}
    aggressors = [
        Treatment(
            id=f"{a}@{i:g}", label=f"{a} {100 * i:g} %", role="aggressor", aggressor=a, intensities={a: i}, **times
        )
        for a in AGGRESSORS
        for i in INTENSITIES
    ]
    limited = [
        Treatment(
            id=f"limit@{s:g}",
            label=f"cpu_limit {100 * s:g} %",
            role="limit",
            victim_limits=Limits(cpu_limit=s),
            **times,
        )
        for s in (0.25, 0.5)
        if limits
    ]
    return (
        Treatment(id="baseline", label="baseline", role="baseline", **times),
        Treatment(id="null", label="null", role="null", **times),
        *aggressors,
        *limited,
    )


def plan(shape: Shape) -> Plan:
    wanted = scenario()
    trials = tuple(
        Trial(
            id=f"t{number}-{name}",
            victim_name=name,
            victim=victim,
            victim_cpus=(0,),
            aggressors=dict(wanted.aggressors),
            aggressor_cpus=dict.fromkeys(AGGRESSORS, (1,)),
            treatments=treatments(shape.limits and name == "copy"),
        )
        for number, (name, victim) in enumerate(wanted.victims.items(), start=1)
    )
    return Plan(
        scenario=wanted, seed=wanted.seed, trials=trials, rounds=6, timing=wanted.timing, estimate_ns=150 * 10**9
    )


def true_factor(victim: str, treatment: Treatment) -> float:
    if treatment.victim_limits:
        return 0.97 * (treatment.victim_limits.cpu_limit or 1.0)
    if treatment.aggressor is None:
        return 1.0
    return 1 - LOSS[victim][treatment.aggressor] * treatment.intensities[treatment.aggressor] ** 1.3


def histogram(rng: random.Random, median_ns: float, tail: float, count: int = 120) -> Histogram:
    counts: dict[int, int] = {}
    for _ in range(count):
        value = (
            median_ns
            * math.exp(rng.gauss(0, 0.08))
            * (1 + (rng.paretovariate(1.6) * tail if rng.random() < 0.03 else 0))
        )
        index = bucket_of(int(value))
        counts[index] = counts.get(index, 0) + 1
    return Histogram(counts)


def observe(trial: Trial, shape: Shape, rng: random.Random) -> Iterable[tuple[Observation, list[SlicePoint]]]:
    victim = trial.victim_name
    now, drift, wave = 5_000 * 10**9 + rng.randrange(10**9), 0.0, 0.0
    for block in range(shape.blocks):
        order = list(enumerate(rng.sample(trial.treatments, len(trial.treatments))))
        drift += rng.gauss(0, 0.02)
        wave = 0.7 * wave + rng.gauss(0, 0.15)
        for position, treatment in order:
            factor = 1 - (1 - true_factor(victim, treatment)) * (1 + (wave if treatment.role == "aggressor" else 0))
            level = WORK[victim] * math.exp(drift) * factor
            start = now + GUARD
            points = []
            for index in range((GUARD + SLOT) // SLICE):
                rate = level * (1 + rng.gauss(0, 2 * NOISE[victim])) * (0.8 if index == 0 else 1)
                points.append(
                    SlicePoint(
                        now + index * SLICE, now + (index + 1) * SLICE, rate, treatment.id, block, guard=index == 0
                    )
                )
            kept = [p.rate for p in points if not p.guard]
            early, late = sum(kept[:5]) / 5, sum(kept[5:]) / 5
            harm = 1 - factor
            yield (
                Observation(
                    trial.id,
                    block,
                    position,
                    treatment.id,
                    start,
                    start + SLOT,
                    (early + late) / 2,
                    early,
                    late,
                    0.995 - 0.05 * rng.random(),
                    histogram(rng, STEP_NS[victim] / factor, 0.4 + 4 * max(harm, 0)),
                    {treatment.aggressor: treatment.intensities[treatment.aggressor] * rng.uniform(0.98, 1.0)}
                    if treatment.aggressor
                    else {},
                    {
                        "llc_misses": 2e6 * (1 + 3 * max(harm, 0)) * rng.uniform(0.9, 1.1),
                        "disk_wait_ms": 0.4
                        + 9 * max(harm, 0) * (treatment.aggressor == "disk-write")
                        + rng.random() / 20,
                    },
                    ("steal 3 %",) if rng.random() < 0.01 else (),
                ),
                points,
            )
            now = start + SLOT
        now += 4 * 10**9 if block % 10 == 9 else 20 * MS


def evidence(shape: Shape = DEFAULT) -> Evidence:
    rng = random.Random(shape.seed)
    made = plan(shape)
    observations, timeline = [], {}
    for trial in made.trials:
        rows = list(observe(trial, shape, rng))
        observations += [o for o, _ in rows]
        timeline[trial.id] = tuple(p for o, points in rows if o.block % 10 == 0 for p in points)
    return Evidence(
        run="2026-11-21T12-00-00-demo",
        started="2026-11-21T12:00:00+00:00",
        plan=made,
        host={
            "cpu": {
                "model": "Example CPU 9000 @ 2.50GHz",
                "online": [0, 1],
                "smt": False,
                "caches": [
                    {"level": 1, "holds": "data", "size_bytes": 49_152, "shared_by": [0]},
                    {"level": 1, "holds": "data", "size_bytes": 49_152, "shared_by": [1]},
                    {"level": 3, "holds": "unified", "size_bytes": 34_603_008, "shared_by": [0, 1]},
                ],
                "governor": None,
            },
            "kernel": {"release": "6.1.0-40-amd64", "clocksource": "tsc"},
            "memory": {"total_bytes": 25_769_803_776},
            "disks": [{"name": "vda", "size_bytes": 274_877_906_944, "scheduler": None}],
            "virtualisation": {"guest": True, "hypervisor_type": None, "vendor": "Example"},
        },
        kernels=KERNELS,
        observations=by_trial(observations),
        counters={
            "llc_misses": Counter(
                "llc_misses", "count", "total", "cache", "misses of the last cache, by a counter with a long name"
            ),
            "disk_wait_ms": Counter("disk_wait_ms", "ms", "gauge", "disk"),
        },
        timeline=timeline,
        missing=(
            (
                "hardware counters",
                "no PMU is exposed to this virtual machine",
                "cache misses are estimated from nothing: causes rest on /proc alone; run on bare metal",
            ),
            (
                "RAPL",
                "/sys/class/powercap is empty",
                "no energy figures; needs an Intel or AMD host without virtualisation",
            ),
        ),
        disturbances=(("t1-copy", 12, "steal: 3.1 % of the block"), ("t3-files", 40, "foreign load: 0.21 of a CPU")),
    )


def estimate(values: list[float], method: str = "mean of block ratios") -> Estimate:
    n = len(values)
    mean = sum(values) / n
    half = 2.0 * math.sqrt(sum((v - mean) ** 2 for v in values) / max(n - 1, 1) / n)
    return Estimate(value=mean, low=mean - half, high=mean + half, n=n, n_effective=0.8 * n, method=method)


def quantile(histogram: Histogram, share: float) -> float:
    return quantiles(histogram, [share])[0]


def cell(seen: Evidence, trial: Trial, treatment: Treatment, band: float, shape: Shape) -> Cell:
    own = seen.of_trial(trial.id)
    base = {o.block: o for o in own if o.treatment == "baseline"}
    treated = {o.block: o for o in own if o.treatment == treatment.id}
    isolation = estimate([treated[b].rate / base[b].rate for b in base])
    promised = treatment.victim_limits.cpu_limit if treatment.victim_limits else None
    outside = isolation.high < 1 - band or isolation.low > 1 + band
    warnings = [Warn.EMULATED] if shape.emulated else []
    if treatment.id == "memory-copy@1" and trial.victim_name == "ring":
        warnings += [Warn.DRIFTING_EFFECT, Warn.CARRY_OVER]
    counter = "disk_wait_ms" if treatment.aggressor == "disk-write" else "llc_misses"
    before, after = (sum(o.counters[counter] for o in rows.values()) / len(rows) for rows in (base, treated))
    difference = estimate([treated[b].counters[counter] - base[b].counters[counter] for b in base], "block differences")
    cause = Cause(
        counter=counter,
        resource=seen.counters[counter].resource,
        baseline=before,
        treated=after,
        difference=difference,
        correlation=Estimate(value=-0.71, low=-0.8, high=-0.6, n=len(base), method="block correlation"),
        text=f"{counter} went from {before:.3g} to {after:.3g} {seen.counters[counter].unit} as the rate fell",
    )
    return Cell(
        trial=trial.id,
        victim=trial.victim_name,
        treatment=treatment.id,
        label=treatment.label,
        role=treatment.role,
        aggressor=treatment.aggressor,
        intensity=treatment.intensities.get(treatment.aggressor or ""),
        baseline_rate=estimate([o.rate for o in base.values()]),
        rate=estimate([o.rate for o in treated.values()]),
        isolation=isolation,
        latency={
            name: estimate([quantile(treated[b].latency, q) / quantile(base[b].latency, q) - 1 for b in base])
            for name, q in (("p50", 0.5), ("p99", 0.99))
        },
        efficiency=estimate([treated[b].rate / base[b].rate / promised for b in base]) if promised else None,
        promised=promised,
        achieved=sum(o.achieved.get(treatment.aggressor or "", 0.0) for o in treated.values()) / len(treated)
        if treatment.aggressor
        else None,
        variation=0.012 if outside else None,
        carry_over=CarryOver(
            drift=estimate(
                [treated[b].late_rate / treated[b].early_rate - base[b].late_rate / base[b].early_rate for b in base]
            ),
            present=Warn.CARRY_OVER in warnings,
            slot_ns=SLOT,
        ),
        causes=(cause,) if outside and treatment.aggressor else (),
        warnings=tuple(warnings),
    )


def findings(seen: Evidence, shape: Shape = DEFAULT) -> Findings:
    cells: list[Cell] = []
    bands, curves = [], []
    for trial in seen.plan.trials:
        null = cell(seen, trial, trial.treatments[1], 0.01, shape)
        band = max(abs(null.isolation.low - 1), abs(null.isolation.high - 1))
        bands.append(Band(trial=trial.id, low=1 - band, high=1 + band, null=null.isolation))
        own = [cell(seen, trial, t, band, shape) for t in trial.treatments if t.role != "baseline"]
        cells += own
        for name in AGGRESSORS:
            points = tuple((c.intensity, c.isolation) for c in own if c.aggressor == name)
            curves.append(Curve(trial=trial.id, victim=trial.victim_name, aggressor=name, points=points))
    goals = seen.plan.scenario.goals
    find = {(c.victim, c.treatment): c for c in cells}
    bad, good = find["copy", "memory-copy@1"], find["ring", "system-calls@1"]
    verdicts = (
        Verdict(
            goal=goals[0],
            trial=bad.trial,
            treatment=bad.treatment,
            outcome=Outcome.VIOLATED,
            reason="isolation factor 0.82 ± 0.01 lies below 0.9",
        ),
        Verdict(
            goal=goals[1],
            trial=good.trial,
            treatment=good.treatment,
            outcome=Outcome.HOLDS,
            reason="isolation factor 0.996 ± 0.004 lies above 0.95",
        ),
    )
    cells = judged(cells, bands, seen.plan.scenario.precision)
    return Findings(
        run=seen.run,
        scenario=seen.plan.scenario.name,
        headline="A memory-copying neighbour on the next core costs 18 % ± 1 of memory bandwidth; "
        "a disk-writing one 62 % ± 2 of disk throughput; no other effect above ±0.6 %.",
        cells=tuple(cells),
        bands=tuple(bands),
        curves=tuple(curves),
        verdicts=verdicts,
        goals=len(verdicts),
    )


def small(**changes: object) -> tuple[Findings, Evidence]:
    """A run of few blocks, quick to build."""
    shape = replace(Shape(blocks=12), **changes)
    seen = evidence(shape)
    return findings(seen, shape), seen
