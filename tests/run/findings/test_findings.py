import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partywall.agent.catalogue import Warn
from partywall.core.stats.estimate import Outcome
from partywall.core.stats.histogram import Histogram, bucket_of
from partywall.core.stats.interval import ratio_of_means
from partywall.host.block import Throttle
from partywall.run.document.scenario import Aggressor, Goal, Victim
from partywall.run.findings import agent_facts
from partywall.run.findings.analysis import analyse, carry_over, checkpoints, enough
from partywall.run.findings.effects import bands_of, variation_of
from partywall.run.findings.series import Measured
from partywall.run.findings.states import failed_checks
from partywall.run.values.evidence import AgentFacts, Counter, Readings
from partywall.run.values.finding import Curve, Effect
from partywall.run.values.plan import Treatment
from partywall.sandbox.document import Limits, Sandbox
from tests.run.findings.builders import Host, evidence, limit, plan, treatment, trial, with_latency

COPY = treatment("memory-copy")
SINGLE = trial(COPY)


def findings(observations, of=SINGLE, counters=None, **more):
    return analyse(evidence(plan(of, **more), observations, counters))


def cell(result, name):
    return next(c for c in result.cells if c.treatment == name)


def test_a_harm_is_measured_and_seen_and_a_null_is_not():
    result = findings(Host().measure(SINGLE, 60, {"memory-copy": 0.8}))
    harm, null = cell(result, "memory-copy"), cell(result, "null")
    assert harm.isolation.low < 0.8 < harm.isolation.high
    assert harm.isolation.half_width < 0.01
    assert harm.effect is Effect.SEEN
    assert null.effect is not Effect.SEEN
    assert harm.rate.value == pytest.approx(0.8e6, rel=0.01)
    assert harm.baseline_rate.value == pytest.approx(1e6, rel=0.01)


def test_the_band_is_the_null_interval_mirrored_around_one():
    band = findings(Host().measure(SINGLE, 60, {})).bands[0]
    assert band.low * band.high == pytest.approx(1)
    assert band.low <= band.null.low < band.null.high <= band.high
    assert math.isclose(band.high, band.null.high) or math.isclose(band.low, band.null.low)


@pytest.mark.long
def test_taking_off_the_drift_narrows_intervals_on_a_drifting_host_and_costs_little_on_a_steady_one():
    def spread(drift, corrected):
        many = trial(*(treatment(f"s{i}") for i in range(4)))
        means = []
        for seed in range(60):
            series = Measured.of(Host(seed, noise=0.002, drift=drift).measure(many, 30, {})).short
            pair = series.pair("s0", "none")
            as_measured = ratio_of_means(pair.treated.rate, pair.baseline.rate)
            means.append((pair.factor() if corrected else as_measured).value)
        return float(np.var(means))

    assert spread(0.01, corrected=True) < 0.85 * spread(0.01, corrected=False)
    assert spread(0.0, corrected=True) < 1.1 * spread(0.0, corrected=False)


def test_swapping_treatment_and_baseline_inverts_the_factor_and_changes_nothing_else():
    series = Measured.of(Host(drift=0.01).measure(SINGLE, 30, {"memory-copy": 0.7})).short
    there, back = series.pair("memory-copy", "none"), series.pair("none", "memory-copy")
    forth, inverse = there.factor(), back.factor()
    assert forth.value * inverse.value == pytest.approx(1)
    assert forth.half_width / forth.value == pytest.approx(inverse.half_width / inverse.value)


def test_a_neighbour_with_a_ragged_effect_does_not_blur_the_others():
    two = trial(COPY, treatment("ragged"))
    observations = Host(noise=0.005).measure(two, 80, {"memory-copy": 0.9})
    random = np.random.default_rng(5)
    ragged = [
        replace(o, rate=o.rate * float(np.exp(random.normal(-1, 1)))) if o.treatment == "ragged" else o
        for o in observations
    ]
    steady, blurred = (Measured.of(o).short.pair("null", "none").factor().half_width for o in (observations, ragged))
    assert blurred < 1.2 * steady


@given(st.floats(1e-3, 1e9))
@settings(deadline=None, max_examples=15)
def test_the_unit_of_the_rate_does_not_matter(scale):
    observations = Host().measure(SINGLE, 20, {"memory-copy": 0.8})
    scaled = [
        replace(o, rate=o.rate * scale, early_rate=o.early_rate * scale, late_rate=o.late_rate * scale)
        for o in observations
    ]
    before, after = (cell(findings(o), "memory-copy").isolation for o in (observations, scaled))
    assert (after.low, after.high) == pytest.approx((before.low, before.high), rel=1e-6)


@given(st.randoms())
@settings(deadline=None, max_examples=10)
def test_the_order_in_which_observations_arrive_does_not_matter(random):
    observations = Host().measure(SINGLE, 12, {"memory-copy": 0.8})
    shuffled = random.sample(observations, len(observations))
    assert findings(shuffled) == findings(observations)


def test_a_missing_slot_costs_its_block_and_no_more():
    observations = [
        o for o in Host().measure(SINGLE, 30, {"memory-copy": 0.8}) if (o.block, o.treatment) != (4, "none")
    ]
    assert cell(findings(observations), "memory-copy").isolation.n == 29


