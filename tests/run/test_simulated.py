"""The block loop on a simulated host: what it finds is compared with what is true there."""

import os
import re
import threading
from pathlib import Path

import pytest

from partywall.agent.calibration import Calibration
from partywall.agent.catalogue import Warn, shipped
from partywall.core.query import table
from partywall.errors import AgentError
from partywall.events import Block, Left, Note
from partywall.host.label import Label
from partywall.run import stages
from partywall.run.document.scenario import Scenario
from partywall.run.measure.execute import all_cpus
from partywall.run.plan import Topology, make
from partywall.run.record import RunDirectory
from partywall.sandbox import Settings
from partywall.testing import SimulatedHost

CONTENT = {
    "partywall": 1,
    "name": "simulated",
    "victims": {"v": {"probe": "integer"}},
    "aggressors": {
        "half": {"stressor": "integer", "sandbox": {"cpus": "same"}},
        "none": {"stressor": "memory-copy"},
    },
    "min_blocks": 8,
    "budget": "10s",
    "precision": "0.1%",
}
TRUE = {"half": 0.5, "none": 1.0}
pytestmark = pytest.mark.long


def planned(tmp_path, **changes) -> RunDirectory:
    facts = {"cpus_allowed": [0, 1], "memory": {"usable_bytes": 1 << 40}, "missing": []}
    plan = make(Scenario.model_validate(CONTENT | changes), Topology((0, 1), ()), shipped())
    return RunDirectory.create(tmp_path / "run", "", plan, facts)


def cells(run: RunDirectory):
    result = {cell.aggressor: cell for cell in stages.analyse(run)[1].cells}
    return {name: result[name] for name in TRUE}


def test_what_is_true_lies_within_the_intervals(tmp_path):
    run = planned(tmp_path)
    SimulatedHost(TRUE).carry_out(run)
    assert run.ended
    for name, cell in cells(run).items():
        assert cell.isolation.low < TRUE[name] < cell.isolation.high
        assert cell.isolation.high - cell.isolation.low < 0.02


def test_a_run_that_is_precise_enough_ends_early(tmp_path):
    neighbour = {"none": CONTENT["aggressors"]["none"]}
    short, long = (SimulatedHost(TRUE, noise=0.001, wander=0) for _ in range(2))
    short.carry_out(planned(tmp_path / "a", aggressors=neighbour, precision="5%", budget="20s"))
    long.carry_out(planned(tmp_path / "b", aggressors=neighbour, precision="0.0001%", budget="20s"))
    assert short.clock.now_ns() < 0.8 * long.clock.now_ns()


def test_a_decided_neighbour_has_fewer_blocks_and_an_interval_that_allows_for_the_looks(tmp_path):
    neighbours = CONTENT["aggressors"] | {"near": {"stressor": "syscall"}}
    true = TRUE | {"near": 0.97}
    run = planned(tmp_path, aggressors=neighbours, precision="1%", budget="20s", aim="decision")
    SimulatedHost(true, noise=0.3, drifts=[(0.05, 20_000_000)]).carry_out(run)
    found = {cell.treatment: cell for cell in stages.analyse(run)[1].cells if cell.aggressor in true}
    decided = set([*run.events("decided")][-1]["treatments"])
    assert "half@1" in decided < set(found)
    assert {name for name, cell in found.items() if cell.isolation.level == 0.99} == decided
    blocks = {name: cell.isolation.n for name, cell in found.items()}
    assert max(blocks[name] for name in decided) < min(blocks[name] for name in set(found) - decided)
    for cell in found.values():
        assert cell.isolation.low < true[cell.aggressor] < cell.isolation.high


def test_the_documented_query_shows_when_an_effect_has_set_in_and_ended(tmp_path):
    page = (Path(__file__).parents[2] / "docs/scenario.md").read_text(encoding="utf-8")
    (query,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    run = planned(tmp_path)
    SimulatedHost(TRUE, noise=0.001, wander=0).carry_out(run)
    names, rows = table(run.path, query.replace("disk@1", "half@1"))
    found = [dict(zip(names, row, strict=True)) for row in rows]
    assert {row["trial"] for row in found} == {run.plan.trials[0].id}
    for switch, rate in (("on", 0.5e6), ("off", 1e6)):
        own = [row for row in found if row["switch"] == switch]
        # From the first whole slice after the switch until the end of the slot, the guard of 10 ms included.
        assert [row["from_ms"] for row in own][:5] == [1, 2, 4, 8, 16]
        assert all(row["rate"] == pytest.approx(rate, rel=0.01) and row["slots"] > 1 for row in own)


def test_an_agent_that_dies_costs_its_turn_and_the_trial_goes_on(tmp_path):
    notes = []
    run = planned(tmp_path)
    SimulatedHost(TRUE, dies=("half", 14 * 10**9)).carry_out(run, lambda e: notes.append(e))
    (failed,) = [note.text for note in notes if isinstance(note, Note)]
    assert failed == "failed: v: aggressor half ended during the trial: it was killed by signal 9"
    assert run.ended
    assert cells(run)["half"].isolation.value == pytest.approx(0.5, abs=0.005)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    run, begun = planned(tmp_path), 0

    def interrupt(event):
        nonlocal begun
        begun += isinstance(event, Left)
        if begun == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SimulatedHost(TRUE).carry_out(run, interrupt)
    blocks = len(list(run.events("block_done")))
    assert blocks
    assert not run.ended
    SimulatedHost(TRUE, seed=2).carry_out(run)
    assert run.ended
    numbers = [event["block"] for event in run.events("block_done")]
    assert numbers[: len(set(numbers))] == sorted(set(numbers))
    assert len(numbers) == len(set(numbers)) > blocks


def test_time_left_falls_to_nothing(tmp_path):
    left = []
    SimulatedHost(TRUE).carry_out(planned(tmp_path), lambda e: left.append(e.seconds) if isinstance(e, Left) else 0)
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0] / 4


