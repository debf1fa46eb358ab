from dataclasses import replace

import numpy as np
import pytest

from partywall.agent.catalogue import Warn
from partywall.core.stats.estimate import Estimate, Outcome
from partywall.run.document.scenario import Aggressor
from partywall.run.findings.analysis import analyse
from partywall.run.findings.compare import UNKNOWN_SPREAD, Rule, compare, compare_runs, ratio_of
from partywall.run.values.comparison import Change
from partywall.run.values.finding import Effect
from tests.run.findings.builders import Host, evidence, plan, treatment, trial, with_latency

SINGLE = trial(treatment("memory-copy"))


def run(factor, seed=1, of=SINGLE, blocks=60):
    return analyse(evidence(plan(of), Host(seed).measure(of, blocks, {"memory-copy": factor})))


def past(factor=0.8, of=SINGLE, runs=6, seed=500):
    """Earlier runs of a host whose runs differ by their own noise alone."""
    return [run(factor, seed + number, of) for number in range(runs)]


@pytest.mark.parametrize(
    ("now", "before", "change", "outcome"),
    [
        (0.7, 0.8, Change.WORSE, Outcome.VIOLATED),
        (0.9, 0.8, Change.BETTER, Outcome.HOLDS),
        (0.8, 0.8, Change.SAME, Outcome.HOLDS),
        (0.785, 0.8, Change.INCONCLUSIVE, Outcome.INCONCLUSIVE),
    ],
)
def test_a_change_needs_a_whole_interval_beyond_the_tolerance(now, before, change, outcome):
    result = compare(run(now), run(before, seed=2), tolerance=0.02, earlier=past(before))
    assert result.cells[0].change is change
    assert result.outcome is outcome
    assert result.cells[0].ratio.low < now / before < result.cells[0].ratio.high


def test_cells_without_a_counterpart_are_named():
    more = trial(treatment("memory-copy"), treatment("disk-write"))
    result = compare(run(0.8, of=more), run(0.8), earlier=past())
    assert result.only_run == ("copy under disk-write",)
    assert result.only_reference == ()
    assert result.outcome is Outcome.HOLDS
    lost = compare(run(0.8), run(0.8, of=more))
    assert lost.only_reference == ("copy under disk-write",)
    assert lost.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("failed", ["run", "reference"])
def test_a_trial_that_failed_on_either_side_is_no_pass(failed):
    good = run(0.8)
    bad = run(0.8, seed=2).model_copy(update={"incomplete": ("trial t2: the victim died",)})
    sides = (bad, good) if failed == "run" else (good, bad)
    result = compare(*sides, earlier=past())
    assert result.cells[0].change is Change.SAME
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.incomplete == ("r1: trial t2: the victim died",)


def warned(result, *warnings):
    cells = tuple(cell.model_copy(update={"warnings": (*cell.warnings, *warnings)}) for cell in result.cells)
    return result.model_copy(update={"cells": cells})


@pytest.mark.parametrize("now", [0.8, 0.9])
@pytest.mark.parametrize("side", ["run", "reference"])
@pytest.mark.parametrize(
    "warning",
    [
        Warn.AGGRESSOR_IDLE,
        Warn.AGGRESSOR_NOT_STOPPED,
        Warn.AGGRESSOR_FELL_SHORT,
        Warn.CARRY_OVER,
        Warn.FEW_BLOCKS,
        Warn.EMULATED,
    ],
)
def test_a_figure_in_warning_on_either_side_is_neither_better_nor_the_same(now, side, warning):
    first, second = run(now), run(0.8, seed=2)
    sides = (warned(first, warning), second) if side == "run" else (first, warned(second, warning))
    result = compare(*sides, earlier=past())
    assert result.cells[0].change is Change.INCONCLUSIVE
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "; but " in result.cells[0].reason


def test_worse_stays_worse_where_the_run_may_only_be_worse_still():
    result = compare(warned(run(0.7), Warn.CARRY_OVER), run(0.8, seed=2), earlier=past())
    assert result.cells[0].change is Change.WORSE
    assert "but in the run the effect still changed" in result.cells[0].reason
    other = compare(run(0.7), warned(run(0.8), Warn.CARRY_OVER), earlier=past())
    assert other.cells[0].change is Change.INCONCLUSIVE


