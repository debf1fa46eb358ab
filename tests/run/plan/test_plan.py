"""From scenario to plan: pure, repeatable, and laid out on the grid."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.agent.catalogue import shipped
from partywall.errors import UsageError
from partywall.host.block import Throttle
from partywall.host.settings.held import HostSettings
from partywall.run.document.scenario import SWITCH_AFTER_NS, Scenario, Timing
from partywall.run.plan import Topology, lay_out, make, order, turns
from partywall.run.plan.pace import BlockKind, Stretch, rhythm
from partywall.run.plan.placement import aggressor_cpus, victim_cpus
from partywall.run.values.plan import Plan, Treatment
from partywall.sandbox.document import Limits, Sandbox
from partywall.sandbox.weights import WEIGHT_MAX, reserving, weights

TWO = Topology((0, 1), ((0, 1),))
# Two packages of two cores with two siblings each: 0/4, 1/5 | 2/6, 3/7.
CORES = ((0, 4), (1, 5), (2, 6), (3, 7))
EIGHT = Topology(tuple(range(8)), (*CORES, (0, 1, 4, 5), (2, 3, 6, 7)), CORES)


def scenario(**changes):
    base = {
        "partywall": 1,
        "name": "test",
        "victims": {"copy": {"probe": "memory-copy"}, "sum": {"probe": "integer"}},
        "aggressors": {"noise": {"stressor": "memory-copy", "intensity": [0.5, 1.0]}},
    }
    return Scenario.model_validate(base | changes)


def test_the_same_seed_gives_the_same_plan_and_another_seed_another_order():
    first, again, other = (make(scenario(), TWO, shipped(), seed) for seed in (1, 1, 2))
    assert first == again
    orders = [[order(p.seed, p.trials[0], n) for n in range(20)] for p in (first, other)]
    assert orders[0] != orders[1]


def test_a_plan_survives_being_written_and_read():
    plan = make(scenario(), TWO, shipped())
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_every_block_holds_every_treatment_once():
    trial = make(scenario(), TWO, shipped()).trials[0]
    ids = sorted(t.id for t in trial.treatments)
    assert ids == ["baseline", "noise@0.5", "noise@1", "null"]
    assert all(sorted(order(1, trial, n)) == ids for n in range(50))


def test_every_place_in_a_block_is_taken_by_every_treatment_in_time():
    trial = make(scenario(), TWO, shipped()).trials[0]
    firsts = {order(1, trial, n)[0] for n in range(100)}
    assert firsts == {t.id for t in trial.treatments}


def test_the_hosts_io_scheduler_is_a_factor_that_makes_trials():
    plan = make(scenario(factors={"host.io_scheduler": ("none", "bfq")}), TWO, shipped())
    assert [(t.victim_name, t.host.io_scheduler) for t in plan.trials] == [
        ("copy", "none"),
        ("copy", "bfq"),
        ("sum", "none"),
        ("sum", "bfq"),
    ]
    assert {t.host.io_scheduler for t in make(scenario(), TWO, shipped()).trials} == {None}


def test_a_stored_plan_with_one_setting_of_the_host_is_still_read():
    stored = json.loads(make(scenario(host={"io_scheduler": "bfq"}), TWO, shipped()).model_dump_json())
    for trial in stored["trials"]:
        del trial["host"], trial["offline_cpus"]
        trial["io_scheduler"] = "bfq"
    assert {t.host for t in Plan.model_validate(stored).trials} == {HostSettings(io_scheduler="bfq")}


def test_without_smt_a_trial_is_on_the_first_thread_of_each_core():
    plan = make(scenario(factors={"host.smt": (True, "off")}), EIGHT, shipped())
    with_smt, without = plan.trials[:2]
    assert [t.levels for t in (with_smt, without)] == [{"host.smt": "on"}, {"host.smt": "off"}]
    assert (with_smt.victim_cpus, with_smt.aggressor_cpus["noise"], with_smt.offline_cpus) == ((1,), (5,), ())
    assert (without.victim_cpus, without.aggressor_cpus["noise"], without.offline_cpus) == ((1,), (0,), (4, 5, 6, 7))
    assert without.aside_cpus == (0, 2, 3)


def test_cpus_that_go_offline_are_named_with_their_siblings_all_at_once():
    content = {
        "victims": {"copy": {"probe": "memory-copy", "sandbox": {"cpus": "1,5"}}},
        "aggressors": {"noise": {"stressor": "memory-copy", "sandbox": {"cpus": "4,6,9"}}},
        "host": {"smt": False},
    }
    with pytest.raises(UsageError) as reported:
        make(scenario(**content), EIGHT, shipped())
    assert [str(problem) for problem in reported.value.problems] == [
        "victims.copy.sandbox.cpus: with host.smt: off, CPU 5 (sibling of 1) is offline; there are 0, 1, 2, 3 — name "
        "some of these, or auto",
        "aggressors.noise.sandbox.cpus: with host.smt: off, CPU 4 (sibling of 0), 6 (sibling of 2) is offline; there "
        "are 0, 1, 2, 3 — name some of these, or auto",
        "aggressors.noise.sandbox.cpus: CPU 9 is not online or not allowed here; there are 0, 1, 2, 3 — name some of "
        "these, or auto",
    ]


def test_a_user_who_has_none_of_the_cpus_that_stay_is_reported_which_do():
    second = replace(EIGHT, cpus=(6, 7))
    with pytest.raises(UsageError, match=r"host\.smt: every CPU .* smt: off: 6, 7 — allow some of 2, 3 \(taskset"):
        make(scenario(host={"smt": "off"}), second, shipped())


def test_each_round_turns_every_trial_once():
    plan = make(scenario(budget="10min"), TWO, shipped())
    assert plan.rounds > 1
    seen = turns(plan)
    assert len(seen) == len({(r, t.id) for r, t in seen}) == plan.rounds * len(plan.trials)


def test_live_limits_become_treatments_and_static_levels_become_trials():
    box = {"backend": "container"}
    content = {
        "victims": {"sum": {"probe": "integer", "sandbox": box}},
        "aggressors": {"noise": {"stressor": "memory-copy", "sandbox": box}},
        "factors": {"victim.sandbox.cpu_limit": ["25%", "50%"], "aggressor.params.block_bytes": [1 << 20, 1 << 26]},
    }
    plan = make(scenario(**content), TWO, shipped())
    assert len(plan.trials) == 2
    limited = [t for t in plan.trials[0].treatments if t.victim_limits]
    # Each limit alone, beside the null aggressor and beside the aggressor.
    assert [t.role for t in limited] == ["limit", "null", "aggressor"] * 2
    assert {t.victim_limits.cpu_limit for t in limited} == {0.25, 0.5}
    assert all(t.slot_ns % 100_000_000 == 0 for t in limited)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(20, 300), st.integers(0, 2000)), min_size=1, max_size=8),
    st.integers(0, 10**12),
    st.sampled_from([1, 2, 4]),
)
def test_slots_follow_each_other_on_the_grid_and_keep_every_guard(treatments, start_ns, stretch):
    made = [
        Treatment(
            id=str(n), label=str(n), role="aggressor", guard_ns=g * 10**6, slot_ns=s * 10**6, release_ns=r * 10**6
        )
        for n, (g, s, r) in enumerate(treatments)
    ]
    slots = lay_out(made, start_ns, None, grid_ns=10**7, stretch=Stretch(stretch, stretch))
    assert slots[0].start_ns - SWITCH_AFTER_NS - start_ns < 10**7
    for number, (treatment, slot) in enumerate(zip(made, slots, strict=True)):
        left_ns = slot.start_ns - SWITCH_AFTER_NS
        assert all(at % 10**7 == 0 for at in (left_ns, slot.measure_ns, slot.end_ns))
        assert slot.measure_ns - left_ns >= stretch * treatment.guard_ns
        assert slot.end_ns - slot.measure_ns >= stretch * treatment.slot_ns
        if number:
            assert left_ns == slots[number - 1].end_ns
            assert slot.measure_ns - left_ns >= stretch * made[number - 1].release_ns


def test_an_aggressor_goes_to_the_nearest_other_cpu():
    assert victim_cpus("auto", EIGHT, "") == (1,)
    assert aggressor_cpus("auto", (1,), EIGHT, "") == (5,)
    assert aggressor_cpus("same", (1,), EIGHT, "") == (1,)
    assert aggressor_cpus("0,2-3", (1,), EIGHT, "") == (0, 2, 3)


def test_a_host_with_one_cpu_is_refused_with_what_would_do():
    with pytest.raises(UsageError, match="cpus: same"):
        aggressor_cpus("auto", (0,), Topology((0,)), "aggressors.noise.sandbox.cpus")


def test_cpus_that_are_not_there_are_refused_by_number():
    with pytest.raises(UsageError, match=r"CPU 9 .*there are 0, 1"):
        victim_cpus("9", TWO, "victims.copy.sandbox.cpus")


def test_emulators_threads_on_cpus_that_are_not_there_are_refused_before_a_guest_boots():
    victims = {"v": {"probe": "integer", "sandbox": {"backend": "qemu", "host_cpus": "0,9"}}}
    with pytest.raises(UsageError, match=r"victims\.v\.sandbox\.host_cpus: CPU 9 .*there are 0, 1"):
        make(scenario(victims=victims), TWO, shipped())


@given(st.integers(1, 99), st.integers(1, 8))
def test_a_reservation_is_its_share_beside_any_one_neighbour_however_many_are_listed(percent, others):
    boxes = {"victim": Sandbox(cpu_reservation=percent / 100)} | {f"o{n}": Sandbox() for n in range(others)}
    result = weights(boxes)
    for n in range(others):
        assert result["victim"] / (result["victim"] + result[f"o{n}"]) == pytest.approx(percent / 100)


def test_without_reservations_weights_are_as_requested():
    assert weights({"a": Sandbox(cpu_weight=300), "b": Sandbox()}) == {"a": 300.0, "b": None}


def test_long_blocks_take_a_quarter_of_the_time_and_hold_every_quick_treatment():
    trial = make(scenario(), TWO, shipped()).trials[0]
    beat = rhythm(trial.treatments, Timing())
    every = len(beat.cycle) // beat.cycle.count(BlockKind.LONG)
    assert [beat.is_long(block) for block in (0, 1, len(beat.cycle))] == [True, False, True]
    assert all(beat.holds(0, treatment.id) for treatment in trial.treatments)
    took = {at_least: laid(trial.treatments, at_least) for at_least in (0, beat.slot_ns_min(0))}
    share = took[60_000_000] / (took[60_000_000] + (every - 1) * took[0])
    assert 0.2 < share <= 0.26


def test_what_is_slow_has_blocks_of_its_own_and_there_are_none_but_whole_ones_once_slots_are_long():
    content = {"aggressors": {"quick": {"stressor": "syscall"}, "slow": {"stressor": "disk-direct-write"}}}
    trial = make(scenario(**content), TWO, shipped()).trials[0]
    beat = rhythm(trial.treatments, Timing())
    assert beat.quick == {"baseline", "null", "quick@1"}
    held = {kind: {t.id for t in trial.treatments if beat.holds(beat.cycle.index(kind), t.id)} for kind in beat.cycle}
    assert held == {
        BlockKind.LONG: {"baseline", "null", "quick@1"},
        BlockKind.SLOW: {"baseline", "null", "slow@1"},
        BlockKind.SHORT: {"baseline", "null", "quick@1"},
    }
    stretched = rhythm(trial.treatments, Timing(), Stretch(8, 8))
    assert not stretched.quick
    assert stretched.holds(1, "slow@1")
    assert stretched.slot_ns_min(1) == 60_000_000


def laid(treatments, at_least_ns):
    return lay_out(treatments, 0, None, grid_ns=2_000_000, at_least_ns=at_least_ns)[-1].end_ns


def test_neighbours_on_one_cpu_get_slots_of_many_turns():
    content = {"aggressors": {"same": {"stressor": "integer", "sandbox": {"cpus": "same"}}}}
    trial = make(scenario(**content), TWO, shipped()).trials[0]
    assert trial.treatment("same@1").slot_ns == 60_000_000
    assert trial.treatment("baseline").slot_ns == 4_000_000


@pytest.mark.parametrize(
    ("settle", "slots_ms"),
    [("1ms", {4}), ("3ms", {4}), ("8ms", {4}), ("10ms", {6}), ("12ms", {4})],
)
def test_short_slots_are_all_as_long_as_the_guards_between_them(settle, slots_ms):
    """What takes longer than 10 ms either way is measured in long blocks, and lengthens nobody's slots."""
    trial = make(scenario(aggressors={"n": {"stressor": "integer", "settle": settle}}), TWO, shipped()).trials[0]
    assert {t.slot_ns // 10**6 for t in trial.treatments} == slots_ms
    assert bool(rhythm(trial.treatments, Timing()).quick) == (settle != "12ms")


def test_slots_are_of_two_slices_however_long_these_are():
    trial = make(scenario(timing={"slice": "5ms"}), TWO, shipped()).trials[0]
    assert {t.slot_ns for t in trial.treatments} == {10_000_000}


@given(st.integers(0, 1_000_000), st.integers(1, 6))
def test_no_slice_of_a_clock_that_is_off_reaches_into_another_treatment(error_ns, count):
    common = {"role": "aggressor", "guard_ns": 10_000_000, "slot_ns": 50_000_000}
    made = [Treatment(id=str(n), label=str(n), **common) for n in range(count)]
    slots = lay_out(made, 5, None, grid_ns=10**7, clock_error_ns=error_ns)
    for slot, following in itertools.pairwise(slots):
        # The window ends late by a slow clock; the next switch comes early by a fast one.
        assert slot.end_ns + error_ns <= following.start_ns - SWITCH_AFTER_NS - error_ns
    for slot in slots:
        assert slot.measure_ns - error_ns >= slot.start_ns - SWITCH_AFTER_NS + error_ns + 10_000_000
        assert slot.measure_ns % 10**7 == slot.end_ns % 10**7 == 0


def test_aggressors_that_press_together_are_one_treatment_with_the_longest_settling_time():
    made = scenario(
        aggressors={
            "one": {"stressor": "integer"},
            "two": {"stressor": "integer", "together": ["one", "slow"]},
            "slow": {"stressor": "integer", "settle": "30ms"},
        }
    )
    trial = make(made, TWO, shipped()).trials[0]
    two, each = trial.treatment("two@1"), trial.treatment("one@1")
    assert two.intensities == {"one": 1.0, "slow": 1.0, "two": 1.0}
    assert each.intensities == {"one": 1.0}
    assert (two.guard_ns, two.release_ns) == (30_000_000, 30_000_000)
    assert each.guard_ns < two.guard_ns


def test_a_limit_with_its_reservation_is_one_live_treatment_that_weighs_as_promised():
    sandbox = {"backend": "container"}
    made = scenario(
        victims={"sum": {"probe": "integer", "sandbox": sandbox}},
        aggressors={"noise": {"stressor": "integer", "sandbox": sandbox | {"cpus": "same"}}},
        factors={"victims.sum.sandbox.{cpu_limit,cpu_reservation}": [0.75, 1.0]},
    )
    limits = [t.victim_limits for t in make(made, TWO, shipped()).trials[0].treatments if t.role == "limit"]
    assert [(limit.cpu_limit, limit.cpu_weight) for limit in limits] == [(0.75, pytest.approx(300)), (1.0, WEIGHT_MAX)]


@given(st.floats(0.01, 0.99))
def test_a_live_reservation_weighs_its_share_against_one_usual_neighbour(share):
    assert reserving(share) / (reserving(share) + 100) == pytest.approx(share)


def elsewhere(victim, aggressor):
    victims = {"copy": {"probe": "memory-copy", "sandbox": {"backend": "ssh", **victim}}}
    aggressors = {"noise": {"stressor": "memory-copy", "sandbox": aggressor}}
    return scenario(victims=victims, aggressors=aggressors)


def test_cpus_of_another_machine_are_chosen_from_its_own():
    requested = elsewhere({"host": "far"}, {"backend": "ssh", "host": "far"})
    trial = make(requested, TWO, shipped(), elsewhere={"far": EIGHT}).trials[0]
    assert (trial.victim_cpus, trial.aggressor_cpus["noise"]) == ((1,), (5,))
    assert trial.aside_cpus == (0, 2, 3, 4, 5, 6, 7)


def test_sandboxes_on_two_machines_share_no_cpu_whatever_its_number():
    requested = elsewhere({"host": "far", "cpus": "0"}, {"cpus": "0"})
    trial = make(requested, TWO, shipped(), elsewhere={"far": EIGHT}).trials[0]
    alone = make(scenario(), TWO, shipped()).trials[0]
    assert trial.treatment("noise@1").slot_ns == alone.treatment("noise@1").slot_ns


@pytest.mark.parametrize("word", ["same", "next"])
def test_a_place_relative_to_a_victim_on_another_machine_is_refused(word):
    with pytest.raises(UsageError, match=f"cpus: {word} is relative to the victim, which is on another machine"):
        make(elsewhere({"host": "far"}, {"cpus": word}), TWO, shipped(), elsewhere={"far": EIGHT})


def test_virtual_cpus_that_take_turns_are_reported():
    box = {"backend": "qemu", "accel": "tcg", "cpus": "1"}
    (said,) = make(
        scenario(
            victims={"sum": {"probe": "integer", "sandbox": box | {"vcpus": 9}}},
            aggressors={"own": {"stressor": "integer", "sandbox": box | {"vcpus": 1}}},
        ),
        TWO,
        shipped(),
    ).warnings
    assert said.startswith("victims.sum: 9 virtual CPUs take turns on 1 CPU (1)")


def test_limits_of_a_disk_are_called_as_in_the_scenario_and_combine_with_others():
    box = {"backend": "container", "disk": {"write_iops": 50}}
    path = "victims.io.sandbox.disk.{read_bps,write_bps}"
    made = scenario(
        victims={"io": {"probe": "disk-direct-read", "sandbox": box}},
        aggressors={},
        factors={path: ["5MB/s"], "victim.sandbox.cpu_limit": ["25%", "50%"]},
    )
    limited = [t for t in make(made, TWO, shipped()).trials[0].treatments if t.role == "limit"]
    assert [t.label for t in limited] == [
        "disk.read_bps=disk.write_bps=5MB/s,cpu_limit=25%",
        "disk.read_bps=disk.write_bps=5MB/s,cpu_limit=50%",
    ]
    disk = Throttle(read_bps=5_000_000, write_bps=5_000_000)
    assert [t.victim_limits for t in limited] == [Limits(cpu_limit=share, disk=disk) for share in (0.25, 0.5)]


def test_what_a_limit_says_nothing_of_stays_as_the_sandbox_was_made():
    made = Limits(cpu_limit=0.5, memory=7, disk=Throttle(read_bps=10, write_iops=3))
    assert Limits().over(made) == made
    assert Limits().over(Limits()).disk in (None, Throttle())
    changed = Limits(cpu_weight=2.0, disk=Throttle(read_bps=20)).over(made)
    assert changed == Limits(cpu_limit=0.5, cpu_weight=2.0, memory=7, disk=Throttle(read_bps=20, write_iops=3))


def test_a_containers_memory_varies_between_trials_and_the_plan_says_why():
    made = scenario(
        victims={"copy": {"probe": "memory-copy", "sandbox": {"backend": "container"}}},
        factors={"victim.sandbox.memory": ["512MiB", "1GiB"]},
    )
    plan = make(made, TWO, shipped())
    assert len(plan.trials) == 2
    assert [t for trial in plan.trials for t in trial.treatments if t.victim_limits] == []
    assert "memory that the kernel reclaims under a lower ceiling does not return within a slot" in plan.warnings[0]
    assert make(scenario(), TWO, shipped()).warnings == ()


def test_neighbours_on_the_cpus_of_virtual_users_are_reported():
    def warned(cpus):
        victims = {"shop": {"load": {"url": "http://127.0.0.1/"}, "sandbox": {"cpus": "0"}}}
        aggressors = {"hog": {"stressor": "integer", "sandbox": {"cpus": cpus}}}
        return make(scenario(victims=victims, aggressors=aggressors), TWO, shipped()).warnings

    (said,) = warned("same")
    assert said.startswith("victims.shop: its virtual users share CPU 0 with aggressor hog")
    assert warned("1") == warned("next") == ()
