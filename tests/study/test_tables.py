"""Findings of a study's parts as points, comparisons, reasons and the board."""

from __future__ import annotations

import pytest

from partywall.core.stats.estimate import Estimate
from partywall.run.report.figures import scale_of
from partywall.study.isolation import kind as isolation
from partywall.study.isolation import tables
from partywall.study.isolation.kind import _kernels
from partywall.study.isolation.model import Board, Shown
from partywall.study.paper import Axis, Claim, PaperTable, Place
from tests.study.made_up import part

LIMITS = "victims.tested.sandbox.{cpu_limit,cpu_reservation}"
RING = {"victims": {"v": {"probe": "cache"}}, "aggressors": {"ring": {"stressor": "cache"}}}


def shown(trial, rate):
    scale = scale_of(trial.victim, _kernels())
    return scale.show_estimate(rate), -1 if scale.inverse else 1


def rule(**keys):
    return Shown.model_validate({"part": "p", "victim": "v", "value": "figure", "series": "s", **keys})


def places(rule_, *runs, first="process"):
    return {point.place: point for point in tables.points(rule_, runs, first, shown)}


def slower(by):
    return lambda _trial, treatment: 1e8 * (1 - by if treatment.aggressor else 1)


def beside():
    return {"none": "normal", "ring": "interference"}


def test_a_latency_is_shown_per_access_and_compared_block_by_block():
    result = places(rule(beside=beside()), part(RING, slower(0.2)))
    normal, pressed = result[Place("s", "normal")], result[Place("s", "interference")]
    assert normal.estimate.value == pytest.approx(10, rel=0.01)
    assert pressed.estimate.value == pytest.approx(12.5, rel=0.01)
    claim = Claim.model_validate({"left": ["s", "interference"], "is": "larger", "than": ["s", "normal"]})
    exhibit = PaperTable(id="e", title="t", where="1", x=Axis(title="x"), y=Axis(title="y"), claims=(claim,))
    (pair,) = tables.paired(exhibit, [pressed, normal])
    assert (pair.left, pair.right) == (pressed.place, normal.place)
    assert pair.low < 1.25 < pair.high
    assert pair.high - pair.low < 0.02


def test_a_task_takes_its_bytes_over_the_rate_and_times_as_long_beside_a_neighbour():
    disk = {
        "victims": {"v": {"probe": "disk-direct-read"}},
        "aggressors": {"ring": {"stressor": "disk-direct-read"}},
    }
    run = part(disk, slower(0.5))
    seconds = places(rule(value="seconds", task=160_000_000, beside=beside()), run)
    assert seconds[Place("s", "normal")].estimate.value == pytest.approx(1.6, rel=0.01)
    times = places(rule(value="times", beside={"ring": 16}), run)
    assert times[Place("s", 16)].estimate.value == pytest.approx(2.0, rel=0.01)


def test_several_backends_stand_in_one_figure_and_emulated_ones_are_marked():
    both = RING | {"factors": {"sandbox.backend": ["container", "qemu"]}}
    run = part(both, slower(0.1), emulated=("victim",))
    result = places(rule(beside={"ring": "interference"}), run, first="container")
    assert set(result) == {Place("s", "interference"), Place("s (qemu)", "interference")}
    assert all(point.measured.emulated for point in result.values())


def test_a_bare_victim_beside_an_emulated_neighbour_has_its_own_figures_and_says_so_of_the_neighbour():
    scenario = {
        "victims": {"v": {"probe": "cache"}},
        "aggressors": {
            "ring": {"stressor": "cache", "sandbox": {"backend": "qemu"}},
            "two": {"stressor": "cache", "together": ["ring"]},
            "bare": {"stressor": "cache"},
        },
    }
    run = part(scenario, slower(0.1), emulated=("ring",))
    result = places(rule(beside={name: name for name in ("none", "ring", "two", "bare")}), run)
    emulated = {place.x: point.measured.emulated for place, point in result.items()}
    assert emulated == {"none": None, "ring": "neighbour", "two": "neighbour", "bare": None}
    board = Board.model_validate(
        {
            "part": "p",
            "victim": "v",
            "environment": "bare host",
            "benchmark": "b",
            "cores": "one",
            "loads": {"none": "none", "ring": "ring"},
        }
    )
    reported = {entry.places["load"]: entry.emulated for entry in tables.entries([board], [run])}
    assert reported == {"none": None, "ring": "neighbour"}
    assert "the neighbour is emulated" in tables.reason(result[Place("s", "ring")])
    table = {row[2]: row[3] for row in isolation._by_backend([run]).rows}
    assert not table["nobody"].endswith("E")
    assert table["ring"].endswith(" (E)")
    assert isolation._emulated([run]) == {"qemu"}
    rows = [isolation._row(run, cell) for cell in run.findings.cells]
    assert {row["treatment"]: row["emulated"] for row in rows if row["aggressor"] == "bare"} == {"bare@1": ""}