def test_emulated_runs_compare_with_each_other_and_the_cell_says_so():
    result = compare(warned(run(0.8), Warn.EMULATED), warned(run(0.8, seed=2), Warn.EMULATED), earlier=past())
    assert result.cells[0].change is Change.SAME
    assert result.cells[0].emulated


def late(longer, seed=1, factor=0.8):
    return analyse(evidence(plan(SINGLE), with_latency(
        Host(seed).measure(SINGLE, 60, {"memory-copy": factor}), {"memory-copy": longer}, seed,
    )))  # fmt: skip


def calm():
    return [late(1.0, seed) for seed in range(600, 604)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("longer", "change", "outcome"),
    [
        (2.0, Change.WORSE, Outcome.VIOLATED),
        (0.5, Change.BETTER, Outcome.HOLDS),
        (1.0, Change.SAME, Outcome.HOLDS),
        (1.25, Change.INCONCLUSIVE, Outcome.INCONCLUSIVE),
    ],
)
def test_a_longer_p99_at_equal_throughput_is_judged(longer, change, outcome):
    result = compare(late(longer), late(1.0, seed=2), earlier=calm())
    assert result.cells[0].change is change
    assert result.outcome is outcome
    assert "p99 latency" in result.cells[0].reason
    assert result.cells[0].latency["p99"].value == pytest.approx(longer, rel=0.1)


@pytest.mark.long
def test_latencies_that_are_not_to_be_judged_are_shown():
    result = compare(late(2.0), late(1.0, seed=2), latency_tolerance=None, earlier=calm())
    assert result.cells[0].change is Change.SAME
    assert result.cells[0].latency["p99"].low > 1.5


@pytest.mark.long
def test_the_spread_of_latencies_between_runs_is_in_their_interval():
    wild = [late(longer, seed) for seed, longer in enumerate([0.6, 1.6, 0.7, 1.5], start=20)]
    result = compare(late(1.5), late(1.0, seed=2), earlier=wild).cells[0]
    assert result.latency["p99"].low < 1 < result.latency["p99"].high
    assert result.change is Change.INCONCLUSIVE


def test_runs_with_nothing_in_common_are_inconclusive():
    result = compare(run(0.8), run(0.8, of=trial(treatment("disk-write"))))
    assert result.cells == ()
    assert result.outcome is Outcome.INCONCLUSIVE


def test_a_ratio_is_wider_than_either_side_and_inverts_when_swapped():
    first = Estimate(value=0.8, low=0.79, high=0.81, n=50, method="m")
    second = Estimate(value=0.9, low=0.88, high=0.92, n=40, method="m")
    there, back = ratio_of(first, second), ratio_of(second, first)
    assert there.low < 0.8 / 0.92 * 1.02
    assert (1 / back.high, 1 / back.low) == pytest.approx((there.low, there.high))
    assert there.n == 40


def test_a_stalled_victim_compares_without_a_logarithm_of_zero():
    stalled = Estimate(value=0, low=0, high=0.1, n=30, method="m")
    fine = Estimate(value=0.9, low=0.88, high=0.92, n=30, method="m")
    result = ratio_of(stalled, fine)
    assert result.value < 1e-5
    assert 0.08 < result.high < 0.2


def test_a_tolerance_that_cannot_be_used_is_refused():
    with pytest.raises(ValueError, match="give a share"):
        compare(run(0.8), run(0.8), tolerance=2)


def several(factors, seed=10):
    return [run(factor, seed + number) for number, factor in enumerate(factors)]


@pytest.mark.parametrize("now", [0.4, 0.8, 0.95])
@pytest.mark.parametrize("earlier", [0, 1])
def test_without_enough_past_runs_nothing_is_told(now, earlier):
    """One run a side: the variation between runs is unknown, so even a large change may be no more than that."""
    result = compare(run(now), run(0.8, seed=2), earlier=past(runs=earlier))
    assert result.notes[0] == UNKNOWN_SPREAD
    assert (result.cells[0].runs, result.cells[0].found_from) == (0, None)
    assert result.cells[0].change is Change.INCONCLUSIVE
    assert result.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("warning", [Warn.STEAL, Warn.FOREIGN_LOAD, Warn.SWAPPING])
