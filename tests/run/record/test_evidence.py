"""From a run directory to evidence: which parts of the tables are read, and that events are read again only if new."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from partywall import cli
from partywall.agent.catalogue import shipped
from partywall.core.stats.histogram import Histogram
from partywall.errors import UsageError
from partywall.run.document.scenario import Scenario
from partywall.run.findings.analysis import analyse
from partywall.run.plan import Topology, lay_out, make, order
from partywall.run.record import RunDirectory, evidence
from partywall.run.record import blocks as store_blocks

SCENARIO = {
    "partywall": 1,
    "name": "t",
    "victims": {"v": {"probe": "integer"}},
    "aggressors": {"copy": {"stressor": "memory-copy"}},
    "min_blocks": 8,
}
SLICE_NS, BLOCKS = 2_000_000, 12
OWN, OTHER = 1840, 300
"""Latency buckets of the victim and of its neighbours."""
LATENCIES = ("latency_bucket.list.element", "latency_count.list.element")


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    """A finished run. The slices of the victim and of its neighbours come in turns, as agents report them."""
    plan = make(Scenario.model_validate(SCENARIO), Topology((0, 1), ()), shipped())
    run = RunDirectory.create(tmp_path / "run", "", plan, {"cpus_allowed": [0, 1]})
    (trial,) = plan.trials
    run.append("run_started", wall_time="2026-01-01T00:00:00+0000", pid=1)
    names = sorted({name for treatment in trial.treatments for name in treatment.intensities})
    run.append("visit", trial=trial.id, visit="0", rate_max=dict.fromkeys(names, 1e6), counters=[])
    pending, random, clock, before = run.pending(trial.id, "0"), np.random.default_rng(1), 10**10, None
    for number in range(BLOCKS):
        treatments = [trial.treatment(id_) for id_ in order(plan.seed, trial, number)]
        slots = lay_out(treatments, clock, before, grid_ns=SLICE_NS)
        for slot, treatment in zip(slots, treatments, strict=True):
            ends = range(clock + SLICE_NS, slot.end_ns + 1, SLICE_NS)
            speed = 0.8 if treatment.aggressor == "copy" else 1.0
            work = 2000 * speed * (1 + 0.02 * random.standard_normal(len(ends)))
            pending.write({"workload": "victim", "slices": list(map(piece, ends, work.tolist()))})
            for name, intensity in treatment.intensities.items():
                pending.write({"workload": name, "slices": [piece(end, 2000.0 * intensity, OTHER) for end in ends]})
            clock = slot.end_ns
        rows = [slot.model_dump() for slot in slots]
        run.append("block_done", trial=trial.id, visit="0", block=number, stretch=1, slots=rows)
        before = treatments[-1]
    pending.close()
    run.append("visit_ended", trial=trial.id, visit="0")
    run.append("run_ended")
    run.compact()
    return run


def piece(end_ns: int, work: float, bucket: int = OWN) -> dict:
    own = {"thread": 0, "start_ns": end_ns - SLICE_NS, "end_ns": end_ns, "work": work, "cpu_ns": SLICE_NS}
    return own | {"intensity": 1.0, "latency": [[bucket, 3], [bucket + 1, 1]]}


def slices_of(run: RunDirectory) -> Path:
    (file,) = (run.path / "slices").iterdir()
    return file


def rewritten(run: RunDirectory, order, rows: int) -> None:
    """Writes the slices in another order, in row groups of so many rows."""
    file = slices_of(run)
    slices = pq.read_table(file)
    pq.write_table(slices.take(order(slices)), file, compression="zstd", row_group_size=rows)


def by_time(slices):
    return np.argsort(slices["start_ns"].to_numpy(), kind="stable")


def as_stored(slices):
    return np.arange(len(slices))


def at_random(slices):
    return np.random.default_rng(2).permutation(len(slices))


@pytest.mark.parametrize("order", [by_time, at_random])
@pytest.mark.parametrize("rows", [50, 1 << 14])
def test_findings_do_not_depend_on_how_the_slices_are_sorted(run, order, rows):
    names = pq.read_table(slices_of(run))["workload"].to_pylist()
    assert names == sorted(names)
    first = evidence(run)
    rewritten(run, order, rows)
    names = pq.read_table(slices_of(run))["workload"].to_pylist()
    assert names != sorted(names)
    again = evidence(RunDirectory.open(run.path))
    assert again.timeline == first.timeline
    assert again.of_trial("000-v").latency.merged == first.of_trial("000-v").latency.merged
    assert analyse(again) == analyse(first)


def test_latencies_are_those_of_the_victim(run):
    merged = evidence(run).of_trial("000-v").latency.merged
    assert set(merged.counts) == {OWN, OWN + 1}
    assert isinstance(merged, Histogram)
    (cell,) = (cell for cell in analyse(evidence(run)).cells if cell.aggressor == "copy")
    assert cell.isolation.value == pytest.approx(0.8, abs=0.02)
    assert cell.achieved == pytest.approx(1.0)


@pytest.mark.parametrize(("whose", "is_read"), [("copy", False), ("victim", True)])
def test_latencies_of_neighbours_are_not_read(run, whose, is_read):
    first = analyse(evidence(run))
    rewritten(run, as_stored, 10)
    spoilt = spoil(slices_of(run), whose)
    assert spoilt
    again = RunDirectory.open(run.path)
    if is_read:
        with pytest.raises(UsageError, match="cannot be read"):
            evidence(again)
    else:
        assert analyse(evidence(again)) == first


def spoil(file: Path, workload: str) -> int:
    """Overwrites the latencies of the row groups that contain slices of this workload alone; how many there were."""
    content, groups, spoilt = bytearray(file.read_bytes()), pq.ParquetFile(file).metadata, 0
    for number in range(groups.num_row_groups):
        group = groups.row_group(number)
        columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        names = columns["workload"].statistics
        if (names.min, names.max) != (workload, workload):
            continue
        for name in LATENCIES:
            first = min(filter(None, (columns[name].dictionary_page_offset, columns[name].data_page_offset)))
            size = columns[name].total_compressed_size
            content[first : first + size] = b"\xff" * size
        spoilt += 1
    file.write_bytes(content)
    return spoilt


def test_lines_that_were_appended_later_are_seen(run):
    reader = RunDirectory.open(run.path)
    assert reader.ended
    assert (len(reader.blocks()["000-v"]), len(reader.by_trial()["000-v"])) == (BLOCKS, 2)
    writer = RunDirectory(run.path)
    writer.append("run_started", wall_time="")
    assert not reader.ended
    slots = [{"treatment": "baseline", "start_ns": 5, "measure_ns": 10, "end_ns": 30}]
    writer.append("block_done", trial="000-v", visit="1", block=BLOCKS, stretch=1, slots=slots)
    writer.append("trial_failed", trial="000-v", visit="1", reason="its agent was killed")
    assert reader.blocks()["000-v"].columns.number.tolist() == list(range(BLOCKS + 1))
    assert [event["kind"] for event in reader.by_trial()["000-v"]] == ["visit", "visit_ended", "trial_failed"]
    assert reader.failures() == ["000-v: its agent was killed"]


def test_appended_events_do_not_make_finished_blocks_be_read_again(run, monkeypatch):
    known = RunDirectory.open(run.path)
    blocks, others = known.blocks(), list(known.events("visit_ended"))
    monkeypatch.setattr(store_blocks, "by_trial", lambda _: pytest.fail("the blocks were read again"))
    known.append("visit_ended", trial="000-v", visit="9")
    assert known.blocks().keys() == blocks.keys()
    assert [event["visit"] for event in known.events("visit_ended")] == [*(event["visit"] for event in others), "9"]
    slots = [{"treatment": "baseline", "start_ns": 5, "measure_ns": 10, "end_ns": 30}]
    known.append("block_done", trial="000-v", visit="1", block=BLOCKS, stretch=1, slots=slots)
    with pytest.raises(pytest.fail.Exception, match="read again"):
        known.blocks()


def test_what_a_caller_does_to_the_list_of_events_does_not_change_the_next_answer(run):
    list(run.events("visit")).clear()
    run.by_trial()["000-v"].clear()
    run.blocks().clear()
    assert len(list(run.events("visit"))) == 1
    assert len(run.by_trial()["000-v"]) == 2
    assert len(run.blocks()["000-v"]) == BLOCKS


def test_a_report_leaves_the_environment_as_it_was(run, monkeypatch, capsys):
    before = dict(os.environ)
    monkeypatch.setattr("sys.argv", ["partywall", "report", str(run.path)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "beside copy" in capsys.readouterr().out
    assert dict(os.environ) == before
