"""docs/papers.md: generated from its rows, which are complete and consistent with the studies and their claims."""

from __future__ import annotations

import os
import shlex
from types import SimpleNamespace

import click
import pytest

from labs import papers as table
from partywall import study as studies
from partywall.cli.app import COMMANDS, command
from partywall.core import here
from partywall.model.paper import Beside, Measured
from partywall.model.study import StudyRequest
from partywall.scenario import papers
from partywall.testing import fake_host

ROWS = {rows.letter: rows for rows in table.every()}
COUNTS = {"N": 54, "V": 40, "C": 36, "H": 36, "D": 36}


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
        assert not claimed - measured, exhibit.id


def test_the_short_form_measures_what_the_page_says_it_does():
    kind = studies.kind_of(studies.find("hyperv-quality"))
    study = kind.read(studies.find("hyperv-quality").read_bytes(), "hyperv-quality")
    short = kind.places(study, StudyRequest(), here.this_host())
    assert {place.x for place in short["fig 1"]} == {25.0, 75.0}


def test_the_result_of_a_labs_study_stands_beside_its_papers_with_what_was_measured_alone():
    vits = ROWS["V"]
    point = {"series": "pipe", "x": "none", "value": 210.0, "low": 200.0, "high": 220.0, "emulated": "victim"}
    shown = {"exhibit": "fig 7", "likeness": "confirmed", "reason": "1 of 2", "measured": [point]}
    by_lab = {"study": "xen-lab-vits", "by": "lab xen", "paper": "vits", "when": "2026-11-27", "form": "short"}
    recorded = table.Recorded.model_validate(by_lab | {"host": "a machine", "exhibits": [shown]})
    own = table.Recorded.model_validate(
        {"study": "vits", "when": "2026-11-26", "form": "short", "host": "here", "exhibits": []}
    )
    page = table.page([vits], [own, recorded], frozenset())
    section = page.split("### Published and measured: `papers/vits`")[1].split("###")[0]
    assert "Measured on 2026-11-26 in the short form, on here.\n" in section
    assert "Measured by `make xen-lab` on 2026-11-27 in the short form, on a machine.\n\nE: emulated" in section
    assert "| figure or table | place | published | measured | measured by `make xen-lab` |" in section
    assert "| **fig 7** | Bandwidth of communication between local processes |  |  | **confirmed**: 1 of 2 |" in section
    assert "| fig 7 | pipe, none | no number | – | 210 ± 10 E |" in section


def test_resources_are_graded_beside_the_paper_from_what_was_recorded():
    points = [POINT | {"series": "kept", "x": "CPU time", "value": 99.0, "low": 95.0, "high": 103.0}]
    page = table.page([ROWS["H"]], [recorded("hyperv-quality", table_1=points)], frozenset())
    assert "| CPU time | B | High | High | 99 ± 4 % |" in page
    assert "expected and measured" not in table.page(
        [ROWS["H"]], [recorded("hyperv-quality", fig_1=[POINT])], frozenset()
    )


def test_a_metric_without_a_result_in_the_paper_has_a_line_for_each_series():
    points = [POINT | {"series": "sandbox", "x": x} for x in (25.0, 50.0)] + [POINT | {"series": "physical", "x": 25.0}]
    results = [recorded("load-generation-netto", **{"section_II.A_(memory)": points})]
    lines = [
        line
        for line in table.page([ROWS["N"]], results, frozenset()).splitlines()
        if "| section II.A (memory) |" in line
    ]
    assert lines == [
        "| section II.A (memory) | sandbox | no number | 25: 9 ± 1; 50: 9 ± 1 |",
        "| section II.A (memory) | physical | no number | 25: 9 ± 1 |",
    ]


# What is recorded

POINT = {"series": "cache", "x": "normal", "value": 9.0, "low": 8.0, "high": 10.0}