@pytest.mark.parametrize("side", ["run", "reference"])
@pytest.mark.parametrize("now", [0.6, 0.95])
def test_a_disturbed_cell_is_neither_worse_nor_better(side, warning, now):
    first, second = run(now), run(0.8, seed=2)
    sides = (warned(first, warning), second) if side == "run" else (first, warned(second, warning))
    cell = compare(*sides, earlier=past()).cells[0]
    assert cell.change is Change.INCONCLUSIVE
    assert f"disturbed the {side}" in cell.reason


@pytest.mark.parametrize("side", ["run", "reference"])
def test_a_cell_whose_effect_is_not_known_is_not_worse(side):
    first, second = run(0.6), run(0.8, seed=2)
    unknown = [
        cell.model_copy(update={"effect": Effect.NOT_KNOWN}) for cell in (first if side == "run" else second).cells
    ]
    sides = {"run": first, "reference": second}
    sides[side] = sides[side].model_copy(update={"cells": tuple(unknown)})
    cell = compare(*sides.values(), earlier=past()).cells[0]
    assert cell.change is Change.INCONCLUSIVE
    assert f"the effect in the {side} is not known" in cell.reason


def test_earlier_runs_that_differ_widen_what_two_runs_say_and_equal_ones_do_not_narrow_it():
    alone = compare(run(0.8), run(0.8, seed=2)).cells[0].ratio
    wild = compare(run(0.8), run(0.8, seed=2), earlier=several([0.7, 0.85, 0.75, 0.9])).cells[0]
    calm = compare(run(0.8), run(0.8, seed=2), earlier=several([0.8, 0.8, 0.8, 0.8])).cells[0]
    assert wild.ratio.low < 0.75
    assert wild.ratio.high > 1.25
    assert wild.change is Change.INCONCLUSIVE
    assert wild.runs == 6
    assert calm.ratio.low <= alone.low
    assert calm.ratio.high >= alone.high


def test_with_several_runs_a_side_the_run_is_the_unit():
    now, before = several([0.70, 0.72, 0.71]), several([0.80, 0.82, 0.81], seed=20)
    result = compare(now[0], before[0], also=now[1:], also_reference=before[1:])
    (cell,) = result.cells
    assert result.notes[0].startswith("6 runs show how much runs vary")
    assert (cell.ratio.n, cell.runs) == (6, 6)
    assert cell.ratio.value == pytest.approx(0.71 / 0.81, rel=0.01)
    assert cell.ratio.low < 0.71 / 0.81 < cell.ratio.high
    assert cell.change is Change.WORSE


IN_TURN = Rule(in_turn=True)


def in_turn(now, before, rule=IN_TURN, **more):
    return compare(now[0], before[0], also=now[1:], also_reference=before[1:], rule=rule, **more)


@pytest.mark.parametrize("warning", [Warn.STEAL, Warn.FOREIGN_LOAD, Warn.SWAPPING])
def test_of_runs_in_turn_a_disturbed_cell_is_judged_for_the_spread_contains_the_disturbance(warning):
    now, before = several([0.70, 0.72, 0.71]), several([0.80, 0.82, 0.81], seed=20)
    now = [warned(each, warning) for each in now]
    assert in_turn(now, before, Rule()).cells[0].change is Change.INCONCLUSIVE
    assert in_turn(now, before).cells[0].change is Change.WORSE


def test_of_runs_in_turn_workloads_may_differ_and_a_note_says_so():
    now, before = several([0.70, 0.72, 0.71]), several([0.80, 0.82, 0.81], seed=20)
    other = {("victim", now[0].cells[0].victim): "files differ"}
    assert in_turn(now, before, Rule(), workloads=other).incomparable
    result = in_turn(now, before, workloads=other)
    assert (result.incomparable, result.cells[0].change) == ((), Change.WORSE)
    assert any("files differ" in note for note in result.notes)


