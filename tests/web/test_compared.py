"""Several records side by side on the page; runs are made by simulated hosts, whose effects are known."""

import pytest

from partywall.agent.catalogue import shipped
from partywall.errors import UsageError
from partywall.model.comparison import Change
from partywall.model.scenario import Scenario
from partywall.plan import Topology, make
from partywall.store import RunDirectory
from partywall.testing import SimulatedHost
from partywall.web.compared import RECORDS_MAX, several
from tests.web.web_site import record

CONTENT = {
    "partywall": 1,
    "name": "simulated",
    "victims": {"v": {"probe": "integer"}},
    "aggressors": {"moves": {"stressor": "integer"}, "stays": {"stressor": "memory-copy"}},
    "min_blocks": 8,
    "budget": "10s",
    "precision": "1%",
}


def run(folder, name: str, seed: int, *, moves: float, **changes) -> RunDirectory:
    """A finished run in which the victim keeps `moves` of its rate beside one neighbour, and 0.9 beside the other."""
    facts = {"cpus_allowed": [0, 1], "memory": {"usable_bytes": 1 << 40}, "missing": []}
    plan = make(Scenario.model_validate(CONTENT | changes), Topology((0, 1), ()), shipped())
    made = RunDirectory.create(folder.root / name, "", plan, facts)
    SimulatedHost({"moves": moves, "stays": 0.9}, noise=0.002, wander=0.001, seed=seed).carry_out(made)
    return made


@pytest.mark.long
def test_runs_are_each_compared_with_the_last(folder, page):
    run(folder, "worse", 1, moves=0.5)
    run(folder, "better", 2, moves=0.95, aggressors={"moves": CONTENT["aggressors"]["moves"]})
    run(folder, "reference", 3, moves=0.8)
    view = several(*(folder.root / name for name in ("worse", "better", "reference")))
    rows = {row.first.treatment.partition("@")[0]: row for row in view.rows}
    assert [cell.change for cell in rows["moves"].compared] == [Change.WORSE, Change.BETTER]
    assert rows["stays"].compared[1] is None
    assert rows["moves"].is_changed
    assert not rows["stays"].is_changed
    assert "worse" in view.mark

    text = page.get("/compare?record=worse&record=better&record=reference").text
    heading = text.partition("<h1")[2].partition("</h1>")[0]
    assert "1 of 2 cells differ in at least one of 2 runs" in heading
    assert "not measured" in text
    assert text.index("reference</th>") < text.index(">worse</th>") < text.index(">better</th>")
    # A note that holds for all runs is shown once, without a name.
    assert text.count("the variation between runs is unknown") == 1
    two = page.get("/compare?record=worse&record=reference").text
    assert "1 worse" in two.partition("<h1")[2].partition("</h1>")[0]
    assert ">why</th>" in two


def test_wrong_choices_are_refused(folder, page):
    for number in range(RECORDS_MAX + 1):
        record(folder, f"load-{number}")
    chosen = [folder.root / f"load-{number}" for number in range(RECORDS_MAX + 1)]
    with pytest.raises(UsageError, match=f"{RECORDS_MAX + 1} records are too many"):
        several(*chosen)
    assert page.get("/compare?record=load-1&record=no-such").status_code == 404
    assert page.get("/compare?record=load-1").status_code == 200


def test_a_comparison_writes_nothing_and_says_which_record_needs_a_report(folder, viewer):
    """Served as another user, a page of a killed run was an error of the server."""
    for number, name in enumerate(("killed", "whole"), start=1):
        run(folder, name, number, moves=0.5)
    lines = folder.root / "killed" / "pending" / "x~0.jsonl"
    lines.parent.mkdir(exist_ok=True)
    lines.write_text('{"workload": "v", "slices": []}\n')
    answer = viewer.get("/compare?record=killed&record=whole")
    assert answer.status_code == 400
    assert f"partywall report {folder.root / 'killed'}" in answer.text
    assert lines.exists()