def test_stalled_slots_are_the_worst_harm_and_stay_in():
    observations = Host().measure(SINGLE, 40, {})
    stalled = [
        replace(o, rate=0.0, early_rate=0.0, late_rate=0.0) if o.treatment == "memory-copy" and o.block % 4 == 0 else o
        for o in observations
    ]
    harm = cell(findings(stalled), "memory-copy")
    assert harm.isolation.value == pytest.approx(0.75, abs=0.01)
    assert harm.isolation.method.startswith("ratio of mean rates")
    assert harm.effect is Effect.SEEN


def test_a_treatment_measured_in_too_few_blocks_is_named_as_missing():
    result = findings(Host().measure(SINGLE, 3, {}))
    assert result.cells == ()
    assert len(result.incomplete) == 2
    assert "memory-copy" in result.incomplete[1]
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.headline.startswith("Nothing conclusive")


def test_an_effect_of_nothing_is_reported_everywhere():
    result = findings(Host().measure(SINGLE, 60, {"null": 0.95, "memory-copy": 0.8}))
    assert Warn.NULL_EFFECT in cell(result, "memory-copy").warnings
    assert result.headline.startswith("Not reliable: an idle neighbour seemed to change the rate of copy by ")
    assert any("A/A check failed" in warning for warning in result.warnings)


def test_disturbed_slots_stay_in_and_are_reported():
    observations = Host().measure(SINGLE, 40, {"memory-copy": 0.8})
    disturbed = [replace(o, disturbed=("steal",)) if o.block < 5 else o for o in observations]
    result = findings(disturbed)
    assert cell(result, "memory-copy").isolation.n == 40
    assert Warn.STEAL in cell(result, "memory-copy").warnings
    assert any("15 of 120 slots were disturbed by other programs (steal)" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("intensity", "achieved", "fell_short"), [(1.0, 0.4, True), (1.0, 0.7, False), (0.5, 0.2, True), (0.5, 0.3, False)]
)
def test_an_aggressor_that_achieved_less_than_requested_is_reported(intensity, achieved, fell_short):
    of = trial(treatment("memory-copy", intensity=intensity))
    weak = [replace(o, achieved={"memory-copy": achieved}) for o in Host().measure(of, 40, {"memory-copy": 0.8})]
    harm = cell(findings(weak, of), "memory-copy")
    assert harm.achieved == pytest.approx(achieved)
    assert (Warn.AGGRESSOR_FELL_SHORT in harm.warnings) == fell_short


def test_an_aggressor_that_shares_the_victims_cpu_is_not_blamed_for_getting_only_its_part():
    shared = trial(COPY, cpus=0)
    weak = [replace(o, achieved={"memory-copy": 0.3}) for o in Host().measure(shared, 40, {"memory-copy": 0.5})]
    harm = cell(findings(weak, shared), "memory-copy")
    assert harm.achieved == pytest.approx(0.3)
    assert Warn.AGGRESSOR_FELL_SHORT not in harm.warnings


def test_an_aggressor_on_another_machine_shares_no_cpu_that_would_excuse_it():
    far = Aggressor(stressor="memory-copy", sandbox=Sandbox(backend="ssh", host="far", cpus="0"))
    apart = trial(COPY, cpus=0).model_copy(update={"aggressors": {"memory-copy": far}})
    weak = [replace(o, achieved={"memory-copy": 0.3}) for o in Host().measure(apart, 40, {"memory-copy": 0.5})]
    assert Warn.AGGRESSOR_FELL_SHORT in cell(findings(weak, apart), "memory-copy").warnings


def test_several_looks_share_the_error_that_one_look_may_make():
    quiet = Host().measure(SINGLE, 40, {})
    once, thrice = (carry_over(quiet, SINGLE.treatments, looks)["memory-copy"].drift for looks in (1, 3))
    assert 1 - thrice.level == pytest.approx((1 - once.level) / 3)


def test_an_effect_that_still_moves_inside_its_slots_is_carry_over():
    host = Host()
    moving = host.measure(SINGLE, 40, {"memory-copy": 0.8}, late={"memory-copy": -0.06})
    result = carry_over(moving, SINGLE.treatments)
    assert result["memory-copy"].present
    assert result["memory-copy"].drift.value == pytest.approx(-0.06, abs=0.005)
    assert not result["null"].present
    assert Warn.CARRY_OVER in cell(findings(moving), "memory-copy").warnings


def test_a_tiny_drift_inside_the_slots_is_not_worth_lengthening_them():
    assert not carry_over(Host().measure(SINGLE, 40, {}, late={"null": 0.002}), SINGLE.treatments)["null"].present


def test_efficiency_is_the_rate_over_the_promised_share_of_the_baseline():
    limited = trial(limit("half", 0.5))
    result = cell(findings(Host().measure(limited, 40, {"half": 0.45}), limited), "half")
    assert result.promised == 0.5
    assert result.efficiency.low < 0.9 < result.efficiency.high


