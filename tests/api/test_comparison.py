"""`compare_runs` of Python takes past runs into account, as the command does."""

from types import SimpleNamespace

import pytest

import partywall
from partywall import pipeline
from partywall.model.finding import Outcome
from tests.web.test_compared import run


@pytest.mark.long
def test_past_runs_beside_either_run_show_how_much_runs_vary(tmp_path):
    here, there = (SimpleNamespace(root=tmp_path / name) for name in ("here", "there"))
    worse, reference = run(here, "worse", 1, moves=0.5), run(there, "reference", 2, moves=0.8)
    assert partywall.compare_runs(worse.path, reference.path).outcome is Outcome.INCONCLUSIVE
    for number, folder in enumerate((here, there, there), start=3):
        run(folder, f"past-{number}", number, moves=0.8)
    run(there, "other", 9, moves=0.8, precision="2%")
    assert len(pipeline.earlier_runs(reference, [worse])) == 3
    result = partywall.compare_runs(partywall.open_record(worse.path), reference.path)
    assert result.outcome is Outcome.VIOLATED
    assert len(str(result)) < 200


def test_one_run_twice_is_refused(tmp_path):
    made = run(SimpleNamespace(root=tmp_path), "one", 1, moves=0.8)
    with pytest.raises(partywall.UsageError, match="both are the same record"):
        partywall.compare_runs(made.path, made.path)
