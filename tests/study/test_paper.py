import itertools
import json

import altair as alt
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from partywall.core.report.charts import spec_of, titled
from partywall.errors import UsageError
from partywall.study import exhibits, kind_of, papers
from partywall.study import find as find_study
from partywall.study.agreement import Agreement, Likeness, best, best_text, judge
from partywall.study.paper import Beside, Best, Claim, Measured, Number, Paired, Paper, Place

PAPER = Paper.model_validate(
    {
        "authors": "A. Author",
        "title": "A study",
        "venue": "Venue",
        "year": 2011,
        "exhibits": [
            {
                "id": "table I",
                "title": "Queue",
                "where": "section 4",
                "x": {"title": "users"},
                "y": {"title": "queue", "unit": "requests"},
                "published": {"VM": {"25": 40.0, "50": 80.0}, "physical": {"25": 10.0, "50": 10.1}},
            },
            {
                "id": "section 3",
                "title": "A benchmark that the paper names",
                "where": "section 3",
                "x": {"title": "users"},
                "y": {"title": "rate"},
            },
            {
                "id": "fig 1",
                "title": "Time",
                "where": "section 4",
                "x": {"title": "users"},
                "y": {"title": "time", "unit": "s"},
                "claims": [{"left": ["VM", 50], "is": "larger", "than": ["VM", 25], "by": 0.1}],
            },
        ],
    }
)


def beside(values: dict[tuple[str, object], float], spread: float = 0.01, exhibit: str = "table I") -> Beside:
    points = tuple(
        Measured(series=series, x=x, value=v, low=v * (1 - spread), high=v * (1 + spread))
        for (series, x), v in values.items()
    )
    return Beside(paper=PAPER, table=PAPER.table(exhibit), measured=points, differs=("loopback, no NIC",))


AS_PUBLISHED = {("VM", 25): 4.0, ("VM", 50): 8.0, ("physical", 25): 1.0, ("physical", 50): 1.0}


def test_values_of_another_size_that_stand_alike_are_the_same_order():
    verdict = judge(beside(AS_PUBLISHED))
    assert verdict.likeness is Likeness.SAME_ORDER
    assert verdict.scale == pytest.approx((1 / 10.1, 0.1))


def test_what_the_paper_gives_no_result_of_is_shown_without_a_verdict():
    ours = beside({("VM", 25): 4.0}, exhibit="section 3")
    verdict = judge(ours)
    assert verdict.likeness is Likeness.UNSTATED
    assert verdict.reason == "no number or statement of the paper to compare with"
    assert exhibits.rows(ours) == [("VM", "25", exhibits.NOT_PRINTED, "4.00 ± 0.04")]
    assert "nothing to compare" in exhibits.section([ours], {})
    assert judge(beside({}, exhibit="section 3")).likeness is Likeness.MISSING


def test_a_trend_the_other_way_round_differs():
    assert judge(beside(AS_PUBLISHED | {("VM", 50): 2.0})).likeness is Likeness.DIFFERS


def test_a_step_on_the_way_that_stands_otherwise_leaves_the_direction_the_same():
    verdict = judge(beside(AS_PUBLISHED | {("physical", 25): 5.0, ("VM", 25): 4.0, ("physical", 50): 5.0}))
    assert verdict.likeness is Likeness.SAME_DIRECTION
    assert "1 different: physical at 25 over VM at 25" in verdict.reason


def test_intervals_that_overlap_tell_nothing():
    verdict = judge(beside(AS_PUBLISHED, spread=0.9))
    assert verdict.likeness is Likeness.UNTOLD
    assert {pair.agreement for pair in verdict.pairs} == {Agreement.UNTOLD}


def test_ratios_of_the_same_rounds_tell_apart_what_wide_intervals_cannot():
    wide = beside(AS_PUBLISHED, spread=0.9)
    places = list(wide.table.values)
    ratios = [
        Paired(left=a, right=b, value=v, low=v * 0.98, high=v * 1.02)
        for a, b in itertools.combinations(places, 2)
        for v in [wide.points[a].value / wide.points[b].value]
    ]
    assert judge(wide.model_copy(update={"paired": tuple(ratios)})).likeness is Likeness.SAME_ORDER


def test_what_was_not_measured_is_said_and_never_counts_as_alike():
    assert judge(beside({})).likeness is Likeness.MISSING
    assert judge(beside({("VM", 25): 1.0})).likeness is Likeness.MISSING