def test_a_limit_of_a_disk_promises_its_rate_or_what_the_disk_gives_if_that_is_less():
    usual = Host().measure(trial(), 40, {})[0].rate

    def result(ceiling_rate, factor):
        alone = treatment("disk", "limit", victim_limits=THROTTLED, ceiling_rate=ceiling_rate)
        limited = trial(alone, probe="disk-direct-read")
        return cell(findings(Host().measure(limited, 40, {"disk": factor}), limited), "disk")

    held = result(0.05 * usual, 0.045)
    assert held.promised == pytest.approx(0.05, rel=0.1)
    assert held.efficiency.value == pytest.approx(0.9, rel=0.1)
    # The disk's own drift is no part of it: a rate is compared with a rate.
    assert held.efficiency.value == pytest.approx(held.rate.value / (0.05 * usual))
    roomy = result(5 * usual, 1.0)
    assert roomy.promised == 1.0
    assert roomy.efficiency.value == pytest.approx(roomy.isolation.value)


def test_a_limit_of_a_disk_from_which_no_rate_follows_promises_nothing():
    limited = trial(treatment("disk", "limit", victim_limits=THROTTLED))
    result = cell(findings(Host().measure(limited, 40, {"disk": 0.5}), limited), "disk")
    assert (result.promised, result.efficiency) == (None, None)


def test_variation_is_found_where_the_effect_drifts_and_not_in_white_noise():
    random = np.random.default_rng(1)
    drifting = np.zeros(2000)
    for at in range(1, 2000):
        drifting[at] = 0.95 * drifting[at - 1] + math.sqrt(1 - 0.95**2) * random.standard_normal()
    size, significant = variation_of(0.1 * drifting + 0.1 * random.standard_normal(2000))
    assert significant
    assert size == pytest.approx(0.1, rel=0.15)
    alarms = sum(variation_of(random.standard_normal(100))[1] for _ in range(400))
    assert alarms < 40
    assert variation_of(np.ones(5)) is None


def test_the_curve_and_its_slope_follow_the_intensities():
    steps = trial(*(treatment(f"memory-copy@{i}", intensity=i) for i in (0.25, 0.5, 1.0)))
    factors = {f"memory-copy@{i}": 1 - 0.4 * i for i in (0.25, 0.5, 1.0)}
    curve = findings(Host().measure(steps, 40, factors), steps).curves[0]
    assert [point[0] for point in curve.points] == [0.25, 0.5, 1.0]
    assert curve.slope.low < 0.4 < curve.slope.high


def rarely_at_half(seed):
    """Two intensities on a host that drifts. Three of four blocks lack the smaller one."""
    steps = trial(*(treatment(f"copy@{i:g}", intensity=i, aggressor_of="memory-copy") for i in (0.5, 1.0)))
    measured = Host(seed, noise=0.01, drift=0.01).measure(steps, 120, {"copy@0.5": 0.8, "copy@1": 0.6})
    return steps, [o for o in measured if o.treatment != "copy@0.5" or o.block % 4 == 0]


def test_a_slope_is_that_of_the_cells_losses_where_blocks_lack_an_intensity():
    """It had a fit of its own, of the complete blocks alone, and so another estimate of the host's speed."""
    for seed in range(5):
        steps, measured = rarely_at_half(seed)
        result = findings(measured, steps)
        half, whole = (1 - cell(result, f"copy@{i:g}").isolation.value for i in (0.5, 1.0))
        assert result.curves[0].slope.value == pytest.approx((0.5 * half + whole) / 1.25, rel=1e-9)


@pytest.mark.long
def test_the_interval_of_a_slope_holds_the_truth_where_blocks_lack_an_intensity():
    slopes = [findings(measured, steps).curves[0].slope for steps, measured in map(rarely_at_half, range(60))]
    assert np.mean([slope.low <= 0.4 <= slope.high for slope in slopes]) >= 0.9


def test_a_curve_has_the_dose_that_its_aggressor_really_gave():
    steps = trial(*(treatment(f"memory-copy@{i}", intensity=i) for i in (0.25, 0.5)))
    asked = {"held_ns": 3 * 10**9, "asked_share": 0.3, "pressed_share": 0.3, "cpu_share": 0.31, "pauses_per_s": 9.0}
    late = asked | {"held_ns": 10**9, "pressed_share": 0.1}
    curve = Curve(trial="t", victim="v", aggressor="memory-copy", points=())
    facts = AgentFacts(facts={"memory-copy": ({"dose": asked}, {"dose": late}, {})})
    (known,) = agent_facts.dosed([curve], facts)
    assert known.dose.model_dump() == pytest.approx({"requested": 0.3, "pressed": 0.25, "cpu": 0.31})
    (text,) = agent_facts.said(steps, facts)
    assert "memory-copy was at work in 25.0% of its time at partial intensities, and 30.0% was requested on " in text
    assert "on average (25 %, 50 %);" in text
    assert not list(agent_facts.said(steps, AgentFacts(facts={"memory-copy": ({"dose": asked},)})))
    assert agent_facts.dosed([curve], None) == (curve,)


def test_one_intensity_makes_no_curve():
    assert findings(Host().measure(SINGLE, 20, {})).curves == ()


