"""Records that were interrupted: what continues measures only the rest, and what cannot continue says why."""

import json
from dataclasses import replace

import pytest

from partywall import kinds
from partywall.consolidate import check
from partywall.consolidate.capability import Consolidations
from partywall.consolidate.job import SimulationJob
from partywall.core.capability import Options
from partywall.errors import UsageError
from partywall.events import Note, silent
from partywall.migrate.capability import Migrations
from partywall.migrate.check import moves_of
from partywall.migrate.document import MigrationPlan, Move, Survey
from partywall.migrate.job import MigrationJob
from partywall.migrate.measure import series
from partywall.migrate.measure.seen import Seen
from partywall.power import measure
from partywall.power.capability import Powers
from partywall.power.job import CalibrateJob
from partywall.power.values import Reading, Slot
from partywall.testing.hosts import fake_host

PLAN = MigrationPlan.model_validate(
    {
        "partywall_migration": 1,
        "name": "x",
        "workloads": {"idle": {}, "busy": {"kernel": "integer"}},
        "methods": {"default": {}, "slow": {"bandwidth": "80Mbit/s"}},
        "moves": 2,
        "calibration": 2,
    }
)
SIMULATED = "simulated:cervera-dl120-g6"


class Moves(series.Series):
    """A series whose guest is not real. left: how many moves and surveys until it is interrupted."""

    left = 0
    observed: tuple[str, ...] = ()
    qemu = "10.0.0"

    def __init__(self, plan, *_):
        self.plan = plan

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    @property
    def guest(self):
        return None

    def about(self):
        return {"qemu": Moves.qemu, "cpus": (1,)}

    def _step(self, name):
        if Moves.left == 0:
            raise KeyboardInterrupt
        Moves.left -= 1
        Moves.observed += (name,)

    def survey(self, workload, _emit):
        self._step(workload)
        return Survey(workload=workload, memory=1, content=1, windows_ns=(), changed=())

    def _observe(self, _mover, workload, method, round_number, number, _emit):
        self._step(str(number))
        move = Move(
            workload=workload or "calibration", method=method, round=round_number, number=number, source="a",
            begin_ns=0, end_ns=1, outcome="completed",
        )  # fmt: skip
        return Seen(move, {})


@pytest.fixture
def moves(monkeypatch):
    """Migrations without a host."""
    Moves.left, Moves.observed, Moves.qemu = 0, (), "10.0.0"
    monkeypatch.setattr(series, "Series", Moves)
    monkeypatch.setattr(series, "check", lambda host: None)
    monkeypatch.setattr(series, "prepare", lambda *_: None)
    return Migrations()


