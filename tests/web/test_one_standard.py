"""The page judges as the report does, while it is measured and in the list of records."""

import json

import pytest

from partywall.core.stats.estimate import Estimate
from partywall.run.document.scenario import Scenario
from partywall.run.findings.states import Claim, bound_of, judge
from partywall.run.report.matrix import Severity
from partywall.run.values.plan import Plan
from partywall.web import pages, records
from partywall.web.live import Trial as Seen
from tests.run.findings.builders import plan, treatment, trial
from tests.web.web_site import record

OF: Plan = plan(trial(treatment("memory-copy"), treatment("cache"), treatment("disk-write")))
SCENARIO: Scenario = OF.scenario


def live(done=60, **factors):
    names = {"copy": "memory-copy", "cache": "cache", "disk": "disk-write", "null": "null"}
    seen = Seen(done, 1, "", {names[name]: factor for name, factor in factors.items()})
    return {name: pages.cells_of(SCENARIO, OF.trials[0], seen)[names[name]] for name in factors}


def test_a_cell_that_the_report_would_not_know_is_not_named_an_effect_while_it_is_measured():
    cells = live(copy=(0.909, 0.826, 0.992), cache=(1.0, 0.8, 1.2), disk=(1.0, 0.7, 1.3))
    assert cells["copy"].mark == Severity.NOT_KNOWN.mark
    assert "chance moves some this far" in cells["copy"].words
    assert live(copy=(0.909, 0.88, 0.938))["copy"].mark == Severity.CLEAR.mark


def test_a_few_slots_decide_nothing_while_it_is_measured():
    cells = live(3, null=(1.54, 1.2, 1.88), copy=(0.2, 0.1, 0.3))
    assert {cell.mark for cell in cells.values()} == {Severity.NOT_KNOWN.mark}
    assert "only 3 blocks" in cells["null"].words


@pytest.mark.parametrize("value", [0.5, 0.9, 0.97, 1.0, 1.1])
@pytest.mark.parametrize("half", [0.005, 0.03, 0.2])
def test_the_live_matrix_names_what_the_one_rule_names(value, half):
    ratio = Estimate(value=value, low=value - half, high=value + half, n=60, method="m")
    (found,) = judge([Claim(ratio, bound_of(SCENARIO.precision))])
    shown = live(copy=(value, value - half, value + half))["copy"].level
    assert (shown == "not_known", shown == "none") == (found.effect == "not_known", found.effect == "none")


@pytest.mark.parametrize(("goals", "badge"), [(0, "✓ measured"), (2, "✓ holds")])
def test_holds_stands_only_where_there_was_a_goal(folder, goals, badge):
    record(folder, "load-1", findings_json=json.dumps({"headline": "700/s", "goals": goals}))
    path = folder.root / "load-1"
    assert records.outcome(path, 0)[1] == badge
    assert records.outcome(path, 1)[1] == "✗ violated"
    assert records.summary(path) == ("700/s", goals)


def test_a_record_without_findings_holds_nothing(folder):
    record(folder, "load-1")
    assert records.outcome(folder.root / "load-1", 0)[1] == "✓ measured"