COUNTERS = {
    name: Counter(name, "1/s", kind, resource)
    for name, kind, resource in (
        ("bus", "total", "memory_bandwidth"),
        ("busy", "total", "cpu"),
        ("faults", "total", "memory_capacity"),
        ("reads", "total", "disk"),
        *((f"idle{i}", "total", "network") for i in range(10)),
    )
}


def counted(o: object, random: np.random.Generator, moved: dict[int, float]):
    """bus rises with the harm of its block; busy whenever a stressor works; reads fall; the rest is noise."""
    works, harms = o.treatment not in ("none", "null"), o.treatment == "memory-copy"
    noise = random.standard_normal
    values = {name: 100 + noise() for name in COUNTERS}
    values["bus"] += 50 + 200 * moved[o.block] if harms else 0
    values["busy"] += 40 if works else 0
    values["reads"] -= 30 if harms else 0
    return replace(o, rate=o.rate * (1 - moved[o.block] if harms else 1), counters=values)


def test_the_counter_that_moved_with_the_harm_is_the_cause_and_echoes_are_not():
    two = trial(COPY, treatment("cpu-integer"))
    random = np.random.default_rng(3)
    moved = dict(enumerate(random.uniform(0.1, 0.3, 60)))
    observations = [counted(o, random, moved) for o in Host().measure(two, 60, {})]
    result = findings(observations, two, COUNTERS)
    causes = cell(result, "memory-copy").causes
    assert [cause.counter for cause in causes] == ["bus"]
    assert causes[0].resource == "memory_bandwidth"
    assert causes[0].correlation.low > 0.5
    assert causes[0].resource == "memory_bandwidth"
    assert cell(result, "cpu-integer").causes == ()


def test_a_reading_missing_in_some_blocks_takes_only_those_blocks_from_its_counter():
    random = np.random.default_rng(3)
    moved = dict(enumerate(random.uniform(0.1, 0.3, 60)))
    observations = [counted(o, random, moved) for o in Host().measure(SINGLE, 60, {})]
    torn = [
        replace(o, counters={n: v for n, v in o.counters.items() if n != "bus"})
        if (o.block, o.treatment) in {(3, "none"), (9, "memory-copy"), (9, "none"), (12, "null")}
        else o
        for o in observations
    ]
    cause = cell(findings(torn, SINGLE, COUNTERS), "memory-copy").causes[0]
    assert (cause.counter, cause.difference.n) == ("bus", 58)
    assert "(read in 58 of 60 blocks)" in cause.text


def test_a_counter_read_in_too_few_blocks_is_no_cause():
    random = np.random.default_rng(3)
    moved = dict(enumerate(random.uniform(0.1, 0.3, 60)))
    observations = [counted(o, random, moved) for o in Host().measure(SINGLE, 60, {})]
    rare = [replace(o, counters=o.counters if o.block < 3 else {}) for o in observations]
    assert cell(findings(rare, SINGLE, COUNTERS), "memory-copy").causes == ()


def goal_outcome(goal, factor, blocks=40):
    result = findings(Host().measure(SINGLE, blocks, {"memory-copy": factor}), goals=(goal,))
    return result.verdicts[0]


@pytest.mark.parametrize(
    ("threshold", "outcome", "reason"),
    [
        (0.7, Outcome.HOLDS, "all of it at least 0.7"),
        (0.9, Outcome.VIOLATED, "all of it below 0.9"),
        (0.8, Outcome.INCONCLUSIVE, "0.8 lies within it; more blocks would narrow it"),
    ],
)
def test_a_goal_is_decided_only_by_a_whole_interval(threshold, outcome, reason):
    verdict = goal_outcome(Goal(isolation_factor=threshold), 0.8)
    assert verdict.outcome is outcome
    assert f": {reason}" in verdict.reason


@pytest.mark.parametrize(("blocks", "said"), [(24, True), (149, True), (150, False)])
def test_a_verdict_on_fewer_blocks_than_intervals_need_says_so(blocks, said):
    verdict = goal_outcome(Goal(isolation_factor=0.7), 0.8, blocks)
    assert verdict.outcome is Outcome.HOLDS
    assert (f"on {blocks} blocks, of 150 from which" in verdict.reason) == said
    assert (verdict.blocks, verdict.rough) == (blocks, said)


def test_a_null_that_lengthens_the_latency_is_reported_and_widens_what_decides_a_goal():
    longer = {"null": 1.15, "memory-copy": 1.15}
    goal = Goal(latency_impact_p99=0.1)
    result = findings(with_latency(Host().measure(SINGLE, 40, {"memory-copy": 0.8}), longer), goals=(goal,))
    assert result.bands[0].null_latency["p99"].low > 0.1
    assert Warn.NULL_LATENCY in cell(result, "memory-copy").warnings
    assert Warn.NULL_EFFECT not in cell(result, "memory-copy").warnings
    assert result.verdicts[0].outcome is Outcome.INCONCLUSIVE
    assert "latency impact at p99 (widened, because the A/A check failed)" in result.verdicts[0].reason
    assert "Not reliable: an idle neighbour seemed to change the p99 latency of copy by " in result.headline
    assert any("had an effect on the p99 latency; the A/A check failed" in warning for warning in result.warnings)


