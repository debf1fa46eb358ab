"""The host's speed, from the slots around a slot: what it removes, and what it must leave alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from partywall.core.stats.interval import ratio_of_means
from partywall.run.findings.series import Measured, Pair, Series, pairs_of
from partywall.run.findings.speed import rates_of
from partywall.run.values.observation import Observation
from partywall.run.values.plan import Trial
from tests.run.findings.builders import Host, limit, treatment, trial

MANY = trial(*(treatment(f"s{number}") for number in range(4)))
NAMES = tuple(t.id for t in MANY.treatments)


def short(observations: list[Observation]) -> Series:
    return Measured.of(observations).short


def against_both(series: Series, name: str) -> Pair:
    return series.pair(name, "none", "null")


def wandering(of: Trial, blocks: int, seed: int, factors: dict[str, float], persistence: float) -> list[Observation]:
    """Observations on a host whose speed returns to its mean, by 4 %, after some slots."""
    plain = sorted(Host(seed, noise=0.01).measure(of, blocks, factors), key=lambda o: o.start_ns)
    random, speed, result = np.random.default_rng(seed), 0.0, []
    for observation in plain:
        speed = persistence * speed + 0.04 * float(np.sqrt(1 - persistence**2) * random.standard_normal())
        result.append(replace(observation, rate=observation.rate * (1 + speed)))
    return result


@pytest.mark.long
@pytest.mark.parametrize(("persistence", "most"), [(0.0, 0.85), (0.9, 0.65)])
def test_an_effect_is_known_sooner_on_a_host_that_wanders(persistence: float, most: float):
    """With nothing to be told by neighbours, two references instead of one leave three fourths of the variance."""
    squares = np.zeros(2)
    for seed in range(60):
        series = short(wandering(MANY, 40, seed, {"s0": 0.8}, persistence))
        pair = against_both(series, "s0")
        plain = ratio_of_means(pair.treated.rate, pair.baseline.rate)
        squares += np.square([pair.factor().value - 0.8, plain.value - 0.8])
    assert squares[0] < most * squares[1]


@pytest.mark.long
@pytest.mark.parametrize("persistence", [0.0, 0.9])
def test_intervals_hold_the_truth_for_null_and_real_effects(persistence: float):
    kept = {"s0": 0.8, "s1": 0.5}
    held = []
    for seed in range(100):
        series = short(wandering(MANY, 60, seed, kept, persistence))
        for name in NAMES[1:]:
            factor = (series.pair(name, "none") if name == "null" else against_both(series, name)).factor()
            held.append(factor.low <= kept.get(name, 1.0) <= factor.high)
    assert np.mean(held) >= 0.93


def test_stalls_of_one_treatment_count_for_it_and_not_for_the_others():
    random = np.random.default_rng(3)
    whole = wandering(MANY, 400, 3, {}, 0.9)
    halted = [replace(o, rate=0.0) if o.treatment == "s1" and random.random() < 0.1 else o for o in whole]
    stalls = sum(o.rate == 0 for o in halted) / 400
    before, after = short(whole), short(halted)
    assert against_both(after, "s1").factor().value == pytest.approx(1 - stalls, abs=0.01)
    for name in ("s0", "s2", "s3"):
        changed = against_both(after, name).factor().value - against_both(before, name).factor().value
        assert abs(changed) < 0.001


def test_a_treatment_at_a_standstill_tells_nothing_of_the_host():
    observations = wandering(MANY, 60, 4, {}, 0.9)
    halted = [replace(o, rate=0.0) if o.treatment == "s1" else o for o in observations]
    series = short(halted)
    stopped = against_both(series, "s1").factor()
    assert (stopped.value, stopped.low) == (0, 0)
    assert stopped.high == pytest.approx(1 - 0.05 ** (1 / 60))
    others = short([o for o in observations if o.treatment != "s1"])
    assert against_both(series, "s2").factor().value == pytest.approx(
        against_both(others, "s2").factor().value, abs=0.003
    )


def test_nothing_is_told_across_the_gap_between_two_turns():
    """The host is a fifth faster in the second turn, and everything else is the same."""
    first = wandering(MANY, 30, 5, {"s0": 0.8}, 0.9)
    later_ns = 100 * max(o.end_ns for o in first)
    second = [
        replace(o, block=o.block + 30, start_ns=o.start_ns + later_ns, end_ns=o.end_ns + later_ns, rate=1.2 * o.rate)
        for o in first
    ]
    once, twice = (against_both(short(each), "s0").factor() for each in (first, [*first, *second]))
    assert twice.value == pytest.approx(once.value, abs=0.004)


def test_blocks_that_lack_a_treatment_tell_of_the_host_and_are_not_counted():
    observations = wandering(MANY, 60, 6, {"s0": 0.8}, 0.9)
    thinned = [o for o in observations if o.treatment != "s0" or o.block % 3 == 0]
    pair = against_both(short(thinned), "s0")
    assert len(pair) == len(pair.values) == 20
    assert pair.factor().value == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("kept_beside_null", "alike"), [(1.0, True), (0.9, False)])
def test_a_neighbour_is_compared_with_a_null_too_unless_this_has_an_effect(kept_beside_null: float, alike: bool):
    half = limit("half", 0.5)
    beside = treatment("s0,half", victim_limits=half.victim_limits)
    null = treatment("null,half", "null", victim_limits=half.victim_limits)
    limited = trial(treatment("s0"), half, null, beside)
    factors = {"null": kept_beside_null, "s0": 0.95, "half": 0.5, "null,half": kept_beside_null / 2, "s0,half": 0.45}
    series = short(Host(noise=0.01).measure(limited, 40, factors))
    got = {t.id: pair for t, pair in pairs_of(series, limited.treatments)}
    assert got["null"] is series.pair("null", "none")
    assert got["null,half"] is series.pair("null,half", "half")
    assert (got["s0"] is series.pair("s0", "none", "null")) == alike
    assert (got["s0"] is series.pair("s0", "none")) != alike
    assert (got["s0,half"] is series.pair("s0,half", "half", "null,half")) == alike


def lasting(observations: list[Observation], losses: dict[str, float], *shares: float) -> list[Observation]:
    """The same, with shares of each treatment's loss taken from the next slots, if they hold another treatment."""
    held = [o.treatment for o in observations]
    result = []
    for at, observation in enumerate(observations):
        before = [(held[at - lag], share) for lag, share in enumerate(shares, start=1) if at >= lag]
        after = 1 - sum(share * losses.get(name, 0.0) for name, share in before if name != held[at])
        result.append(replace(observation, rate=observation.rate * after))
    return result


