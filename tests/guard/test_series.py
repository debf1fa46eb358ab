"""A guard's time series and a study: stored, read back, and drawn."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from partywall import study as studies
from partywall.core.report.terminal import show
from partywall.core.stats.estimate import Outcome
from partywall.errors import Exit, UsageError
from partywall.guard.capability import Guards
from partywall.guard.check import loads
from partywall.guard.findings import GuardRun, Means, SoFar
from partywall.guard.record import GuardInterval, GuardRecord
from partywall.guard.report import figures_of, headline, live
from partywall.study import page as pages
from partywall.study.agreement import judge
from partywall.study.document import StudyRequest
from partywall.study.paper import Place
from partywall.study.promises import findings as stats
from partywall.study.promises import slots as guard_study
from partywall.study.promises.model import Cell, Study, TenantCell
from partywall.study.record import StudyDirectory
from partywall.web.records import summary
from tests.guard.records import guard_record

SECOND = 1_000_000_000


def row(passed: int, **other: Any) -> dict[str, Any]:
    return {
        "offered_bps": 2 * passed,
        "passed_bps": passed,
        "granted_bps": passed,
        "offered_pps": passed // 6000,
        "passed_pps": passed // 12000,
        "granted_pps": None,
        "dropped_packets": 7,
        "marked_packets": 0,
        "delay_ns": None,
        "jitter_ns": None,
    } | other


def logged(folder: Path) -> GuardRecord:
    log = guard_record(folder)
    for at in range(5):
        rows = {"vm<1>": row(10_000_000 * at, delay_ns=1_500_000), "idle": row(0)}
        notes = (("vm<1>", "repaired", "it is there again"),) if at == 3 else ()
        pools = {"send": {"divided_bps": 10**9, "delay_ns": None}}
        log.add(GuardInterval(at * SECOND, (at + 1) * SECOND, rows, pools, notes, 0, 0))
    return log


def page_of(run) -> str:
    _, render = Guards().files().documents["html"]
    return render(run)


def test_a_series_is_read_back_as_it_was_written_and_put_into_parquet(tmp_path: Path) -> None:
    log = logged(tmp_path / "series")
    log.settle()
    assert GuardRecord.is_one(log.path)
    assert [report["at_ns"] for report in log.reports()] == [(at + 1) * SECOND for at in range(5)]
    table = pq.read_table(log.path / "guard.parquet")
    assert (table.num_rows, table.column("passed_bps").to_pylist()[8]) == (10, 40_000_000)


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    log = logged(tmp_path / "series")
    with (log.path / "guard.jsonl").open("a") as file:
        file.write('{"from_ns": 5')
    log.settle()
    assert len(log.reports()) == 5


def test_the_page_of_a_series_shows_every_vif_with_charts_of_those_that_sent(tmp_path: Path) -> None:
    log = logged(tmp_path / "series")
    content = page_of(Guards().findings(log))
    assert "Kept for 5 s: no problem was found" in content
    assert "vm&lt;1&gt;: repaired: it is there again" in content
    assert "vm<1>" not in re.sub(r"<script.*?</script>", "", content, flags=re.DOTALL)
    assert content.count('data-chart="vm&lt;1&gt;-') == 3
    assert "20 Mbit/s" in content
    assert "1 more vif, idle" in content


def cell(scenario: str, way: str, block: int, period_ns: int | None, chance: random.Random) -> Cell:
    scale = 2.0 if way.startswith("guard") else 1.0
    tenants = {
        name: TenantCell(
            bps=scale * at * 1e7 * chance.uniform(0.99, 1.01), pps=scale * 1e4, lost=0.1, delay_ns=None, jitter_ns=1e6
        )
        for at, name in enumerate(("VM1", "VM2", "VM3"), start=1)
    }
    return Cell(scenario=scenario, way=way, block=block, period_ns=period_ns, cpu_ns=5000 / scale, tenants=tenants)


def load() -> Study:
    return guard_study.load(studies.find("dba-vm").read_bytes(), "dba-vm")


def measured(path: Path, asked: Study) -> StudyDirectory:
    """Scenarios measured, periods not."""
    directory = StudyDirectory.create(path, studies.find("dba-vm").read_bytes(), StudyRequest(), {})
    chance = random.Random(4)
    for scenario in asked.scenarios:
        for block in range(4):
            for way in asked.ways:
                directory.append(cell(scenario, way, block, None, chance).model_dump_json())
    return directory


def test_a_study_comes_beside_the_papers_figures_and_says_what_was_not_measured(tmp_path: Path) -> None:
    report = studies.report(measured(tmp_path / "study", load()))
    points = {beside.table.id: beside.points for beside in report.comparisons}
    native = points["fig 2 (scenario 1)"]["native", "VM2"]
    assert native.low < native.value < native.high
    assert native.value == pytest.approx(20, rel=0.02)
    assert points["fig 6 (loss)"]["tbf", "VM3"].value == pytest.approx(10)
    not_measured = [name for name, found in points.items() if not found]
    assert not_measured == ["fig 4", stats.WHERE, "fig 6 (delay)", "fig 7", "fig 8"]
    for figure in ("fig 4", "fig 8"):
        memory = next(beside for beside in report.comparisons if beside.table.id == figure)
        assert stats.NO_COUNTERS in memory.differs
    content = pages.render(report)
    assert "Beside the paper" in content
    assert "5 not measured" in content


def test_cpu_time_by_where_packets_stop_is_a_share_at_equal_offer_in_both_scenarios(tmp_path: Path) -> None:
    directory = StudyDirectory.create(tmp_path / "study", studies.find("dba-vm").read_bytes(), StudyRequest(), {})
    chance = random.Random(8)
    used = {"htb": 0.9, "guard": 0.8, "guard-source": 0.4}
    for way, scenario, block in itertools.product(used, ("1", "2"), range(4)):
        update = {"cpu_share": used[way] * chance.uniform(0.99, 1.01)}
        directory.append(cell(scenario, way, block, None, chance).model_copy(update=update).model_dump_json())
    shown = next(beside for beside in studies.report(directory).comparisons if beside.table.id == stats.WHERE)
    assert shown.points[Place("guard-source", "scenario 2")].value == pytest.approx(40, rel=0.02)
    assert stats.BUSY in shown.differs
    assert judge(shown).likeness == "same order"


@pytest.mark.parametrize(("lost", "cost_us"), [((0.0, 0.0), 4.0), ((0.5, 0.0), 4 * 2 / 3), ((1.0, 0.0), None)])
def test_a_cost_is_of_an_offered_packet_so_a_way_that_drops_more_does_not_cost_more(lost, cost_us) -> None:
    tenants = {
        str(at): TenantCell(bps=1e6, pps=0.0 if share == 1 else 1000.0, lost=share, delay_ns=None, jitter_ns=None)
        for at, share in enumerate(lost)
    }
    one = Cell(scenario="2", way="guard", block=0, period_ns=0, cpu_ns=4000, tenants=tenants)
    assert stats._per_offered(one, 4.0) == (None if cost_us is None else pytest.approx(cost_us))


def test_memory_transactions_stand_beside_the_papers_where_they_were_counted(tmp_path: Path) -> None:
    asked = load()
    directory = measured(tmp_path / "study", asked)
    chance = random.Random(6)
    for block in range(4):
        for way, period_ns in (("native", 0), *(("guard", period_ns) for period_ns in asked.periods.every)):
            one = cell(asked.periods.scenario, way, block, period_ns, chance)
            memory = chance.uniform(0.99, 1.01) * (40 if way == "native" else 30)
            directory.append(one.model_copy(update={"memory": memory}).model_dump_json())
    shown = next(beside for beside in studies.report(directory).comparisons if beside.table.id == "fig 8")
    assert stats.NO_COUNTERS not in shown.differs
    # A tenth of what is offered is lost.
    assert shown.points[Place("guard", 0.6)].value == pytest.approx(27, rel=0.02)
    assert shown.points[Place("native", 0.6)].value == pytest.approx(36, rel=0.02)


def test_shares_of_cpu_and_memory_traffic_at_the_highest_packet_rate_are_those_of_native_slots(tmp_path: Path) -> None:
    directory = StudyDirectory.create(tmp_path / "study", studies.find("dba-vm").read_bytes(), StudyRequest(), {})
    chance = random.Random(7)
    for scenario, way, used in (("2", "native", 0.9), ("2", "htb", 0.2), ("1", "native", 0.1)):
        for block in range(4):
            update = {"cpu_share": used - 0.1, "memory_share": used * chance.uniform(0.99, 1.01), "memory": 40.0}
            directory.append(cell(scenario, way, block, None, chance).model_copy(update=update).model_dump_json())
    shown = next(beside for beside in studies.report(directory).comparisons if beside.table.id == "fig 4")
    assert stats.NO_COUNTERS not in shown.differs
    assert shown.points[Place("native", "CPU")].value == pytest.approx(80)
    assert shown.points[Place("native", "memory")].value == pytest.approx(90, rel=0.02)


def test_a_link_that_the_tenants_cannot_fill_is_told_where_promises_do_not_show(tmp_path: Path) -> None:
    report = studies.report(measured(tmp_path / "study", load()))
    shown = next(beside for beside in report.comparisons if beside.table.id == "fig 2 (scenario 1)")
    text = shown.why[Place("htb", "VM2")]
    assert "offered 7% of the link's capacity" in text
    assert "htb: the tenants offered 7% of" in pages.render(report)


def test_ways_are_compared_in_the_same_blocks(tmp_path: Path) -> None:
    report = studies.report(measured(tmp_path / "study", load()))
    shown = next(beside for beside in report.comparisons if beside.table.id == "fig 2 (scenario 1)")
    native, guard = Place("native", "VM1"), Place("guard", "VM1")
    ratio = next(pair for pair in shown.paired if {pair.left, pair.right} == {native, guard})
    assert ratio.low < (2.0 if ratio.left == guard else 0.5) < ratio.high


def test_a_study_in_emulated_guests_is_one_in_small_and_marked(tmp_path: Path) -> None:
    asked = load()
    small = asked.scaled(0.05)
    assert (small.link, small.offered, small.tenants["VM2"].guarantee) == (50_000_000, 50_000_000, 35_000_000)
    assert small.scenarios["2"].packets == {"VM1": 1000, "VM2": 3000, "VM3": 3000}
    assert small.scenarios["2"].frame_bytes == asked.scenarios["2"].frame_bytes
    assert small.hold == 20 * asked.hold, "as many bytes may wait"
    content = studies.find("dba-vm").read_bytes()
    directory = StudyDirectory.create(tmp_path / "study", content, StudyRequest(backends=("qemu",)), {})
    for line in measured(tmp_path / "other", asked).observations():
        directory.append(Cell.model_validate(line | {"emulated": True}).model_dump_json())
    report = studies.report(directory)
    points = [point for beside in report.comparisons for point in beside.measured]
    assert {point.emulated for point in points} == {"victim"}
    assert "0.05 of the paper's" in report.notes[0]
    assert ("link", "50 Mbit/s") in report.facts
    by_id = {beside.table.id: beside.differs for beside in report.comparisons}
    assert stats.NO_PROBES in by_id["fig 6 (delay)"]
    assert stats.NO_PROBES not in by_id["fig 6 (loss)"]
    assert not set(stats.NAMESPACES) & set(by_id["fig 3"])


def test_a_study_goes_on_with_the_slots_that_are_not_there(tmp_path: Path) -> None:
    asked = load()
    directory = measured(tmp_path / "study", asked)
    with (directory.path / "observations.jsonl").open("a") as file:
        file.write('{"scenario": "1", "way": "tb')
    done = {guard_study.slot_of(Cell.model_validate(line)) for line in directory.observations()}
    left = guard_study.duration_s(asked, asked.short, done)
    assert left < guard_study.duration_s(asked, asked.short)
    periods = [(scenario, slots) for scenario, slots in guard_study.plan(asked, asked.short, 1)][2]
    assert not {(periods[0], *slot) for slot in periods[1]} & done
    directory.append(cell("2", "native", 0, 0, random.Random(1)).model_dump_json())
    assert directory.observations()[-1]["period_ns"] == 0


def test_a_block_of_promises_that_was_cut_off_is_measured_whole_again(tmp_path: Path) -> None:
    asked = load()
    lines = measured(tmp_path / "study", asked).observations()
    done = {guard_study.slot_of(Cell.model_validate(line)) for line in lines}
    whole = guard_study.duration_s(asked, asked.short, done)
    scenario, slots = next(iter(guard_study.plan(asked, asked.short, 1)))
    lacking = guard_study.duration_s(asked, asked.short, done - {(scenario, *slots[0])})
    assert lacking - whole == pytest.approx(4 * (guard_study.duration_s(asked, asked.short) - whole) / 24, rel=0.6)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b'scenario: "2"', b"scenario: nine", "periods.scenario: there is no scenario 'nine'; there are 1, 2"),
        (b"VM1: {service_class: silver", b"VM1: {service_class: platinum", "tenants.VM1.service_class: there is no"),
        (b"{VM1: 64, VM2: 1514, VM3: 64}", b"{VM1: 64, VM2: 1514}", "scenarios.2.frame_bytes: give one size for each"),
        (b"{VM1: 64, VM2", b"{VM1: 20, VM2", "scenarios.2.frame_bytes.VM1: a frame has 42 to 1514 bytes"),
        (b"guarantee: 700Mbit/s", b"guarantee: 900Mbit/s", "bit/s are promised on a link of"),
    ],
)
def test_a_study_of_promises_that_does_not_fit_together_is_refused(before: bytes, after: bytes, said: str) -> None:
    content = studies.find("dba-vm").read_bytes()
    assert before in content
    with pytest.raises(UsageError, match=said):
        guard_study.load(content.replace(before, after), "mine.yaml")


def test_every_block_of_a_study_holds_every_way_once_and_the_time_is_told_beforehand() -> None:
    asked = load()
    plan = list(guard_study.plan(asked, asked.short, 3))
    assert [scenario for scenario, _ in plan] == ["1", "2", "2"]
    on_host = len(asked.ways_of(virtual=False))
    by_period = 1 + len(asked.ways_by_period) * len(asked.periods.every)
    for (_, slots), ways in zip(plan, [on_host, on_host, by_period], strict=True):
        for block in range(asked.short.blocks):
            of_block = [(way, period) for way, at, period in slots if at == block]
            assert len(set(of_block)) == len(of_block) == ways
    assert 60 < guard_study.duration_s(asked, asked.short) < 240
    in_guests = next(iter(guard_study.plan(asked, asked.short, 3, virtual=True)))[1]
    assert {way for way, _, _ in slots if way != "native"} < {way for way, _, _ in in_guests} == set(asked.ways)
    assert json.loads(cell("1", "tbf", 0, None, random.Random(1)).model_dump_json())["way"] == "tbf"


def test_a_series_has_figures_for_programs(tmp_path: Path) -> None:
    log = logged(tmp_path / "series")
    log.settle()
    found = figures_of(Guards().findings(log))
    assert (found["reports"], found["length_ns"]) == (5, 5 * SECOND)
    assert found["vifs"]["vm<1>"]["passed_bps"] == 20_000_000
    assert found["vifs"]["vm<1>"]["granted_pps"] is None
    assert found["vifs"]["vm<1>"]["dropped_packets"] == 35
    assert found["notes"] == [
        {"at_ns": 4 * SECOND, "hook": "vm<1>", "kind": "repaired", "text": "it is there again"},
    ]


def test_a_change_of_the_policy_divides_the_report(tmp_path: Path) -> None:
    log = logged(tmp_path / "series")
    log.adjusted(2 * SECOND, "name: later\n", ["vifs.vm<1>.send.ceiling: 1 Gbit/s → 20 Mbit/s"])
    run = Guards().findings(log)
    assert log.policy() == "name: later\n"
    first, second = run.parts
    assert (first[0], second[0]) == (0, 2 * SECOND)
    assert [len(part.reports) for _, _, part in run.parts] == [2, 3]
    assert (first[2].mean("vm<1>", "passed_bps"), second[2].mean("vm<1>", "passed_bps")) == (5e6, 30e6)
    page = page_of(run)
    assert "Changes of the policy" in page
    assert "From 2.0 s" in page
    figures = figures_of(run)["policies"]
    assert [part["from_ns"] for part in figures] == [0, 2 * SECOND]
    assert figures[1]["vifs"]["vm<1>"]["passed_bps"] == 30e6


def test_a_guard_says_for_how_long_its_reports_were_lost(tmp_path: Path) -> None:
    run = Guards().findings(logged(tmp_path / "series"))
    assert run.unread_ns == 0
    whole = headline(run)
    holed = replace(run, reports=[*run.reports[:2], *run.reports[3:]])
    assert holed.unread_ns == SECOND
    assert headline(holed) == f"{whole}; reports of 1 s were lost"
    assert figures_of(holed)["unread_ns"] == SECOND


def test_a_guard_of_which_too_little_is_known_did_not_keep_its_policy_for_sure(tmp_path: Path) -> None:
    quiet = [{**report, "notes": []} for report in Guards().findings(logged(tmp_path / "series")).reports]
    run = GuardRun("run", quiet)
    assert run.outcome is Outcome.HOLDS
    holed = replace(run, reports=[*quiet[:2], *quiet[3:]])
    assert holed.outcome is Outcome.INCONCLUSIVE
    assert Guards().outcome(holed) == Exit.INCONCLUSIVE
    assert replace(run, reports=[]).outcome is Outcome.INCONCLUSIVE
    found = [*quiet[:-1], {**quiet[-1], "notes": [["vm", "exceeded", "above the ceiling"]]}]
    assert replace(holed, reports=[*found[:2], *found[3:]]).outcome is Outcome.VIOLATED


def test_a_guard_whose_policy_never_changed_has_one_part(tmp_path: Path) -> None:
    run = Guards().findings(logged(tmp_path / "series"))
    assert [(at_ns, changes) for at_ns, changes, _ in run.parts] == [(0, ())]
    assert "Changes of the policy" not in page_of(run)


def test_each_vif_gets_a_sentence_with_what_it_got_while_it_sent_and_its_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = guard_record(tmp_path / "series")
    for at, sent in enumerate((24, 24, 0)):
        a = row(sent * 10**6, guarantee_bps=20 * 10**6, ceiling_bps=30 * 10**6)
        b = row(0, offered_bps=sent * 10**6, passed_bps=sent * 2 * 10**5, guarantee_bps=None, ceiling_bps=5 * 10**6)
        c = row(sent * 10**5, guarantee_bps=10**7, ceiling_bps=30 * 10**6)
        rows = {"A": a, "B": b, "C": c, "idle": row(0)}
        log.add(GuardInterval(at * SECOND, (at + 1) * SECOND, rows, {"send": {"divided_bps": 10**9}}, (), 0, 0))
    log.settle()
    Guards().files().show(Guards().findings(log), Console(width=160))
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "A got 24 Mbit/s while it sent, for 2 s; guaranteed: 20 Mbit/s",
        "B got 4.8 Mbit/s while it sent, for 2 s; at most: 5 Mbit/s",
        "C got 2.4 Mbit/s while it sent, for 2 s; guaranteed: 10 Mbit/s; it offered 4.8 Mbit/s",
    ]


def test_the_last_table_of_a_guard_shows_means_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    policy = loads(
        "partywall_guard: 1\nname: edge\nlink: {capacity: 30Mbit/s}\n"
        "vifs:\n  A: {interface: va, send: {guarantee: 20Mbit/s}}\n  B: {interface: vb, send: {ceiling: 30Mbit/s}}\n"
    )
    pools, seen, means = {"send": {"divided_bps": 30 * 10**6}}, None, Means()
    for at, sent in enumerate((20, 10, 0)):
        rows = {name: row(sent * 10**6, guarantee_bps=20 * 10**6, ceiling_bps=3 * 10**7) for name in "AB"}
        last = GuardInterval(at * SECOND, (at + 1) * SECOND, rows, pools, (), 0, 0)
        seen = (seen or SoFar(policy, last, means)).then(last, policy)
    show(live(replace(seen, is_over=True)), Console(width=160))
    shown = capsys.readouterr().out
    assert "means over 3 s" in shown
    last = shown.rpartition("means over")[2]
    assert last.count("10 Mbit/s") >= 2
    assert "A got 15 Mbit/s while it sent, for 2 s; guaranteed: 20 Mbit/s" in last


def test_the_findings_begin_with_a_headline_for_lists_of_records(tmp_path: Path) -> None:
    log = logged(tmp_path / "series")
    log.settle()
    Guards().files().write(Guards().findings(log), tmp_path, ["json"])
    assert summary(tmp_path)[0] == "Kept for 5 s: no problem was found"
