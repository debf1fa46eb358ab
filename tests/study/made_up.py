"""A study's directory as if its parts had been measured: rates from stated effects, with a little noise."""

from __future__ import annotations

import json

import numpy as np

from partywall.agent.catalogue import shipped
from partywall.core.stats.histogram import Histogram
from partywall.run.check import loads
from partywall.run.findings.analysis import analyse
from partywall.run.plan import Topology
from partywall.run.plan import make as make_plan
from partywall.run.values.evidence import AgentFacts, Counter, Evidence
from partywall.run.values.observation import Observation, by_trial
from partywall.study.isolation.kind import _kernels
from partywall.study.isolation.tables import PartRun

SLOT_NS = 100_000_000
TWO = Topology((0, 1), ((0, 1),))


def part(
    scenario,
    effect,
    *,
    part="p",
    values=None,
    reference=None,
    blocks=40,
    emulated=(),
    host=None,
    counters=lambda _trial, _treatment: {},
):
    """A part measured: effect(trial, treatment) is the rate, in work a second, and counters what the monitors read."""
    text = json.dumps({"partywall": 1, "name": "made-up", "budget": "1h", **scenario})
    plan = make_plan(loads(text), TWO, shipped())
    chance = np.random.default_rng(3)
    result, moment = [], 0
    for trial in plan.trials:
        for block in range(blocks):
            for position, at in enumerate(chance.permutation(len(trial.treatments))):
                treatment = trial.treatments[at]
                rate = effect(trial, treatment) * float(np.exp(0.002 * chance.standard_normal()))
                start, moment = moment + 10_000_000, moment + 10_000_000 + SLOT_NS
                name = treatment.aggressor
                achieved = {name: 0.99} if name else {}
                result.append(
                    Observation(
                        trial.id,
                        block,
                        position,
                        treatment.id,
                        start,
                        moment,
                        rate,
                        rate,
                        rate,
                        1.0,
                        Histogram({}),
                        achieved=achieved,
                        counters=counters(trial, treatment),
                    )
                )
    agent_facts = {trial.id: AgentFacts(emulated=tuple(emulated)) for trial in plan.trials}
    known = {name: Counter(name, "hertz", "gauge", "cpu") for each in result for name in each.counters}
    evidence = Evidence(
        "r", "2026-01-01", plan, host or {}, _kernels(), by_trial(result), counters=known, agent_facts=agent_facts
    )
    return PartRun(f"{part}-x", part, values or {}, reference, evidence, analyse(evidence))
