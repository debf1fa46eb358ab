"""A fleet from its inventory to its report, on simulated hosts with real ledgers."""

from __future__ import annotations

import datetime
import json
import math
import os
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from partywall import files
from partywall.core.capability import Options
from partywall.core.stats.estimate import Outcome
from partywall.errors import Exit, TrialError, UsageError
from partywall.events import silent
from partywall.fleet import report as reports
from partywall.fleet.actions import Gate, ShowReport, Stop, Watch
from partywall.fleet.capability import Fleets
from partywall.fleet.engines import engine as engines
from partywall.fleet.engines.engine import Unreachable
from partywall.fleet.findings.findings import admitted
from partywall.fleet.job import AdmitJob, RunJob
from partywall.fleet.ledger.granting import Order
from partywall.fleet.ledger.lease import Lease, Phase, State
from partywall.fleet.ledger.look import Chunk, Look
from partywall.fleet.measure import controlling, following
from partywall.fleet.measure.controlling import Controller
from partywall.fleet.record import Became, Failed, FleetRecord, Home, Measured, Tried
from partywall.host import Host
from partywall.testing.engines import GOES_ON, Ends, Hostile, Simulated
from partywall.testing.hosts import fake_host

CELLS = ("copy beside memory", "copy alone")


def estimate(value: float, half: float) -> dict[str, object]:
    return {"value": value, "low": value - half, "high": value + half, "level": 0.95, "n": 12, "method": "t"}


def ends(factor: float, code: int = 0, kernel: str = "6.1", half: float = 0.02) -> Ends:
    """A run whose victim gets a factor beside its neighbour, with half an interval on either side."""

    def run(folder: Path, lease: Lease) -> int:
        cell = {"victim": "copy", "label": "memory", "role": "aggressor", "levels": {}}
        cell |= {"isolation": estimate(factor, half), "baseline_rate": estimate(1000, 5)}
        null = cell | {"label": "null", "role": "null"}
        result = {"headline": "it was measured", "cells": [null, cell]}
        document = {"command": "run", "exit": code, "result": result, "problems": []}
        (folder / "result.json").write_text(json.dumps(document))
        record = folder / f"record-{lease.attempt}"
        record.mkdir()
        (record / "plan.json").write_text(json.dumps({"scenario": {"budget": "60000000000ns"}}))
        (record / "host.json").write_text(json.dumps({"kernel": {"release": kernel}}))
        (record / "events.jsonl").write_text('{"kind": "block"}\n' * 3)
        return code

    return run


def dies(folder: Path, lease: Lease) -> None:
    """A run whose host restarts after its plan was written."""
    record = folder / f"record-{lease.attempt}"
    record.mkdir()
    (record / "plan.json").write_text("{}")


def fails(folder: Path, lease: Lease) -> int:
    del lease
    problem = {"message": "no probe has this name", "remedy": "choose another", "file": None, "line": 1, "key": None}
    (folder / "result.json").write_text(json.dumps({"command": "run", "result": None, "problems": [problem]}))
    return 2


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., FleetRecord]:
    """A record of a fleet whose hosts are those of `runs`."""

    def made(runs: Mapping[str, Sequence[Ends]], name: str = "fleet", **options: object) -> FleetRecord:
        inventory = tmp_path / "hosts.ini"
        inventory.write_text("[rack]\n" + "\n".join(runs) + "\n")
        given = {"inventory": str(inventory), "scenario": "demo", "every_ns": "200ms", **options}
        return FleetRecord.create(tmp_path / name, RunJob.parsed(given), {})

    return made


def measure(record: FleetRecord, engine: engines.Engine) -> list[str]:
    """Measures a fleet. Returns what was noted."""
    notes: list[str] = []
    Controller(record, engine, lambda event: notes.append(getattr(event, "text", ""))).run()
    return notes


