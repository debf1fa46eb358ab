"""Effects of known truth, by simulation."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies
from scipy import signal

from partywall.blame.code import Code
from partywall.blame.decide import Rule, State, selected
from partywall.blame.effects import effects, fit, reductions

CODE = Code(6, 3)


def noise(random: np.random.Generator, slots: int, heavy: bool = False) -> np.ndarray:
    """Slow drift and white noise of 3 %; heavy: with stalls."""
    drift = signal.lfilter([1], [1, -0.97], 0.01 * random.standard_normal(slots))
    stalls = 0.5 * (random.random(slots) < 0.01) if heavy else 0
    return 1 + drift + 0.03 * random.standard_normal(slots) - stalls


@pytest.mark.parametrize("heavy", [False, True])
def test_intervals_cover_the_truth_in_95_of_100(heavy: bool):
    random, truth = np.random.default_rng(1), np.array([0.04, 0.0, 0.0, -0.02, 0.0, 0.0])
    inside = total = 0
    for seed in range(80):
        code = Code(6, seed).blocks(8)
        rate = 500 * noise(random, len(code), heavy) * (1 + (code - 0.5) @ truth)
        found = fit(rate, code, CODE.block_slots)
        reach = 1.97 * found.error
        inside += int((np.abs(found.effect - truth) < reach).sum())
        total += len(truth)
    assert 0.92 < inside / total < 0.98


def test_a_pulse_that_acts_late_is_found_at_its_delay():
    random, code = np.random.default_rng(2), CODE.blocks(20)
    ticks = np.repeat(code[:, 1], 4).astype(float)
    late = np.concatenate([np.zeros(2), ticks[:-2]])
    rate = 100 * (1 + 0.05 * late + 0.03 * random.standard_normal(len(ticks)))
    found = effects(rate, code, CODE.block_slots, (0, 1, 2, 4), 4)
    assert found.delay[1] == 2
    assert found.effect[1] == pytest.approx(0.05, abs=0.01)


def test_two_suspects_with_a_joint_effect_are_not_blamed_for_more_than_their_own():
    random, code = np.random.default_rng(3), CODE.blocks(40)
    sign = np.where(code, 1, -1)
    rate = 1 + 0.2 * sign[:, 0] * sign[:, 1] / 2 + 0.02 * random.standard_normal(len(code))
    found = fit(rate, code, CODE.block_slots)
    assert np.abs(found.effect).max() < 5 * found.error.max()


def test_what_pulses_take_from_a_suspect_is_measured_and_an_idle_one_is_not_known():
    random, code = np.random.default_rng(4), CODE.blocks(20)
    use = np.column_stack([(1 - 0.5 * code[:, 0]) * (1 + 0.1 * random.standard_normal(len(code))), np.zeros(len(code))])
    values, errors = reductions(use, code[:, :2].astype(float), CODE.block_slots)
    assert values[0] == pytest.approx(0.5, abs=0.05)
    assert errors[0] < 0.05
    assert np.isnan(values[1])


def test_too_few_slots_and_an_idle_victim_are_refused():
    with pytest.raises(ValueError, match="too few"):
        fit(np.ones(12), CODE.block(0)[:12], CODE.block_slots)
    with pytest.raises(ValueError, match="did nothing"):
        fit(np.zeros(160), CODE.blocks(10), CODE.block_slots)


def test_the_selection_is_that_of_holm():
    p = np.array([0.001, 0.2, 0.012, 0.03, 0.9])
    assert selected(p, 0.05).tolist() == [True, False, True, False, False], "0.03 is above 0.05 / 3"
    assert not selected(np.array([0.02, 0.5, 0.6]), 0.05).any()
    assert selected(np.array([0.04, 0.001]), 0.05).all()
    assert not selected(np.array([0.03, 0.026]), 0.05).any(), "the first one fails, so the second is not tried"


def test_looks_grow_and_end_with_the_budget():
    rule = Rule(CODE, 100_000_000, 60_000_000_000)
    assert rule.looks[0] * CODE.block_slots >= 60
    assert Rule(Code(16, 1), 100_000_000, 60_000_000_000).looks[0] * 40 >= 104
    assert rule.looks[-1] == rule.blocks_most == 60_000_000_000 // (CODE.block_slots * 100_000_000)
    assert list(rule.looks) == sorted(set(rule.looks))


def test_a_suspect_that_its_lever_does_not_slow_down_is_neither_named_nor_cleared():
    random = np.random.default_rng(6)
    rule = Rule(Code(3, 1), 100_000_000, 60_000_000_000)
    depths = rule.depths(rule.blocks_most)
    ticks = 100 * (1 + 0.02 * random.standard_normal(len(depths) * 4))
    use = 1 + 0.02 * random.standard_normal((len(depths), 2))
    use[:, 0] -= depths[:, 0]
    look = rule.look(("held", "free"), ticks, use)
    states = {each.suspect: each.state for each in look.standings}
    assert states == {"held": State.CLEARED, "free": State.UNHELD}
    assert not look.dummy_fails


def test_a_suspect_that_was_named_stays_named_when_it_does_nothing_any_more():
    random = np.random.default_rng(8)
    rule = Rule(Code(3, 1), 100_000_000, 60_000_000_000)
    depths = rule.depths(rule.blocks_most)
    does = np.where(np.arange(len(depths)) < 200, 0.5, 0.0)
    use = 1 - depths[:, :2] + 0.02 * random.standard_normal((len(depths), 2))
    rate = 100 * (1 + does * depths[:, 0] + 0.1 * random.standard_normal(len(depths)))
    ticks, early = np.repeat(rate, 4), 160
    first = rule.look(("a", "b"), ticks[: early * 4], use[:early])
    assert [each.suspect for each in first.guilty] == ["a"]
    later = rule.look(("a", "b"), ticks, use, before=["a"])
    assert [each.suspect for each in later.guilty] == ["a"]
    assert later.standings[0].taken.value < first.standings[0].taken.value, "but its effect is that of the whole time"


@settings(max_examples=60, deadline=None)
@given(
    suspects=strategies.integers(1, 63),
    harm=strategies.floats(0.001, 1.0),
    budget_s=strategies.integers(1, 20_000),
    pulse_ms=strategies.integers(20, 30_000),
    depth=strategies.floats(0.05, 0.6),
)
def test_a_rule_ends_before_a_suspect_may_lose_more_than_it_is_allowed_to(
    suspects: int, harm: float, budget_s: int, pulse_ms: int, depth: float
):
    rule = Rule(Code(suspects + 1, 1), pulse_ms * 10**6, budget_s * 10**9, harm=harm, depth=depth)
    assume(rule.blocks_most >= rule.blocks_least)
    assume(rule.blocks_most * rule.code.block_slots < 20_000)
    depths = rule.depths(rule.blocks_most)
    lost_s = depths.max(axis=1).sum() * 0.5 * pulse_ms / 1e3
    # In a slot without a pulse, nobody loses anything; so this is at most what is counted.
    assert lost_s <= rule.lost_s(rule.blocks_most) * (1 + 1e-9) <= harm * budget_s * (1 + 1e-6)
    assert rule.longest_s <= budget_s
    assert rule.looks[-1] == rule.blocks_most
    deepens = rule.deepens_s
    first_deep = np.flatnonzero(depths.max(axis=1) > depth)
    assert (deepens is None) == (not len(first_deep) or depth == rule.deepest)
    if deepens is not None:
        assert deepens == pytest.approx(rule.block_s * (first_deep[0] // rule.code.block_slots))


@pytest.mark.parametrize("suspects", [2, 15, 63])
def test_the_options_that_are_advised_for_a_time_let_an_experiment_last_for_it(suspects: int):
    rule = Rule(Code(suspects + 1, 1), 100_000_000, 300_000_000_000, harm=0.02)
    for seconds in (100, 200, 1_000):
        budget_s, harm = rule.options_for(seconds)
        longer = dataclasses.replace(rule, budget_ns=round(budget_s * 1e9), harm=harm)
        assert longer.longest_s >= seconds
        assert longer.longest_s < seconds + 2 * rule.block_s
