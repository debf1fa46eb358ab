"""The overview of resources: grades from measured ratios, and a reason where there is none."""

from __future__ import annotations

import pytest

from partywall.model.paper import Beside, Measured, Place
from partywall.scenario import papers
from partywall.study.isolation import resources
from partywall.study.isolation.model import Graded, Resource

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
    (row,) = resources.section([DISK], beside(100, loaded, spread)).rows
    assert row[:4] == ("disk", "B", "Low", expected)


def test_what_was_not_measured_has_no_grade_and_a_reason():
    rows = resources.section([SIZE, DISK], {}).rows
    assert [row[3:] for row in rows] == [("not graded", "a size"), ("not graded", "not measured in this form")]
    assert list(resources.measured([SIZE, DISK], {})) == []


def test_the_advice_on_a_resource_is_given_unless_it_is_graded_high():
    watched = DISK.model_copy(update={"advice": "Watch it."})
    assert resources.section([watched], beside(100, 30)).lead == f"{resources.METHOD} Watch it."
    assert resources.section([watched], beside(100, 98)).lead == resources.METHOD
    assert resources.section([watched], {}).lead == resources.METHOD


def test_the_shipped_overview_has_the_papers_seven_resources():
    from partywall import study as studies  # noqa: PLC0415

    file = studies.find("hyperv-quality")
    study = studies.kind_of(file).read(file.read_bytes(), str(file))
    assert [(each.type, each.expected) for each in study.resources] == [
        ("B", "High"),
        ("A", "High"),
        ("A", "High"),
        ("B", "Medium"),
        ("A", "High"),
        ("B", "Low"),
        ("B", "High"),
    ]
