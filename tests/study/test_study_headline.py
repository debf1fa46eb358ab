from partywall.study import page as pages
from partywall.study.document import StudyReport


def test_a_study_has_a_finding_for_lists_of_records_and_holds_nothing():
    report = StudyReport(
        run="r", name="n", description="", length="short", comparisons=(), notes=(), facts=(), how="", host={}, rows=()
    )
    value = pages.FILES.value(report)
    assert list(value)[:2] == ["headline", "goals"]
    assert (value["headline"], value["goals"]) == (pages.headline(report), 0)
