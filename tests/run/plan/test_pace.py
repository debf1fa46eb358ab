"""What blocks hold and how long they take, and what a budget holds of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.agent.catalogue import shipped
from partywall.run.check import find, load
from partywall.run.document.scenario import Scenario, Timing
from partywall.run.plan import Topology, forecasts, lay_out, make, order
from partywall.run.plan import shares as parts_of
from partywall.run.plan.pace import BlockKind, forecast, needed_ns, shares
from partywall.run.values.plan import Trial

MS = 1_000_000
TWO = Topology((0, 1), ((0, 1),))
BOX = {"backend": "container"}


def planned(victim=None, **aggressors):
    content = {
        "partywall": 1,
        "name": "test",
        "victims": {"v": {"probe": "integer", "sandbox": victim or BOX}},
        "aggressors": {name: {"stressor": "integer", **requested} for name, requested in aggressors.items()},
    }
    return make(Scenario.model_validate(content), TWO, shipped()).trials[0]


def slots(trial):
    return {t.id: (t.guard_ns // MS, t.slot_ns // MS) for t in trial.treatments}


def test_beside_an_aggressor_with_a_ceiling_slots_hold_whole_periods_of_it():
    trial = planned(free={"sandbox": BOX}, held={"sandbox": BOX | {"cpu_limit": 0.25}})
    assert slots(trial) == {"baseline": (2, 4), "null": (2, 4), "free@1": (2, 4), "held@1": (200, 500)}
    # Held up by its ceiling, it sees only in its next period that it was switched off.
    assert trial.treatment("held@1").release_ns == 100 * MS


def test_one_that_presses_together_with_an_aggressor_that_has_a_ceiling_gets_the_same():
    trial = planned(both={"sandbox": BOX, "together": ["held"]}, held={"sandbox": BOX | {"cpu_limit": 0.25}})
    assert slots(trial)["both@1"] == (200, 500)


@pytest.mark.parametrize(("limit", "slot_ms"), [(0.5, 100), (0.2, 100), (0.1, 200), (0.05, 400), (0.01, 500)])
def test_a_victim_that_computes_under_a_ceiling_is_measured_in_whole_periods_without_waiting_for_one(limit, slot_ms):
    trial = planned(BOX | {"cpu_limit": limit}, free={"sandbox": BOX})
    assert set(slots(trial).values()) == {(2, slot_ms)}
    assert not forecast(trial.treatments, Timing()).beat.quick


def test_a_neighbour_on_the_cpu_of_a_victim_with_a_ceiling_changes_its_turns():
    trial = planned(BOX | {"cpu_limit": 0.5}, free={"sandbox": BOX}, same={"sandbox": BOX | {"cpus": "same"}})
    assert slots(trial)["free@1"] == (2, 100)
    assert slots(trial)["same@1"] == (200, 100)
    assert trial.treatment("same@1").release_ns == 100 * MS


def test_a_victim_that_waits_under_a_ceiling_is_measured_in_many_periods():
    content = {
        "partywall": 1,
        "name": "test",
        "victims": {"v": {"probe": "disk-direct-read", "sandbox": BOX | {"cpu_limit": 0.5}}},
        "aggressors": {"free": {"stressor": "integer", "sandbox": BOX}},
    }
    trial = make(Scenario.model_validate(content), TWO, shipped()).trials[0]
    assert set(slots(trial).values()) == {(200, 500)}


def test_a_ceiling_of_all_the_time_of_its_cpus_holds_nobody_up():
    trial = planned(BOX | {"cpu_limit": 1.0}, free={"sandbox": BOX | {"cpu_limit": 1.0}})
    assert set(slots(trial).values()) == {(2, 4)}


def throttled(kernel="disk-direct-read", threads=1, params=None, **limits):
    """The treatments of a victim whose disk is limited by slot."""
    content = {
        "partywall": 1,
        "name": "test",
        "victims": {"v": {"probe": kernel, "threads": threads, "params": params or {}, "sandbox": BOX}},
        "factors": {f"victim.sandbox.disk.{key}": [level] for key, level in limits.items()},
    }
    return make(Scenario.model_validate(content), TWO, shipped()).trials[0]


@pytest.mark.parametrize(
    ("requested", "guard_ms", "slot_ms", "rate"),
    [
        # Requests of 8 KiB are let through many in a period of the kernel's.
        ({"read_bps": "5MB/s"}, 200, 500, 5e6),
        ({"read_iops": 100}, 200, 500, 819_200),
        ({"read_bps": "5MB/s", "read_iops": 100}, 200, 500, 819_200),
        # One of 1 MiB takes half a second at 2 MiB/s, and four threads take turns at it.
        ({"read_bps": "2MiB/s", "params": {"request_bytes": 1 << 20}}, 1000, 2500, 2 << 20),
        ({"read_bps": "2MiB/s", "params": {"request_bytes": 1 << 20}, "threads": 4}, 4000, 10_000, 2 << 20),
        # Sixty-four under way need 512 ms until the last that began before is through.
        ({"read_bps": "1MiB/s", "params": {"queue_depth": 64}}, 500, 500, 1 << 20),
        # A buffered writer waits for half of what may be dirty, a reader for what is read ahead.
        ({"kernel": "disk-rewrite", "write_bps": "8MiB/s"}, 1000, 2500, 8 << 20),
        ({"kernel": "disk-read", "read_bps": "1MiB/s"}, 250, 700, 1 << 20),
        # How many requests a buffered reader makes is the kernel's choice, so nothing follows from their number.
        ({"kernel": "disk-read", "read_iops": 100}, 200, 500, None),
    ],
)
def test_a_limit_of_a_disk_is_measured_in_several_of_its_own_turns(requested, guard_ms, slot_ms, rate):
    limited = [t for t in throttled(**requested).treatments if t.victim_limits]
    assert {(t.guard_ns // MS, t.slot_ns // MS, t.ceiling_rate) for t in limited} == {(guard_ms, slot_ms, rate)}
    assert all(t.release_ns == 200 * MS for t in limited)


def test_a_disk_that_is_limited_all_the_time_is_measured_as_one_that_is_limited_by_slot():
    disk = {"disk": {"write_bps": "1MiB/s"}}
    wait = {"stressor": "disk-direct-write", "params": {"request_bytes": 1 << 18}, "settle": "2ms"}
    beside = planned(free={"sandbox": BOX}, held=wait | {"sandbox": BOX | disk})
    assert slots(beside)["held@1"] == (500, 1300)
    assert beside.treatment("held@1").release_ns == 250 * MS
    assert slots(beside)["free@1"] == (2, 4)


AGGRESSORS = {
    "quick": {"quick": {"sandbox": BOX}},
    "same core": {"same": {"sandbox": BOX | {"cpus": "same"}}, "quick": {}},
    "lingering": {"slow": {"settle": "100ms"}, "quick": {}, "other": {"stressor": "process-creation"}},
    "ceiling": {"held": {"sandbox": BOX | {"cpu_limit": 0.25}}, "quick": {}},
    "only slow": {"slow": {"settle": "300ms"}},
}


def measured(trial: Trial, time_ns: int) -> dict[BlockKind, int]:
    """Blocks of each kind laid out one after the other until the time is over, as a run does it."""
    timing, beat = Timing(), forecast(trial.treatments, Timing()).beat
    at, before, number, counts = 0, None, 0, dict.fromkeys(beat.cycle, 0)
    while at < time_ns:
        held = [trial.treatment(id_) for id_ in order(7, trial, number) if beat.holds(number, id_)]
        at_least_ns = beat.slot_ns_min(number)
        at = lay_out(held, at, before, grid_ns=timing.slice, at_least_ns=at_least_ns)[-1].end_ns
        counts[beat.kind(number)] += at <= time_ns
        before, number = held[-1], number + 1
    return counts


@pytest.mark.parametrize("name", AGGRESSORS)
def test_a_time_holds_as_many_blocks_as_are_predicted(name):
    trial = planned(**AGGRESSORS[name])
    for seconds in (5, 30, 120):
        reported = forecast(trial.treatments, Timing()).blocks(seconds * 1000 * MS)
        assert reported == (pytest.approx(measured(trial, seconds * 1000 * MS), rel=0.03, abs=4))


def test_the_demo_tells_how_often_its_slow_neighbours_and_its_quick_ones_are_measured():
    plan = make(load(find("demo")), TWO, shipped())
    trial = next(t for t in plan.trials if t.victim_name == "memory")
    reported = forecasts(plan)[trial.id].blocks(parts_of(plan)[trial.id])
    assert reported == (pytest.approx(measured(trial, parts_of(plan)[trial.id]), rel=0.03, abs=2))


@given(st.sampled_from(sorted(AGGRESSORS)), st.integers(8, 200))
def test_what_a_number_of_blocks_needs_holds_so_many_and_no_less_does(name, blocks):
    result = forecast(planned(**AGGRESSORS[name]).treatments, Timing())
    needed = result.needed_ns(blocks)

    assert result.fewest(needed) == blocks
    assert result.fewest(needed - 1) < blocks


@given(st.integers(1, 10**13), st.lists(st.integers(1, 10**11), min_size=1, max_size=20))
def test_each_trial_gets_what_it_needs_or_where_that_is_too_much_in_proportion(budget_ns, needed):
    result = shares(budget_ns, needed)
    assert 0 <= budget_ns - sum(result) < 2 * len(needed)
    if sum(needed) <= budget_ns:
        rest = {share - need for share, need in zip(result, needed, strict=True)}
        assert len(rest) == 1
        assert rest.pop() >= 0
    else:
        assert all(share <= need for share, need in zip(result, needed, strict=True))


def test_trials_that_are_alike_get_equal_parts():
    assert shares(100, [7, 7, 7, 7]) == [25, 25, 25, 25]


@pytest.mark.parametrize("name", ["demo", "full", "migration-passes", "real-tools"])
def test_shipped_scenarios_can_judge_every_treatment_on_two_cpus(name):
    plan = make(load(find(name)), TWO, shipped())
    assert sum(needed_ns(list(forecasts(plan).values()), plan.scenario.min_blocks)) <= plan.scenario.budget
