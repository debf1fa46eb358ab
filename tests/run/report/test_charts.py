import itertools
import json

import altair as alt
import pytest
import vl_convert

from partywall.core.report.charts import spec_of, titled
from partywall.run.report import charts, series
from partywall.run.values.observation import by_trial


def cell_of(run, victim: str, treatment: str):
    return next(cell for cell in run[0].cells if (cell.victim, cell.treatment) == (victim, treatment))


def every_kind(run):
    findings, evidence = run
    cell = cell_of(run, "copy", "memory-copy@1")
    return {
        "heatmap": charts.heatmap(findings),
        "sensitivity": charts.sensitivity(findings, cell.trial),
        "effect": charts.effect_over_time(findings, evidence, cell),
        "rates": charts.rate_distribution(evidence, cell),
        "latency": charts.latency_distribution(evidence, cell),
        "timeline": charts.timeline(evidence, cell.trial),
        "efficiency": charts.efficiency(findings),
    }


KINDS = ("heatmap", "sensitivity", "effect", "rates", "latency", "timeline", "efficiency")


@pytest.mark.parametrize("kind", KINDS)
def test_each_chart_satisfies_the_schema_of_vega_lite(run, kind):
    assert every_kind(run)[kind].to_dict(validate=True)["$schema"] == alt.SCHEMA_URL


@pytest.mark.parametrize("kind", KINDS)
def test_each_chart_draws_marks_without_any_network(run, kind):
    spec = titled(every_kind(run)[kind], "title")
    svg = vl_convert.vegalite_to_svg(json.dumps(spec), allowed_base_urls=[])
    assert svg.count("<path") > 5
    assert "NaN" not in svg


def test_the_heat_map_writes_each_factor_with_its_interval(run):
    svg = vl_convert.vegalite_to_svg(json.dumps(titled(charts.heatmap(run[0]), "title")))
    grid_cells = [cell for cell in run[0].cells if cell.role != "limit"]
    assert svg.count(" ± ") + svg.count(" to ") >= len(grid_cells)


def test_names_of_curves_that_end_together_do_not_overlap(run):
    curves = [curve for curve in run[0].curves if curve.trial == run[0].curves[0].trial]
    same = [
        curve.model_copy(update={"points": curves[0].points, "aggressor": f"a{i}"}) for i, curve in enumerate(curves)
    ]
    places = sorted(row["place"] for row in charts._names(same))
    lowest = min([1.0, *(estimate.value for _, estimate in curves[0].points)])
    assert all(b - a >= 0.049 * (1 - lowest) for a, b in itertools.pairwise(places))


def test_effects_are_the_ratios_of_each_block(run):
    cell = cell_of(run, "copy", "memory-copy@1")
    rows = series.effects(run[1], cell)
    rate = {(o.block, o.treatment): o.rate for o in run[1].of_trial(cell.trial)}
    expected = [rate[row["block"], "memory-copy@1"] / rate[row["block"], "baseline"] for row in rows]
    assert [row["factor"] for row in rows] == pytest.approx(expected, rel=1e-5)
    assert rows[-1]["mean"] == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_the_running_interval_starts_when_there_are_enough_blocks_to_speak_of_one(run):
    rows = series.effects(run[1], cell_of(run, "copy", "memory-copy@1"))
    assert [row["mean"] is None for row in rows[:6]] == [True] * 4 + [False] * 2


def test_of_very_many_blocks_some_are_drawn_from_the_first_to_the_last_and_the_chart_says_so(run, monkeypatch):
    findings, evidence = run
    cell = cell_of(run, "copy", "memory-copy@1")
    every = series.effects(evidence, cell)
    monkeypatch.setattr(series, "MAX_POINTS", 10)
    drawn = series.effects(evidence, cell)
    assert len(drawn) == 10
    assert all(row in every for row in drawn)
    assert (drawn[0], drawn[-1]) == (every[0], every[-1])
    said = json.dumps(spec_of(charts.effect_over_time(findings, evidence, cell)))
    assert f"(10 of {len(every)} blocks are drawn)" in said


def test_a_block_without_its_baseline_is_left_out(run):
    cell = cell_of(run, "ring", "null")
    evidence = run[1]
    kept = by_trial(o for o in evidence.of_trial(cell.trial) if (o.block, o.treatment) != (3, "baseline"))
    partial = type(evidence)(**{**evidence.__dict__, "observations": kept})
    assert 3 not in {row["block"] for row in series.effects(partial, cell)}


def test_every_slot_is_counted_once_in_the_distribution_of_rates(run):
    cell = cell_of(run, "ring", "cache-ring@1")
    rows = series.rates(run[1], cell)
    for state in ("baseline", "treated"):
        assert sum(row["slots"] for row in rows if row["state"] == state) == len(series.pairs_of(run[1], cell))


def test_a_page_draws_whole_blocks_evenly_when_there_are_too_many_slices(run):
    points = run[1].timeline["t1-copy"]
    blocks = sorted({point.block for point in points})
    assert series.drawn_blocks(points) == blocks
    assert series.drawn_blocks(points, limit=len(points) // len(blocks)) == blocks[:1]


def test_guards_are_shaded_where_slices_are_in_the_guard(run):
    rows = series.slices(run[1], "t1-copy")
    shaded = [row for row in series.stretches(rows, "guard") if row["guard"]]
    assert len(shaded) == len(series.stretches(rows, "treatment"))
    assert all(row["end_ms"] - row["start_ms"] == pytest.approx(10) for row in shaded)


@pytest.mark.long
def test_emulated_runs_say_so_in_every_chart(emulated_run):
    for name, spec in charts.all_charts(*emulated_run).items():
        assert "emulated" in json.dumps(spec), name
