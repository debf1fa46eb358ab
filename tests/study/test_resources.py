"""The overview of resources: grades from measured ratios, and a reason where there is none."""

from __future__ import annotations

import pytest

from partywall import study as studies
from partywall.study import papers
from partywall.study.document import Section
from partywall.study.isolation import Isolation, overview, resources
from partywall.study.isolation.model import Graded, Resource, Study
from partywall.study.paper import Beside, Measured, Place

PAPER = papers.load("hyperv-quality")


def beside(alone: float, loaded: float, spread: float = 0.01) -> dict[str, Beside]:
    points = [("disk, no load", alone), ("disk, disk load", loaded)]
    measured = tuple(
        Measured(series=name, x=75.0, value=v, low=v * (1 - spread), high=v * (1 + spread)) for name, v in points
    )
    return {"fig 4": Beside(paper=PAPER, table=PAPER.table("fig 4"), measured=measured)}


DISK = Resource(
    name="disk",
    type="B",
    expected="Low",
    graded=Graded(exhibit="fig 4", left=Place("disk, disk load", 75.0), than=Place("disk, no load", 75.0)),
)
SIZE = Resource(name="size", type="A", expected="High", lacks="a size")


def section(each: list[Resource], comparisons: dict[str, Beside]) -> Section:
    return resources.section(each, resources.measured(each, comparisons))


@pytest.mark.parametrize(
    ("loaded", "spread", "expected"),
    [
        (98, 0.01, "High"),
        (80, 0.01, "Medium"),
        (30, 0.01, "Low"),
        (90, 0.03, "High or Medium"),
        (80, 0.4, "not known"),
    ],
)
def test_a_resource_is_graded_by_the_share_that_its_victim_keeps(loaded, spread, expected):
    (row,) = section([DISK], beside(100, loaded, spread)).rows
    assert row[:4] == ("disk", "B", "Low", expected)


def test_what_was_not_measured_has_no_grade_and_a_reason():
    rows = section([SIZE, DISK], {}).rows
    assert [row[3:] for row in rows] == [("not graded", "a size"), ("not graded", "not measured in this form")]
    assert list(resources.measured([SIZE, DISK], {})) == []


def test_the_advice_on_a_resource_is_given_unless_it_is_graded_high():
    watched = DISK.model_copy(update={"advice": "Watch it."})
    assert section([watched], beside(100, 30)).lead == f"{resources.METHOD} Watch it."
    assert section([watched], beside(100, 98)).lead == resources.METHOD
    assert section([watched], {}).lead == resources.METHOD


def shipped() -> Study:
    file = studies.find("hyperv-quality")
    return Isolation().read(file.read_bytes(), str(file))


def test_an_emulated_victim_is_marked_beside_the_rate_that_it_keeps():
    (comparison,) = beside(100, 30).values()
    emulated = tuple(point.model_copy(update={"emulated": "victim"}) for point in comparison.measured)
    (row,) = section([DISK], {"fig 4": comparison.model_copy(update={"measured": emulated})}).rows
    assert row[3:] == ("Low", "30.0 ± 0.6 % E")


def test_grades_follow_from_the_recorded_points_of_the_overview_alone():
    def point(name, low, high):
        return Measured(series=resources.KEPT, x=name, value=(low + high) / 2, low=low, high=high)

    points = [
        point("CPU time", 95, 103),
        point("system bus bandwidth", 83, 105),
        point("mass storage bandwidth", 48, 60),
    ]
    graded = overview(shipped(), {"table 1": points})
    grades = {row[0]: row[2:4] for row in graded.rows}
    assert grades["CPU time"] == ("High", "High")
    assert grades["system bus bandwidth"] == ("Medium", "High or Medium")
    assert grades["mass storage bandwidth"] == ("Low", "Low")
    assert grades["RAM size"] == ("High", "not graded")
    assert "The bounds are Partywall's own" in graded.lead
    assert "partywall watch" in graded.lead
    assert overview(shipped(), {"fig 1": points}) is None


def test_a_study_without_an_overview_has_no_grades():
    file = studies.find("vits")
    assert overview(Isolation().read(file.read_bytes(), str(file)), {"fig 5": []}) is None


def test_the_shipped_overview_has_the_papers_seven_resources():
    study = shipped()
    assert [(each.type, each.expected) for each in study.resources] == [
        ("B", "High"),
        ("A", "High"),
        ("A", "High"),
        ("B", "Medium"),
        ("A", "High"),
        ("B", "Low"),
        ("B", "High"),
    ]