def test_a_metric_that_the_paper_names_without_a_result_is_shown_without_a_verdict():
    measured = beside({("VM", 25): 1.0})
    silent = measured.table.model_copy(update={"published": {}, "claims": (), "bounds": ()})
    verdict = judge(measured.model_copy(update={"table": silent}))
    assert (verdict.likeness, verdict.pairs, verdict.scale) == (Likeness.UNSTATED, (), None)
    assert judge(beside({}).model_copy(update={"table": silent})).likeness is Likeness.MISSING
    assert ("VM", "50", "80", exhibits.NOT_MEASURED) in exhibits.rows(beside({("VM", 25): 1.0}))


def test_claims_of_the_text_are_judged_where_no_number_is_printed():
    right = beside({("VM", 25): 1.0, ("VM", 50): 2.0}, exhibit="fig 1")
    wrong = beside({("VM", 25): 2.0, ("VM", 50): 1.0}, exhibit="fig 1")
    assert judge(right).likeness is Likeness.SAME_DIRECTION
    assert judge(wrong).likeness is Likeness.DIFFERS
    assert ("VM", "25", exhibits.NOT_PRINTED, "1.00 ± 0.01") in exhibits.rows(right)


@pytest.mark.parametrize(
    ("native", "guarded", "likeness"),
    [
        ((0.0, 0.0, 0.0), (2.0, 1.0, 3.0), Likeness.DIFFERS),
        ((0.0, 0.0, 0.0), (2.0, 0.0, 30.0), Likeness.UNTOLD),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), Likeness.UNTOLD),
        ((2.0, 1.0, 3.0), (0.0, 0.0, 0.0), Likeness.SAME_ORDER),
    ],
)
def test_a_place_without_any_loss_gets_a_verdict_too(native, guarded, likeness):
    dba = papers.load("dba-vm")
    points = [
        Measured(series=series, x="VM2", value=value, low=low, high=high)
        for series, (value, low, high) in (("native", native), ("published", guarded))
    ]
    verdict = judge(Beside(paper=dba, table=dba.table("fig 6 (loss)"), measured=tuple(points)))
    assert (len(verdict.pairs), verdict.likeness) == (1, likeness)


def test_what_the_text_says_of_two_places_counts_before_printed_numbers_that_hardly_differ():
    vits = papers.load("vits")
    exhibit = vits.table("fig 5")

    def verdict(interference: float) -> Likeness:
        values = {"normal": 10.0, "interference": interference}
        points = [Measured(series="cache", x=x, value=v, low=v * 0.99, high=v * 1.01) for x, v in values.items()]
        return judge(Beside(paper=vits, table=exhibit, measured=tuple(points))).likeness

    # The paper prints a difference of half a percent.
    assert verdict(13.0) is Likeness.SAME_DIRECTION
    assert verdict(10.0) is Likeness.UNTOLD
    assert verdict(7.0) is Likeness.DIFFERS


@given(st.floats(1e-6, 1e6))
def test_a_verdict_does_not_depend_on_the_unit(factor: float):
    scaled = {place: value * factor for place, value in AS_PUBLISHED.items()}
    assert judge(beside(scaled)).likeness is Likeness.SAME_ORDER


@pytest.mark.long
@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(st.sampled_from(list(AS_PUBLISHED)), st.just(0.0) | st.floats(1e-9, 1e9), max_size=4),
    st.floats(0, 0.99),
)
def test_any_values_get_a_verdict_a_table_and_a_chart(values: dict[tuple[str, object], float], spread: float):
    shown = beside(values, spread)
    Console(quiet=True).print(*exhibits.parts([shown]))
    assert exhibits.chart(shown).to_dict(validate=True)["$schema"] == alt.SCHEMA_URL
    assert judge(shown).reason


def test_the_section_tells_verdict_values_and_differences_and_holds_a_chart():
    specs: dict[str, object] = {}
    text = exhibits.section([beside(AS_PUBLISHED), beside({}, exhibit="fig 1")], specs)
    assert list(specs) == ["paper-1-table-i"]
    for part in ("Table I: Queue", "same order", "not measured", "loopback, no NIC", "A. Author", "4.00 ± 0.04"):
        assert part in text


def test_the_chart_draws_hollow_and_filled_marks():
    svg = vl_convert.vegalite_to_svg(json.dumps(titled(exhibits.chart(beside(AS_PUBLISHED)), "Table I")))
    assert "NaN" not in svg
    assert svg.count('aria-roledescription="point"') == 8


