"""Several records side by side on the page; runs are made by simulated hosts, whose effects are known."""

import re
import shutil
from pathlib import Path

import pytest

from partywall.agent.catalogue import shipped
from partywall.errors import UsageError
from partywall.run import stages
from partywall.run.document.scenario import Scenario
from partywall.run.plan import Topology, make
from partywall.run.record import RunDirectory
from partywall.run.values.comparison import Change
from partywall.testing import SimulatedHost
from partywall.web.compared import RECORDS_MAX, several
from tests.test_kinds import MAKERS
from tests.web.web_site import record

STUDY = Path(__file__).parents[1] / "golden" / "records" / "study-isolation"
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
    (made.path / "findings.json").write_text(stages.analyse(made)[1].model_dump_json(), encoding="utf-8")
    return made


@pytest.mark.long
def test_runs_are_each_compared_with_the_last(folder, page):
    run(folder, "worse", 1, moves=0.5)
    run(folder, "better", 2, moves=0.95, aggressors={"moves": CONTENT["aggressors"]["moves"]})
    run(folder, "reference", 3, moves=0.8)
    for seed in (4, 5, 6):
        run(folder, f"past-{seed}", seed, moves=0.8)
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
    assert "show how much runs vary" in text
    assert "--also" not in text
    two = page.get("/compare?record=worse&record=reference").text
    assert "1 worse" in two.partition("<h1")[2].partition("</h1>")[0]
    assert ">why</th>" in two


@pytest.mark.long
def test_without_past_runs_nothing_is_called_worse_and_a_note_for_all_is_shown_once(folder, page):
    for name, seed, moves in (("one", 1, 0.5), ("two", 2, 0.95), ("reference", 3, 0.8)):
        run(folder, name, seed, moves=moves)
    text = page.get("/compare?record=one&record=two&record=reference").text
    assert "inconclusive" in text.partition("<h1")[2].partition("</h1>")[0]
    assert text.count("The variation between runs is unknown") == 1
    assert not re.search(r'class="change (worse|better)"', text)
    assert "--also" not in text


def test_figures_of_another_kind_have_a_column_for_each_record_and_a_ratio_of_two(folder, page):
    for name in ("one", "two", "three"):
        MAKERS["guard"](folder.root / name)
    two = page.get("/compare?record=one&record=two").text
    assert two.index(">one</th>") < two.index(">two</th>") < two.index(">ratio</th>")
    assert re.search(r'vm: passed</th><td class="figure nowrap">1 bit/s</td>', two)
    three = page.get("/compare?record=one&record=two&record=three").text
    assert ">three</th>" in three
    assert ">ratio</th>" not in three


def test_one_record_twice_is_said_to_be_the_same(folder, page):
    record(folder, "load-1")
    answer = page.get("/compare?record=load-1&record=load-1")
    assert "both are the same record" in answer.text
    run(folder, "demo-1", 1, moves=0.8)
    assert "both are the same record" in page.get("/compare?record=demo-1&record=demo-1").text


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


def test_a_comparison_of_studies_writes_nothing_into_their_runs(folder, viewer):
    for name in ("killed", "whole"):
        shutil.copytree(STUDY, folder.root / name)
    lines = folder.root / "killed" / "runs" / "cache" / "pending" / "x~0.jsonl"
    lines.parent.mkdir()
    lines.write_text('{"workload": "v", "slices": []}\n')
    answer = viewer.get("/compare?record=killed&record=whole")
    assert answer.status_code == 400
    assert f"partywall report {folder.root / 'killed'}" in answer.text
    assert lines.exists()