def test_a_smaller_chance_needs_more_to_call_a_change():
    now, before = several([0.70, 0.72, 0.71]), several([0.80, 0.82, 0.81], seed=20)
    changes = [in_turn(now, before, Rule(chance)).cells[0].change for chance in (0.05, 1e-12)]
    assert changes == [Change.WORSE, Change.INCONCLUSIVE]


@pytest.mark.long
def test_intervals_over_runs_cover_the_truth_where_intervals_of_single_runs_do_not():
    random = np.random.default_rng(4)
    inside = {"runs": 0, "single": 0}
    for trial_ in range(60):
        true = [0.8 * np.exp(0.05 * random.standard_normal(4)) for _ in range(2)]
        now, before = (
            [run(f, 1000 * trial_ + 10 * side + n, blocks=12) for n, f in enumerate(factors)]
            for side, factors in enumerate(true)
        )
        result = compare(now[0], before[0], also=now[1:], also_reference=before[1:]).cells[0].ratio
        single = compare(now[0], before[0]).cells[0].ratio
        inside["runs"] += result.low < 1 < result.high
        inside["single"] += single.low < 1 < single.high
    assert inside["runs"] >= 52
    assert inside["single"] < 40


def measured(of, host, seed=1):
    made = replace(evidence(plan(of), Host(seed).measure(of, 20, {"memory-copy": 0.8})), host=host)
    return made, analyse(made)


def test_hosts_that_differ_are_named_and_what_a_host_does_not_tell_is_not():
    here, there = {"cpu": {"model": "A", "smt": None}}, {"cpu": {"model": "B", "smt": True}}
    result = compare_runs(measured(SINGLE, here), measured(SINGLE, there, seed=2))
    assert result.host == ("processor: A in the run, B in the reference",)


def test_machines_that_differ_are_named_if_both_runs_name_them():
    here = {"machines": {"shop": {"cpu": {"model": "A"}}, "bank": {"cpu": {"model": "A"}}}}
    there = {"machines": {"shop": {"cpu": {"model": "B"}}, "home": {"cpu": {"model": "B"}}}}
    result = compare_runs(measured(SINGLE, here), measured(SINGLE, there, seed=2))
    assert result.host == ("processor of shop: A in the run, B in the reference",)


def test_cells_whose_parameters_differ_are_not_compared():
    def sized(size):
        of = trial(treatment("memory-copy"))
        return of.model_copy(
            update={"aggressors": {"memory-copy": Aggressor(stressor="memory-copy", params={"block_bytes": size})}}
        )

    result = compare_runs(measured(sized(4096), {}), measured(sized(8192), {}, seed=2))
    assert result.cells == ()
    assert result.incomparable == (
        "copy under memory-copy: aggressor memory-copy: params.block_bytes is 4096, was 8192",
    )
    assert result.outcome is Outcome.INCONCLUSIVE


def test_a_victim_that_drifted_between_runs_is_named():
    before, now = run(0.8), run(0.8, seed=2)
    slower = [
        cell.model_copy(update={"baseline_rate": cell.baseline_rate.model_copy(
            update={name: 0.7 * getattr(cell.baseline_rate, name) for name in ("value", "low", "high")}
        )})
        for cell in now.cells
    ]  # fmt: skip
    result = compare(now.model_copy(update={"cells": tuple(slower)}), before)
    assert result.drifted["copy"].value == pytest.approx(0.7, rel=0.05)
    assert any("without a neighbour, the rate of copy was 0.7" in text for text in result.notes)
    assert not compare(now, before).drifted


def test_a_latency_that_one_side_lacks_is_not_called_the_same():
    def late(findings):
        known = {"p99": Estimate(value=0.1, low=0.05, high=0.15, n=60, method="m")}
        return findings.model_copy(
            update={"cells": tuple(cell.model_copy(update={"latency": known}) for cell in findings.cells)}
        )

    result = compare(run(0.8), late(run(0.8, seed=2)), earlier=past())
    assert result.cells[0].change is Change.INCONCLUSIVE
    assert "p99 latency measured on one side only" in result.cells[0].reason
    assert compare(run(0.8), late(run(0.8, seed=2)), earlier=past(), latency_tolerance=None).outcome is Outcome.HOLDS
