"""What works on a record of one kind works on all."""

import contextlib
import json
import multiprocessing
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from partywall import kinds
from partywall.agent.catalogue import shipped
from partywall.cli import main, report
from partywall.consolidate.document import Cluster
from partywall.consolidate.job import SimulationJob
from partywall.consolidate.record import ConsolidationDirectory
from partywall.core.capability import Options
from partywall.core.record import Record
from partywall.errors import UsageError
from partywall.events import silent
from partywall.fleet.job import Host as FleetHost
from partywall.fleet.job import Inventory, RunJob
from partywall.fleet.record import Cell as FleetCell
from partywall.fleet.record import FleetRecord, Measured
from partywall.guard.record import GuardInterval
from partywall.load.record import LoadDirectory
from partywall.migrate.document import MigrationPlan, Move
from partywall.migrate.job import MigrationJob
from partywall.migrate.record import MigrationDirectory
from partywall.power.job import ReadJob
from partywall.power.record import PowerRecord
from partywall.power.values import MeterFacts, Reading
from partywall.run.document.scenario import Scenario
from partywall.run.plan import Topology, make
from partywall.run.record import RunDirectory
from partywall.study.document import StudyRequest
from partywall.study.record import StudyDirectory
from partywall.testing.hosts import fake_host
from partywall.trace.record import Delay, Missed, Start, Step, TraceDirectory, Way
from partywall.trace.record import Report as TraceReport
from partywall.trace.request import Hop, TraceRequest
from partywall.watch.job import WatchJob
from partywall.watch.record import Disk, Span, Use, WatchRecord
from tests.blame.records import simulated
from tests.guard.records import guard_record

ROW = {"offered_bps": 1.0, "granted_bps": 1.0, "passed_bps": 1.0, "dropped_packets": 0}


def guard(path: Path) -> Record:
    record = guard_record(path)
    record.add(GuardInterval(0, 10**9, {"vm": ROW}, {}, (), 0, 0))
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
    record = MigrationDirectory.create(path, MigrationJob(plan=plan), {})
    record.append(
        Move(
            workload="idle", method="default", round=0, number=0, source="a", begin_ns=0, end_ns=1, outcome="completed"
        ),
        {"pings": np.array([[1, 2, 3]])},
    )
    return record


def power(path: Path) -> Record:
    record = PowerRecord.create(path, ReadJob(meter_names=("m",)), {})
    record.found([MeterFacts(meter="m")])
    record.stream.append(Reading(meter="m", time_ns=1, watts=50.0))
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
    record = ConsolidationDirectory.create(path, SimulationJob(cluster=cluster), {})
    record.end()
    return record


def run(path: Path) -> Record:
    content = {"partywall": 1, "name": "x", "victims": {"v": {"probe": "integer"}}, "budget": "10s"}
    scenario = Scenario.model_validate(content | {"aggressors": {"a": {"stressor": "cache"}}})
    record = RunDirectory.create(path, "", make(scenario, Topology((0, 1), ()), shipped()), fake_host().facts)
    record.append("memory_checked", bytes=1, found={"doubt": None})
    return record


def trace(path: Path) -> Record:
    hops = (Hop(name="a", interface="a"), Hop(name="b", interface="b"))
    request = TraceRequest(hops=hops, horizon_ns=10**8)
    record = TraceDirectory.begun(path, Start(asked=request, started="2026-01-01", wall_ns=1, version="1"), {})
    delay = Delay(histogram=((20, 1),), sum_ns=20, min_ns=20, max_ns=20)
    way = Way(steps=(Step(packets=1, bytes=100), Step(packets=1, bytes=100, delay=delay)), total=delay, delivered=1)
    hooks = (Missed(recorded=1),) * 2
    record.append("report", TraceReport(start_ns=0, end_ns=10**9, ways=(way, Way(steps=(Step(),) * 2)), hops=hooks))
    record.append("ended", {})
    return record


def watch(path: Path) -> Record:
    record = WatchRecord.create(path, WatchJob(), {})
    disk = Disk(disk="sda", reads=1, read_bytes=4096, read_ns=10**6, busy_ns=10**6)
    use = Use(tenant="/a", disk="sda", operations=1, read_bytes=4096, write_bytes=0)
    record.stream.append(Span(at_ns=10**18, length_ns=10**9, disks=(disk,), uses=(use,)))
    record.end()
    return record