def recorded(study, **exhibits):
    shown = [
        {"exhibit": name.replace("_", " "), "likeness": "same order", "measured": points}
        for name, points in exhibits.items()
    ]
    base = {"study": study, "when": "2026-11-27", "host": "a machine", "form": "short"}
    return table.Recorded.model_validate(base | {"exhibits": shown})


def test_a_row_is_measured_again_only_once_each_of_its_figures_has_a_recorded_point():
    row = (
        ROWS["V"]
        .rows[0]
        .model_copy(update={"status": "measured", "by": ("study vits",), "exhibits": ("fig 5", "fig 7")})
    )
    rows = ROWS["V"].model_copy(update={"rows": (row,)})

    def states(results):
        (stated,) = table.stated(rows, results, frozenset())
        return stated.status, stated.lacks

    assert states([]) == ("unrecorded", "no result of fig 5, fig 7 is recorded yet")
    assert states([recorded("vits", fig_5=[POINT], fig_7=[])]) == ("unrecorded", "no result of fig 7 is recorded yet")
    assert states([recorded("vits", fig_5=[POINT], fig_7=[POINT])]) == ("measured", "")
    # A figure that only a lab measured is a result of rows that name the lab.
    lab = recorded("xen-lab-vits", fig_5=[POINT], fig_7=[POINT]).model_copy(update={"by": "lab xen", "paper": "vits"})
    assert states([lab])[0] == "unrecorded"
    # So is one in other sandboxes: rows that name the backend.
    guests = recorded("vits", fig_5=[POINT], fig_7=[POINT]).model_copy(update={"backend": "qemu"})
    assert states([guests])[0] == "unrecorded"
    assert guests.is_of("sudo partywall study papers/vits --backend qemu --only 'memory*'")
    assert not guests.is_of("sudo partywall study papers/vits-network --backend qemu")


def test_a_row_without_figures_needs_a_result_of_one_of_its_studies_or_benchmarks():
    row = (
        ROWS["V"].rows[0].model_copy(update={"status": "measured", "by": ("study vits", "bench harm"), "exhibits": ()})
    )
    said = "sudo partywall study papers/vits, sudo python benches/harm.py"
    assert table.without_result(row, (), frozenset({"watch_cost"})) == said
    assert table.without_result(row, (), frozenset({"harm"})) == ""
    assert table.without_result(row, [recorded("vits", fig_5=[POINT])], frozenset()) == ""
    stand_in = row.model_copy(update={"status": "stand-in", "lacks": "a meter"})
    assert table.without_result(stand_in, (), frozenset()) == said
    other = row.model_copy(update={"status": "shown"})
    assert table.without_result(other, (), frozenset()) == ""


def test_the_result_of_some_parts_is_added_to_the_earlier_one(tmp_path, monkeypatch):
    paper = papers.load("vits")

    def measure(parts, *names, backends=()):
        """A stored study that measured these figures."""
        comparisons = [
            Beside(
                paper=paper,
                table=exhibit,
                measured=(Measured.model_validate(POINT),) if exhibit.id in names else (),
            )
            for exhibit in paper.exhibits
        ]
        folder = tmp_path / "-".join([*(parts or ["whole"]), *backends])
        folder.mkdir()
        (folder / "observations.jsonl").touch()
        request = StudyRequest(parts=tuple(parts), backends=backends)
        directory = SimpleNamespace(about={}, path=folder, request=request)
        monkeypatch.setattr(table.StudyDirectory, "open", lambda _: directory)
        report = SimpleNamespace(name="vits", length="short", comparisons=comparisons)
        monkeypatch.setattr(table.studies, "report", lambda _: report)
        stored = table.Recorded.model_validate_json(table.record(folder).read_bytes())
        assert stored.backend == "".join(backends)
        return {shown.exhibit: (len(shown.measured), shown.note) for shown in stored.exhibits}

    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    first = measure(["cache"], "fig 5")
    assert list(first) == ["fig 5"]
    assert first["fig 5"][0] == 1
    assert first["fig 5"][1].endswith(", --only cache")
    both = measure(["memory*"], "fig 6 (space)")
    assert both["fig 5"] == first["fig 5"]
    assert both["fig 6 (space)"][1].endswith(", --only 'memory*'")
    guests = measure(["memory*"], "fig 6 (space)", backends=("qemu",))
    assert list(guests) == ["fig 6 (space)"]
    with pytest.raises(ValueError, match="measure each apart"):
        measure(["both"], backends=("qemu", "container"))
    whole = measure([], "fig 7")
    assert whole["fig 5"] == (0, "")
    assert len(whole) == len(paper.exhibits)