def test_a_latency_goal_is_violated_where_the_null_shows_no_latency():
    goal = Goal(latency_impact_p99=0.1)
    observations = with_latency(Host().measure(SINGLE, 40, {"memory-copy": 0.8}), {"memory-copy": 1.3}, seed=3)
    result = findings(observations, goals=(goal,))
    assert Warn.NULL_LATENCY not in cell(result, "memory-copy").warnings
    assert result.verdicts[0].outcome is Outcome.VIOLATED
    assert "all of it above 0.1" in result.verdicts[0].reason


def test_a_bound_on_the_latency_itself_is_judged_by_all_of_its_interval():
    observations = with_latency(Host().measure(SINGLE, 40, {"memory-copy": 0.8}), {"memory-copy": 1.3}, seed=3)
    seen = cell(findings(observations), "memory-copy").latency_ns["p99"]
    goals = tuple(Goal(latency_p99=f"{round(bound)}ns") for bound in (seen.low * 0.9, seen.value, seen.high * 1.1))
    verdicts = findings(observations, goals=goals).verdicts
    assert [each.outcome for each in verdicts] == [Outcome.VIOLATED, Outcome.INCONCLUSIVE, Outcome.HOLDS]
    assert verdicts[0].reason.startswith("latency at p99 in ms ")


@pytest.mark.long
def test_a_null_that_does_nothing_to_the_latency_alarms_at_about_the_level():
    lone, runs = trial(), 40
    made = (with_latency(Host(seed).measure(lone, 60, {}), {}, seed, operations=60) for seed in range(runs))
    alarms = sum(bool(failed_checks(bands_of(lone, Measured.of(o)))[1]) for o in made)
    assert alarms <= 0.05 * runs + 2.6 * math.sqrt(0.05 * 0.95 * runs)


def test_a_goal_that_matches_nothing_is_inconclusive_and_says_so():
    verdict = goal_outcome(Goal(victim="nobody", isolation_factor=0.5), 0.8)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "no measured cell matches victim 'nobody'" in verdict.reason


def test_too_few_blocks_never_hold():
    verdict = goal_outcome(Goal(isolation_factor=0.1), 0.8, blocks=10)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == "only 10 blocks; give the run more budget"


def test_a_latency_goal_without_enough_operations_is_inconclusive():
    verdict = goal_outcome(Goal(latency_impact_p99=0.1), 0.8)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "too few operations" in verdict.reason


def test_goals_are_about_neighbours_and_not_about_the_null():
    result = findings(Host().measure(SINGLE, 40, {"memory-copy": 0.8}), goals=(Goal(isolation_factor=0.5),))
    assert [v.treatment for v in result.verdicts] == ["memory-copy"]


def test_an_efficiency_goal_has_two_sides():
    limited = trial(limit("half", 0.5))
    observations = Host().measure(limited, 40, {"half": 0.65})
    result = findings(observations, limited, goals=(Goal(efficiency=(0.9, 1.1)), Goal(efficiency=(0.9, 1.5))))
    assert [v.outcome for v in result.verdicts] == [Outcome.VIOLATED, Outcome.HOLDS]
    assert ": all of it above 1.1;" in result.verdicts[0].reason
    assert ": all of it at least 0.9 and at most 1.5;" in result.verdicts[1].reason


def test_a_failed_check_of_nothing_widens_what_decides_a_goal():
    factors = {"memory-copy": 0.8, "null": 0.9}
    result = findings(Host().measure(SINGLE, 40, factors), goals=(Goal(isolation_factor=0.8),))
    assert result.verdicts[0].outcome is Outcome.INCONCLUSIVE
    assert "A/A check failed" in result.verdicts[0].reason


def test_checkpoints_grow_by_a_quarter():
    points = checkpoints(20)
    assert [next(points) for _ in range(5)] == [20, 25, 32, 40, 50]


def requested(blocks, precision) -> object:
    return enough(Host().measure(SINGLE, blocks, {"memory-copy": 0.8}), SINGLE.treatments, precision)


def test_precision_is_unknown_before_the_first_checkpoint():
    result = requested(19, 0.5)
    assert (result.reached, result.half_width, result.next_blocks) == (False, None, 20)
    assert not enough([], SINGLE.treatments, 0.5).reached


def test_precision_looks_only_at_checkpoints():
    at, between = requested(25, 0.01), requested(31, 0.01)
    assert between == at
    assert at.blocks == 25
    assert at.next_blocks == 32


def test_precision_is_reached_with_enough_blocks_and_not_before():
    assert not requested(310, 0.0005).reached
    assert not requested(300, 0.01).reached  # the last look was at 243 blocks
    assert requested(310, 0.01).reached


def test_the_baseline_is_required_to_be_there():
    lone: tuple[Treatment, ...] = (COPY,)
    with pytest.raises(ValueError, match=r"no baseline among the treatments \(memory-copy\)"):
        enough(Host().measure(SINGLE, 30, {}), lone, 0.1)


