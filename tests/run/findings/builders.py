"""Made-up runs for the tests of the statistics: a plan, and observations drawn from stated effects and noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from partywall.core.stats.histogram import Histogram, bucket_of
from partywall.run.document.scenario import Aggressor, Goal, Scenario, Timing, Victim
from partywall.run.values.evidence import Counter, Evidence
from partywall.run.values.observation import Observation, by_trial
from partywall.run.values.plan import Plan, Treatment, Trial
from partywall.sandbox.document import Limits

SLOT_NS = 100_000_000
GUARD_NS = 10_000_000

KERNELS: dict[str, dict[str, Any]] = {
    "memory-copy": {"resource": "memory_bandwidth"},
    "disk-write": {"resource": "disk"},
    "cache-ring": {"resource": "cache"},
    "cpu-integer": {"resource": "cpu"},
}


def treatment(
    name: str, role: str = "aggressor", intensity: float = 1.0, aggressor_of: str = "", **more: Any
) -> Treatment:
    aggressor = aggressor_of or name.split("@")[0] if role == "aggressor" else None
    return Treatment(
        id=name,
        label=name,
        role=role,
        aggressor=aggressor,
        intensities={aggressor: intensity} if aggressor else {"null": 1.0} if role == "null" else {},
        guard_ns=GUARD_NS,
        slot_ns=SLOT_NS,
        **more,
    )


def limit(name: str, cpu_limit: float) -> Treatment:
    return treatment(name, "limit", victim_limits=Limits(cpu_limit=cpu_limit))


def trial(
    *treatments: Treatment, victim: str = "copy", probe: str = "memory-copy", name: str = "t1", cpus: int = 1
) -> Trial:
    stressors = {t.aggressor: Aggressor(stressor=t.aggressor) for t in treatments if t.aggressor}
    return Trial(
        id=name,
        victim_name=victim,
        victim=Victim(probe=probe),
        victim_cpus=(0,),
        aggressors=stressors,
        aggressor_cpus=dict.fromkeys(stressors, (cpus,)),
        treatments=(treatment("none", "baseline"), treatment("null", "null"), *treatments),
    )


def plan(*trials: Trial, goals: tuple[Goal, ...] = (), precision: float = 0.01) -> Plan:
    scenario = Scenario(
        partywall=1,
        name="made-up",
        victims={t.victim_name: t.victim for t in trials},
        aggressors={name: a for t in trials for name, a in t.aggressors.items()},
        goals=goals,
        precision=precision,
    )
    return Plan(scenario=scenario, seed=1, trials=trials, rounds=1, timing=Timing(), estimate_ns=1)


class Host:
    """Draws observations. factors: isolation factor by treatment; noise: sd of a slot's log rate."""

    def __init__(self, seed: int = 1, noise: float = 0.01, drift: float = 0.0, rate: float = 1e6) -> None:
        self.random = np.random.default_rng(seed)
        self.noise, self.drift, self.rate = noise, drift, rate

    def measure(
        self,
        of: Trial,
        blocks: int,
        factors: dict[str, float],
        effect_sd: float = 0.0,
        late: dict[str, float] | None = None,
    ) -> list[Observation]:
        result, moment, host = [], 0, 0.0
        for block in range(blocks):
            moved = effect_sd * self.random.standard_normal()
            for position, at in enumerate(self.random.permutation(len(of.treatments))):
                t = of.treatments[at]
                host += self.drift * self.random.standard_normal()
                factor = factors.get(t.id, 1.0)
                shift = moved if factor != 1 else 0.0
                rate = self.rate * factor * float(np.exp(host + shift + self.noise * self.random.standard_normal()))
                half = (late or {}).get(t.id, 0.0) / 2
                start = moment + GUARD_NS
                moment = start + SLOT_NS
                result.append(
                    Observation(
                        of.id,
                        block,
                        position,
                        t.id,
                        start,
                        moment,
                        rate,
                        rate * (1 - half),
                        rate * (1 + half),
                        factor if t.victim_limits and t.victim_limits.cpu_limit else 1.0,
                        Histogram({}),
                    )
                )
        return result


def with_latency(
    observations: list[Observation], longer: dict[str, float], seed: int = 7, operations: int = 400, trial: str = ""
) -> list[Observation]:
    """The same with lognormal latencies. longer: factor of all latencies by treatment, in `trial` or in all of them."""
    random = np.random.default_rng(seed)
    result = []
    for o in observations:
        factor = longer.get(o.treatment, 1.0) if trial in ("", o.trial) else 1.0
        values = random.lognormal(10, 0.3, operations) * factor
        buckets, counts = np.unique([bucket_of(int(value)) for value in values], return_counts=True)
        histogram = Histogram(dict(zip(buckets.tolist(), counts.tolist(), strict=True)))
        result.append(replace(o, latency=histogram))
    return result


def evidence(of: Plan, observations: list[Observation], counters: dict[str, Counter] | None = None) -> Evidence:
    return Evidence("r1", "2026-01-01T00:00:00Z", of, {}, KERNELS, by_trial(observations), counters=counters or {})