def test_a_claim_states_its_size_in_percent_and_from_twice_on_as_a_multiple():
    claim = {"left": ("VM", 25), "is": "larger", "than": ("PM", 25)}
    texts = [exhibits.claim_text(Claim.model_validate(claim | {"by": by})) for by in (0.08, 5)]
    assert texts == ["VM at 25 is larger than PM at 25, by some 8 %", "VM at 25 is larger than PM at 25, some 6 times"]


@pytest.mark.parametrize("name", papers.names())
def test_shipped_numbers_can_be_read_and_each_figure_has_something_to_compare_or_says_why_not(name: str):
    result = papers.load(name)
    assert all(exhibit.has_statements or exhibit.says for exhibit in result.exhibits)
    assert len({exhibit.id for exhibit in result.exhibits}) == len(result.exhibits)


def test_an_unknown_study_and_a_wrong_file_are_users_mistakes():
    with pytest.raises(UsageError, match="there are no published numbers"):
        papers.load("nobody")
    with pytest.raises(UsageError, match=r"f.yaml:2: exhibits\[0\].*required"):
        papers.loads("paper: 1\nexhibits: [{id: fig 1}]", "f.yaml")


def test_what_is_emulated_carries_its_mark_in_the_chart_and_the_caption():
    plain = beside({("VM", 25.0): 40.0, ("VM", 50.0): 80.0})
    own, beside_one = (
        plain.model_copy(
            update={"measured": tuple(point.model_copy(update={"emulated": what}) for point in plain.measured)}
        )
        for what in ("victim", "neighbour")
    )
    every = (plain, own, beside_one)
    texts = [json.dumps(spec_of(exhibits.chart(each))) for each in every]
    assert ['"mark": "E"' in text for text in texts] == [False, True, False]
    assert ['"mark": "(E)"' in text for text in texts] == [False, False, True]
    assert ["E: emulated" in exhibits.section([each], {}) for each in every] == [False, True, True]


def test_reasons_are_reported_of_places_that_do_not_stand_as_in_the_paper_and_of_no_others():
    def reported(late: float) -> str:
        each = beside({("VM", 25.0): 40.0, ("VM", 50.0): late})
        return str(exhibits.section([each.model_copy(update={"why": {Place("VM", 50.0): "the disk was idle"}})], {}))

    assert "the disk was idle" not in reported(80.0)
    assert "the disk was idle" in reported(20.0)


def test_a_ratio_that_may_be_nothing_turned_round_has_no_upper_end():
    left, right = Place("VM", 25.0), Place("VM", 50.0)
    pair = Paired(left=left, right=right, value=0.5, low=0.0, high=1.1)
    verdict = judge(beside({("VM", 25.0): 40.0, ("VM", 50.0): 80.0}).model_copy(update={"paired": (pair,)}))
    assert verdict.pairs[0].measured[2] == float("inf")
    assert verdict.pairs[0].agreement is Agreement.UNTOLD


def claiming(**claim: object) -> Paper:
    exhibit = PAPER.table("fig 1").model_dump(by_alias=True)
    said = {"claims": [{"left": ["VM", 50], "is": "larger", "than": ["VM", 25], **claim}]}
    return Paper.model_validate({**PAPER.model_dump(by_alias=True), "exhibits": [{**exhibit, **said}]})


def of_ratio(value: float, low: float, high: float, **claim: object) -> Agreement:
    """The agreement of a claim with the ratio that was measured."""
    paper_ = claiming(**claim)
    points = tuple(Measured(series="VM", x=x, value=1.0, low=0.5, high=2.0) for x in (25.0, 50.0))
    ratio = Paired(left=Place("VM", 50.0), right=Place("VM", 25.0), value=value, low=low, high=high)
    result = judge(Beside(paper=paper_, table=paper_.exhibits[0], measured=points, paired=(ratio,)))
    return result.pairs[0].agreement


@pytest.mark.parametrize(
    ("ratio", "agreement"),
    [
        ((1.10, 1.06, 1.15), Agreement.AGREES),
        ((1.10, 1.01, 1.20), Agreement.SIZE_UNTOLD),
        ((1.02, 1.01, 1.03), Agreement.OTHER_SIZE),
        ((1.90, 1.80, 2.00), Agreement.OTHER_SIZE),
        ((1.10, 0.99, 1.20), Agreement.UNTOLD),
        ((0.90, 0.85, 0.95), Agreement.CONTRADICTS),
    ],
)
def test_a_stated_difference_of_a_tenth_is_judged_by_its_size(ratio, agreement):
    assert of_ratio(*ratio, by=0.1) is agreement