def test_a_limit_is_no_point_of_a_sensitivity_curve():
    steps = trial(
        treatment("memory-copy@0.5", intensity=0.5),
        treatment("memory-copy@1"),
        limit("cpu_limit=0.5", 0.5),
        treatment("memory-copy@1,cpu_limit=0.5", victim_limits=Limits(cpu_limit=0.5)),
    )
    result = findings(Host().measure(steps, 30, {"memory-copy@1,cpu_limit=0.5": 0.4}), steps)
    assert [point[0] for point in result.curves[0].points] == [0.5, 1.0]
    assert result.headline.startswith("No neighbour has an effect")


def test_precision_counts_the_longer_arm_of_an_interval_that_ends_at_a_bound():
    stalled = [
        replace(o, rate=0.0, early_rate=0.0, late_rate=0.0) if o.treatment == "memory-copy" else o
        for o in Host().measure(SINGLE, 20, {})
    ]
    assert enough(stalled, SINGLE.treatments, 0.01).half_width == pytest.approx(1 - 0.05 ** (1 / 20))


def test_a_precision_that_rests_on_few_independent_blocks_is_not_believed():
    observations = Host(noise=0.0001).measure(SINGLE, 25, {})
    wander = 0.001 * np.cumsum(np.random.default_rng(2).standard_normal(25))
    drifting = [replace(o, rate=o.rate * (1 + wander[o.block] * (o.treatment != "none"))) for o in observations]
    result = enough(drifting, SINGLE.treatments, 0.05)
    assert result.half_width < 0.05
    assert not result.reached


THREE = trial(COPY, treatment("cpu-integer"), treatment("cache"))


def harmed_late(observations, lag, rest):
    """The harm of memory-copy strikes `lag` slots after its own."""
    order = sorted(observations, key=lambda o: o.start_ns)
    struck = [at >= lag and order[at - lag].treatment == "memory-copy" for at in range(len(order))]
    return [replace(o, rate=o.rate * rest) if hit else o for o, hit in zip(order, struck, strict=True)]


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_harm_that_comes_slots_later_is_carry_over_and_said(lag):
    observations = harmed_late(Host().measure(THREE, 60, {}), lag, 0.6)
    assert carry_over(observations, THREE.treatments)["memory-copy"].deferred.lag == lag
    result = findings(observations, THREE, goals=(Goal(isolation_factor=0.1, aggressor="memory-copy"),))
    late = cell(result, "memory-copy").carry_over
    assert late.present
    assert late.deferred.change.low < -0.4 < late.deferred.change.high + 0.1
    assert result.verdicts[0].outcome is Outcome.INCONCLUSIVE
    assert any("after memory-copy were" in text and "slower" in text for text in result.warnings)


@pytest.mark.long
def test_harm_that_comes_and_goes_with_its_slots_is_not_called_late():
    factors = {"memory-copy": 0.5, "cache": 0.9}
    runs = [carry_over(Host(seed, drift=0.003).measure(THREE, 25, factors), THREE.treatments) for seed in range(80)]
    alarms = sum(any(test.present for test in run.values()) for run in runs)
    assert alarms <= 0.05 * len(runs) + 2 * math.sqrt(0.05 * 0.95 * len(runs))


def test_too_few_blocks_say_nothing_of_late_harm():
    late = carry_over(harmed_late(Host().measure(THREE, 5, {}), 1, 0.6), THREE.treatments)
    assert late["memory-copy"].deferred is None


@pytest.mark.parametrize("threshold", [0.7, 0.9])
def test_nothing_holds_while_the_harm_may_be_understated(threshold):
    moving = Host().measure(SINGLE, 40, {"memory-copy": 0.8}, late={"memory-copy": -0.06})
    weak = [replace(o, achieved={"memory-copy": 0.3}) for o in Host().measure(SINGLE, 40, {"memory-copy": 0.8})]
    for observations, doubt in ((moving, "still changed inside the slots"), (weak, "did not reach its intensity")):
        verdict = findings(observations, goals=(Goal(isolation_factor=threshold),)).verdicts[0]
        assert verdict.outcome is (Outcome.VIOLATED if threshold == 0.9 else Outcome.INCONCLUSIVE)
        assert doubt in verdict.reason


LIMITS = Limits(cpu_limit=0.5)
THROTTLED = Limits(disk=Throttle(read_bps=5_000_000))
BESIDE = treatment("memory-copy@1,cpu_limit=0.5", victim_limits=LIMITS)
LIMITED = trial(limit("cpu_limit=0.5", 0.5), BESIDE)


def limited_findings(*goals):
    factors = {"cpu_limit=0.5": 0.5, BESIDE.id: 0.4}
    return findings(Host().measure(LIMITED, 40, factors), LIMITED, goals=goals)


def test_a_neighbour_beside_a_limited_victim_is_compared_with_the_limit_alone():
    beside = cell(limited_findings(), BESIDE.id)
    assert beside.baseline == "cpu_limit=0.5"
    assert beside.isolation.low < 0.8 < beside.isolation.high
    assert beside.baseline_rate.value == pytest.approx(0.5e6, rel=0.02)
    assert beside.efficiency.low < 0.8 < beside.efficiency.high