def test_a_fleet_comes_home_and_its_bad_host_is_named(make, tmp_path: Path):
    runs = {f"h{number}": [ends(0.9 + 0.001 * number)] for number in range(6)} | {"bad": [ends(0.5, kernel="6.9")]}
    record = make(runs)
    measure(record, Simulated(tmp_path / "sim", runs))
    judged = Fleets().findings(record)
    report = Fleets().report(judged)
    assert report.headline == (
        "bad isolates worse than the other hosts: copy beside memory keeps 50% of its rate on bad, 90% on others"
    )
    assert Fleets().outcome(judged) is Exit.VIOLATED
    assert [cell.name for cell in judged.fleet.cells] == list(CELLS)
    outliers = next(table for table in report.tables if table.id == "outliers")
    assert [(row["host"], row["cell"]) for row in outliers.rows] == [("bad", "copy beside memory")]
    home = record.home("bad").folder
    assert (home / "record-1" / "events.jsonl").read_text() == '{"kind": "block"}\n' * 3
    assert ShowReport.parsed({"record": str(record.path)}).act(lambda: None).headline == report.headline


def test_the_outline_says_what_is_loaded_and_what_will_be_missing(tmp_path: Path):
    (tmp_path / "hosts.ini").write_text("a\nb\n")
    (tmp_path / "group_vars").mkdir()
    given = {"inventory": str(tmp_path / "hosts.ini"), "scenario": "demo", "canaries": "a"}
    said = Fleets().outline(RunJob.parsed(given), Options(Host.here())).lines
    assert said[0].startswith(
        "demo: loads each host while it is measured: integer, cache, memory, disk beside same-core,"
    )
    assert "first, as canaries: a (demo has no goals, so they only need to be measurable)" in said
    assert "hosts are compared from 3 on" in said
    assert any("not read: group_vars beside the inventory" in line for line in said)


def test_this_host_alone_needs_no_ssh():
    assert RunJob.parsed({"inventory": "localhost", "scenario": "demo"}).engine == "local"


def test_commands_of_a_scenario_are_refused_before_any_host_is_reached(tmp_path: Path):
    scenario = "partywall: 1\nname: own\nvictims: {v: {command: [work], metric: {regex: '([0-9]+)', unit: op}}}\n"
    (tmp_path / "own.yaml").write_text(scenario + "aggressors: {a: {stressor: integer}}\nbudget: 1min\n")
    job = RunJob.parsed({"inventory": "localhost", "scenario": str(tmp_path / "own.yaml")})
    with pytest.raises(UsageError, match="--allow-commands"):
        Fleets().begin(job, Options(Host.here(), tmp_path / "record"), silent)
    assert not (tmp_path / "record").exists()


def test_a_host_that_fails_gets_a_line_and_the_others_go_on(make, tmp_path: Path):
    runs = {"a": [ends(0.9)], "b": [fails], "c": [ends(0.9)], "d": [ends(0.91)]}
    record = make(runs)
    notes = measure(record, Simulated(tmp_path / "sim", runs))
    assert "b: exit code 2: no probe has this name — choose another" in notes
    assert set(record.measured) == {"a", "c", "d"}
    assert Fleets().outcome(Fleets().findings(record)) is Exit.FAILED


def test_a_host_that_dies_costs_its_block_and_continues_its_record(make, tmp_path: Path):
    words = []

    def resumed(folder: Path, lease: Lease) -> int:
        words.append(json.loads((folder / "order.json").read_text())["argv"])
        return ends(0.9)(folder, lease)

    runs = {"a": [dies, resumed], "b": [ends(0.9)]}
    record, simulated = make(runs), Simulated(tmp_path / "sim", {"a": [dies, resumed], "b": [ends(0.9)]})
    measure(record, simulated)
    assert sorted(simulated.began) == [("a", 1), ("a", 2), ("b", 1)]
    assert "--resume=record-1" in words[0]
    became = [
        (line.attempt, line.phase)
        for line in record.stream
        if getattr(line, "host", "") == "a" and hasattr(line, "phase")
    ]
    assert (1, Phase.DIED) in became


