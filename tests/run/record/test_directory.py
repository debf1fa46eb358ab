"""Run directories survive torn lines, repeated compaction and wrong paths."""

import pyarrow.parquet as pq
import pytest

from partywall.agent.catalogue import shipped
from partywall.errors import UsageError
from partywall.run.document.scenario import Scenario
from partywall.run.plan import Topology, make
from partywall.run.record import RunDirectory, evidence
from partywall.run.record.pending import SLICES, table

SLICE = {"thread": 0, "start_ns": 0, "end_ns": 10, "work": 1.0, "cpu_ns": 5, "intensity": 1.0, "latency": [[3, 2]]}


@pytest.fixture
def run(tmp_path):
    scenario = Scenario.model_validate({"partywall": 1, "name": "t", "victims": {"v": {"probe": "integer"}}})
    return RunDirectory.create(tmp_path / "run", "text", make(scenario, Topology((0, 1)), shipped()), {"cpu": {}})


def test_what_was_created_is_read_back(run):
    again = RunDirectory.open(run.path)
    assert again.plan == run.plan
    assert again.host == {"cpu": {}}


def test_a_folder_that_exists_is_never_written_over(run):
    with pytest.raises(UsageError, match="--resume"):
        RunDirectory.create(run.path, "text", run.plan, {})


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"plan\.json"):
        RunDirectory.open(tmp_path)


def test_a_torn_last_line_spoils_no_other_event(run):
    run.append("one", n=1)
    with (run.path / "events.jsonl").open("a") as stream:
        stream.write('{"kind": "torn", "n":')
    run.append("two", n=2)
    assert [event["kind"] for event in run.events()] == ["one", "two"]


def test_a_torn_slice_is_left_out_and_the_rest_kept(run):
    pending = run.pending("000-v", "0")
    pending.write({"workload": "victim", "slices": [SLICE]})
    pending._stream.write('{"workload": "victim", "sli')
    pending.close()
    again = run.pending("000-v", "0")
    again.write({"workload": "victim", "slices": [SLICE | {"work": 2.0}]})
    again.close()
    run.compact()
    run.compact()
    table = pq.read_table(run.path / "slices" / "000-v~0.parquet").to_pylist()
    assert [row["work"] for row in table] == [1.0, 2.0]
    assert table[0]["latency_bucket"] == [3]
    assert not list((run.path / "pending").iterdir())


SLOTS = [{"treatment": "baseline", "start_ns": 5, "measure_ns": 10, "end_ns": 30}]
DONE = {"stretch": 1, "visit": "0", "slots": SLOTS}


@pytest.mark.parametrize("torn", [False, True])
def test_blocks_are_counted_once_they_are_done(run, torn):
    run.append("visit", trial="000-v", visit="0", rate_max={}, counters=[])
    run.append("block_done", trial="000-v", block=4, **DONE)
    run.append("block_done", trial="other", block=5, long=True, **DONE)
    if torn:
        with (run.path / "events.jsonl").open("ab") as stream:
            stream.write(b'{"kind": "block_done", "trial": "000-v", "block": 6')
    # What a resumed run repeats counts once.
    run.append("block_done", trial="000-v", block=4, extra=[1], **DONE | {"visit": "0.1"})
    result = run.blocks()
    assert {trial: own.columns.number.tolist() for trial, own in result.items()} == {"000-v": [4], "other": [5]}
    assert (result["000-v"].turn.tolist(), result["other"].columns.long.tolist()) == (["0.1"], [True])
    assert result["other"].columns.measure_ns.tolist() == [10]
    assert [event["kind"] for event in run.by_trial()["000-v"]] == ["visit"]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("plan.json", "{", "plan.json"),
        ("plan.json", '{"scenario": {}}', "another version"),
        ("host.json", "[1]", "host.json"),
        ("events.jsonl", '{"kind": "run_ended"}\n\x00\x01\n', "events.jsonl:2"),
        ("events.jsonl", '{"kind": "block_done", "trial": "000-v"}\n', "visit: Field required"),
    ],
)
def test_a_damaged_file_is_named_when_the_run_is_opened(run, file, content, said):
    (run.path / file).write_text(content)
    with pytest.raises(UsageError, match=said):
        RunDirectory.open(run.path)


def test_one_process_at_a_time_writes_into_a_run(run):
    with run.exclusive(), pytest.raises(UsageError, match="in use by another"), RunDirectory(run.path).exclusive():
        pass
    with run.exclusive():
        pass


def test_a_run_has_ended_once_nothing_is_left_to_measure(run):
    assert not run.ended
    run.append("run_started", wall_time="")
    run.append("run_ended")
    assert run.ended
    run.append("run_started", wall_time="")
    assert not run.ended


def test_a_cut_table_is_named(run):
    pending = run.pending("000-v", "0")
    pending.write({"workload": "victim", "slices": [SLICE]})
    pending.close()
    run.compact()
    file = run.path / "slices" / "000-v~0.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"000-v~0\.parquet: cannot be read"):
        table(file, SLICES)


def test_a_finished_block_without_slices_is_damage_and_not_a_rate_of_zero(run):
    slots = [
        {"treatment": t.id, "start_ns": n, "measure_ns": n, "end_ns": n + 1}
        for n, t in enumerate(run.plan.trials[0].treatments)
    ]
    run.append("block_done", trial="000-v", block=0, stretch=1, visit="0", slots=slots)
    with pytest.raises(UsageError, match="slices of block 0 are missing"):
        evidence(run)


def test_a_turn_that_failed_and_then_succeeded_is_no_failure(run):
    run.append("trial_failed", trial="000-v", visit="0", reason="its agent was killed")
    assert run.failures() == ["000-v: its agent was killed"]
    run.append("visit_ended", trial="000-v", visit="0")
    assert run.failures() == []
