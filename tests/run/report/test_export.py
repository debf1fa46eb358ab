import csv
import io
import json

import pyarrow.parquet as pq
import pytest

from partywall.core.report.files import csv_text
from partywall.errors import UsageError
from partywall.run.report import charts, export
from partywall.run.values.finding import Findings


def test_findings_come_back_from_json_unchanged(run, tmp_path):
    (path,) = export.FILES.write(run, tmp_path, ["json"])
    assert Findings.model_validate_json(path.read_text()) == run[0]


def test_csv_has_one_row_a_cell_with_all_digits_and_empty_cells_for_what_is_not_known(run):
    rows = list(csv.DictReader(io.StringIO(csv_text(export.rows(run)))))
    assert len(rows) == len(run[0].cells)
    assert float(rows[0]["isolation_factor"]) == run[0].cells[0].isolation.value
    null = next(row for row in rows if row["role"] == "null")
    assert null["efficiency"] == null["achieved"] == null["likely_resource"] == ""
    limit = next(row for row in rows if row["role"] == "limit")
    assert float(limit["efficiency_low"]) < float(limit["efficiency"]) < float(limit["efficiency_high"])


def test_csv_marks_emulated_cells(emulated_run):
    assert {row["emulated"] for row in csv.DictReader(io.StringIO(csv_text(export.rows(emulated_run))))} == {"True"}


def test_parquet_has_one_row_an_observation_and_null_for_what_is_missing(run, tmp_path):
    (path,) = export.FILES.write(run, tmp_path, ["parquet"])
    table = pq.read_table(path)
    assert table.num_rows == sum(map(len, run[1].observations.values()))
    first = table.to_pylist()[0]
    assert first["rate"] == next(iter(run[1].observations.values()))[0].rate
    assert first["latency_count"] == sum(bucket["count"] for bucket in first["latency_buckets"])
    baseline = next(row for row in table.to_pylist() if row["treatment"] == "baseline")
    assert baseline["achieved_memory-copy"] is None


def test_every_chart_is_written_as_svg_and_png(run, tmp_path):
    findings, evidence = run
    few = findings.model_copy(update={"cells": findings.cells[:2], "curves": findings.curves[:1]})
    written = export.FILES.write((few, evidence), tmp_path, ["svg", "png"])
    names = set(charts.all_charts(few, evidence))
    assert {path.name for path in written} == {f"{name}.{suffix}" for name in names for suffix in ("svg", "png")}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written if path.suffix == ".png")


def test_an_unknown_format_is_refused_by_name_before_anything_is_written(run, tmp_path):
    with pytest.raises(UsageError, match=r"--format: a run cannot be written as 'pdf' — choose html, json"):
        export.FILES.write(run, tmp_path / "out", ["json", "pdf"])
    assert not (tmp_path / "out").exists()


def test_a_machine_reads_the_same_outcome_that_people_do(run, tmp_path):
    (path,) = export.FILES.write(run, tmp_path, ["json"])
    verdicts = json.loads(path.read_text())["verdicts"]
    assert [verdict["outcome"] for verdict in verdicts] == ["violated", "holds"]


@pytest.mark.long
def test_charts_are_drawn_with_progress_up_to_the_last(run, tmp_path, monkeypatch):
    specs = dict(list(charts.all_charts(*run).items())[:3])
    monkeypatch.setattr(charts, "all_charts", lambda *_: specs)
    reported = []
    written = export.FILES.write(run, tmp_path, ["csv", "svg", "png"], lambda *step: reported.append(step))
    assert [path.name for path in written[1:]] == [f"{name}.{kind}" for kind in ("svg", "png") for name in specs]
    assert all(path.stat().st_size > 0 for path in written)
    assert reported[-1] == ("drawing charts", 6, 6)
    assert [done for doing, done, _ in reported if doing == "drawing charts"] == [1, 2, 3, 4, 5, 6]