def limited():
    sandbox = {"backend": "container"}
    return {
        "victims": {"host": {"probe": "integer"}, "tested": {"probe": "integer", "sandbox": sandbox}},
        "aggressors": {"load": {"stressor": "integer", "sandbox": {"backend": "container", "cpus": "same"}}},
        "factors": {LIMITS: [0.25, 0.5]},
    }


def half_of_what_was_set(trial, treatment):
    """A sandbox a tenth slower than the host, which gets half of its limit."""
    limits = treatment.victim_limits
    own = 1e6 if trial.victim_name == "host" else 0.9e6
    return own * (0.5 * limits.cpu_limit if limits else 1) * (0.8 if treatment.aggressor else 1)


def test_shares_are_of_the_bare_host_and_efficiency_is_over_what_was_set():
    run = part(limited(), half_of_what_was_set, reference="host", values={"benchmark": "integer"})
    keys = {
        "victim": "tested",
        "x": "limit",
        "series": "$benchmark, $beside",
        "beside": {"none": "no load", "load": "load"},
    }
    relative = places(rule(value="relative", **keys), run, first="container")
    assert set(relative) == {Place(f"integer, {load}", x) for load in ("no load", "load") for x in (25.0, 50.0)}
    point = relative[Place("integer, no load", 25.0)]
    assert point.estimate.low < 100 * 0.9 * 0.125 < point.estimate.high
    efficiency = places(rule(value="efficiency", **keys), run, first="container")
    assert efficiency[Place("integer, load", 50.0)].estimate.value == pytest.approx(100 * 0.9 * 0.5 * 0.8, rel=0.02)


def slowly(trial, treatment):
    """The clock follows the victim's share of the processor, and is at its top beside a load."""
    limits = treatment.victim_limits
    share = limits.cpu_limit if limits and not treatment.aggressor else 1.0
    return {f"cpu{cpu}.cpu_frequency_hz": 3e9 * share for cpu in trial.victim_cpus}


CLOCK = {
    "victim": "tested",
    "value": "clock",
    "x": "limit",
    "beside": {"none": "no load", "load": "load"},
    "series": "$beside",
}
TOP = {"cpu": {"frequency": {"max_hz": 3_000_000_000}}}


def test_the_clock_is_a_share_of_the_top_frequency_and_is_not_compared_as_a_rate():
    run = part(limited(), half_of_what_was_set, reference="host", host=TOP, counters=slowly)
    result = places(rule(**CLOCK), run, first="container")
    shares = {place: point.estimate.value for place, point in result.items()}
    assert shares == {
        Place("no load", 25.0): pytest.approx(25),
        Place("no load", 50.0): pytest.approx(50),
        Place("load", 25.0): pytest.approx(100),
        Place("load", 50.0): pytest.approx(100),
    }
    claim = Claim.model_validate({"left": ["no load", 25], "is": "smaller", "than": ["no load", 50]})
    exhibit = PaperTable(id="e", title="t", where="1", x=Axis(title="x"), y=Axis(title="y"), claims=(claim,))
    assert not list(tables.paired(exhibit, list(result.values())))
    assert {tables.reason(point) for point in result.values()} == {""}


@pytest.mark.parametrize(("host", "counters"), [(TOP, None), (None, slowly)])
def test_without_a_clock_or_its_top_there_is_no_point_of_it(host, counters):
    known = {"counters": counters} if counters else {}
    run = part(limited(), half_of_what_was_set, reference="host", host=host, **known)
    assert not run.has_clock
    assert not places(rule(**CLOCK), run, first="container")