def test_a_limit_owes_its_share_beside_a_neighbour_only_if_the_goal_names_that_neighbour():
    anyone = limited_findings(Goal(efficiency=(0.9, 1.1)))
    assert [(v.treatment, v.outcome) for v in anyone.verdicts] == [("cpu_limit=0.5", Outcome.HOLDS)]
    named = limited_findings(Goal(efficiency=(0.9, 1.1), aggressor=BESIDE.aggressor))
    assert [(v.treatment, v.outcome) for v in named.verdicts] == [(BESIDE.id, Outcome.VIOLATED)]


def test_a_neighbour_beside_a_limit_that_was_not_measured_alone_is_missing():
    of = trial(BESIDE)
    result = findings(Host().measure(of, 40, {BESIDE.id: 0.4}), of)
    assert BESIDE.id not in {c.treatment for c in result.cells}
    assert any(BESIDE.label in text for text in result.incomplete)


def test_a_reservation_is_a_floor_and_more_than_it_is_no_fault():
    reserved = SINGLE.model_copy(update={"victim": Victim(probe="memory-copy", sandbox=Sandbox(cpu_reservation=0.5))})
    observations = Host().measure(reserved, 40, {"memory-copy": 0.8})
    verdict = findings(observations, reserved, goals=(Goal(efficiency=(0.9, 1.1)),)).verdicts[0]
    assert (verdict.treatment, verdict.outcome) == ("memory-copy", Outcome.HOLDS)


def test_the_length_of_the_slots_is_read_from_what_was_measured():
    longer = [replace(o, end_ns=o.start_ns + 4 * (o.end_ns - o.start_ns)) for o in Host().measure(SINGLE, 20, {})]
    result = carry_over(longer, SINGLE.treatments)["memory-copy"]
    assert (result.slot_ns, result.lengthened) == (400_000_000, 4)
    assert carry_over(Host().measure(SINGLE, 20, {}), SINGLE.treatments)["memory-copy"].lengthened == 0


def timed(o, random, slower):
    """Operations of about 10 µs; a share of them takes ten times as long where a neighbour makes it so."""
    values = random.lognormal(9.2, 0.1, 400) * np.where(random.random(400) < slower.get(o.treatment, 0.005), 10, 1)
    counts: dict[int, int] = {}
    for value in values.astype(int):
        bucket = bucket_of(int(value))
        counts[bucket] = counts.get(bucket, 0) + 1
    return replace(o, latency=Histogram(counts))


def test_a_latency_that_rose_alone_is_seen_against_its_own_band_and_stands_in_the_headline():
    two = trial(COPY, treatment("disk-write"))
    random = np.random.default_rng(5)
    observations = [timed(o, random, {"disk-write": 0.1}) for o in Host().measure(two, 40, {})]
    result = findings(observations, two)
    (band,) = result.bands
    low, high = band.latency["p99"]
    assert low < 0 < high
    slow, calm, null = (cell(result, name) for name in ("disk-write", "memory-copy", "null"))
    assert slow.effect is not Effect.SEEN
    assert slow.latency_effect["p99"] is Effect.SEEN
    assert Effect.SEEN not in {calm.latency_effect["p99"], null.latency_effect["p99"]}
    assert result.headline.startswith("The p99 latency of copy beside disk-write (next core) grows to ")
    assert result.headline.endswith("No neighbour has an effect on throughput above ±5 %.")


def test_a_switched_limit_has_an_a_a_check_of_its_own():
    alone = limit("half", 0.5)
    beside = treatment("memory-copy,half", aggressor_of="memory-copy", victim_limits=alone.victim_limits)
    idle = treatment("null,half", "null", victim_limits=alone.victim_limits)
    of = trial(COPY, alone, idle, beside)
    observations = Host().measure(of, 40, {"half": 0.5, "null,half": 0.5, "memory-copy,half": 0.4, "memory-copy": 0.8})
    result = findings(observations, of)
    assert [(band.baseline, round(band.null.value, 1)) for band in result.bands] == [("none", 1.0), ("half", 1.0)]
    assert cell(result, "memory-copy,half").baseline == "half"
    assert cell(result, "null,half").efficiency is None
    assert cell(result, "null,half").effect is not Effect.SEEN


def test_a_cell_says_in_what_its_a_a_check_differed():
    of = trial(COPY, treatment("disk-write").model_copy(update={"guard_ns": 100_000_000, "slot_ns": 50_000_000}))
    of = of.model_copy(update={"aggressor_cpus": {"memory-copy": (1,), "disk-write": (0,)}})
    result = findings(Host().measure(of, 10, {}), of)
    assert cell(result, "memory-copy").uncontrolled == ()
    assert cell(result, "disk-write").uncontrolled == ("guard 100 ms, not 10", "slot 50 ms, not 100", "CPU 0, not 1")


def commanded(on, off, moved=0.0):
    """A neighbour that is a command, with what it used while on and off."""
    of = SINGLE.model_copy(update={"aggressors": {"memory-copy": Aggressor(command=("job",))}})
    reported = [
        replace(o, used={"memory-copy": on if o.treatment == "memory-copy" else off}, moved={"memory-copy": moved})
        for o in Host().measure(of, 20, {})
    ]
    return findings(reported, of, goals=(Goal(isolation_factor=0.5),))