def test_no_thread_of_the_controller_is_on_the_victims_cpu_while_it_is_measured(tmp_path):
    """Also one that began before, as the one that draws on the terminal."""
    if len(all_cpus()) < 2:
        pytest.skip("one CPU")
    ended, seen = threading.Event(), set()

    def look(event):
        if isinstance(event, Block):
            tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
            seen.update((len(tasks) > 1, frozenset(os.sched_getaffinity(task))) for task in tasks)

    before = threading.Thread(target=ended.wait)
    before.start()
    try:
        run = planned(tmp_path)
        SimulatedHost(TRUE).carry_out(run, look)
    finally:
        ended.set()
        before.join()
    victims = {cpu for trial in run.plan.trials for cpu in trial.victim_cpus}
    assert seen == {(True, frozenset(all_cpus() - victims))}


def test_every_aggressor_is_reported_when_to_press_and_all_are_stopped(tmp_path):
    host = SimulatedHost(TRUE)
    host.carry_out(planned(tmp_path))
    assert {("half", "workload.schedule"), ("none", "workload.schedule"), ("victim", "workload.stop")} <= set(
        host.requests
    )
    assert not host._running


def test_a_simulated_agent_that_is_gone_answers_no_more():
    host = SimulatedHost()
    session = host.session(Label("t", None, None))
    session.add(Settings("v", "process", (0,)))
    client = session.client("v")
    client._tell("gone", {"reason": "killed"})
    with pytest.raises(AgentError, match="gone"):
        client.call("monitor.start", id="m")


# With 24 ms between its reports, a victim is too coarse for the shortest slots.
SELDOM_NS = 24_000_000
HALF = {"half": CONTENT["aggressors"]["half"]}
FOR_EVER_NS = 1 << 60


def carried_out_with_losses(folder, since_ns: int, **changes) -> RunDirectory:
    """A run on a host that loses what a seldom reporting victim reports from some time on."""
    run = planned(folder, aggressors=HALF, **changes)
    SimulatedHost(TRUE, reports_ns=SELDOM_NS, loses=[(since_ns, FOR_EVER_NS)]).carry_out(run)
    return run


def half(run: RunDirectory):
    (cell,) = [cell for cell in stages.analyse(run)[1].cells if cell.aggressor == "half"]
    return cell


def begin_of_first(run: RunDirectory, stretch: int) -> int:
    return next(e["slots"][0]["start_ns"] for e in run.events("block_done") if e["stretch"] == stretch)


def test_slots_of_a_victim_that_reports_seldom_are_lengthened(tmp_path):
    run = carried_out_with_losses(tmp_path, FOR_EVER_NS - 1)
    assert list(run.events("stretched"))
    assert half(run).isolation.value == pytest.approx(0.5, abs=0.1)


def test_slots_that_were_lengthened_too_late_leave_the_figures_of_shorter_ones(tmp_path):
    whole = carried_out_with_losses(tmp_path / "whole", FOR_EVER_NS - 1)
    (first, *_) = whole.events("stretched")
    # As on an overloaded host: hardly a block of the new length counts.
    run = carried_out_with_losses(tmp_path / "loaded", begin_of_first(whole, first["stretch"]) + 5 * 10**8)
    counted = [event["stretch"] for event in run.events("block_done")]
    assert counted.count(1) >= CONTENT["min_blocks"] > counted.count(first["stretch"]) > 0
    assert half(run).isolation.value == pytest.approx(0.5, abs=0.1)
    assert half(run).warnings == (Warn.COARSE_VICTIM,)


def test_slots_are_not_lengthened_where_void_blocks_leave_too_little_time(tmp_path):
    """The budget holds enough longer blocks, but not if as many of them are void as of the short ones."""
    lossy = [(at, at + 3 * 10**8) for at in range(0, 60 * 10**9, 10**9)]
    for name, losses, lengthened in (("quiet", [], True), ("loaded", lossy, False)):
        run = planned(tmp_path / name, aggressors=HALF, budget="4s")
        SimulatedHost(TRUE, reports_ns=SELDOM_NS, loses=losses).carry_out(run)
        assert bool(list(run.events("stretched"))) == lengthened
        assert half(run).isolation.value == pytest.approx(0.5, abs=0.1)


def test_disturbed_calibrations_are_one_warning_and_a_count(tmp_path, monkeypatch):
    monkeypatch.setattr(Calibration, "warning", "other processes used its CPU")
    notes = []
    run = planned(tmp_path, victims={"v": {"probe": "integer"}, "w": {"probe": "memory-copy"}})
    SimulatedHost(TRUE).carry_out(run, emit=lambda event: notes.append(event.text) if isinstance(event, Note) else None)
    told = [note for note in notes if "disturbed" in note or "used its CPU" in note]
    count = sum(len(event["disturbed"]) for event in run.events("visit"))
    trials = len(run.plan.trials)
    assert told[0].endswith("other processes used its CPU")
    assert told[1:] == [
        f"other processes disturbed {count} calibrations of aggressors, in {trials} trials; the report says where "
        "intensities are off"
    ]
