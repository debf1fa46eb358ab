"""Two studies of two hosts side by side: on the terminal and on the page of `partywall serve`."""

from __future__ import annotations

import json

import pytest

from partywall import study as all_studies
from partywall.cli.compare import compare
from partywall.cli.output import Format
from partywall.errors import Exit
from partywall.kinds.compared import side_by_side
from partywall.model.study import StudyReport, StudyRequest
from partywall.report import study_page
from partywall.store.study import StudyDirectory
from partywall.study.generation import cells as generation
from partywall.study.generation.model import METRICS, Observed
from partywall.study.isolation.kind import _row
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
    assert both.columns == ("value", "low", "high")
    figures = dict(both.rows)
    ((first, second), *_) = figures["fig 4a: physical at 25"]
    assert first == pytest.approx(2 * second)


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


def test_cells_of_two_hosts_have_the_same_label_whatever_was_found_in_them():
    scenario = {"victims": {"v": {"probe": "integer"}}, "aggressors": {"a": {"stressor": "integer"}}}
    labels = []
    for factor in (1.0, 0.5):
        run = part(scenario, lambda _, treatment, factor=factor: 100.0 * (factor if treatment.aggressor == "a" else 1))
        rows = tuple(_row(run, cell) for cell in run.findings.cells)
        assert rows
        about = dict.fromkeys(("name", "description"), "x") | {"notes": (), "facts": (), "how": "", "host": {}}
        report = StudyReport(run="r", length="short", comparisons=(), rows=rows, incomplete=(), **about)
        compared = study_page.FILES.compared(report)
        labels.append({row["of"] for row in compared})
    assert labels[0] == labels[1]
    assert any("beside a@1" in label for label in labels[0])