def test_a_lab_that_measures_the_papers_study_itself_has_a_result_of_its_own(tmp_path, monkeypatch):
    name = "load-generation-netto"
    point = Measured(series="50 users", x=25.0, value=1.0, low=0.9, high=1.1)
    paper = papers.load(name)
    comparisons = [
        Beside(paper=paper, table=exhibit, measured=(point,) if exhibit.id == "fig 5" else ())
        for exhibit in paper.exhibits
    ]
    (tmp_path / "observations.jsonl").touch()
    content = studies.find(name).read_bytes()
    (tmp_path / "study.yaml").write_bytes(content)
    directory = SimpleNamespace(about={}, path=tmp_path, request=StudyRequest(), content=content)
    monkeypatch.setattr(table.StudyDirectory, "open", lambda _: directory)
    report = SimpleNamespace(name=name, length="short", comparisons=comparisons)
    monkeypatch.setattr(table.studies, "report", lambda _: report)
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    file = table.record(tmp_path, lab="hosts")
    assert file.name == "load-generation-netto-hosts.json"
    (stored,) = table.results()
    assert (stored.by, stored.beside, stored.column) == ("lab hosts", name, "measured by `make hosts`")
    assert [shown.exhibit for shown in stored.exhibits] == ["fig 5"]


def test_every_place_that_a_verdict_is_about_is_on_the_page():
    for letter, rows in ROWS.items():
        page = table.page([rows], (), frozenset())
        for name in rows.studies:
            for exhibit in papers.load(name).exhibits:
                claimed = {place for claim in exhibit.claims for place in (claim.left, claim.than)}
                lacking = [str(p) for p in claimed | set(exhibit.values) if f"| {exhibit.id} | {p} |" not in page]
                assert not lacking, (letter, exhibit.id)


# The commands beside the rows

SAID = sorted({table._command(by) for rows in ROWS.values() for row in rows.rows for by in row.by})


@pytest.mark.parametrize("text", [text for text in SAID if "partywall " in text])
def test_the_command_of_a_row_is_one_that_the_command_line_takes(text):
    """Options and their values, and the names of studies and parts; words in capitals stand for the reader's own."""
    words = shlex.split(text.split(", with ")[0].removeprefix("sudo "))
    assert words[0] == "partywall"
    name, arguments = words[1], words[2:]
    entry = command(name)
    while isinstance(entry, click.Group):
        # `partywall load PLAN` is `partywall load run PLAN`.
        child = entry.get_command(click.Context(entry), arguments[0]) if arguments else None
        entry, arguments = (child, arguments[1:]) if child is not None else (entry.commands["run"], arguments)
    context = click.Context(entry, info_name=name, **(COMMANDS[name].settings if COMMANDS[name] else None) or {})
    entry.parse_args(context, list(arguments))
    if name == "study":
        given = context.params
        job = given["name"]
        kind = studies.kind_of(studies.find(job))
        study = kind.read(studies.find(job).read_bytes(), job)
        length = given["form"] or ("long" if given["long"] else "short")
        parts, backends = tuple(given["only"] or ()), tuple(given["backend"] or ())
        request = StudyRequest(length=str(length), parts=parts, backends=backends)
        assert kind.places(study, request, fake_host(cpus=4))


@pytest.mark.parametrize("text", [text for text in SAID if text.startswith("make ")])
def test_the_lab_of_a_row_is_a_target(text):
    targets = (table.ROOT / "Makefile").read_text("utf-8")
    assert f"\n{text.removeprefix('make ')}:" in targets
