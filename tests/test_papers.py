"""Outcomes of the papers' statements are computed; the pages are generated from rows and results that fit."""

from __future__ import annotations

import os
import re
import shlex
from types import SimpleNamespace

import click
import pytest
from pydantic import ValidationError

from benches.results import Claim, Result
from labs import papers as table
from labs.papers import recorded as stored_results
from labs.papers.recorded import stored as stored_of
from partywall import study as studies
from partywall.cli.app import COMMANDS, command
from partywall.core import here
from partywall.study import pairing, papers
from partywall.study.agreement import Likeness, judge
from partywall.study.document import StudyRequest
from partywall.study.paper import Beside, Measured, Place
from partywall.testing import fake_host

ROWS = {rows.letter: rows for rows in table.every()}
COUNTS = {"N": 63, "V": 48, "C": 50, "H": 45, "D": 45}


def test_the_pages_are_generated_from_rows_and_results():
    """UPDATE_DOCS=1 writes them anew."""
    if os.environ.get("UPDATE_DOCS"):
        table.write()
    for file, fresh in table.written().items():
        if file.read_text("utf-8") != fresh:
            pytest.fail(f"{file} does not fit its rows and results; run make generate")


def test_every_statement_of_the_papers_has_a_row():
    assert {letter: len(rows.rows) for letter, rows in ROWS.items()} == COUNTS


@pytest.mark.parametrize("letter", COUNTS)
def test_rows_name_what_exists_and_a_reason_if_nothing_measures_them(letter):
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
    silent = netto.rows[0].model_copy(update={"by": ()})
    assert "N01: no command is named, and no reason why there is none" in list(
        table.problems(netto.model_copy(update={"rows": (silent, *netto.rows[1:])}))
    )


def test_a_main_finding_is_a_result_and_what_was_given_has_its_figure():
    netto = ROWS["N"]
    first = netto.rows[0].model_copy(update={"main": True, "given": "the users were divided"})
    assert list(table.problems(netto.model_copy(update={"rows": (first, *netto.rows[1:])}))) == [
        "N01: what is given needs the table or figure that shows it",
        "N01: a main finding is a result, and this is a method",
    ]


def test_no_file_of_rows_can_say_how_a_row_turned_out():
    with pytest.raises(ValidationError):
        table.Row.model_validate(ROWS["N"].rows[0].model_dump() | {"status": "reproduced"})


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


# Outcomes

NOTHING = table.Benches([], {})
NORMAL, BESIDE = ("sequential", "normal"), ("sequential", "interference")


def at(places):
    """Points with narrow intervals, by series and x."""
    return [
        {"series": series, "x": x, "value": value, "low": value * 0.99, "high": value * 1.01, "n": 5}
        for (series, x), value in places.items()
    ]


def points(*values, n=5, **more):
    """Two points of figure 6, whose second is larger in the paper."""
    return [
        {"series": series, "x": x, "value": value, "low": value * 0.99, "high": value * 1.01, "n": n, **more}
        for (series, x), value in zip((NORMAL, BESIDE), values, strict=True)
    ]


def row_of(**changes):
    base = {"id": "V01", "where": "fig 6", "item": "latency", "kind": "result", "by": ["study vits"]}
    return table.Row.model_validate(base | {"exhibits": ["fig 6 (bandwidth)"]} | changes)


def outcome(results, benches=NOTHING, **changes):
    rows = ROWS["V"].model_copy(update={"rows": (row_of(**changes),)})
    (stated,) = table.state(rows, results, benches)
    return stated.outcome, stated.why


def recorded(measured, study="vits", exhibit="fig 6 (bandwidth)", paired=(), **more):
    shown = {"exhibit": exhibit, "measured": measured, "paired": [pair(*each) for each in paired]}
    base = {"study": study, "when": "2026-11-27", "host": "a machine", "form": "short", "exhibits": [shown]}
    return table.Recorded.model_validate(base | more)


def pair(value, low, high):
    return {"left": BESIDE, "right": NORMAL, "value": value, "low": low, "high": high}