def test_the_next_attempt_waits_for_what_is_left_of_the_one_before(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(following, "PAUSE_S", 0.001)
    runs = {"a": [dies, ends(0.9)]}
    record, simulated = make(runs), Simulated(tmp_path / "sim", runs)
    ledger = simulated._ledgers["a"]
    free, asked = ledger._lock, []

    def lock() -> int | None:
        asked.append(len(simulated.began))
        return free() if len(asked) in (1, 4) else None

    monkeypatch.setattr(ledger, "_lock", lock)
    measure(record, simulated)
    assert (asked, set(record.measured)) == ([0, 1, 1, 1], {"a"})


def test_a_host_that_dies_again_and_again_is_given_up(make, tmp_path: Path):
    runs = {"a": [dies, dies, dies]}
    record, simulated = make(runs, attempts="2"), Simulated(tmp_path / "sim", runs)
    measure(record, simulated)
    assert record.failed == {"a": "a: the host has restarted"}
    assert simulated.began == [("a", 1), ("a", 2)]


@pytest.mark.parametrize(("canary", "says"), [(ends(0.5, code=1), "violates a goal"), (fails, "could not be measured")])
def test_the_others_wait_for_the_canaries_and_stop_on_harm(make, tmp_path: Path, canary: Ends, says: str):
    runs = {"a": [ends(0.9)], "b": [canary], "c": [ends(0.9)]}
    record, simulated = make(runs, canaries="b"), Simulated(tmp_path / "sim", runs)
    measure(record, simulated)
    assert simulated.began == [("b", 1)]
    assert says in record.failed["a"]


def test_sound_canaries_come_first(make, tmp_path: Path):
    runs = {"a": [ends(0.9)], "b": [ends(0.9)]}
    record, simulated = make(runs, canaries="b"), Simulated(tmp_path / "sim", runs)
    measure(record, simulated)
    assert simulated.began == [("b", 1), ("a", 1)]


def test_after_a_part_of_its_time_only_a_host_whose_answer_is_open_goes_on(make, tmp_path: Path):
    words = {}

    def again(folder: Path, lease: Lease) -> int:
        words[lease.attempt] = json.loads((folder / "order.json").read_text())["argv"][4:]
        return ends(0.84, half=0.01)(folder, lease)

    runs = {f"h{number}": [ends(0.9 + 0.001 * number)] for number in range(9)}
    runs |= {
        "bad": [ends(0.7)],
        "odd": [ends(0.87, half=0.04), lambda _folder, _lease: None, again],
        "sound": [ends(0.92, half=0.04)],
    }
    record = make(runs, budget_ns="2min", rounds_="2")
    simulated = Simulated(tmp_path / "sim", runs)
    measure(record, simulated)
    assert sorted(each for each in simulated.began if each[1] > 1) == [("odd", 2), ("odd", 3)]
    # The second attempt died before it gave its record more time, so the third one does.
    assert [word for word in words[3] if "--" in word] == ["--resume=record-1", "--budget=120s", "--format=json"]
    assert (record.measured["odd"].share, record.measured["bad"].share) == (1.0, 0.5)
    report = Fleets().report(Fleets().findings(record))
    assert "11 of 12 hosts were measured for a part of their time, which decided" in report.notes
    assert set(report.values["worse"]) == {"bad", "odd"}
    measure(record, simulated)
    assert len(simulated.began) == 14


def test_a_record_goes_on_with_what_it_lacks_under_a_newer_token(make, tmp_path: Path):
    runs = {"a": [ends(0.9)], "b": [fails, ends(0.9)], "c": [ends(0.9)]}
    record, simulated = make(runs), Simulated(tmp_path / "sim", runs)
    measure(record, simulated)
    measure(record, simulated)
    # A run that ended with a mistake is not repeated silently: its answer is what it was.
    assert sorted(simulated.began) == [("a", 1), ("b", 1), ("c", 1)]
    assert (tmp_path / "sim" / "b" / "runs" / record.name / "token").read_text() == "2"


def test_after_ctrl_c_hosts_measure_on_and_the_next_controller_takes_them_over(make, tmp_path: Path):
    def goes_on(folder: Path, lease: Lease) -> int:
        ends(0.9)(folder, lease)
        return GOES_ON

    runs = {"a": [goes_on], "b": [ends(0.9)], "c": [ends(0.9)]}
    record, simulated, notes = make(runs), Simulated(tmp_path / "sim", runs), []

    def interrupted(event: object) -> None:
        notes.append(getattr(event, "text", ""))
        rows = {row.host: row.state for row in getattr(event, "value", ())}
        if rows.get("a") == Phase.RUNNING and "measured" in rows.values():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Controller(record, simulated, interrupted).run()
    assert f"a measure on; partywall fleet stop {record.path} ends them" in notes
    assert simulated.state("a", record.name).phase is Phase.RUNNING
    simulated.end("a")
    measure(record, simulated)
    assert set(record.measured) == {"a", "b", "c"}
    assert sorted(simulated.began) == [("a", 1), ("b", 1), ("c", 1)]
    assert record.begin() == 3


def test_a_fleet_is_followed_from_elsewhere_until_its_controller_ends(make, tmp_path: Path):
    runs = {"a": [ends(0.9)], "b": [ends(0.9)], "c": [ends(0.9)]}
    record, simulated = make(runs), Simulated(tmp_path / "sim", runs)
    seen: list[str] = []
    ready, watch = threading.Event(), Watch.parsed({"record": str(record.path), "every_ns": "10ms"})

    def follows() -> None:
        for report in watch.follow():
            seen.append(report.headline)
            ready.set()

    with record.exclusive():
        watcher = threading.Thread(target=follows)
        watcher.start()
        assert ready.wait(10)
        measure(record, simulated)
    watcher.join(10)
    assert (seen[0], seen[-1]) == ("0 of 3 hosts", "3 of 3 hosts")
    assert (
        watch.act(lambda: None).headline == ShowReport.parsed({"record": str(record.path)}).act(lambda: None).headline
    )


def test_what_lines_say_of_hosts_is_what_stands_in_the_table(make):
    record = make({"a": [], "b": [], "c": [], "d": []})
    record.stream.append(Tried(host="b", attempt=1))
    record.stream.append(Became(host="c", attempt=1, phase=Phase.STARTING, why="its job 7 waits (Resources)"))
    record.stream.append(Failed(host="d", why="no route"))
    rows = [(row.host, row.state, row.why) for row in record.standings()]
    waits = ("c", "starting", "its job 7 waits (Resources)")
    assert rows == [("a", "waits", ""), ("b", "asked", ""), waits, ("d", "failed", "no route")]
    assert not record.is_written()


@pytest.mark.parametrize(
    "said",
    [
        {"result": {"headline": "", "cells": [{"role": 1}]}, "problems": []},
        {"result": {"cells": []}, "problems": []},
        {"result": 5, "problems": []},
        {"result": None, "problems": [5]},
        {"result": {"headline": "", "cells": 7}, "problems": 3},
    ],
)
def test_a_host_that_answers_oddly_is_told_of_and_the_others_go_on(make, tmp_path: Path, said: object):
    def lies(folder: Path, _lease: Lease) -> int:
        (folder / "result.json").write_text(json.dumps(said))
        return 0

    runs = {"a": [lies], "b": [ends(0.9)], "c": [ends(0.9)]}
    record, simulated = make(runs), Simulated(tmp_path / "sim", runs)
    measure(record, simulated)
    assert set(record.measured) == {"b", "c"}
    assert record.failed["a"].startswith("a: ")


def test_an_engine_that_fails_for_one_host_fails_it_alone(make, tmp_path: Path):
    class Odd(Simulated):
        def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
            if host == "a":
                raise KeyError("phase")
            return super().fetch(host, run, since)

    runs = {"a": [ends(0.9)], "b": [ends(0.9)], "c": [ends(0.9)]}
    record, odd = make(runs), Odd(tmp_path / "sim", runs)
    measure(record, odd)
    assert set(record.measured) == {"b", "c"}
    assert record.failed["a"] == "a: what it or its engine answered cannot be used: KeyError('phase')"


def test_stop_ends_what_measures_and_fences_the_controller(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs = {"a": [lambda _folder, _lease: GOES_ON]}
    record, simulated = make(runs), Simulated(tmp_path / "sim", runs)
    order = Order(record.name, ("run", "demo"))
    record.stream.append(Tried(host="a", attempt=1))
    simulated.ensure("a", order, record.begin())
    monkeypatch.setattr(engines, "named", lambda _: lambda _places: simulated)
    assert Stop.parsed({"record": str(record.path)}).act(lambda: None).values["hosts"][0]["state"] == "stopping"
    refused = simulated._ledgers["a"].ensure(order, 1)
    assert (refused.phase, refused.why) == (Phase.REFUSED, "a newer controller has taken over this run")


def test_stop_ends_a_controller_that_measures_before_it_begins_with_the_next_host(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs = {"a": [lambda _folder, _lease: GOES_ON, ends(0.9)], "b": [ends(0.9)]}
    record, simulated = make(runs, at_once_="1"), Simulated(tmp_path / "sim", runs)
    monkeypatch.setattr(engines, "named", lambda _: lambda _places: simulated)

    def stops(event: object) -> None:
        if not stopped and any(row.state == Phase.RUNNING for row in getattr(event, "value", ())):
            stopped.append(Stop.parsed({"record": str(record.path)}).act(lambda: None).values["hosts"])
            simulated.end("a", phase=Phase.STOPPED)

    stopped: list[object] = []
    with record.exclusive(), pytest.raises(TrialError, match="has taken over, so this one ends; later: partywall"):
        Controller(record, simulated, stops).run()
    assert (stopped, simulated.began) == ([[{"host": "a", "state": "stopping", "silent": False}]], [("a", 1)])
    assert record.failed == {"a": "a: stopped"}
    record.end()
    assert not record.is_ended
    measure(record, simulated)
    assert set(record.measured) == {"a", "b"}


def test_a_busy_host_waits_and_the_others_do_not_wait_for_it(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Busy(Simulated):
        loads: ClassVar = {"a": [0.9, 0.5, 0.05], "b": [0.0], "c": [None]}

        def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
            load = self.loads[host].pop(0) if not since and self.loads[host] else None
            return replace(super().fetch(host, run, since), load=load)

    monkeypatch.setattr(controlling, "AGAIN_S", 0.01)
    runs = {name: [ends(0.9)] for name in "abc"}
    record, simulated = make(runs, idle="10%", at_once_="1"), Busy(tmp_path / "sim", runs)
    measure(record, simulated)
    assert simulated.began == [("b", 1), ("c", 1), ("a", 1)]
    assert simulated.loads["a"] == []


@pytest.mark.parametrize(
    ("hours", "allowed", "refused"),
    [("22:00-06:00", (22, 23, 0, 5), (6, 12, 21)), ("08:00-18:00", (8, 17), (7, 18, 0))],
)
def test_hosts_begin_only_in_the_hours_that_are_given(make, hours: str, allowed: tuple, refused: tuple):
    job = make({"a": []}, hours=hours).job
    assert [job.not_now(datetime.time(hour)) for hour in allowed] == [""] * len(allowed)
    assert all(job.not_now(datetime.time(hour)).startswith("it may begin from") for hour in refused)


def test_a_host_that_never_answers_is_given_up_soon_with_the_reason(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Deaf(Simulated):
        def state(self, host: str, _run: str) -> State:
            raise Unreachable(f"{host}: it cannot be reached (Connection refused); check that it is up")

    monkeypatch.setattr(following, "PAUSE_S", 0.001)
    assert following.FIRST_S < 30
    monkeypatch.setattr(following, "FIRST_S", 0.01)
    runs = {"a": [ends(0.9)]}
    record = make(runs)
    measure(record, Deaf(tmp_path / "sim", runs))
    assert record.failed["a"].startswith("a: it cannot be reached (Connection refused); check that it is up")
    assert record.failed["a"].endswith("; --resume asks again (asked for 0 s)")


def test_a_host_that_was_out_of_reach_is_tried_again_by_resume(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Cut(Simulated):
        is_cut = True

        def state(self, host: str, run: str) -> State:
            if self.is_cut and host == "b":
                raise Unreachable("b: it cannot be reached", is_lasting=True)
            return super().state(host, run)

    runs = {"a": [ends(0.9)], "b": [ends(0.9)], "c": [ends(0.9)]}
    cut = Cut(tmp_path / "sim", runs)
    monkeypatch.setattr(engines, "named", lambda _: lambda _places: cut)
    options = Options(Host.here(), out=tmp_path / "again")
    record = Fleets().begin(make(runs).job, options, silent)
    assert record.failed == {"b": "b: it cannot be reached"}
    assert Fleets().continued_by(record) == ("fleet", "run", "--resume", str(record.path))
    cut.is_cut = False
    Fleets().resume(record, options, silent)
    assert (record.failed, record.is_ended) == ({}, True)
    assert sorted(cut.began) == [("a", 1), ("b", 1), ("c", 1)]


def test_what_was_stopped_goes_on_with_its_record(make, tmp_path: Path):
    def stopped(folder: Path, lease: Lease) -> int:
        dies(folder, lease)
        return GOES_ON

    runs = {"a": [stopped, ends(0.9)]}
    record, simulated = make(runs, attempts="1"), Simulated(tmp_path / "sim", runs)
    simulated.ensure("a", Order(record.name, ("run", "demo")), record.begin())
    simulated.end("a", phase=Phase.STOPPED)
    measure(record, simulated)
    assert simulated.began == [("a", 1), ("a", 2)]
    argv = json.loads((tmp_path / "sim" / "a" / "runs" / record.name / "order.json").read_text())["argv"]
    assert "--resume=record-1" in argv
    assert set(record.measured) == {"a"}


@pytest.mark.parametrize("seed", range(12))
def test_a_hostile_network_changes_nothing(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int):
    monkeypatch.setattr(following, "PAUSE_S", 0.001)
    runs = {"a": [ends(0.9)], "b": [dies, ends(0.9)], "c": [ends(0.91)]}
    record, simulated = make(runs), Simulated(tmp_path / "sim", runs)
    hostile = Hostile(simulated, random.Random(seed), 0.6)
    measure(record, hostile)
    assert sorted(simulated.began) == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]
    assert set(record.measured) == {"a", "b", "c"}
    assert {"lost", "answer lost", "twice", "kept", "late"} & set(hostile.calls)
    for host in runs:
        there = tmp_path / "sim" / host / "runs" / record.name
        for file in record.home(host).folder.rglob("events.jsonl"):
            assert file.read_bytes() == (there / file.relative_to(record.home(host).folder)).read_bytes()


def test_a_gate_compares_canaries_with_the_rest_and_with_an_earlier_record(make, tmp_path: Path):
    same = {f"h{number}": [ends(0.9 + 0.001 * number)] for number in range(8)}
    worse = {name: [ends(0.6)] if name in ("h0", "h1") else runs for name, runs in same.items()}
    before, after = make(same, "before"), make(worse, "after", canaries="h0,h1")
    measure(before, Simulated(tmp_path / "one", same))
    measure(after, Simulated(tmp_path / "two", worse))
    gate = Gate.parsed({"record": str(after.path)}).act(lambda: None)
    assert (gate.headline, gate.outcome) == ("the canaries (h0,h1) are worse by more than 3 %", "violated")
    sound = Gate.parsed({"record": str(before.path), "canaries": "h0,h1"}).act(lambda: None)
    assert sound.outcome == "holds"
    pairs = Gate.parsed({"record": str(before.path), "before": str(before.path)}).act(lambda: None)
    assert pairs.outcome == "holds"
    with pytest.raises(UsageError, match="no canaries are given"):
        Gate.parsed({"record": str(before.path)}).act(lambda: None)


@pytest.mark.parametrize(("factor", "code"), [(0.9, Exit.HOLDS), (0.6, Exit.VIOLATED)])
def test_a_new_host_is_judged_by_the_fleet(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, code: Exit
):
    fleet = {f"h{number}": [ends(0.9 + 0.001 * number)] for number in range(8)}
    record = make(fleet)
    measure(record, Simulated(tmp_path / "sim", fleet))
    new = Simulated(tmp_path / "new", {"localhost": [ends(factor)]})
    monkeypatch.setattr(engines, "named", lambda _: lambda _places: new)
    job = AdmitJob.parsed({"host": "localhost", "against": str(record.path), "every_ns": "200ms"})
    own = Fleets().begin(job, Options(Host.here(), out=tmp_path / "admit"), silent)
    assert Fleets().outcome(Fleets().findings(own)) is code


def studied(value: float) -> Ends:
    """A run of a study with one real point, and one of a simulated meter."""

    def run(folder: Path, lease: Lease) -> int:
        point = {"series": "cache", "x": "normal", **estimate(value, 2), "simulated": False}
        points = [point, point | {"x": "watts", "simulated": True}, point | {"x": "unknown", "n": None}]
        result = {"headline": "it was measured", "exhibits": [{"exhibit": "fig 5", "measured": points}]}
        (folder / "result.json").write_text(json.dumps({"result": result, "problems": []}))
        record = folder / f"record-{lease.attempt}"
        record.mkdir()
        (record / "study.json").write_text(json.dumps({"host": {"kernel": {"release": str(value)}}}))
        return 0

    return run


def test_hosts_that_differ_in_a_study_are_named_but_not_called_worse(make, tmp_path: Path):
    runs = {f"h{number}": [studied(100 + 0.1 * number)] for number in range(6)} | {"odd": [studied(150)]}
    record = make(runs, scenario="vits")
    measure(record, Simulated(tmp_path / "sim", runs))
    judged = Fleets().findings(record)
    headline = Fleets().report(judged).headline
    assert headline.startswith("odd differs from the other hosts: fig 5: cache, normal is 150 on odd, 100")
    assert (judged.fleet.worse, judged.fleet.other, Fleets().outcome(judged)) == ([], ["odd"], Exit.VIOLATED)
    assert [cell.name for cell in judged.fleet.cells] == ["fig 5: cache, normal"]
    assert record.measured["odd"].facts == {"kernel.release": "150"}
    assert Fleets().outline(record.job, Options(fake_host())).seconds > 60
    with pytest.raises(UsageError, match="of a study it cannot say what is worse"):
        Gate.parsed({"record": str(record.path), "canaries": "odd"}).act(lambda: None)
    with pytest.raises(UsageError, match=r"--against: .* is of a study, which knows no worse"):
        AdmitJob.parsed({"host": "new", "against": str(record.path)})


@pytest.mark.parametrize(("option", "given"), [("budget_ns", "5min"), ("rounds_", 2)])
def test_a_study_takes_its_own_time(make, option: str, given: object):
    with pytest.raises(UsageError, match="a study takes its own time; leave it out"):
        make({"a": []}, scenario="papers/vits", **{option: given})


def test_the_page_of_a_fleet_leads_to_the_last_report_of_each_host(make, tmp_path: Path):
    runs = {f"h{number}": [ends(0.9 + 0.001 * number)] for number in range(3)}
    record = make(runs)
    measure(record, Simulated(tmp_path / "sim", runs))
    for attempt in (1, 2):
        page = record.home("h1").folder / f"record-{attempt}" / "report.html"
        page.parent.mkdir(exist_ok=True)
        page.write_text("its own")
    assert record.pages() == {"h1": "hosts/h1/record-2/report.html"}
    _, render = Fleets().files().documents["html"]
    text = render(Fleets().findings(record))
    assert '<a href="hosts/h1/record-2/report.html">h1</a>' in text
    assert '<th scope="row">h2</th>' in text


def test_a_host_that_was_measured_too_briefly_is_told_how_long_it_takes(make, tmp_path: Path):
    fleet = {f"h{number}": [ends(0.9 + 0.001 * number)] for number in range(8)}
    record = make(fleet)
    measure(record, Simulated(tmp_path / "sim", fleet))
    hosts = list(FleetRecord.open(record.path).measured.values())
    measured = hosts[0].cells

    def new(by: float) -> Measured:
        """A host whose intervals are wider by a factor on either side."""
        ends = ({"low": cell.value / by, "high": cell.value * by} for cell in measured)
        cells = tuple(cell.model_copy(update=each) for cell, each in zip(measured, ends, strict=True))
        return Measured(host="new", exit=0, cells=cells)

    short = admitted(new(1.25), hosts, 60.0, 0.05)
    assert short.outcome is Outcome.INCONCLUSIVE
    said = reports.admission(short, "fleet", {}).headline
    begins = "Not known whether new is as good as the hosts of fleet: a loss of "
    assert re.fullmatch(begins + r"[\d.]+ % in any cell would show; for 5 % it takes some .+ \(--budget\)", said)
    after = math.log(1.25) * math.sqrt(60.0 / short.needed_s)
    assert admitted(new(math.exp(0.8 * after)), hosts, short.needed_s, 0.05).outcome is Outcome.HOLDS
    assert admitted(new(math.exp(2 * after)), hosts, short.needed_s, 0.05).outcome is Outcome.INCONCLUSIVE


def test_a_fleet_of_two_predicts_nothing_and_says_so_before_it_measures(make, tmp_path: Path):
    fleet = {f"h{number}": [ends(0.9)] for number in range(2)}
    record = make(fleet)
    measure(record, Simulated(tmp_path / "sim", fleet))
    job = AdmitJob.parsed({"host": "localhost", "against": str(record.path), "engine": "local"})
    with pytest.raises(UsageError, match="has no cell that 3 other hosts measured"):
        Fleets().outline(job, Options(Host.here()))


def test_a_fleet_without_figures_says_why(make, tmp_path: Path):
    runs = {"a": [fails]}
    record = make(runs)
    measure(record, Simulated(tmp_path / "sim", runs))
    with pytest.raises(TrialError, match="no host was measured: a: exit code 2: no probe has this name"):
        Fleets().findings(record)


def test_what_comes_twice_late_or_with_a_gap_leaves_files_as_they_were(tmp_path: Path):
    home = Home(tmp_path)
    for offset, content in ((0, b"ab"), (0, b"ab"), (5, b"f"), (1, b"bcd"), (0, b"a"), (4, b"ef")):
        home.take([Chunk("events.jsonl", offset, content)])
    assert (tmp_path / "events.jsonl").read_bytes() == b"abcdef"


@pytest.mark.parametrize("zeros", [0, 1, 1 << 16, (1 << 16) + 5])
def test_what_a_power_failure_left_unwritten_comes_again(tmp_path: Path, zeros: int):
    home = Home(tmp_path)
    (tmp_path / "events.jsonl").write_bytes(b"abc" + bytes(zeros))
    (tmp_path / "only.parquet").write_bytes(bytes(zeros))
    home.forget_unwritten()
    assert home.since(State(Phase.ENDED, files={"events.jsonl": 3 + zeros})) == ({"events.jsonl": 3} if zeros else {})
    assert (tmp_path / "events.jsonl").read_bytes() == b"abc"
    assert (tmp_path / "only.parquet").read_bytes() == b""


def test_what_came_of_a_run_that_is_over_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home, synced = Home(tmp_path), set[int]()
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    names = ("events.jsonl", "trials/0.parquet")
    home.take([Chunk(name, 0, b"x") for name in (*names, "gone.jsonl")])
    home.settle(State(Phase.ENDED, files=dict.fromkeys(names, 1)))
    there = [tmp_path, *tmp_path.rglob("*")]
    assert synced == {path.stat().st_ino for path in there}
    assert sorted(path.name for path in there if path.is_file()) == ["0.parquet", "events.jsonl"]


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a/../../b", ""])
def test_a_host_cannot_write_outside_of_its_folder(tmp_path: Path, name: str):
    home = Home(tmp_path / "home")
    home.take([Chunk(name, 0, b"x")])
    assert home.since(State(Phase.ENDED, files={name: 1})) == {}
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_all_mistakes_of_a_command_are_said_at_once(tmp_path: Path):
    (tmp_path / "hosts.ini").write_text("[web\na b\n")
    given = {"inventory": str(tmp_path / "hosts.ini"), "scenario": "demmo", "every_ns": "5"}
    with pytest.raises(UsageError) as wrong:
        RunJob.parsed(given)
    said = [str(problem) for problem in wrong.value.problems]
    assert len(said) == 4, said
    assert said[0].startswith(f"{tmp_path}/hosts.ini:1: [web is no section")
    assert any("demmo" in each for each in said)


def test_secrets_of_an_inventory_are_not_kept(tmp_path: Path):
    (tmp_path / "hosts.ini").write_text("a ansible_password=hush ansible_become_pass=hush ansible_host=10.0.0.1\n")
    job = RunJob.parsed({"inventory": str(tmp_path / "hosts.ini"), "scenario": "demo"})
    assert "hush" not in job.model_dump_json()
    assert job.places[0].variables == {"ansible_host": "10.0.0.1"}
