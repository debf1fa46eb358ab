"""Power models, their fit on a load ladder, and each consumer's watts: pure, from series whose truth is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partywall import units
from partywall.core.capability import Options
from partywall.core.stats.estimate import Estimate
from partywall.errors import UsageError
from partywall.power import ladder, profiles
from partywall.power.capability import Powers
from partywall.power.findings import fitting, sharing
from partywall.power.findings.fitting import Observation
from partywall.power.findings.meter import timing, updates
from partywall.power.findings.node import core_time, findings, gaps, mean_watts
from partywall.power.job import AttributeJob
from partywall.power.values import (
    Activity,
    MeterFacts,
    MeterFault,
    NodeModel,
    PowerEvidence,
    Reading,
    Slot,
    chances,
)
from partywall.testing.hosts import fake_host
from partywall.testing.power import Rapl

SECOND = 10**9
PAPER = profiles.PROFILES["cervera-dl120-g6"]
FACTS = MeterFacts(meter="m", origin="simulated")
SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=6)


def test_the_papers_table_and_reckoning_follow_from_its_profile():
    assert [PAPER.at(core) for core in range(5)] == [50, 72, 90, 100, 110]
    assert 4 * PAPER.at(1) == 288
    assert PAPER.at(4) + 3 * PAPER.off_watts == 137
    assert PAPER.at(4) + 3 * PAPER.idle_watts == 260
    assert PAPER.break_even_s == pytest.approx(((1.42 + 0.48) * units.WH - 9 * 110) / 41)


@given(SHARES, st.integers(1, 8))
def test_chances_add_up_and_keep_the_mean(shares, cpus):
    found = chances(shares, cpus)
    assert found.sum() == pytest.approx(1.0)
    mean = float(found @ np.arange(cpus + 1))
    assert mean <= sum(shares) + 1e-9
    if cpus >= len(shares):
        assert mean == pytest.approx(sum(shares))


def test_a_share_above_one_is_whole_cores_and_a_rest():
    assert chances([2.5], 4) == pytest.approx([0, 0, 0.5, 0.5, 0])
    assert chances([9.0], 2) == pytest.approx([0, 0, 1])


@pytest.mark.parametrize("points", [((1, 50), (2, 60)), ((0, 50), (0, 60)), ((0, 50),)])
def test_points_that_are_no_curve_are_refused(points):
    with pytest.raises(ValueError, match=r"points|at least 2"):
        NodeModel(name="x", origin="modelled", source="s", points=points, band=0.1)


def test_an_unknown_profile_has_a_remedy(tmp_path):
    with pytest.raises(UsageError, match="did you mean hp-ml110-g4"):
        profiles.find("hp-ml110-g44")
    file = tmp_path / "model.json"
    file.write_text("{}")
    with pytest.raises(UsageError, match="not a power model"):
        profiles.find(str(file))
    file.write_text(PAPER.model_dump_json())
    assert profiles.find(str(file)) == PAPER


def square(lag_s, refresh_s, *, every_s=0.05, noise=0.3, joules=False, length_s=60.0, seed=1):
    """Readings and activity of a machine of one CPU that is switched at random: 50 W, and 20 W more when busy."""
    chance = np.random.default_rng(seed)
    tick = 0.01
    times = np.arange(0, length_s, tick)
    busy = np.repeat(chance.integers(0, 2, int(length_s / 0.8) + 1), round(0.8 / tick))[: len(times)].astype(float)
    energy = np.concatenate([[0.0], np.cumsum((50 + 20 * busy) * tick)])
    cpu = np.concatenate([[0.0], np.cumsum(busy * tick)])
    edges = np.append(times, length_s)
    activity = [Activity(time_ns=round(t * SECOND), cpus_s=(float(np.interp(t, edges, cpu)),)) for t in times[::5]]
    readings = []
    for at in np.arange(refresh_s + lag_s, length_s, every_s):
        at_s = at + chance.uniform(0, 0.3) * every_s
        end = math.floor((at_s - 0.0123) / refresh_s) * refresh_s + 0.0123 - lag_s
        if joules:
            readings.append(
                Reading(meter="m", time_ns=round(at_s * SECOND), joules=float(np.interp(end, edges, energy)))
            )
        else:
            mean = float(np.diff(np.interp([end - refresh_s, end], edges, energy))[0]) / refresh_s
            own = np.random.default_rng([seed, round(end * 1000) + 10**6]).normal(0, noise)
            readings.append(Reading(meter="m", time_ns=round(at_s * SECOND), watts=round(mean + own, 1)))
    return readings, activity


@pytest.mark.parametrize(("lag_s", "refresh_s"), [(0.0, 0.3), (0.25, 1.0), (0.9, 1.0), (0.4, 2.0), (2.3, 0.5)])
def test_refresh_and_lag_of_a_meter_are_recovered(lag_s, refresh_s):
    found = timing(*square(lag_s, refresh_s))
    assert found.refresh_ms.value == pytest.approx(1e3 * refresh_s, abs=20)
    assert found.lag_ms.value == pytest.approx(1e3 * lag_s, abs=60)


@pytest.mark.parametrize(("lag_s", "refresh_s"), [(0.0, 0.25), (0.4, 0.5)])
def test_refresh_and_lag_of_a_counter_are_recovered(lag_s, refresh_s):
    found = timing(*square(lag_s, refresh_s, joules=True))
    assert found.refresh_ms.value == pytest.approx(1e3 * refresh_s, abs=20)
    assert found.lag_ms.value == pytest.approx(1e3 * lag_s, abs=60)


def test_the_lag_of_a_counter_that_was_reset_is_recovered():
    readings, activity = square(0.4, 0.5, joules=True)
    place = len(readings) // 3
    reset = [
        each.model_copy(update={"joules": each.joules - readings[place].joules}) if number > place else each
        for number, each in enumerate(readings)
    ]
    lost = [(reset[place].time_ns / SECOND, reset[place + 1].time_ns / SECOND)]
    assert timing(reset, activity, lost=lost).lag_ms.value == pytest.approx(400, abs=60)


@pytest.mark.long
def test_intervals_of_the_lag_contain_it():
    held = 0
    for seed in range(12):
        found = timing(*square(0.35, 0.5, seed=seed, length_s=40.0)).lag_ms
        held += found.low <= 350 <= found.high
    assert held >= 10


def test_a_load_that_does_not_change_gives_a_reason_instead_of_a_lag():
    readings, activity = square(0.3, 0.5)
    steady = [each.model_copy(update={"cpus_s": (each.time_ns / SECOND / 2,)}) for each in activity]
    found = timing(readings, steady)
    assert found.lag_ms is None
    assert "load hardly changed" in found.why


def test_a_meter_that_is_faster_than_its_readings_has_no_known_refresh():
    found = timing(*square(0.3, 0.05, every_s=0.1))
    assert found.refresh_ms is None
    assert "more often" in found.why


def test_energy_in_a_gap_is_not_counted():
    readings = [Reading(meter="m", time_ns=n * SECOND, joules=60.0 * n) for n in range(10)]
    readings += [Reading(meter="m", time_ns=(n + 100) * SECOND, joules=60.0 * n) for n in range(10, 20)]
    new = updates(readings)
    assert new.watts == pytest.approx(60.0)
    assert [fault.fault for fault in gaps("m", readings)] == ["gap"]
    assert mean_watts(readings).value == pytest.approx(60.0)


def made_up(points, *, noise=0.0, blocks=3, cpus=2, seed=1):
    """Observations of a ladder on a machine with these watts."""
    chance, found = np.random.default_rng(seed), []
    for block in range(blocks):
        for count in range(cpus + 1):
            for intensity in (0.25, 0.5, 0.75, 1.0) if count else (0.0,):
                share = chances([intensity] * count, cpus)
                watts = float(share @ np.array(points)) + chance.normal(0, noise)
                features = np.cumsum(share[::-1])[::-1][1:]
                slot = Slot(block=block, begin_ns=0, end_ns=SECOND, level=ladder.level_name(count, intensity))
                found.append(Observation(slot, watts, features))
    return found


@pytest.mark.parametrize("points", [(50, 72, 90), (50, 70, 90), (90, 130, 140)])
def test_a_ladder_gives_back_the_machine(points):
    fit = fitting.fit(FACTS, made_up(points, noise=0.2, blocks=5), "x")
    assert [watts for _, watts in fit.model.points] == pytest.approx(points, abs=0.5)
    assert fit.left_out_error < 0.01
    assert fit.model.origin == "simulated"


def test_a_warm_machine_does_not_look_like_one_that_takes_more_when_idle():
    chance, points, leakage, constant_s = np.random.default_rng(5), np.array([50.0, 72, 90]), 0.04, 12.0
    made, leaked, held = made_up(points, noise=0.05, blocks=20), 0.0, []
    chance.shuffle(made)
    for number, each in enumerate(made):
        slot = each.slot.model_copy(update={"begin_ns": number * 2 * SECOND, "end_ns": (number + 1) * 2 * SECOND})
        base, kept = 50 + float(each.features @ np.diff(points)), math.exp(-2 / constant_s)
        held.append(Observation(slot, each.watts + leaked, each.features))
        leaked = leakage * (base - 50) + (leaked - leakage * (base - 50)) * kept
    lasting = points + leakage * (points - 50)
    model = fitting.fit(FACTS, held, "x").model
    assert [watts for _, watts in model.points] == pytest.approx(lasting, abs=0.25)
    estimates = [model.estimate(core) for core in range(3)]
    assert sum(each.low <= watts <= each.high for each, watts in zip(estimates, lasting, strict=True)) >= 2
    without_heat = fitting.fitted(*_matrices(held))
    assert without_heat[0] - 50 > 0.4


def test_increments_never_grow_from_core_to_core():
    points = fitting.fitted(*_matrices(made_up((50, 60, 90))))
    assert np.diff(points)[1] <= np.diff(points)[0] + 1e-9


def test_a_level_that_does_not_fit_the_others_has_a_large_error():
    found = made_up((50, 72, 90))
    broken = [
        Observation(each.slot, each.watts + (30 if each.slot.level == "1 × 50%" else 0), each.features)
        for each in found
    ]
    rung = next(rung for rung in fitting.fit(FACTS, broken, "x").rungs if rung.level == "1 × 50%")
    assert rung.error < -0.2


def _matrices(found):
    return np.array([each.features for each in found]), np.array([each.watts for each in found])


def usage_of(*busy, cpus=4, rows=5):
    names = tuple(f"c{number}" for number in range(len(busy)))
    return sharing.Usage(names, np.tile(np.array(busy), (rows, 1)), np.ones(rows), cpus)


def by_orders(busy, model, cpus):
    """The Shapley value by its definition: the mean of what each adds, over all orders."""
    import itertools  # noqa: PLC0415 - only here

    levels, sums = model.levels(cpus), np.zeros(len(busy))
    orders = list(itertools.permutations(range(len(busy))))
    for order in orders:
        present: list[float] = []
        before = levels @ chances(present, cpus)
        for place in order:
            present.append(busy[place])
            after = levels @ chances(present, cpus)
            sums[place] += after - before
            before = after
    return sums / len(orders)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1.8), min_size=1, max_size=5))
def test_shares_are_the_mean_over_all_orders(busy):
    found = sharing.weights(usage_of(*busy)) @ PAPER.levels(4)
    assert found == pytest.approx(by_orders(busy, PAPER, 4), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 2.5), min_size=1, max_size=5), st.floats(60, 200))
def test_shares_and_idle_power_add_up_to_the_total(busy, watts):
    total = Estimate(value=watts, low=watts - 1, high=watts + 1, n=10, method="meter")
    found = sharing.attribution(PAPER, usage_of(*busy), total)
    for rule in ("by_use", "evenly"):
        shares = sum(getattr(share, rule).value for share in found.shares)
        assert shares == pytest.approx(watts, rel=1e-6)
    assert found.idle + sum(share.active.value for share in found.shares) == pytest.approx(watts, rel=1e-6)


def test_equal_consumers_get_equal_watts_and_idle_ones_none():
    found = sharing.attribution(PAPER, usage_of(0.5, 0.5, 0.0), None)
    first, second, third = (share.active.value for share in found.shares)
    assert first == pytest.approx(second)
    assert third == pytest.approx(0.0, abs=1e-9)
    assert not found.measured


def test_the_rest_of_the_host_is_a_consumer():
    activity = [
        Activity(time_ns=n * SECOND, cpus_s=(0.5 * n, 0.25 * n), consumers_s={"web": 0.4 * n}) for n in range(4)
    ]
    used = sharing.usage(activity)
    assert used.names == ("web", sharing.REST)
    assert used.cpu_s == pytest.approx([1.2, 1.05])


def test_what_was_switched_is_judged_within_blocks():
    found = []
    for block in range(3):
        for on, watts in (((), 50.0), (("a",), 60.0 + block), (("a", "b"), 65.0 + block)):
            slot = Slot(block=block, begin_ns=0, end_ns=1, on=on)
            found.append(Observation(slot, watts, np.zeros(1)))
    judged = sharing.judged(found, ["a", "b"])
    assert judged["a"].value == pytest.approx(11.0)
    assert judged["b"].value == pytest.approx(5.0)


def evidence(**changes):
    readings, activity = square(0.2, 0.5)
    base = {
        "name": "x", "task": "read", "host": {}, "about": {}, "meters": (MeterFacts(meter="m"),),
        "readings": tuple(readings), "faults": (), "activity": tuple(activity), "slots": (),
    }  # fmt: skip
    return PowerEvidence(**base | changes)


def test_without_a_meter_watts_are_marked_modelled_with_the_profiles_name():
    found = findings(evidence(task="attribute", meters=(), readings=(), model=PAPER))
    assert found.origin == "modelled"
    model = NodeModel(name="x", origin="measured", source="rapl", points=((0, 50), (1, 72)), band=0.1)
    by_meter = findings(evidence(task="attribute", meters=(), readings=(), model=model))
    assert by_meter.origin == "modelled"
    assert "(modelled)" in found.headline
    assert any(PAPER.name in note for note in found.notes)


def test_the_headline_of_an_attribution_names_a_consumer_and_not_the_rest():
    for names, said in ((("web",), "web adds "), (("web", "db"), "web adds the most of the consumers, ")):
        activity = tuple(
            Activity(
                time_ns=n * SECOND,
                cpus_s=(0.9 * n, 0.5 * n),
                consumers_s=dict.fromkeys(names, 0.02 * n),
            )
            for n in range(12)
        )
        found = findings(evidence(task="attribute", meters=(), readings=(), model=PAPER, activity=activity))
        assert f"in total; {said}" in found.headline


def test_a_simulated_meter_is_named_in_every_finding():
    found = findings(evidence(meters=(FACTS,)))
    assert found.origin == "simulated"
    assert "(simulated)" in found.headline
    assert any("Simulated meter" in note for note in found.notes)


def test_a_meter_without_readings_makes_the_record_inconclusive():
    fault = MeterFault(meter="m", time_ns=0, fault="gone", text="no route")
    found = findings(evidence(readings=(), faults=(fault,)))
    assert found.outcome.value == "inconclusive"
    assert found.meters[0].faults == (fault,)


def spans(*, readings=(), length_s=20, busy_after=None, **changes):
    """A record of an attribution: one consumer that uses half a core, and a whole core from `busy_after` seconds on."""
    moments = np.arange(0, length_s + 0.05, 0.1)
    since = length_s if busy_after is None else busy_after
    activity = tuple(
        Activity(
            time_ns=round(s * SECOND), cpus_s=(own := float(0.5 * s + 0.5 * max(0.0, s - since)),) + (0.0,) * 3,
            consumers_s={"web": own},
        )
        for s in moments
    )  # fmt: skip
    return evidence(**{"task": "attribute", "model": PAPER, "readings": readings, "activity": activity} | changes)


def watts_at(times, watts=61.0):
    return tuple(Reading(meter="m", time_ns=round(s * SECOND), watts=watts) for s in times)


@pytest.mark.parametrize(("begin", "end"), [(0.0, 10.0), (10.0, 20.0), (0.0, 17.0)])
def test_attribution_uses_only_the_time_that_the_meter_covers(begin, end):
    readings = watts_at(np.arange(begin, end, 0.1))
    found = findings(spans(readings=readings, busy_after=10.0))
    busy = 0.5 * (end - begin) + 0.5 * max(0.0, end - max(begin, 10.0))
    assert found.attribution.shares[0].cpu_s == pytest.approx(busy, abs=0.2)
    assert found.attribution.cut_s == pytest.approx(20 - (end - begin), abs=0.3)
    assert any("were left out, in which CPU time was recorded but no meter was read" in note for note in found.notes)


def test_a_gap_of_the_meter_is_left_out_and_a_whole_record_is_not_cut():
    holed = findings(spans(readings=watts_at([*np.arange(0, 5, 0.1), *np.arange(12, 20, 0.1)])))
    assert holed.attribution.cut_s == pytest.approx(7.1, abs=0.3)
    whole = findings(spans(readings=watts_at(np.arange(0, 20, 0.1))))
    assert whole.attribution.cut_s == 0
    assert whole.attribution.shares[0].cpu_s == pytest.approx(10.0)
    assert not any("left out" in note or "not covered" in note for note in whole.notes)


RAPL = MeterFacts(meter="m", quantity="joules", covers="processors and memory", is_whole=False)


def test_a_meter_of_a_component_gives_no_total_for_a_model_of_the_machine():
    joules = tuple(Reading(meter="m", time_ns=n * SECOND // 10, joules=0.8 * n) for n in range(200))
    found = findings(spans(readings=joules, meters=(RAPL,)))
    assert not found.attribution.measured
    assert found.origin == "modelled"
    assert found.outcome.value == "inconclusive"
    assert any(
        "covers processors and memory, and cervera-dl120-g6 has the watts of the whole" in n for n in found.notes
    )
    own = PAPER.model_copy(update={"covers": RAPL.covers, "is_whole": False, "points": ((0, 3), (4, 43))})
    fitting = findings(spans(readings=joules, meters=(RAPL,), model=own))
    assert fitting.attribution.measured
    assert fitting.attribution.total.value == pytest.approx(8.0)
    assert "The model has the watts of processors and memory, not of the whole machine." in fitting.notes


def test_a_model_keeps_what_its_meter_covers():
    model = fitting.fit(RAPL, made_up((50, 72, 90)), "x").model
    assert (model.covers, model.is_whole) == (RAPL.covers, False)
    assert model.fits(RAPL)
    assert not model.fits(MeterFacts(meter="redfish"))
    assert not PAPER.fits(RAPL)
    # A UPS or a plug measures the machine too.
    assert PAPER.fits(MeterFacts(meter="nut", covers="what the UPS or PDU feeds"))
    # A file of an earlier version does not say.
    assert NodeModel.model_validate(model.model_dump(exclude={"covers", "is_whole"})).fits(RAPL)


def test_more_cores_than_the_model_knows_are_noted():
    found = findings(spans(readings=watts_at(np.arange(0, 20, 0.1))))
    assert not any("extrapolated" in note for note in found.notes)
    small = profiles.PROFILES["hp-ml110-g4"]
    found = findings(spans(readings=watts_at(np.arange(0, 20, 0.1), 90.0), model=small))
    assert any("knows 2 cores, and this host has 4" in note for note in found.notes)


def test_less_than_the_models_idle_power_is_inconclusive_and_said():
    found = findings(spans(readings=watts_at(np.arange(0, 20, 0.1), 20.0)))
    assert found.outcome.value == "inconclusive"
    assert any("less than the 50.0 W that cervera-dl120-g6 takes when idle" in note for note in found.notes)


def test_watts_of_a_dead_meter_are_those_of_the_model_and_say_so():
    model = PAPER.model_copy(update={"origin": "measured"})
    found = findings(spans(readings=(), model=model))
    assert found.origin == "modelled"
    assert any("No meter gave a total that can be used" in note for note in found.notes)


def test_energy_leaves_gaps_and_a_dead_meters_time_out_and_says_so():
    whole = findings(spans(task="read", readings=watts_at(np.arange(0, 20.05, 0.1), 50.0))).meters[0]
    assert whole.joules == pytest.approx(1000.0)
    assert whole.missing_s == 0
    times = [*np.arange(0, 5.05, 0.1), *np.arange(12, 15.05, 0.1)]
    found = findings(spans(task="read", readings=watts_at(times, 50.0)))
    assert found.meters[0].joules == pytest.approx(400.0)
    assert found.meters[0].missing_s == pytest.approx(12.0)
    assert any("m: 12.0 s of the record are not covered" in note for note in found.notes)


def test_energy_that_a_counter_lost_when_it_was_reset_is_not_averaged_away():
    # At 5 s it is reset; what it counted since the reading before, and until it is read again, is lost.
    before = [Reading(meter="m", time_ns=n * SECOND // 10, joules=6.0 * n) for n in range(50)]
    after = [Reading(meter="m", time_ns=(n + 61) * SECOND // 10, joules=300.0 + 6.0 * n) for n in range(60)]
    fault = MeterFault(meter="m", time_ns=5 * SECOND, fault="gap", text="it was reset")
    found = findings(spans(task="read", readings=(*before, *after), faults=(fault,), meters=(RAPL,), length_s=12))
    (meter,) = found.meters
    assert meter.watts.value == pytest.approx(60.0, rel=1e-3)
    assert meter.joules == pytest.approx(60.0 * (12.0 - meter.missing_s), rel=0.01)
    assert 1.2 <= meter.missing_s < 3


def test_core_seconds_need_no_meter():
    activity = [Activity(time_ns=n * SECOND, cpus_s=(1.0 * n, 0.0)) for n in range(4)]
    assert core_time(activity).states == pytest.approx({"0": 0.0, "1": 3.0, "2": 0.0})


def test_every_block_of_a_ladder_has_every_level_once():
    steps = ladder.ladder((0, 1, 2), 3, seed=1)
    levels = [sorted(step.level for step in steps if step.block == block) for block in range(3)]
    assert levels[0] == levels[1] == levels[2]
    assert len(set(levels[0])) == len(levels[0]) == 13
    assert [step.level for step in steps if step.block == 0] != [step.level for step in steps if step.block == 1]


def test_a_large_host_has_few_levels():
    assert len(ladder.counts(128)) <= 8
    assert {1, 128} <= set(ladder.counts(128))


def test_a_meter_of_a_component_is_refused_before_anything_is_measured(tmp_path):
    server = Rapl(tmp_path)
    server.begin()
    server.count(0.0)
    file = tmp_path / "model.json"
    file.write_text(PAPER.model_dump_json())
    job = AttributeJob(meter_names=("rapl",), model=str(file))
    with pytest.raises(UsageError, match=r"covers processors and memory.*partywall power calibrate rapl"):
        Powers().check(job, Options(server.host))
    file.write_text(PAPER.model_copy(update={"covers": None}).model_dump_json())
    Powers().check(AttributeJob(meter_names=("rapl",), model=str(file)), Options(server.host))


def test_consumers_that_are_part_of_each_other_are_refused(tmp_path):
    files = {
        "proc/self/mountinfo": "40 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu io\n",
        "sys/fs/cgroup/shop/cpu.stat": "usage_usec 1\n",
        "proc/7/comm": "web\n",
        "proc/7/cgroup": "0::/shop/web\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as refused:
        Powers().check(
            AttributeJob(consumers=("/shop", "pid:7", "own=pid:7"), model="cervera-dl120-g6"),
            Options(fake_host(root=tmp_path)),
        )
    said = str(refused.value)
    assert "own: process 7 is part of cgroup /shop: its work would count for both — give only one of the two" in said
    assert "process 7 is given twice" in said
