"""What works on a record of one kind works on all."""

import contextlib
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from partywall import kinds
from partywall.cli import report
from partywall.errors import UsageError
from partywall.guard.run import Report
from partywall.load.store import LoadDirectory
from partywall.model.cluster import Cluster
from partywall.model.migration import MigrationPlan, Move
from partywall.model.power import MeterFacts, Reading
from partywall.model.study import StudyRequest
from partywall.store.consolidation import ConsolidationDirectory
from partywall.store.guard import GuardDirectory
from partywall.store.migration import MigrationDirectory
from partywall.store.power import PowerDirectory
from partywall.store.record import Record
from partywall.store.study import StudyDirectory

ROW = {"offered_bps": 1.0, "granted_bps": 1.0, "passed_bps": 1.0, "dropped_packets": 0}


def guard(path: Path) -> Record:
    record = GuardDirectory.create(path, "name: edge\n")
    record.add(Report(0, 10**9, {"vm": ROW}, {}, (), 0, 0))
    return record


def study(path: Path) -> Record:
    record = StudyDirectory.create(path, b"study: isolation\n", StudyRequest(), {})
    record.append(json.dumps({"cell": "a", "value": 1}))
    return record


def load(path: Path) -> Record:
    record = LoadDirectory.create(path, {"started": {"labels": []}})
    (path / record.LINES).touch()
    return record


def migration(path: Path) -> Record:
    plan = MigrationPlan.model_validate({"partywall_migration": 1, "name": "x"})
    record = MigrationDirectory.create(path, plan, {}, {})
    record.append(
        Move(
            workload="idle", method="default", round=0, number=0, source="a", begin_ns=0, end_ns=1, outcome="completed"
        ),
        {"pings": np.array([[1, 2, 3]])},
    )
    return record


def power(path: Path) -> Record:
    record = PowerDirectory.create(path, "read", [MeterFacts(meter="m")], {}, {})
    record.add(Reading(meter="m", time_ns=1, watts=50.0))
    return record


def consolidation(path: Path) -> Record:
    cluster = Cluster.model_validate(
        {
            "partywall_cluster": 1,
            "name": "x",
            "hosts": {"a": {"cpus": 1, "memory": "2GiB", "power": "hp-ml110-g4"}},
            "guests": {"g": {"host": "a"}},
        }
    )
    record = ConsolidationDirectory.create(path, "simulation", cluster, {}, {})
    record.end()
    return record


MAKERS = {
    "guard": guard,
    "study": study,
    "load": load,
    "migration": migration,
    "power": power,
    "consolidation": consolidation,
}
TABLES = {
    "guard": "guard",
    "study": "observations",
    "load": "seconds",
    "migration": "pings",
    "power": "events",
    "consolidation": "events",
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_record_is_opened_as_its_own_kind(tmp_path, kind):
    MAKERS[kind](tmp_path / "record")
    assert kind == kinds.opened(tmp_path / "record").KIND


@pytest.mark.parametrize("kind", MAKERS)
def test_every_record_answers_sql(tmp_path, capsys, kind):
    MAKERS[kind](tmp_path / "record")
    report.sql(tmp_path / "record", "SELECT count(*) AS n FROM " + TABLES[kind])  # noqa: S608
    assert "n" in capsys.readouterr().out


def held(paths, ready, go):
    with contextlib.ExitStack() as stack:
        for path in paths:
            stack.enter_context(kinds.opened(path).exclusive())
        ready.set()
        go.wait(60)


@pytest.mark.long
def test_two_processes_do_not_write_to_one_record(tmp_path):
    records = [make(tmp_path / kind) for kind, make in MAKERS.items()]
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    other = context.Process(target=held, args=([record.path for record in records], ready, go))
    other.start()
    assert ready.wait(60)
    for record in records:
        with pytest.raises(UsageError, match="another partywall"), record.exclusive():
            pass
    go.set()
    other.join(60)
    for record in records:
        with record.exclusive():
            pass


@pytest.mark.parametrize("kind", MAKERS)
def test_a_line_that_a_kill_tore_off_spoils_no_other(tmp_path, kind):
    record = MAKERS[kind](tmp_path / "record")
    before = len(record.whole_lines())
    with (record.path / record.LINES).open("ab") as file:
        file.write(b'{"torn": [1, ')
    record.append_line('{"whole": 1}')
    assert record.whole_lines()[before:] == [{"whole": 1}]


def test_a_line_that_is_no_json_is_told_with_its_place(tmp_path):
    record = study(tmp_path / "record")
    with (record.path / record.LINES).open("ab") as file:
        file.write(b"scribble\n")
    with pytest.raises(UsageError, match=r"observations\.jsonl.*2.*not JSON"):
        record.whole_lines()


@pytest.mark.parametrize("there", [True, False])
def test_what_is_no_record_is_refused_with_a_remedy(tmp_path, there):
    path = tmp_path / "other"
    if there:
        path.mkdir()
    names = "run, load, guard, trace, migration, power, consolidation or study"
    with pytest.raises(UsageError, match=f"not a record of a {names}"):
        kinds.opened(path)


def test_a_kind_is_told_from_the_others_by_its_own_file():
    records = [kinds.kind(name).record for name in kinds.KINDS]
    assert [record.KIND for record in records] == list(kinds.KINDS)
    assert len({record.MARK for record in records}) == len(records)
