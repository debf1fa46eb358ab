"""`compare_runs` of Python takes past runs into account, as the command does."""

import json
from types import SimpleNamespace

import pytest

import partywall
from partywall.core.stats.estimate import Outcome
from partywall.run import stages
from tests.web.test_compared import run


@pytest.mark.long
def test_past_runs_beside_either_run_show_how_much_runs_vary(tmp_path):
    here, there = (SimpleNamespace(root=tmp_path / name) for name in ("here", "there"))
    worse, reference = run(here, "worse", 1, moves=0.5), run(there, "reference", 2, moves=0.8)
    assert partywall.compare_runs(worse.path, reference.path).outcome is Outcome.INCONCLUSIVE
    for number, folder in enumerate((here, there, there), start=3):
        run(folder, f"past-{number}", number, moves=0.8)
    run(there, "other", 9, moves=0.8, precision="2%")
    assert [len(stages.earlier_runs(reference, [worse])[0]), stages.earlier_runs(reference, [worse])[1]] == [3, 0]
    result = partywall.compare_runs(partywall.open_record(worse.path), reference.path)
    assert result.outcome is Outcome.VIOLATED
    assert len(str(result)) < 200


def test_one_run_twice_is_refused(tmp_path):
    made = run(SimpleNamespace(root=tmp_path), "one", 1, moves=0.8)
    with pytest.raises(partywall.UsageError, match="both are the same record"):
        partywall.compare_runs(made.path, made.path)


@pytest.mark.long
def test_past_runs_with_fields_of_older_records_count_and_unreadable_ones_are_told(tmp_path):
    folder = SimpleNamespace(root=tmp_path)
    one, reference, older, torn = (
        run(folder, name, number, moves=0.8) for number, name in enumerate(("one", "reference", "older", "torn"), 1)
    )
    (older.path / "findings.json").write_text(with_older_fields(older), encoding="utf-8")
    (torn.path / "findings.json").write_text("{", encoding="utf-8")
    known, unread = stages.earlier_runs(reference, [one])
    assert (len(known), unread) == (1, 1)
    assert known[0] == stages.analyse(older)[1]
    assert any(
        note.startswith("1 other run in the same folders cannot be read")
        for note in partywall.compare_runs(one.path, reference.path).notes
    )


def with_older_fields(made):
    findings = json.loads((made.path / "findings.json").read_text(encoding="utf-8"))
    for cell in findings["cells"]:
        cell.update(seen=True, latency_seen=["p99"])
    return json.dumps(findings)
