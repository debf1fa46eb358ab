"""CPU limits are judged by the CPU time that they gave, whatever others do to the baseline."""

import math
from dataclasses import replace

import numpy as np
import pytest

from partywall.core.stats.estimate import Outcome
from partywall.run.document.scenario import Goal, Victim
from partywall.run.findings.analysis import analyse
from partywall.run.findings.limits import PERIODS, USED_UP
from partywall.sandbox.document import Limits, Sandbox
from tests.run.findings.builders import Host, evidence, limit, plan, treatment, trial

GOAL = Goal(victim="mine", efficiency=(0.95, 1.05))
LIMITED = trial(limit("cpu_limit=30%", 0.3), victim="mine", probe="cpu-integer")
BUSY = 0.5
"""What another program leaves of the CPU while it is there."""


def beside_others(given=0.3, busy_blocks=0.5, counted=True, of=LIMITED, limited=("cpu_limit=30%",), blocks=60):
    """Observations of a limit that gives `given` of a CPU, on a CPU that another program uses in some blocks."""
    random = np.random.default_rng(5)
    result = []
    for o in Host(noise=0.002).measure(of, blocks, {}):
        busy = (o.block * 7) % 10 < 10 * busy_blocks
        is_limited = o.treatment in limited
        # With another program, 5 of its 10 periods a second end before the limit is used up.
        wanted = given if is_limited else 1.0
        share = min(wanted, BUSY * (0.5 if is_limited else 1.0)) if busy else wanted
        share *= 1 + 0.01 * random.standard_normal()
        counters = {PERIODS: 10.0, USED_UP: 5.0 if busy else 10.0} if counted and is_limited else {}
        waited = ("foreign load: the victim waited 50% of the slot for its CPU",) if busy and not is_limited else ()
        result.append(replace(o, rate=1e6 * share, cpu_share=share, counters=counters, disturbed=waited))
    return result


def judged(observations, of=LIMITED, goal=GOAL):
    return analyse(evidence(plan(of, goals=(goal,)), observations))


def the_limit(findings):
    return next(cell for cell in findings.cells if cell.role == "limit" and cell.aggressor is None)


def test_a_limit_that_gives_what_it_states_holds_though_the_baseline_was_slowed_down():
    findings = judged(beside_others())
    cell, (verdict,) = the_limit(findings), findings.verdicts
    assert cell.efficiency.value > 1.1
    assert cell.cpu_time.held.value == pytest.approx(0.3, rel=0.01)
    assert cell.cpu_time.held_share == pytest.approx(0.5)
    assert verdict.outcome is Outcome.HOLDS
    assert verdict.reason.startswith("CPU time / promised 0.99")
    assert findings.headline.startswith("Holds: mine gets ")
    assert "of a CPU, of 30 % promised" in findings.headline


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("busy_blocks", [0.0, 0.3, 0.8, 1.0])
def test_a_true_limit_is_never_violated_whatever_others_do(busy_blocks, counted):
    (verdict,) = judged(beside_others(busy_blocks=busy_blocks, counted=counted)).verdicts
    assert verdict.outcome is not Outcome.VIOLATED
    if busy_blocks == 1:
        assert verdict.outcome is Outcome.INCONCLUSIVE
        assert "it waited for a CPU that others used" in verdict.reason


@pytest.mark.parametrize("factor", [0.9, 1.1])
@pytest.mark.parametrize("busy_blocks", [0.0, 0.3, 0.8])
def test_a_limit_that_is_wrong_by_a_tenth_is_violated_whatever_others_do(busy_blocks, factor):
    (verdict,) = judged(beside_others(given=0.3 * factor, busy_blocks=busy_blocks)).verdicts
    assert verdict.outcome is Outcome.VIOLATED, verdict.reason


def test_a_limit_that_is_not_enforced_in_some_slots_does_not_hold():
    loose = [
        replace(o, rate=1e6, cpu_share=1.0, counters={PERIODS: 10.0, USED_UP: 0.0})
        if o.treatment == "cpu_limit=30%" and o.block % 2
        else o
        for o in beside_others(busy_blocks=0)
    ]
    findings = judged(loose)
    assert the_limit(findings).cpu_time.held.value == pytest.approx(0.3, rel=0.01)
    (verdict,) = findings.verdicts
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.reason.startswith("CPU time / promised, in all slots 2.")
    assert verdict.blocks == the_limit(findings).cpu_time.got.n
    assert "in all slots" in findings.headline


def test_more_cpus_share_the_promise():
    of = LIMITED.model_copy(update={"victim": Victim(probe="cpu-integer", threads=2), "victim_cpus": (0, 1)})
    cell = the_limit(judged(beside_others(busy_blocks=0, of=of), of))
    assert cell.cpu_time.got.value == pytest.approx(0.3, rel=0.01)


def without_cpu_time(observations):
    return [replace(o, cpu_share=math.nan, counters={}) for o in observations]


def test_a_ratio_to_a_baseline_that_waited_for_a_cpu_cannot_violate():
    """If no CPU time is known, as of some domains, the ratio is all there is."""
    findings = judged(without_cpu_time(beside_others()))
    assert the_limit(findings).cpu_time is None
    (verdict,) = findings.verdicts
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert (
        verdict.reason.endswith("but the baseline waited for a CPU")
        or "the baseline waited for a CPU;" in verdict.reason
    )
    (calm,) = judged(without_cpu_time(beside_others(given=0.36, busy_blocks=0))).verdicts
    assert calm.outcome is Outcome.VIOLATED


def test_a_share_is_missed_beside_a_named_neighbour_only_if_it_was_there_without_it():
    beside = treatment("hog,30%", aggressor_of="hog", victim_limits=Limits(cpu_limit=0.3))
    of = LIMITED.model_copy(update={"treatments": (*LIMITED.treatments, beside)})
    names, goal = ("cpu_limit=30%", "hog,30%"), GOAL.model_copy(update={"aggressor": "hog"})

    def outcome(busy_blocks):
        made = beside_others(busy_blocks=busy_blocks, of=of, limited=names)
        taken = [replace(o, cpu_share=o.cpu_share * 0.6) if o.treatment == "hog,30%" else o for o in made]
        return next(v for v in judged(taken, of, goal).verdicts if v.treatment == "hog,30%")

    assert outcome(0).outcome is Outcome.VIOLATED
    assert outcome(1).outcome is Outcome.INCONCLUSIVE
    assert "without the neighbour" in outcome(1).reason or "it waited for a CPU" in outcome(1).reason


def test_a_reservation_is_judged_by_its_cpu_time_too():
    sandbox = Sandbox(backend="container", cpu_reservation=0.5)
    of = trial(treatment("hog"), victim="mine", probe="cpu-integer").model_copy(
        update={"victim": Victim(probe="cpu-integer", sandbox=sandbox)}
    )
    made = Host(noise=0.002).measure(of, 60, {"hog": 0.4})

    def outcome(alone, beside):
        shares = {"hog": beside}
        seen = [replace(o, cpu_share=shares.get(o.treatment, alone)) for o in made]
        return next(v for v in judged(seen, of).verdicts if v.treatment == "hog").outcome

    assert outcome(1.0, 0.52) is Outcome.HOLDS
    assert outcome(1.0, 0.4) is Outcome.VIOLATED
    assert outcome(0.4, 0.4) is Outcome.INCONCLUSIVE
