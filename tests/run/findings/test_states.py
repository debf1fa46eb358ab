"""The three states of an effect, where they are decided, and everywhere they are shown."""

import io
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console

from partywall.agent.catalogue import Warn
from partywall.core.stats.estimate import Estimate, Outcome
from partywall.core.stats.quantile import student_reach
from partywall.run.document.scenario import Goal
from partywall.run.findings.analysis import analyse
from partywall.run.findings.compare import compare
from partywall.run.findings.states import CHANCE, LATENCY_BOUND, Claim, bound_of, chance, failed_checks, judge, judged
from partywall.run.findings.verdicts import verdicts_of
from partywall.run.report import compare_view, export, html, terminal
from partywall.run.values.finding import Band, Cell, Effect
from tests.run.findings.builders import Host, evidence, plan, treatment, trial

COPY, RING = treatment("memory-copy"), treatment("cache")
BOTH = trial(COPY, RING)


def estimate(value, half):
    return Estimate(value=value, low=value - half, high=value + half, n=50, method="m")


def cell(value, half, *, t=COPY, role="aggressor", **more):
    return Cell(
        trial=BOTH.id, victim=BOTH.victim_name, treatment=t.id, label=t.label, role=role, aggressor=t.aggressor,
        intensity=1.0, baseline_rate=estimate(1, 0.1), rate=estimate(value, half), isolation=estimate(value, half),
        **more,
    )  # fmt: skip


def band(half, null=1.0):
    return Band(trial=BOTH.id, low=1 - half, high=1 + half, null=estimate(null, half))


def state(each, bands=(), precision=0.01):
    return judged([each], bands, precision)[0].effect


@pytest.mark.parametrize(
    ("value", "half", "known"),
    [
        (0.8, 0.02, Effect.SEEN),
        (0.94, 0.02, Effect.SEEN),
        (0.6, 0.3, Effect.SEEN),
        (1.2, 0.1, Effect.SEEN),
        (0.0, 0.14, Effect.SEEN),
        (0.8, 0.5, Effect.NOT_KNOWN),
        (1.0, 0.01, Effect.NONE),
        (0.99, 0.04, Effect.NONE),
        (0.99, 0.041, Effect.NOT_KNOWN),
        (1.0, 0.3, Effect.NOT_KNOWN),
    ],
)
def test_an_interval_shows_an_effect_excludes_one_or_leaves_it_open(value, half, known):
    assert state(cell(value, half)) is known


def test_what_is_not_known_says_why():
    few = cell(0.8, 0.02, warnings=(Warn.FEW_BLOCKS,))
    whys = [judged([each], [], 0.01)[0].why for each in (cell(1.0, 0.3), few, cell(0.8, 0.02))]
    assert whys == ["an effect above ±5 % is not excluded", "only 50 blocks; give the run more budget", ""]


def test_a_band_widens_what_decides_only_if_its_check_failed():
    wide, failed = band(0.06), band(0.06, null=0.9)
    assert state(cell(1.0, 0.01), [wide]) is Effect.NONE
    assert state(cell(0.95, 0.01), [wide]) is Effect.SEEN
    assert state(cell(1.0, 0.01), [failed]) is Effect.NOT_KNOWN
    assert state(cell(0.95, 0.01), [failed]) is Effect.NOT_KNOWN


@pytest.mark.parametrize("warning", [Warn.CARRY_OVER, Warn.AGGRESSOR_IDLE])
def test_a_warning_that_leaves_more_harm_open_leaves_the_effect_open(warning):
    assert state(cell(1.0, 0.01, warnings=(warning,))) is Effect.NOT_KNOWN
    assert state(cell(0.8, 0.01, warnings=(warning,))) is Effect.SEEN


def test_few_blocks_decide_nothing_as_in_goals():
    assert state(cell(0.8, 0.01, warnings=(Warn.FEW_BLOCKS,))) is Effect.NOT_KNOWN


def drawn(random, effects):
    """Claims of cells with these effects, whose intervals are honest."""
    values = 1 - np.asarray(effects) + 0.02 * random.standard_normal(len(effects))
    return [Claim(estimate(value, 0.02 * student_reach(0.95, 49)), 0.05) for value in values]


def test_in_at_most_one_of_twenty_runs_a_named_effect_is_chance_and_real_ones_are_named():
    random, effects = np.random.default_rng(1), [0.0] * 16 + [0.15] * 8
    false = real = 0
    for _ in range(400):
        kept = [found.effect is Effect.SEEN for found in judge(drawn(random, effects))]
        false += any(kept[:16])
        real += sum(kept[16:])
    assert false <= 400 * CHANCE + 2.6 * math.sqrt(400 * CHANCE * (1 - CHANCE))
    assert real >= 0.98 * 400 * 8


def test_in_runs_without_an_effect_one_is_named_in_at_most_one_of_twenty():
    random = np.random.default_rng(2)
    alarms = sum(any(f.effect is Effect.SEEN for f in judge(drawn(random, [0.0] * 24))) for _ in range(600))
    assert alarms <= 600 * CHANCE + 2.6 * math.sqrt(600 * CHANCE * (1 - CHANCE))