@pytest.mark.parametrize(
    ("on", "off", "moved", "warned"),
    [
        (0.9, 0.0, 0.0, set()),
        (0.001, 0.0, 0.0, {Warn.AGGRESSOR_IDLE}),
        (0.001, 0.0, 5e6, set()),
        (0.9, 0.85, 0.0, {Warn.AGGRESSOR_NOT_STOPPED}),
        (0.9, 0.05, 0.0, set()),
    ],
)
def test_a_command_that_did_nothing_or_did_not_stop_is_reported_and_nothing_holds(on, off, moved, warned):
    result = commanded(on, off, moved)
    of = cell(result, "memory-copy")
    assert {Warn.AGGRESSOR_IDLE, Warn.AGGRESSOR_NOT_STOPPED} & set(of.warnings) == warned
    assert (of.used, of.used_off) == (pytest.approx(on), pytest.approx(off))
    assert (result.outcome is Outcome.HOLDS) == (not warned)


def witnessed(of, **more):
    made = evidence(plan(of), Host().measure(of, 20, {}))
    return analyse(replace(made, agent_facts={of.id: AgentFacts(**more)}))


def test_cells_of_emulated_sandboxes_say_so_and_no_others():
    two = trial(COPY, treatment("disk-write"))
    result = witnessed(two, emulated=("disk-write",))
    assert [c.treatment for c in result.cells if Warn.EMULATED in c.warnings] == ["disk-write"]
    assert all(Warn.EMULATED in c.warnings for c in witnessed(two, emulated=("victim",)).cells)


def test_cells_of_an_aggressor_whose_calibration_was_disturbed_say_so_and_no_others():
    result = witnessed(trial(COPY, treatment("disk-write")), disturbed=("disk-write",))
    assert [c.treatment for c in result.cells if Warn.CALIBRATION_DISTURBED in c.warnings] == ["disk-write"]


def test_a_cell_says_so_of_every_neighbour_that_presses_in_it():
    both = treatment("copies").model_copy(update={"intensities": {"disk-write": 1.0, "copies": 1.0}})
    together = trial(COPY, treatment("disk-write"), both)
    result = witnessed(together, emulated=("disk-write",))
    assert [c.treatment for c in result.cells if Warn.EMULATED in c.warnings] == ["disk-write", "copies"]


@pytest.mark.parametrize(("probe", "cached", "said"), [
    ("disk-read", 50, True), ("disk-read", 5, False), ("disk-reread", 100, False), ("disk-read", None, False),
])  # fmt: skip
def test_a_disk_read_that_the_page_cache_served_says_so(probe, cached, said):
    of = trial(COPY, probe=probe)
    result = witnessed(
        of, facts={"victim": ({"cached_bytes": 0, "file_bytes": 100}, {"cached_bytes": cached, "file_bytes": 100})}
    )
    assert {Warn.SHARED_DISK_CACHE in c.warnings for c in result.cells} == {said}


def test_lost_lines_and_useless_readings_are_reported_of_the_command_they_concern():
    result = witnessed(
        SINGLE, dropped={"memory-copy": 7}, readings={"victim": Readings(80, 0, 20), "memory-copy": Readings(99, 1, 0)}
    )
    _, lost, bunched = result.warnings
    assert "7 lines of memory-copy's output" in lost
    assert "metric of copy: 20 of 100 readings arrived together" in bunched


def test_a_slow_treatment_is_judged_in_long_blocks_by_a_band_of_their_own():
    short = [o for o in Host(1).measure(SINGLE, 310, {}) if o.treatment != "memory-copy"]
    long = [replace(o, long=True, block=o.block + 1000) for o in Host(2).measure(SINGLE, 305, {"memory-copy": 0.8})]
    result = findings([*short, *long])
    slow = cell(result, "memory-copy")
    assert (slow.long, slow.isolation.n) == (True, 305)
    assert {(band.long, band.null.n) for band in result.bands} == {(False, 310), (True, 305)}
    assert enough([*short, *long], SINGLE.treatments, 0.5).reached
    assert not enough([*short, *long[: 3 * len(SINGLE.treatments)]], SINGLE.treatments, 0.5).reached


@pytest.mark.parametrize(("straddle", "said"), [(0.04, False), (0.06, True)])
def test_a_victim_that_reports_too_seldom_for_its_slots_is_reported_of(straddle, said):
    seen = [replace(o, straddle=straddle) for o in Host(1).measure(SINGLE, 60, {"memory-copy": 0.8})]
    assert {Warn.COARSE_VICTIM in c.warnings for c in findings(seen).cells} == {said}


def test_an_effect_that_only_long_slots_show_is_carry_over():
    short = Host(1).measure(SINGLE, 60, {})
    long = [replace(o, long=True, block=o.block + 1000) for o in Host(2).measure(SINGLE, 30, {"memory-copy": 0.8})]
    result = carry_over([*short, *long], SINGLE.treatments)
    assert result["memory-copy"].present
    assert result["memory-copy"].longer.high < -0.1
    assert not result["null"].present