def test_the_board_has_the_host_and_each_setting_with_what_was_expected_of_it():
    run = part(limited(), half_of_what_was_set, reference="host", values={"benchmark": "integer"})
    common = {"part": "p", "benchmark": "$benchmark", "cores": "one", "loads": {"none": "none", "load": "integer"}}
    rules = [
        Board.model_validate(common | {"victim": "host", "environment": "bare host"}),
        Board.model_validate(common | {"victim": "tested", "environment": "$backend, $share", "x": "limit"}),
    ]
    board = {tuple(entry.places.values()): entry for entry in tables.entries(rules, [run, run])}
    environments = dict.fromkeys(at[0] for at in board)
    assert list(environments) == ["bare host", "container, no limit", "container, 25 %", "container, 50 %"]
    assert len(board) == 8
    host = board["bare host", "integer", "none", "one"]
    assert (host.relative.value, host.q) == (pytest.approx(1, rel=0.01), None)
    tested = board["container, 50 %", "integer", "integer", "one"]
    assert tested.q.value == pytest.approx(0.9 * 0.5 * 0.8, rel=0.02)


def test_what_all_cpus_of_the_bare_host_do_is_held_against_one():
    both = [limited(), limited()]
    both[1]["victims"]["host"] |= {"threads": 2, "sandbox": {"cpus": "0,1"}}
    runs = [
        part(scenario, lambda *_, rate=rate: rate, reference="host", values={"cores": cores})
        for scenario, rate, cores in zip(both, (1e6, 1.2e6), ("one", "all"), strict=True)
    ]
    keys = {"part": "p", "victim": "host", "environment": "bare host", "benchmark": "integer", "cores": "$cores"}
    board = list(tables.entries([Board.model_validate(keys | {"loads": {"none": "none", "load": "l"}})], runs))
    ((benchmark, ratio, cpus),) = tables.scaling(board)
    assert (benchmark, cpus) == ("integer", 2)
    assert ratio.low < 1.2 < ratio.high
    assert "the CPUs share cores, or other hosts use them" in isolation._scaling_text(benchmark, ratio, cpus)
    assert "share cores" not in isolation._scaling_text(benchmark, ratio.scaled(1.6), cpus)


def test_what_a_busy_neighbours_setting_leaves_is_the_rest_and_an_idle_one_leaves_all():
    scenario = limited() | {"factors": {"aggressor.sandbox.{cpu_limit,cpu_reservation}": [0.75]}}
    run = part(scenario, lambda _, t: 1e6 * (0.25 if t.aggressor else 1), reference="host")
    board = Board.model_validate(
        {
            "part": "p",
            "victim": "tested",
            "environment": "neighbour $share",
            "benchmark": "b",
            "cores": "one",
            "x": "level",
            "of": "aggressor.sandbox.{cpu_limit,cpu_reservation}",
            "loads": {"none": "none", "load": "integer"},
        }
    )
    result = {entry.places["load"]: entry for entry in tables.entries([board], [run])}
    assert result["none"].places["environment"] == "neighbour 75 %"
    assert result["integer"].q.value == pytest.approx(1, rel=0.02)
    assert result["none"].q.value == pytest.approx(1, rel=0.02)


def test_where_no_effect_shows_it_is_said_that_both_had_what_they_wanted():
    (point,) = places(rule(beside={"ring": "interference"}), part(RING, slower(0.0))).values()
    text = tables.reason(point)
    assert "effect: none; the band of a neighbour that loads nothing" in text
    assert "the resource is not scarce here" in text
    (hurt,) = places(rule(beside={"ring": "interference"}), part(RING, slower(0.4))).values()
    assert "not short" not in tables.reason(hurt)
    assert "effect: effect" in tables.reason(hurt)


def estimate(value, half):
    return Estimate(value=value, low=value - half, high=value + half, n=9, method="m")


def test_errors_of_independent_figures_add_up():
    product = tables.times(estimate(2.0, 0.02), estimate(3.0, 0.03))
    assert product.value == pytest.approx(6)
    assert product.high - product.value == pytest.approx(6 * 0.01 * 2**0.5, rel=0.02)
    ratio = tables.over(estimate(2.0, 0.02), estimate(4.0, 0.0))
    assert (ratio.low, ratio.high) == (pytest.approx(0.495), pytest.approx(0.505))


def test_a_victim_that_gets_nothing_has_a_share_of_nothing_and_not_an_error():
    product = tables.times(estimate(0.0, 0.01), estimate(2.0, 0.1))
    assert (product.value, product.low) == (0, 0)
    assert product.high == pytest.approx(0.01 * 2.1)
