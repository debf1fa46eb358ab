"""A run as a whole, on this host, in short."""

import os

import pytest

from partywall import pipeline
from partywall.agent.catalogue import shipped
from partywall.model.scenario import Scenario
from partywall.plan import make
from partywall.run import Silent
from partywall.store import RunDirectory

pytestmark = pytest.mark.host


def test_a_run_ends_with_its_blocks_and_gives_the_cpus_back(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    content = {
        "partywall": 1,
        "name": "short",
        "victims": {"sum": {"probe": "integer"}},
        "aggressors": {"same": {"stressor": "integer", "sandbox": {"cpus": "same"}}},
        "timing": {"slot": "30ms"},
        "min_blocks": 8,
        "budget": "2s",
    }
    before = os.sched_getaffinity(0)
    facts = pipeline.host_facts()
    plan = make(Scenario.model_validate(content), pipeline.topology(facts), shipped())
    run = RunDirectory.create(tmp_path / "run", "", plan, facts)
    pipeline.measure(run, Silent())
    assert os.sched_getaffinity(0) == before
    assert run.ended
    _, findings = pipeline.analyse(run)
    (cell,) = [cell for cell in findings.cells if cell.aggressor]
    # Two busy threads on one CPU: each gets about half.
    assert cell.isolation.value < 0.8
    assert not (tmp_path / "state" / "run").exists()
