"""The three states of an effect, where they are decided, and everywhere they are shown."""

import io
import re

import pytest
from rich.console import Console

from partywall.model.finding import Band, Cell, Effect, Estimate, Warn
from partywall.report import compare_view, export, html, terminal
from partywall.stats import analyse, compare
from partywall.stats.states import LATENCY_BOUND, bound_of, with_effects
from tests.stats.builders import Host, evidence, plan, treatment, trial

COPY, RING = treatment("memory-copy"), treatment("cache")
BOTH = trial(COPY, RING)


def estimate(value, half):
    return Estimate(value=value, low=value - half, high=value + half, n=50, method="m")


def cell(value, half, *, seen=False, t=COPY, **more):
    return Cell(
        trial=BOTH.id, victim=BOTH.victim_name, treatment=t.id, label=t.label, role="aggressor", aggressor=t.aggressor,
        intensity=1.0, baseline_rate=estimate(1, 0.1), rate=estimate(value, half), isolation=estimate(value, half),
        seen=seen, **more,
    )  # fmt: skip


def band(half):
    return Band(trial=BOTH.id, low=1 - half, high=1 + half, null=estimate(1.0, half))


def state(each, half_band=0.003, precision=0.01):
    return with_effects([each], [band(half_band)], precision)[0].effect


@pytest.mark.parametrize(
    ("value", "half", "seen", "known"),
    [
        (0.8, 0.02, True, Effect.SEEN),
        (0.8, 0.5, True, Effect.SEEN),
        (1.0, 0.01, False, Effect.NONE),
        (0.99, 0.04, False, Effect.NONE),
        (0.99, 0.041, False, Effect.NOT_KNOWN),
        (1.0, 0.3, False, Effect.NOT_KNOWN),
    ],
)
def test_an_interval_shows_an_effect_excludes_one_or_leaves_it_open(value, half, seen, known):
    assert state(cell(value, half, seen=seen)) is known


def test_a_host_that_shows_effects_of_nothing_cannot_exclude_effects_of_that_size():
    assert state(cell(1.0, 0.01), half_band=0.06) is Effect.NOT_KNOWN


@pytest.mark.parametrize("warning", [Warn.FEW_BLOCKS, Warn.CARRY_OVER, Warn.AGGRESSOR_IDLE])
def test_a_warning_that_leaves_more_harm_open_leaves_the_effect_open(warning):
    assert state(cell(1.0, 0.01, warnings=(warning,))) is Effect.NOT_KNOWN
    assert state(cell(0.8, 0.01, seen=True, warnings=(warning,))) is Effect.SEEN


def test_the_bound_follows_the_precision_and_never_reaches_a_severe_harm():
    assert [bound_of(precision) for precision in (0.002, 0.01, 0.5)] == pytest.approx([0.01, 0.05, 0.2])


def test_latencies_have_the_same_three_states():
    impacts = {"p50": estimate(0.5, 0.1), "p90": estimate(0.0, LATENCY_BOUND), "p99": estimate(0.1, 0.3)}
    judged = with_effects([cell(1.0, 0.01, latency=impacts, latency_seen=("p50",))], [], 0.01)[0]
    assert judged.latency_effect == {"p50": Effect.SEEN, "p90": Effect.NONE, "p99": Effect.NOT_KNOWN}


@pytest.fixture(scope="module")
def open_run():
    """A run so noisy that nothing is known of one neighbour, and with no effect of the other."""
    made = evidence(plan(BOTH), Host(3).measure(BOTH, 200, {}))
    result = analyse(made)
    cells = [
        each.model_copy(update={"isolation": estimate(1.0, 0.4), "seen": False}) if each.treatment == COPY.id else each
        for each in result.cells
    ]
    judged = with_effects(cells, result.bands, 0.01)
    return result.model_copy(update={"cells": tuple(judged)}), made


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