def test_an_outcome_follows_from_what_is_recorded():
    assert outcome([recorded(points(100, 120))])[0] == "reproduced"
    assert outcome([recorded(points(100, 80))])[0] == "contradicted"
    assert outcome([recorded(points(100, 80))])[1].endswith("The cause is not shown")
    assert outcome([recorded(points(100, 80))], cause="the kernel is another")[1].endswith("the kernel is another")
    # The paper has 1.2 here: an interval that reaches to 1.05 excludes it, and one that reaches to 1.3 does not.
    assert outcome([recorded(points(100, 100), paired=[(1.0, 0.95, 1.05)])])[0] == "bounded: smaller"
    wide = outcome([recorded(points(100, 100), paired=[(1.0, 0.8, 1.3)])])
    assert wide[0] == "not distinguished"
    assert wide[1].endswith("an increase above 30 % is excluded")


def test_an_effect_without_a_published_size_is_excluded_if_at_most_a_fifth_is_possible():
    def of_claim(high):
        """VITS, section 5.4: direct reads take longer beside larger requests; the paper prints no number."""
        few, many = ("dioread", 1.0), ("dioread", 16.0)
        measured = [
            {"series": series, "x": x, "value": 1.0, "low": 0.9, "high": 1.1, "n": 5} for series, x in (few, many)
        ]
        pairs = [{"left": many, "right": few, "value": 1.0, "low": 0.9, "high": high}]
        shown = {"exhibit": "fig 8", "measured": measured, "paired": pairs}
        base = {"study": "vits", "when": "2026-11-27", "host": "a machine", "form": "short", "exhibits": [shown]}
        return outcome([table.Recorded.model_validate(base)], exhibits=["fig 8"])[0]

    assert of_claim(1.19) == "bounded: smaller"
    assert of_claim(1.21) == "not distinguished"


def test_every_recorded_point_says_how_many_blocks_it_is_of():
    without = [
        f"{each.study} {each.backend} {shown.exhibit} {point.place}"
        for each in table.results()
        for shown in each.exhibits
        for point in shown.measured
        if point.n is None
    ]
    assert without == []


def test_paired_ratios_decide_where_they_are_stored():
    close = points(100, 101)
    assert outcome([recorded(close)])[0] != "reproduced"
    assert outcome([recorded(close, paired=[(1.2, 1.15, 1.25)])])[0] == "reproduced"


def test_a_row_without_its_quantity_says_what_is_lacking():
    assert outcome([]) == ("not recorded", "no result of fig 6 (bandwidth) is recorded")
    assert outcome([recorded(points(100, 120, n=2))]) == (
        "not recorded",
        "fig 6 (bandwidth): recorded with 2 blocks, and 3 are needed",
    )
    lacking = outcome([recorded(points(100, 120))], places=["random, *"])
    assert lacking == ("not recorded", "fig 6 (bandwidth): no comparison of random, * is recorded")
    both = outcome([recorded(points(100, 120))], places=["random, *", "sequential, *"])
    assert both == ("not recorded", "fig 6 (bandwidth): recorded without random, *")
    assert outcome([], tried="there is no counter") == ("cannot be had", "there is no counter")
    assert outcome([recorded(points(100, 120))], tried="there is no counter")[0] == "reproduced"


def test_a_simulated_meter_confirms_and_contradicts_nothing():
    for values in ((100, 120), (100, 80)):
        assert outcome([recorded(points(*values, simulated=True))])[0] == "only modelled"


def test_what_the_experiment_was_set_up_with_confirms_and_contradicts_nothing():
    given = {"given": "the load was made from the paper's numbers"}
    for values in ((100, 120), (100, 80)):
        assert outcome([recorded(points(*values))], **given) == ("by construction", given["given"])
    assert outcome([], **given)[0] == "not recorded"


def test_a_comparison_that_a_row_names_counts_even_as_a_step_inside_a_series():
    """DBA-VM, figure 6: with the allocator VM1 waits longer than natively, and VM3 less."""
    native, published = (("native", name) for name in ("VM1", "VM3")), (("published", name) for name in ("VM1", "VM3"))
    delays = dict(zip((*native, *published), (4.0, 4.0, 2.0, 1.6), strict=True))
    name = {"study": "dba-vm", "exhibit": "fig 6 (delay)"}
    result, row = [recorded(at(delays), **name)], {"by": ["study dba-vm"], "exhibits": [name["exhibit"]]}
    assert outcome(result, places=["published, *"], **row)[0] == "reproduced"
    assert outcome(result, places=["published, * over native, *"], **row)[0] == "contradicted"
    assert outcome(result, places=["published, VM3 over native, VM3"], **row)[0] == "reproduced"