def blame(path: Path) -> Record:
    return simulated(path, blocks=10)


def fleet(path: Path) -> Record:
    inventory = Inventory(path="", hosts=(FleetHost(name="a"),))
    job = RunJob.parsed({"inventory": inventory, "scenario": "demo"})
    record = FleetRecord.create(path, job, {})
    cell = FleetCell(name="copy beside memory", value=0.9, low=0.88, high=0.92, n=12)
    for host in ("a", "b", "c"):
        record.stream.append(Measured(host=host, exit=0, cells=(cell,)))
    record.end()
    return record


MAKERS = {
    "fleet": fleet,
    "blame": blame,
    "run": run,
    "trace": trace,
    "guard": guard,
    "study": study,
    "load": load,
    "migration": migration,
    "power": power,
    "consolidation": consolidation,
    "watch": watch,
}
TABLES = {"guard": "guard", "study": "observations", "load": "seconds", "migration": "pings", "watch": "tenants"}
"""Tables of kinds that have more than their events."""


@pytest.mark.parametrize("kind", MAKERS)
def test_a_record_is_opened_as_its_own_kind(tmp_path, kind):
    MAKERS[kind](tmp_path / "record")
    assert kind == kinds.opened(tmp_path / "record").KIND


@pytest.mark.parametrize("kind", MAKERS)
def test_every_record_answers_sql(tmp_path, capsys, kind):
    MAKERS[kind](tmp_path / "record")
    report.sql(tmp_path / "record", "SELECT count(*) AS n FROM " + TABLES.get(kind, "events"))  # noqa: S608
    assert "n" in capsys.readouterr().out


COMMANDS = [
    ["report", "DIR", "--format", "json"],
    ["report", "DIR", "-f", "csv"],
    ["sql", "DIR", "SELECT 1 AS one"],
    ["compare", "DIR", "OTHER"],
    ["publish", "RUNS", "--out", "SITE"],
]
BEGUN = ("run", "load", "study")
"""The makers of these kinds write a record without findings: its measurement has just begun."""


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_same_commands_take_a_record_of_every_kind(tmp_path, monkeypatch, capsys, kind, words):
    places = {"DIR": tmp_path / "runs" / "one", "OTHER": tmp_path / "runs" / "two", "RUNS": tmp_path / "runs"}
    places["SITE"] = tmp_path / "site"
    for name in ("DIR", "OTHER"):
        MAKERS[kind](places[name])
    monkeypatch.setattr(sys, "argv", ["partywall", *(str(places.get(word, word)) for word in words)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert "is not a record" not in said.err
    if words[0] in ("sql", "publish"):
        assert ended.value.code == 0
    elif kind in BEGUN:
        assert ended.value.code in (2, 3, 5)
        assert said.err.startswith("partywall: ") or said.out
    else:
        assert ended.value.code in (0, 1, 3), said.err


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


def test_a_line_that_is_no_json_is_reported_with_its_place(tmp_path):
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
    with pytest.raises(UsageError) as raised:
        kinds.opened(path)
    (named,) = re.findall(r"is not a record of a (.*) \(", str(raised.value))
    assert set(re.split(", | or ", named)) == MAKERS.keys()


def test_a_kind_is_reported_from_the_others_by_its_own_file():
    records = [kinds.kind(name).record for name in kinds.names()]
    assert [record.KIND for record in records] == list(kinds.names())
    assert len({record.MARK for record in records}) == len(records)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("load", "a pause would change"),
        ("guard", "no end of its own"),
        ("trace", "packets that passed meanwhile"),
        ("power", "one stretch of time — start a new one: partywall power read"),
    ],
)
def test_a_kind_that_is_measured_in_one_piece_says_why(name: str, why: str, tmp_path):
    record = MAKERS[name](tmp_path / name)
    kind = kinds.of(record)
    assert kind.continued_by(record) == ()
    with pytest.raises(UsageError) as raised:
        kind.resume(record, Options(fake_host()), silent)
    assert why in str(raised.value)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_command_that_continues_a_record_names_it(name: str, tmp_path):
    record = MAKERS[name](tmp_path / name)
    words = kinds.of(record).continued_by(record)
    assert words == () or words[-1] == str(record.path)