def test_a_smaller_value_is_judged_by_the_size_of_its_difference_too():
    stated = {"is": "smaller", "by": 0.08}
    assert of_ratio(0.93, 0.90, 0.95, **stated) is Agreement.AGREES
    assert of_ratio(0.60, 0.55, 0.65, **stated) is Agreement.OTHER_SIZE


def test_another_size_is_the_same_direction_and_never_the_same_order():
    result = judge(beside({("VM", 25): 1.0, ("VM", 50): 2.0}, exhibit="fig 1"))
    assert result.likeness is Likeness.SAME_DIRECTION
    assert "1 in the same direction, another size" in result.reason


def bounded(value: float, low: float, high: float, **bound: object) -> Likeness:
    exhibit = {**PAPER.table("fig 1").model_dump(by_alias=True), "claims": [], "bounds": [{"series": "VM", **bound}]}
    paper_ = Paper.model_validate({**PAPER.model_dump(by_alias=True), "exhibits": [exhibit]})
    point = Measured(series="VM", x=50.0, value=value, low=low, high=high)
    return judge(Beside(paper=paper_, table=paper_.exhibits[0], measured=(point,))).likeness


def test_a_bound_holds_if_the_whole_interval_is_inside_and_differs_if_it_is_all_outside():
    assert bounded(98, 97, 99, at_least=96) is Likeness.SAME_ORDER
    assert bounded(96, 95, 97, at_least=96) is Likeness.UNTOLD
    assert bounded(90, 89, 91, at_least=96) is Likeness.DIFFERS
    assert bounded(26, 25.5, 27, at_least=25, at_most=28, at=[0, 70]) is Likeness.SAME_ORDER
    assert bounded(40, 39, 41, at_least=25, at_most=28, at=[0, 70]) is Likeness.DIFFERS
    assert bounded(40, 39, 41, at_least=25, at_most=28, at=[60, 70]) is Likeness.MISSING


def publishing(**numbers: object) -> Beside:
    """Our value at 50 is half of that at 25."""
    exhibit = {**PAPER.table("table I").model_dump(by_alias=True), "published": {"VM": numbers}}
    paper_ = Paper.model_validate({**PAPER.model_dump(by_alias=True), "exhibits": [exhibit]})
    points = [Measured(series="VM", x=x, value=v, low=v * 0.99, high=v * 1.01) for x, v in ((25.0, 2.0), (50.0, 1.0))]
    return Beside(paper=paper_, table=paper_.exhibits[0], measured=tuple(points))


def test_a_published_bound_is_compared_only_if_it_settles_the_order():
    assert judge(publishing(**{"25": 3, "50": {"at_most": 1}})).likeness is Likeness.SAME_ORDER
    assert judge(publishing(**{"25": 0.5, "50": {"at_least": 1}})).likeness is Likeness.DIFFERS
    assert judge(publishing(**{"25": 0.5, "50": {"at_most": 1}})).likeness is Likeness.MISSING
    assert judge(publishing(**{"25": {"at_least": 2, "at_most": 3}, "50": 1})).likeness is Likeness.SAME_ORDER


def test_bounds_ranges_and_inferred_numbers_are_shown_as_such_and_have_no_scale():
    shown = publishing(**{"25": {"value": 3, "inferred": "from fig 2"}, "50": {"at_most": 1}})
    assert [row[2] for row in exhibits.rows(shown)] == ["3 (inferred)", "at most 1"]
    assert judge(shown).scale == pytest.approx((2 / 3, 2 / 3))
    text = json.dumps(spec_of(exhibits.chart(shown)))
    assert '"mark": "*"' in text
    assert '"mark": "\\u2264"' in text
    assert "inferred: from fig 2" in text


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ({}, "either value, or at_least"),
        ({"value": 1, "at_most": 2}, "either value, or at_least"),
        ({"at_least": 3, "at_most": 2}, "at_least 3 is more than at_most 2"),
    ],
)
def test_a_published_number_is_one_value_or_bounds(number, said):
    with pytest.raises(ValueError, match=said):
        Number.model_validate(number)