def test_a_row_can_be_about_the_bound_of_a_place_by_itself():
    """Rzecki et al., figure 2: more than 5 % is left, and less than beside a loading sandbox of 25 %."""
    name = {"study": "hyperv-quality", "exhibit": "fig 2"}
    place = "integer, integer load"
    result = [recorded(at({(place, 95.0): 8.0, (place, 25.0): 4.0}), **name)]
    row = {"by": ["study hyperv-quality"], "exhibits": ["fig 2"]}
    assert outcome(result, places=[f"{place} at 95"], **row)[0] == "contradicted"
    assert outcome(result, places=[f"{place} at 95 by itself"], **row)[0] == "reproduced"
    assert outcome(result, places=[f"{place} at 95 by itself", "RAM, * by itself"], **row) == (
        "not recorded",
        "fig 2: recorded without RAM, *",
    )


def test_bounds_on_rates_are_not_those_of_emulated_guests_which_have_a_share_of_the_link():
    name = {"study": "dba-vm", "exhibit": "fig 2 (scenario 2)"}
    own = {"exhibits": [name["exhibit"]], "places": ["native, VM2 by itself"]}
    fast = at({("native", "VM2"): 850.0})
    assert outcome([recorded(fast, **name)], by=["study dba-vm"], **own)[0] == "contradicted"
    guests = recorded([each | {"emulated": "victim"} for each in fast], **name, backend="qemu")
    by = ["sudo partywall study papers/dba-vm --backend qemu"]
    assert outcome([guests], by=by, **own) == (
        "not recorded",
        "fig 2 (scenario 2): no comparison of native, VM2 by itself is recorded",
    )


def test_future_work_is_never_as_in_the_paper():
    assert outcome([recorded(points(100, 120))], kind="beyond")[0] == "beyond the paper"


def test_the_first_source_that_has_the_quantity_decides():
    guests = recorded(points(100, 80), backend="qemu")
    both = ["sudo partywall study papers/vits --backend qemu", "study vits"]
    assert outcome([recorded(points(100, 100.5)), guests], by=both)[0] == "contradicted"
    # One that decides otherwise is not left out.
    mixed, why = outcome([recorded(points(100, 120)), guests], by=both)
    assert mixed == "differs by set-up"
    assert why.startswith("in qemu: 0 of 1 comparison as in the paper; ")
    assert why.endswith("; in the study's own sandboxes: reproduced, 1 of 1 comparison as in the paper")
    assert outcome([recorded(points(100, 120))], by=both)[0] == "reproduced"
    # One that cannot tell leaves it to the next.
    noisy = recorded(points(100, 120, low=50.0, high=200.0), backend="qemu")
    told, why = outcome([recorded(points(100, 120)), noisy], by=both)
    assert told == "reproduced"
    first, second = "in the study's own sandboxes: 1 of 1 comparison as in the paper", "in qemu: not distinguished, "
    assert why.startswith(f"{first}; {second}")
    assert outcome([noisy], by=both)[0] == "not distinguished"
    assert outcome([guests])[0] == "not recorded"
    lab = recorded(points(100, 120), study="xen-lab-vits", by="lab xen", paper="vits")
    assert outcome([lab])[0] == "not recorded"
    assert outcome([lab], by=["lab xen"])[0] == "reproduced"


def test_a_benchmark_that_missed_its_bar_says_so_whatever_else_is_there():
    bars = [
        Claim(bench="vits_network", claim="x", bar="≥ 1"),
        Claim(bench="vits_network", part="b", claim="y", bar="≥ 2"),
    ]
    claims = {"vits_network": bars}

    def benches(*met):
        kept = {"bench": "vits_network", "date": "2026-11-27", "machine": {"cpu": "x", "cpus": 2, "kernel": "6"}}
        parts = zip(("", "b"), met, strict=False)
        found = [Result.model_validate(kept | {"part": part, "figure": "0.5", "met": each}) for part, each in parts]
        return table.Benches(found, claims)

    method = {"kind": "method", "exhibits": [], "by": ["bench vits_network"]}
    assert outcome([], benches(True, True), **method) == ("in use", "vits_network (bar met)")
    assert outcome([], benches(True, False), **method) == ("bar missed", "vits_network needs ≥ 2, and found 0.5")
    assert outcome([], benches(True, True), **method, instead="a lab")[0] == "replaced"
    assert outcome([], benches(True, True), **method | {"kind": "result"})[0] == "bar met"
    only = method | {"by": ["bench vits_network: b"]}
    assert outcome([], benches(False, True), **only)[0] == "in use"
    both = method | {"by": ["study vits", "bench vits_network"]}
    assert outcome([recorded(points(100, 120))], benches(False, True), **both)[0] == "bar missed"
    assert outcome([], NOTHING, **method) == ("not recorded", "no result of it is recorded")
    assert outcome([], NOTHING, **method | {"by": ["test tests/test_papers.py"]}) == (
        "not recorded",
        "only tests show it",
    )