@pytest.mark.long
@pytest.mark.parametrize("neighbours", [1, 6])
@pytest.mark.parametrize("shares", [(), (0.08,), (0.16,)])
def test_an_effect_that_outlasts_its_slot_is_neither_taken_for_the_host_nor_for_the_reference(
    neighbours: int, shares: tuple[float, ...]
):
    """With one neighbour, nearly every other reference slot comes right after it."""
    several = trial(*(treatment(f"s{number}") for number in range(neighbours)))
    held = []
    for seed in range(40):
        observations = lasting(wandering(several, 300, seed, {"s0": 0.8}, 0.9), {"s0": 0.2}, *shares)
        series = Measured.of(observations, several.treatments).short
        factor = against_both(series, "s0").factor()
        held.append(factor.low <= 0.8 <= factor.high)
    assert np.mean(held) >= 0.85


def test_after_effects_are_estimated_by_treatment_and_lag():
    observations = lasting(wandering(MANY, 600, 11, {"s0": 0.6, "s1": 0.8}, 0.9), {"s0": 0.4}, 0.2, 0.1)
    rates = Measured.of(observations, MANY.treatments).short.rates
    after = dict(zip(rates.treatments, rates.after.T, strict=True))
    assert after["s0"][:2] == pytest.approx([-0.08, -0.04], abs=0.008)
    assert abs(after["s0"][2]) < 0.008
    for name in ("s1", "s2", "s3"):
        assert np.abs(after[name]).max() < 0.01
    assert not after["none"].any()
    assert not after["null"].any()


def test_few_slots_tell_no_after_effects():
    observations = lasting(wandering(MANY, 99, 12, {"s0": 0.6}, 0.9), {"s0": 0.4}, 0.2)
    assert not Measured.of(observations, MANY.treatments).short.rates.after.any()


def test_no_after_effect_reaches_over_a_gap():
    """What comes last in each turn seems to slow what comes first in the next."""
    names, turns = ("none", "null", "s0"), 100
    moment = (1000 * np.arange(turns)[:, None] + np.arange(4)).ravel()
    place = np.tile([0, 1, 0, 2], turns)
    rate = np.tile([0.9, 1.0, 1.0, 0.8], turns) * (1 + 0.01 * np.random.default_rng(13).standard_normal(4 * turns))
    assert not rates_of(rate, place, moment, names, ["s0"]).after.any()
    assert rates_of(rate, place, np.arange(4.0 * turns), names, ["s0"]).after[0, 2] == pytest.approx(-0.1, abs=0.02)


def test_a_rate_at_a_ceiling_does_not_decide_for_the_others():
    """Otherwise it would count most, and say that the host is steady."""
    whole = wandering(MANY, 150, 8, {"s0": 0.8}, 0.9)
    ceiling = 0.9 * float(np.median([o.rate for o in whole if o.treatment == "s1"]))
    random = np.random.default_rng(8)
    capped = [replace(o, rate=ceiling) if o.treatment == "s1" and random.random() < 0.8 else o for o in whole]
    errors = [np.std(against_both(short(each), "s0").values) for each in (capped, whole)]
    assert errors[0] < 1.1 * errors[1]


def test_few_slots_do_not_mistake_the_level_of_all_treatments_for_the_host():
    """Only the weights at the ends of a turn tell them apart."""
    for seed in range(60):
        series = short(wandering(MANY, 8, seed, {"s0": 0.8}, 0.98))
        plain = [series.seen.rate[series.seen.treatment == name].mean() for name in series.rates.treatments]
        assert series.rates.mean == pytest.approx(plain, rel=0.08)


def test_rates_so_irregular_that_the_host_would_stand_still_are_used_as_they_are():
    random, speed, irregular = np.random.default_rng(63), 0.0, []
    for observation in sorted(Host(63, noise=0.01).measure(MANY, 8, {}), key=lambda o: o.start_ns):
        speed = 0.9 * speed + float(np.sqrt(1 - 0.9**2) * random.standard_normal())
        irregular.append(replace(observation, rate=observation.rate * float(np.exp(3 * speed))))
    rates = short(irregular).rates
    plain = [np.mean([o.rate for o in irregular if o.treatment == name]) for name in rates.treatments]
    assert rates.mean == pytest.approx(plain)


@pytest.mark.long
def test_statistics_do_not_load_what_takes_half_a_second():
    """Every report and every continued run would begin so much later."""
    slow = "bool({'scipy.stats', 'scipy.signal'} & set(sys.modules))"
    program = f"import sys, partywall.run.findings.analysis; sys.exit({slow})"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