def test_a_migration_that_is_interrupted_anywhere_does_every_step_once(moves, tmp_path):
    options = Options(fake_host(), tmp_path / "moves", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        moves.begin(MigrationJob(plan=PLAN), options, silent)
    record = kinds.opened(tmp_path / "moves")
    assert moves.continued_by(record) == ("migrate", "--resume", str(record.path))
    while record.evidence().interrupted:
        Moves.left = 3
        try:
            moves.resume(record, options, silent)
        except KeyboardInterrupt:
            assert Moves.left == 0
    evidence = record.evidence()
    assert Moves.observed == ("idle", "busy", "-1", "-2", *map(str, moves_of(PLAN)))
    assert [move.number for move in evidence.moves] == list(range(8))
    known = {number: (move.round, (move.workload, move.method)) for number, move in enumerate(evidence.moves)}
    assert known == moves_of(PLAN)


def test_a_finished_record_is_not_measured_again(moves, tmp_path):
    Moves.left = 99
    options = Options(fake_host(), tmp_path / "moves", tmp_path)
    record = moves.begin(MigrationJob(plan=PLAN), options, silent)
    observed, notes = Moves.observed, []
    moves.resume(record, options, notes.append)
    assert Moves.observed == observed
    assert any(isinstance(each, Note) and "nothing is left to measure" in each.text for each in notes)


def test_advice_that_is_interrupted_is_continued_without_the_moves_of_the_plan(moves, tmp_path):
    Moves.left = 3
    options = Options(fake_host(), tmp_path / "moves", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        moves.begin(MigrationJob(plan=PLAN, only_advise=True), options, silent)
    Moves.left = 99
    record = kinds.opened(tmp_path / "moves")
    moves.resume(record, options, silent)
    assert Moves.observed == ("idle", "busy", "-1", "-2")
    assert not record.evidence().interrupted


def test_a_migration_of_an_earlier_version_is_continued(moves, tmp_path):
    Moves.left = 3
    options = Options(fake_host(), tmp_path / "moves", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        moves.begin(MigrationJob(plan=PLAN, only_advise=True), options, silent)
    written = {"plan": PLAN.model_dump(mode="json", exclude_unset=True), "qemu": Moves.qemu, "only_advise": True}
    (tmp_path / "moves" / "migration.json").write_text(json.dumps(written))
    Moves.left = 99
    record = kinds.opened(tmp_path / "moves")
    moves.resume(record, options, silent)
    assert Moves.observed == ("idle", "busy", "-1", "-2")
    assert not record.evidence().interrupted


def test_a_migration_with_another_qemu_is_not_continued(moves, tmp_path):
    options = Options(fake_host(), tmp_path / "moves", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        moves.begin(MigrationJob(plan=PLAN), options, silent)
    Moves.qemu = "11.0.0"
    with pytest.raises(UsageError, match=r"qemu was 10\.0\.0 and is 11\.0\.0 now"):
        moves.resume(kinds.opened(tmp_path / "moves"), options, silent)


class Ladder:
    """Stands in for a load: readings and slots of `count` steps, and an interruption if there are more."""

    def __init__(self, count):
        self.count, self.steps, self.now_ns = count, [], 10**9

    def __call__(self, record, _host, _meters, _workers, steps, slot_ns, every_ns, *_):
        for step in steps:
            if self.count == 0:
                raise KeyboardInterrupt
            self.count -= 1
            begin_ns, self.now_ns = self.now_ns, self.now_ns + slot_ns
            for time_ns in range(begin_ns, self.now_ns, every_ns):
                record.stream.append(Reading(meter=SIMULATED, time_ns=time_ns, watts=50.0))
            record.stream.append(Slot(block=step.block, begin_ns=begin_ns, end_ns=self.now_ns, level=step.level))
            self.steps.append((step.block, step.level))


def test_a_calibration_goes_on_with_the_levels_that_have_no_readings_yet(monkeypatch, tmp_path):
    ladder = Ladder(4)
    monkeypatch.setattr(measure, "under_load", ladder)
    options, powers = Options(fake_host(), tmp_path / "power", tmp_path), Powers()
    job = CalibrateJob(meter_names=(SIMULATED,), blocks=2)
    with pytest.raises(KeyboardInterrupt):
        powers.begin(job, options, silent)
    record = kinds.opened(tmp_path / "power")
    assert powers.continued_by(record) == ("power", "calibrate", "--resume", str(record.path))
    ladder.count = 999
    powers.resume(record, options, silent)
    # The readings of the fourth level end with it, but meters lag, so it is measured again.
    assert ladder.steps[4] == ladder.steps[3]
    assert len(set(ladder.steps)) == len(ladder.steps) - 1
    assert {block for block, _ in ladder.steps} == {0, 1}
    assert not record.evidence().interrupted


def test_a_calibration_is_not_continued_after_a_restart_of_the_host(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "under_load", Ladder(2))
    boot = tmp_path / "proc" / "sys" / "kernel" / "random" / "boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("first\n")
    host = fake_host(root=tmp_path)
    options = Options(host, tmp_path / "power", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        Powers().begin(CalibrateJob(meter_names=(SIMULATED,), blocks=2), options, silent)
    boot.write_text("second\n")
    with pytest.raises(UsageError, match="boot was first and is second now"):
        Powers().resume(kinds.opened(tmp_path / "power"), options, silent)


def test_a_simulation_keeps_each_trace_at_once_and_goes_on_with_the_others(tmp_path):
    cluster = check.load(check.find("cluster"))
    job = SimulationJob(cluster=cluster, policies=("static",), orders=3)
    options, kept = Options(fake_host(), tmp_path / "whole"), Consolidations()
    whole = kept.begin(job, options, silent).evidence().simulations
    notes = []

    def interrupting(event):
        if isinstance(event, Note):
            notes.append(event)
        if len(notes) == 2:
            raise KeyboardInterrupt

    options = replace(options, out=tmp_path / "part")
    with pytest.raises(KeyboardInterrupt):
        kept.begin(job, options, interrupting)
    record = kinds.opened(tmp_path / "part")
    assert [each.order for each in record.evidence().simulations] == [0]
    kept.resume(record, options, silent)
    assert record.evidence().simulations == whole
    assert record.evidence().ended


def test_a_simulation_whose_traces_have_changed_is_not_continued(tmp_path):
    cluster = check.load(check.find("cluster"))
    job = SimulationJob(cluster=cluster, policies=("static",))
    options = Options(fake_host(), tmp_path / "part")

    def interrupt(event):
        if isinstance(event, Note):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Consolidations().begin(job, options, interrupt)
    kinds.opened(tmp_path / "part").learn(digests={"generated, seed 1": "of another trace"})
    with pytest.raises(UsageError, match="trace generated, seed 1 has changed"):
        Consolidations().resume(kinds.opened(tmp_path / "part"), options, silent)