def test_a_deviation_applies_to_every_row_that_rests_on_its_figures():
    rows = ROWS["V"].model_copy(
        update={
            "rows": (row_of(), row_of(id="V02", by=["sudo partywall study papers/vits --backend qemu"])),
            "deviations": tuple(
                table.Deviation(what=what, of=("vits: fig 6*",), backend=backend)
                for what, backend in (("containers", ""), ("guests", "qemu"), ("probes", None))
            ),
        }
    )
    results = [recorded(points(100, 120)), recorded(points(100, 120), backend="qemu")]
    assert [each.deviations for each in table.state(rows, results, NOTHING)] == [(1, 3), (2, 3)]


def test_a_verdict_can_be_computed_again_from_what_is_stored():
    """Points of a study, its rounds compared, stored, read and judged again: the verdict stays."""
    paper = papers.load("vits")
    values = {
        Place(*NORMAL): {n: 100.0 * (1 + n) for n in range(6)},
        Place(*BESIDE): {n: 120.37 * (1 + n) for n in range(6)},
    }
    beside = pairing.beside(paper, paper.table("fig 6 (bandwidth)"), values)
    stored = stored_of(beside)
    again = table.Shown.model_validate_json(stored.model_dump_json(exclude_defaults=True))
    assert judge(beside).likeness is judge(again.beside(paper)).likeness is Likeness.SAME_ORDER
    assert {point.n for point in again.measured} == {6}
    without = again.model_copy(update={"paired": ()})
    assert judge(without.beside(paper)).likeness is Likeness.UNTOLD


def test_a_unit_that_was_swapped_since_is_reported():
    vits = papers.load("vits")
    unit = str(vits.table("fig 6 (bandwidth)").y)
    right = recorded(points(100, 120))
    right = right.model_copy(update={"exhibits": (right.exhibits[0].model_copy(update={"unit": unit}),)})
    assert table.unlike([right]) == []
    swapped = right.model_copy(update={"exhibits": (right.exhibits[0].model_copy(update={"unit": "latency, s"}),)})
    assert table.unlike([swapped]) == [
        f"vits, fig 6 (bandwidth): recorded as 'latency, s', and the study's file says {unit!r}"
    ]


def test_a_simulated_meter_that_does_not_say_so_is_reported():
    point = {"series": "node", "x": "idle", "value": 50.0, "low": 49.0, "high": 51.0}
    hidden = recorded([point], study="power-cervera", exhibit="table I")
    assert len(table.circular([hidden])) == 1
    assert table.circular([recorded([point | {"simulated": True}], study="power-cervera", exhibit="table I")]) == []


def test_what_is_recorded_has_the_units_of_its_study_and_marks_simulated_meters():
    assert table.unlike(table.results()) == []
    assert table.circular(table.results()) == []


# The pages


def test_a_figure_has_its_statement_unit_blocks_and_pairing_beside_it():
    result = recorded(points(100, 120), paired=[(1.2, 1.1, 1.3)])
    page = pages([ROWS["V"]], [result])["vits"]
    assert "### fig 6 (bandwidth): " in page
    said = papers.load("vits").table("fig 6 (bandwidth)")
    assert f"The paper ({said.where}): {said.says}." in page
    assert "Measured (n = 5, compared within rounds): **same order**. 1 of 1 comparison as in the paper" in page
    assert "| place | published, ns per access | measured |" in page
    assert "| sequential, interference | 168.5 | 120.0 ± 1.2 |" in page