def test_the_a_a_check_is_one_test_of_all_null_cells():
    """At 95 % each, one of eight null cells fails in a third of all runs."""
    random = np.random.default_rng(3)
    made = ([Band(trial=f"t{n}", low=0.9, high=1.1, null=each.ratio) for n, each in enumerate(drawn(random, [0] * 8))]
            for _ in range(400))  # fmt: skip
    alarms = sum(bool(failed_checks(bands)[0]) for bands in made)
    assert alarms <= 400 * CHANCE + 2.6 * math.sqrt(400 * CHANCE * (1 - CHANCE))


@given(st.floats(0.02, 3), st.floats(0.001, 0.9))
def test_chance_is_below_one_in_twenty_exactly_where_the_interval_excludes_one(value, half):
    ratio = estimate(value, half)
    assume(min(abs(ratio.low - 1), abs(ratio.high - 1)) > 1e-6)
    assert (chance(ratio) < 0.05) == (not ratio.low <= 1 <= ratio.high)


@pytest.mark.parametrize("isolation", [0.5, 0.8, 0.95])
def test_no_cell_is_not_known_and_violated(isolation):
    """One standard: whatever violates a goal below 1 is an effect in the matrix."""
    random = np.random.default_rng(4)
    for _ in range(200):
        value, half = random.uniform(0.3, 1.05), random.uniform(0.005, 0.4)
        others = [cell(1.0, 0.3, t=treatment(f"other-{n}")) for n in range(5)]
        bands = [band(random.uniform(0.01, 0.2), null=random.choice([1.0, 0.8]))]
        known = judged([cell(value, half), *others], bands, 0.01)
        (verdict, *_) = verdicts_of([Goal(isolation_factor=isolation)], known, bands)
        assert verdict.outcome is not Outcome.VIOLATED or known[0].effect is Effect.SEEN


def test_the_example_of_a_goal_that_was_violated_beside_a_cell_that_was_not_known():
    cells = judged([cell(0.646, 0.27)], [band(0.09)], 0.01)
    (verdict,) = verdicts_of([Goal(isolation_factor=0.95)], cells, [band(0.09)])
    assert (cells[0].effect, verdict.outcome) == (Effect.SEEN, Outcome.VIOLATED)


def test_the_bound_follows_the_precision_and_never_reaches_a_severe_harm():
    assert [bound_of(precision) for precision in (0.002, 0.01, 0.5)] == pytest.approx([0.01, 0.05, 0.2])


def test_latencies_have_the_same_three_states():
    impacts = {"p50": estimate(0.5, 0.1), "p90": estimate(0.0, LATENCY_BOUND), "p99": estimate(0.1, 0.3)}
    known = judged([cell(1.0, 0.01, latency=impacts)], [], 0.01)[0]
    assert known.latency_effect == {"p50": Effect.SEEN, "p90": Effect.NONE, "p99": Effect.NOT_KNOWN}


@pytest.fixture(scope="module")
def open_run():
    """A run so noisy that nothing is known of one neighbour, and with no effect of the other."""
    made = evidence(plan(BOTH), Host(3).measure(BOTH, 200, {}))
    result = analyse(made)
    cells = [
        each.model_copy(update={"isolation": estimate(1.0, 0.4)}) if each.treatment == COPY.id else each
        for each in result.cells
    ]
    return result.model_copy(update={"cells": tuple(judged(cells, result.bands, 0.01))}), made


def test_what_is_not_known_is_nowhere_shown_as_no_effect(open_run):
    findings, made = open_run
    states = {each.treatment: each.effect for each in findings.cells}
    assert states[COPY.id] is Effect.NOT_KNOWN
    assert states[RING.id] is Effect.NONE
    page = html.render(findings, made)
    levels = re.findall(r'class="cell (\w+)" href="#[^"]*" title="[^"]* beside ([^":]+):', page)
    assert {name: level for level, name in levels} == {
        "null (A/A)": "none", "memory-copy": "not_known", "cache": "none"
    }  # fmt: skip
    assert '">?</span>not known' in page
    assert "no effect above ±5 %" in page
    rows = {row["treatment"]: row["effect"] for row in export.rows((findings, made))}
    assert (rows[COPY.id], rows[RING.id]) == ("not_known", "none")
    out = Console(file=io.StringIO(), width=160)
    terminal.show(findings, made, out)
    text = out.file.getvalue()
    assert "1.0 ± 0.4 ?" in text
    assert "? not known: an effect above ±5 % is not excluded" in text
    assert "· no effect above ±5 %" in text


def test_a_comparison_marks_what_is_not_known_in_either_run(open_run):
    findings, _ = open_run
    out = Console(file=io.StringIO(), width=160)
    compare_view.show(compare(findings, findings), out)
    text = out.file.getvalue()
    assert "1.0 ± 0.4 ?" in text
    assert "? not known whether that run shows an effect" in text


def test_a_comparison_tells_once_what_an_unfinished_run_on_both_sides_could_not_measure(open_run):
    unfinished = open_run[0].model_copy(update={"incomplete": ("trial t1, disk: too few blocks",)})
    assert compare(unfinished, unfinished).incomplete == ("r1: trial t1, disk: too few blocks",)
    out = Console(file=io.StringIO(), width=160)
    compare_view.show(compare(unfinished, unfinished), out)
    assert out.file.getvalue().count("Not finished") == 1


def test_a_null_of_too_few_blocks_fails_no_check():
    off = band(0.003, null=0.9)
    few = off.model_copy(update={"null": off.null.model_copy(update={"n": 8})})
    assert failed_checks([off], 20)[0] == [off]
    assert failed_checks([few], 20)[0] == []
