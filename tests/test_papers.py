"""docs/papers.md: generated from its rows, which are complete and consistent with the studies and their claims."""

from __future__ import annotations

import os

import pytest

from labs import papers as table
from partywall import pipeline
from partywall import study as studies
from partywall.model.study import StudyRequest
from partywall.scenario import papers
from partywall.testing import fake_host

ROWS = {rows.letter: rows for rows in table.every()}
COUNTS = {"N": 54, "V": 39, "C": 36, "H": 36, "D": 36}


def test_the_page_is_generated_from_its_rows():
    """UPDATE_DOCS=1 writes it anew."""
    text = table.PAGE.read_text("utf-8")
    fresh = table.fresh(text)
    if os.environ.get("UPDATE_DOCS"):
        table.PAGE.write_text(fresh, "utf-8")
    elif text != fresh:
        pytest.fail(f"{table.PAGE} does not fit its rows; run make generate")


def test_every_statement_of_the_papers_has_a_row():
    assert {letter: len(rows.rows) for letter, rows in ROWS.items()} == COUNTS


@pytest.mark.parametrize("letter", COUNTS)
def test_rows_name_what_exists_and_say_what_is_lacking(letter):
    assert list(table.problems(ROWS[letter])) == []


@pytest.mark.parametrize("letter", COUNTS)
def test_published_numbers_are_those_that_the_paper_prints(letter):
    assert list(table.misprinted(ROWS[letter])) == []


def test_a_wrong_number_a_missing_exhibit_and_an_unknown_benchmark_are_reported():
    netto = ROWS["N"]
    wrong = netto.model_copy(update={"printed": {**netto.printed, "table V": (0.8, 0.71)}})
    assert any("table V: the paper prints" in problem for problem in table.misprinted(wrong))
    without = netto.model_copy(
        update={"rows": tuple(row.model_copy(update={"exhibits": ()}) for row in netto.rows)},
    )
    assert f"{netto.title}: no row names 'fig 4a'" in list(table.problems(without))
    unknown = netto.rows[0].model_copy(update={"by": ("bench nobody",)})
    assert "N01: there is no bench nobody" in list(
        table.problems(netto.model_copy(update={"rows": (unknown, *netto.rows[1:])}))
    )


def test_a_complete_row_has_evidence_and_any_other_a_reason():
    row = ROWS["N"].rows[0]
    assert list(table._wrong(row.model_copy(update={"by": ()}))) == ["shown, but no command is named"]
    assert list(table._wrong(row.model_copy(update={"status": "missing"})))
    unequipped = row.model_copy(update={"status": "unequipped", "by": (), "lacks": "x"})
    assert list(table._wrong(unequipped)) == ["needs hardware, but no command is named"]
    assert list(table._wrong(row.model_copy(update={"lacks": "x"})))


@pytest.mark.parametrize("name", papers.names())
def test_a_study_measures_both_places_of_every_claim(name):
    file = studies.find(name)
    kind = studies.kind_of(file)
    study = kind.read(file.read_bytes(), str(file))
    # Some places exist only if the tenants are guests.
    every = [
        kind.places(study, StudyRequest(length="long", backends=backends), fake_host(cpus=4))
        for backends in ((), ("qemu",))
    ]
    for exhibit in papers.load(name).exhibits:
        claimed = {place for claim in exhibit.claims for place in (claim.left, claim.than)}
        measured = frozenset().union(*(places.get(exhibit.id, frozenset()) for places in every))
        # The largest possible memory traffic of a host is not known.
        lacking = claimed - measured if exhibit.id != "fig 4" or name != "dba-vm" else set()
        assert not lacking, exhibit.id


def test_the_short_form_measures_what_the_page_says_it_does():
    kind = studies.kind_of(studies.find("hyperv-quality"))
    study = kind.read(studies.find("hyperv-quality").read_bytes(), "hyperv-quality")
    short = kind.places(study, StudyRequest(), pipeline.this_host())
    assert {place.x for place in short["fig 1"]} == {25.0, 75.0}


def test_the_result_of_a_labs_study_stands_beside_its_papers_with_what_was_measured_alone():
    vits = ROWS["V"]
    point = {"series": "pipe", "x": "none", "value": 210.0, "low": 200.0, "high": 220.0, "emulated": "victim"}
    shown = {"exhibit": "fig 7", "likeness": "confirmed", "measured": [point]}
    by_lab = {"study": "xen-lab-vits", "by": "lab xen", "paper": "vits", "when": "2026-11-27", "form": "short"}
    recorded = table.Recorded.model_validate(by_lab | {"host": "a machine", "exhibits": [shown]})
    page = table.page([vits], {"xen-lab-vits": recorded})
    section = page.split("### Published and measured: `make xen-lab`")[1].split("###")[0]
    assert "Measured on 2026-11-27 in the short form, on a machine.\n\nE: emulated" in section
    assert "| fig 7 | pipe, none | no number | 210 ± 10 E | confirmed |" in section
    assert "fig 5" not in section