def test_the_result_of_a_labs_study_stands_beside_its_papers():
    own = recorded(points(100, 120))
    lab = recorded(points(100, 90, emulated="victim"), study="xen-lab-vits", by="lab xen", paper="vits")
    page = pages([ROWS["V"]], [own, lab])["vits"]
    assert "| place | published, ns per access | measured | measured by `make xen-lab` |" in page
    assert "| 120.0 ± 1.2 | 90.0 ± 0.9 E |" in page


def test_metrics_without_a_result_in_the_paper_are_in_an_appendix():
    measured = [
        {"series": series, "x": x, "value": 9.0, "low": 8.0, "high": 10.0}
        for series, x in (("sandbox", 50.0), ("sandbox", 25.0), ("physical", 25.0))
    ]
    result = recorded(measured, study="load-generation-netto", exhibit="section II.A (memory)")
    page = pages([ROWS["N"]], [result])["netto"]
    body, appendix = page.split("## Metrics without a result in the paper")
    assert "| section II.A (memory) | sandbox | GB | 25, 50: 9 ± 1 |" in appendix
    assert "| section II.A (memory) | physical | GB | 25: 9 ± 1 |" in appendix
    assert "### section II.A (memory)" not in body


def test_resources_are_graded_beside_the_paper_from_what_was_recorded():
    graded = [{"series": "kept", "x": "CPU time", "value": 99.0, "low": 95.0, "high": 103.0}]
    page = pages([ROWS["H"]], [recorded(graded, study="hyperv-quality", exhibit="table 1")])["hyperv"]
    assert "| CPU time | B | High | High | 99 ± 4 % |" in page
    assert "expected and measured" not in pages([ROWS["H"]], [])["hyperv"]


def test_the_first_page_has_a_screen_for_each_paper():
    text = table.PAGE.read_text("utf-8")
    for rows in ROWS.values():
        screen = text.split(f"## {rows.title}")[1].split("\n## ")[0]
        assert len(screen.splitlines()) <= 24, rows.title
        assert f"(papers/{rows.name}.md)" in screen
        assert re.search(r"[0-9]+ of [0-9]+ main findings reproduced", screen)
        assert sum(row.main for row in rows.rows) >= 6


def pages(rows, results):
    written = table.written(rows, results, NOTHING)
    return {file.stem: text for file, text in written.items()}


# What is recorded

POINT = {"series": "cache", "x": "normal", "value": 9.0, "low": 8.0, "high": 10.0, "n": 5}


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
        monkeypatch.setattr(stored_results.StudyDirectory, "open", lambda _: directory)
        report = SimpleNamespace(name="vits", length="short", comparisons=comparisons)
        monkeypatch.setattr(stored_results.studies, "report", lambda _: report)
        stored = table.Recorded.model_validate_json(table.record(folder).read_bytes())
        assert stored.backend == "".join(backends)
        return {shown.exhibit: (len(shown.measured), shown.note) for shown in stored.exhibits}

    monkeypatch.setattr(stored_results, "RESULTS", tmp_path / "results")
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
    monkeypatch.setattr(stored_results.StudyDirectory, "open", lambda _: directory)
    report = SimpleNamespace(name=name, length="short", comparisons=comparisons)
    monkeypatch.setattr(stored_results.studies, "report", lambda _: report)
    monkeypatch.setattr(stored_results, "RESULTS", tmp_path / "results")
    file = table.record(tmp_path, lab="hosts")
    assert file.name == "load-generation-netto-hosts.json"
    (stored,) = table.results()
    assert (stored.by, stored.beside, stored.column) == ("lab hosts", name, "measured by `make hosts`")
    assert [shown.exhibit for shown in stored.exhibits] == ["fig 5"]


def test_every_place_that_a_verdict_is_about_is_on_its_papers_page():
    for letter, rows in ROWS.items():
        page = pages([rows], ())[rows.name]
        for name in rows.studies:
            for exhibit in papers.load(name).exhibits:
                claimed = {place for claim in exhibit.claims for place in (claim.left, claim.than)}
                lacking = [str(p) for p in claimed | set(exhibit.values) if f"| {p} |" not in page]
                assert not lacking, (letter, exhibit.id)


# The commands beside the rows

SAID = sorted({table.command(by) for rows in ROWS.values() for row in rows.rows for by in row.by})


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
    own = COMMANDS[name]
    context = click.Context(entry, info_name=name, **(own.settings if own else None) or {})
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