def test_statements_that_a_paper_does_not_make_are_marked_as_inferred():
    exhibit = papers.load("dba-vm-shares").table("section V.B (loss by load)")
    said = [exhibits.claim_text(claim) for claim in exhibit.claims if claim.inferred]
    assert "htb at 0.5 is smaller than native at 0.5 (inferred)" in said
    assert [exhibits.bound_text(bound) for bound in exhibit.bounds] == ["published at 0.9 is at most 1 (inferred)"]


def test_numbers_that_a_paper_does_not_print_are_marked_as_inferred_or_as_bounds():
    dba = papers.load("dba-vm")
    assert dba.table("fig 2 (scenario 1)").values[Place("htb", "VM2")].inferred
    assert dba.table("fig 5a (scenario 1)").values[Place("published", "VM2")].inferred
    assert dba.table("fig 5b").values[Place("published", "VM1")].value == pytest.approx(9.1e3 / (64 * 8), rel=0.01)
    assert dba.table("fig 5b").values[Place("published", "VM3")].value == pytest.approx(22e3 / (64 * 8), rel=0.01)
    assert dba.table("fig 6 (delay)").values[Place("published", "VM2")].at_most == 1
    energy = papers.load("hyperv-quality").table("fig 3").values[Place("integer, no load", 25.0)]
    assert (energy.at_least, energy.at_most) == (25, 28)


def test_throughput_of_the_load_generation_study_is_data_per_time():
    netto = papers.load("load-generation-netto")
    assert {netto.table(id_).y.unit for id_ in ("fig 4b", "fig 6", "fig 8")} == {"10³ bytes/s"}


SCHEDULERS = papers.load("vits").table("section 5.4 (schedulers)")


def schedulers(**times: tuple[float, float, float]) -> Beside:
    points = [
        Measured(series=name.replace("_", "-"), x=16.0, value=value, low=low, high=high)
        for name, (value, low, high) in times.items()
    ]
    return Beside(paper=papers.load("vits"), table=SCHEDULERS, measured=tuple(points))


@pytest.mark.parametrize(
    ("measured", "answer"),
    [
        ({"mq_deadline": (4.0, 3.8, 4.2), "bfq": (1.9, 1.8, 2.0)}, "bfq (of mq-deadline, bfq)"),
        ({"mq_deadline": (2.1, 1.9, 2.3), "bfq": (1.9, 1.8, 2.0)}, "not distinguished: bfq, mq-deadline"),
        (
            {"mq_deadline": (2.1, 1.9, 2.3), "bfq": (1.9, 1.8, 2.0), "none": (5.0, 4.0, 6.0)},
            "not distinguished: bfq, mq-deadline (of mq-deadline, bfq, none)",
        ),
    ],
)
def test_the_scheduler_that_isolates_best_is_named_if_its_interval_is_apart(measured, answer):
    said = f"isolates best beside large requests: {answer}"
    ranked = schedulers(**measured)
    assert best_text(ranked) == said
    console = Console(record=True, width=160)
    exhibits.show([ranked], console)
    assert said in console.export_text()
    assert f"Here, {said}." in exhibits.section([ranked], {})


def test_nothing_is_best_of_fewer_than_two_or_on_another_backend():
    assert best_text(schedulers(bfq=(1.9, 1.8, 2.0))) == ""
    other = {"bfq (qemu)": (1.0, 0.9, 1.1), "bfq": (1.9, 1.8, 2.0), "none": (3.0, 2.9, 3.1)}
    assert best_text(schedulers(**other)) == "isolates best beside large requests: bfq (of bfq, none)"
    assert best_text(beside(AS_PUBLISHED)) == ""


def test_the_largest_is_best_where_more_is_better():
    wanted = Best.model_validate({"what": "fastest", "is": "largest", "at": 50, "among": ["VM", "physical"]})
    assert best(beside(AS_PUBLISHED), wanted) == (Place("VM", 50.0),)
    assert best(beside(AS_PUBLISHED, spread=0.9), wanted) == (Place("VM", 50.0), Place("physical", 50.0))


def test_the_places_of_a_ranking_are_measured_by_its_study():
    file = find_study("vits")
    study = kind_of(file).read(file.read_bytes(), str(file))
    assert SCHEDULERS.best is not None
    assert set(SCHEDULERS.best.among) == {each["scheduler"] for each in study.parts["schedulers"].each}
