"""Two studies of two hosts side by side: on the terminal and on the page of `partywall serve`."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from partywall import study as all_studies
from partywall.cli.app import app
from partywall.cli.compare import compare
from partywall.cli.output import Format
from partywall.core.report.charts import spec_of
from partywall.errors import Exit, UsageError
from partywall.kinds import compared
from partywall.kinds.compared import beside, side_by_side
from partywall.study import exhibits
from partywall.study import page as pages
from partywall.study.document import StudyReport, StudyRequest
from partywall.study.generation import cells as generation
from partywall.study.generation.model import METRICS, Observed
from partywall.study.isolation.kind import _row
from partywall.study.record import StudyDirectory
from tests.study.made_up import part

NAME = "papers/load-generation-netto"
CPUS = {"small": 2, "large": 4}


def host(cpus: int) -> dict[str, object]:
    return {"cpu": {"model": f"Processor of {cpus}", "online": list(range(cpus))}, "kernel": {"release": "6.1"}}


@pytest.fixture
def records(tmp_path):
    """The same study on two hosts. On the larger one, everything takes half of the time."""
    study = generation.load(all_studies.find(NAME).read_bytes(), NAME)
    for name, cpus in CPUS.items():
        about = {"partywall": "0", "host": host(cpus)}
        content = all_studies.find(NAME).read_bytes()
        record = StudyDirectory.create(tmp_path / name, content, StudyRequest(rounds=3), about)
        for number in range(3):
            for cell in study.cells:
                values = dict.fromkeys(METRICS, (1 + 0.001 * number) * 2 / cpus) | {"doubtful": 0.0}
                record.append(Observed(cell=cell, round=number, values=values).model_dump_json())
    return StudyDirectory.open(tmp_path / "small"), StudyDirectory.open(tmp_path / "large")


def test_two_studies_show_both_hosts_and_every_point_of_every_figure_of_both(records):
    both = side_by_side(*records)
    facts = {name: pair for name, *pair in both.hosts}
    assert "Processor of 2" in facts["processors"][0]
    assert "Processor of 4" in facts["processors"][1]
    points = [point for beside in all_studies.report(records[0]).comparisons for point in beside.measured]
    assert len(both.rows) == len(points) > 0
    figures = dict(both.rows)
    first, second = figures["fig 4a: physical at 25"]
    assert first.value == pytest.approx(2 * second.value)
    assert first.low < first.value < first.high
    assert both.ratios[list(figures).index("fig 4a: physical at 25")] == pytest.approx(2)


def test_the_command_prints_both_hosts_and_exits_with_3(records, capsys, monkeypatch):
    # In a narrow terminal a label takes several lines.
    monkeypatch.setenv("COLUMNS", "200")
    first, second = (record.path for record in records)
    assert compare(first, second) == Exit.INCONCLUSIVE
    printed = capsys.readouterr().out
    for text in ("The hosts", "Processor of 2", "Processor of 4", "fig 4a: physical at 25"):
        assert text in printed
    assert compare(first, second, format_=Format.JSON) == Exit.INCONCLUSIVE
    written = json.loads(capsys.readouterr().out)["result"]
    assert written["names"] == ["small", "large"]
    assert written["hosts"][0][0] == "processors"


def test_one_page_shows_the_points_of_both_in_every_figure_and_table(records):
    first, second = records
    report = beside(first, second)
    shown = next(each for each in report.comparisons if each.table.id == "fig 4a")
    assert exhibits.columns(shown)[3:] == ["small", "large"]
    by_place = {(series, x): values for series, x, _, *values in exhibits.rows(shown)}
    assert [float(text.split()[0]) for text in by_place["physical", "25"]] == pytest.approx([1.001, 0.5005])
    spec = json.dumps(spec_of(exhibits.chart(shown)))
    assert '"from": "there"' in spec
    assert r"{\"here\": \"small\", \"there\": \"large\"}[datum.label]" in spec
    html = pages.render(report)
    assert "Circles: small. Triangles: large." in html
    assert "Processor of 2" in html
    assert "Processor of 4" in html
    exhibit = json.loads(pages.FILES.documents["json"][1](report))["exhibits"][0]
    assert exhibit["beside"]["run"] == "large"
    assert len(exhibit["beside"]["measured"]) == len(exhibit["measured"]) > 0


def test_alone_a_study_has_one_column_and_no_legend_of_hosts(records):
    shown = next(each for each in all_studies.report(records[0]).comparisons if each.table.id == "fig 4a")
    assert exhibits.columns(shown)[3:] == ["here"]
    assert "there" not in json.dumps(spec_of(exhibits.chart(shown)))


def test_what_only_the_other_host_measured_is_shown_too(records):
    first, second = records
    empty = StudyDirectory.create(
        first.path.parent / "begun", first.content, first.request, {"partywall": "0", "host": host(2)}
    )
    lines = (first.path / "observations.jsonl").read_text().splitlines()
    for line in (line for line in lines if json.loads(line)["cell"] == json.loads(lines[0])["cell"]):
        empty.append(line)
    shown = beside(empty, second).comparisons
    drawn = [each for each in shown if not each.measured and each.other.measured]
    assert drawn
    for each in drawn:
        assert all(row[3] == exhibits.NOT_MEASURED for row in exhibits.rows(each))
        assert any(row[4] != exhibits.NOT_MEASURED for row in exhibits.rows(each))


def test_folders_of_the_same_name_are_told_apart_by_the_folders_above(records):
    first, second = records
    copied = first.path.parent / "other" / first.path.name
    shutil.copytree(second.path, copied)
    report = beside(first, StudyDirectory.open(copied))
    above = first.path.parent.name
    assert exhibits.columns(report.comparisons[0])[3:] == [f"{above}/small", "other/small"]


def test_a_record_that_is_not_of_the_same_study_is_refused(records, tmp_path):
    first, _ = records
    content = all_studies.find("papers/vits-network").read_bytes()
    other = StudyDirectory.create(tmp_path / "other", content, StudyRequest(), {"partywall": "0", "host": host(2)})
    with pytest.raises(UsageError, match=r"other is of the study vits-network, and .*small of load-generation-netto"):
        beside(first, other)
    with pytest.raises(UsageError, match="small is the study itself"):
        beside(first, StudyDirectory.open(first.path))


def test_a_record_that_is_no_study_is_refused(records, tmp_path):
    class Record:
        KIND = "trace"
        path = tmp_path / "trace"

    with pytest.raises(UsageError, match="trace is a trace, and no study — give two records of one study"):
        beside(records[0], Record())


def test_the_report_command_writes_both_hosts_into_the_page(records, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    first, second = (record.path for record in records)
    said = CliRunner().invoke(app, ["report", str(first), "--beside", str(second)], catch_exceptions=False)
    assert "The two hosts" in said.output
    assert "large: " in said.output
    assert "Triangles: large." in (first / "report.html").read_text("utf-8")
    assert not (second / "report.html").exists()


def test_rows_that_are_not_compared_are_counted(records, monkeypatch, capsys):
    assert side_by_side(*records).note == ""
    monkeypatch.setattr(compared, "ROWS_MAX", 5)
    both = side_by_side(*records)
    assert len(both.rows) == 5
    assert both.left_out > 0
    note = f"only the first 5 figures are shown, {both.left_out} are left out"
    assert both.note == note
    compare(*(record.path for record in records))
    assert note in capsys.readouterr().out


def test_cells_of_two_hosts_have_the_same_label_whatever_was_found_in_them():
    scenario = {"victims": {"v": {"probe": "integer"}}, "aggressors": {"a": {"stressor": "integer"}}}
    labels = []
    for factor in (1.0, 0.5):
        run = part(scenario, lambda _, treatment, factor=factor: 100.0 * (factor if treatment.aggressor == "a" else 1))
        rows = tuple(_row(run, cell) for cell in run.findings.cells)
        assert rows
        about = dict.fromkeys(("name", "description"), "x") | {"notes": (), "facts": (), "how": "", "host": {}}
        report = StudyReport(run="r", length="short", comparisons=(), rows=rows, incomplete=(), **about)
        labels.append({figure.of for figure in pages.FILES.compared(report)})
    assert labels[0] == labels[1]
    assert any("beside a@1" in label for label in labels[0])
