import textwrap
from itertools import product

import pytest

from partywall.agent.catalogue import Warn
from partywall.core.report import figures
from partywall.core.report.wording import LINES
from partywall.core.stats.estimate import Estimate
from partywall.load.document import Load
from partywall.run.document.scenario import Aggressor, Goal, Victim
from partywall.run.findings.analysis import analyse
from partywall.run.findings.headline import headline as line_of
from partywall.run.findings.headline import percent
from partywall.run.findings.states import judged
from partywall.run.findings.verdicts import verdicts_of
from partywall.run.values.finding import Band, Cell, CpuTime
from partywall.sandbox.document import Sandbox
from tests.run.findings.builders import KERNELS, Host, evidence, limit, plan, treatment, trial

COPY, DISK, RING = treatment("memory-copy"), treatment("disk-write"), treatment("cache")


def estimate(value, half):
    return Estimate(value=value, low=value - half, high=value + half, n=50, method="m")


def ends(value, low, high):
    return Estimate(value=value, low=low, high=high, n=50, method="m")


def cell(of, t, value, half, **more):
    return Cell(
        trial=of.id, victim=of.victim_name, treatment=t.id, label=t.label, role=t.role, aggressor=t.aggressor,
        intensity=next(iter(t.intensities.values()), None), baseline_rate=estimate(1, 0.1), rate=estimate(value, half),
        isolation=estimate(value, half), **more,
    )  # fmt: skip


def band(of, null=1.0, half=0.003):
    return Band(trial=of.id, low=1 - half, high=1 + half, null=estimate(null, half))


def headline(of, cells, bands=(), goals=()):
    """Of a plan that holds no more than what has cells here."""
    measured = {(c.trial, c.treatment) for c in cells}
    trials = tuple(
        item.model_copy(
            update={"treatments": tuple(t for t in item.treatments if not t.aggressor or (item.id, t.id) in measured)}
        )
        for item in of.trials
    )
    scenario = of.scenario.model_copy(update={"goals": goals})
    known = judged(cells, bands, scenario.precision)
    planned = of.model_copy(update={"trials": trials, "scenario": scenario})
    return line_of(planned, KERNELS, known, bands, (), verdicts_of(goals, known, bands))


COPYING = trial(COPY, DISK, RING, name="t1")
WRITING = trial(COPY, DISK, RING, name="t2", victim="write", probe="disk-write")
SAME = trial(RING, name="t9", victim="compute", probe="cpu-integer", cpus=0)
NEXT = "(next core)"


def test_the_worst_loss_is_named_with_victim_neighbour_resource_size_and_what_to_do():
    cells = [cell(COPYING, COPY, 0.82, 0.01), cell(WRITING, DISK, 0.38, 0.04), cell(COPYING, RING, 0.999, 0.005)]
    assert headline(plan(COPYING, WRITING), cells, [band(COPYING), band(WRITING)]) == (
        f"write beside disk-write {NEXT} loses 62 % ± 4 of disk throughput; limit disk-write with io.max or move it; "
        f"copy beside memory-copy {NEXT} loses 18 % ± 1 of memory bandwidth. No other effect above ±5 %."
    )


def test_where_nothing_was_measured_the_first_reason_is_the_headline():
    refused = f"{COPYING.id}: api: the victim could not start: agent victim: parameter bytes: too many\nits console: …"
    assert line_of(plan(COPYING), KERNELS, [], [], [refused]) == (
        "Nothing was measured: api: the victim could not start: agent victim: parameter bytes: too many."
    )
    both = line_of(plan(COPYING), KERNELS, [], [], [refused, "001-b: the guest did not come up"])
    assert both.endswith("too many (and 1 more, among the warnings).")


def test_the_same_number_on_another_machine_is_another_cpu():
    far = Aggressor(stressor="memory-copy", sandbox=Sandbox(backend="ssh", host="far", cpus="0"))
    apart = trial(COPY, cpus=0).model_copy(update={"aggressors": {"memory-copy": far}})
    assert apart.victim_cpus == apart.aggressor_cpus["memory-copy"] == (0,)
    line = headline(plan(apart), [cell(apart, COPY, 0.82, 0.01)])
    assert line.startswith("copy beside memory-copy (another machine) loses 18 % ± 1 of memory bandwidth;")


def test_a_neighbour_on_the_victims_core_is_to_be_pinned_elsewhere():
    line = headline(plan(SAME), [cell(SAME, RING, 0.3, 0.01)])
    assert "; limit cache with cpu.max or pin it to another core." in line


def test_virtual_users_are_not_said_to_share_a_core_with_a_neighbour():
    victim = Victim(load=Load(url="http://127.0.0.1/"))
    of = trial(COPY, victim="nginx", cpus=0).model_copy(update={"victim": victim})
    line = headline(plan(of), [cell(of, COPY, 0.16, 0.08)])
    assert line.startswith("nginx beside memory-copy loses 84 % ± 8 of its throughput;")


def test_every_other_loss_is_named_where_there_is_room_and_counted_where_there_is_not():
    cells = [cell(of, t, 0.5, 0.01) for of, t in product((COPYING, WRITING), (COPY, DISK, RING))]
    line = headline(plan(COPYING, WRITING), cells)
    assert "copy beside memory-copy" in line
    assert "write beside cache" in line, line
    trials = [trial(COPY, DISK, RING, name=f"t{n}", victim=f"some-long-victim-{n}") for n in range(5)]
    cells = [cell(of, t, 0.5 + n / 100, 0.001) for n, of in enumerate(trials) for t in (COPY, DISK, RING)]
    assert "more lose 46 to 50 %" in headline(plan(*trials), cells)


@pytest.mark.parametrize("victims", [1, 2, 5, 20])
def test_the_headline_takes_a_few_lines_whatever_was_measured(victims):
    trials = [trial(COPY, DISK, RING, name=f"t{n}", victim=f"victim-{n}") for n in range(victims)]
    costs = ((COPY, 0.2), (DISK, 0.4), (RING, 0.9))
    cells = [cell(of, t, value + n / 1000, 0.01) for n, of in enumerate(trials) for t, value in costs]
    for bands, goals in product(([], [band(of, null=0.98, half=0.005) for of in trials]), ((), (GOAL,))):
        assert len(textwrap.wrap(headline(plan(*trials), cells, bands, goals), 80)) <= LINES


def test_a_neighbour_on_another_core_comes_before_one_on_the_victims_own():
    cells = [cell(SAME, RING, 0.5, 0.01), cell(COPYING, COPY, 0.75, 0.01)]
    line = headline(plan(SAME, COPYING), cells)
    assert line.startswith(f"copy beside memory-copy {NEXT} loses 25 % ± 1 of memory bandwidth")
    assert "compute beside cache (same core) loses 50 % ± 1 of CPU speed" in line


def test_on_the_same_core_only_a_loss_beyond_an_equal_share_is_a_surprise():
    cells = [cell(SAME, RING, 0.1, 0.01), cell(COPYING, COPY, 0.75, 0.01)]
    assert headline(plan(SAME, COPYING), cells).startswith(
        "compute beside cache (same core) loses 90 % ± 1 of CPU speed; "
    )


def test_gains_are_named_where_there_is_no_loss():
    faster = cell(WRITING, DISK, 1.06, 0.01)
    assert headline(plan(WRITING), [faster]) == f"write beside disk-write {NEXT} is faster, by 6 % ± 1."


@pytest.mark.parametrize(
    ("impact", "reported"),
    [
        (estimate(0.4, 0.1), "by 40 % ± 10."),
        (estimate(9.0, 1.0), "to 10 times ± 1."),
        (estimate(24.0, 12.0), "to 25 times ± 12."),
        (ends(50.0, 9.67, 900.0), "to at least 10 times."),
    ],
)
def test_a_longer_latency_is_reported_in_the_words_of_the_tables(impact, reported):
    slowed = cell(COPYING, COPY, 1.0, 0.01, latency={"p99": impact})
    line = headline(plan(COPYING), [slowed])
    assert line.startswith(f"The p99 latency of copy beside memory-copy {NEXT} grows {reported}")
    assert figures.impact(impact, sign=False) in line


def test_no_effect_and_not_known_are_reported_apart_with_the_time_that_would_tell():
    cells = [cell(COPYING, COPY, 0.999, 0.005), cell(COPYING, RING, 0.98, 0.06)]
    line = headline(plan(COPYING), cells, [band(COPYING)])
    assert line == "1 of 2 cells is not known (copy beside cache); about 11 min more would tell."


def test_a_day_more_is_no_proposal_and_a_doubt_is_not_cured_by_time():
    far = cell(COPYING, RING, 1.0, 1.6)
    assert headline(plan(COPYING), [far], [band(COPYING, half=0.9)]).endswith("more than a day would tell.")
    doubtful = cell(COPYING, RING, 1.0, 0.9, warnings=(Warn.AGGRESSOR_IDLE,))
    assert headline(plan(COPYING), [doubtful]).endswith("(copy beside cache); see the warnings.")


def test_a_kernel_may_name_what_its_victim_loses():
    walking = trial(COPY, victim="walk", probe="memory-latency")
    line = headline(plan(walking), [cell(walking, COPY, 0.8, 0.01)])
    assert line.startswith(f"walk beside memory-copy {NEXT} loses 20 % ± 1 of memory access speed;")


def test_of_several_intensities_the_worst_is_reported_with_its_intensity():
    half = treatment("memory-copy@0.5", intensity=0.5)
    both = trial(half, COPY)
    cells = [cell(both, half, 0.7, 0.01), cell(both, COPY, 0.8, 0.01)]
    line = headline(plan(both), cells)
    assert line.startswith(f"copy beside memory-copy at 50 % {NEXT} loses 30 % ± 1 of memory bandwidth;")
    assert line.count("beside memory-copy") == 1


def test_nothing_seen_is_said_with_its_bound():
    assert headline(plan(COPYING), [cell(COPYING, COPY, 0.998, 0.004)]) == "No neighbour has an effect above ±5 %."


def test_a_coarse_run_is_not_a_clean_bill():
    assert headline(plan(COPYING), [cell(COPYING, COPY, 1.0, 0.2)]).startswith("Nothing conclusive: 1 of 1 cell is not")


def test_a_failed_check_is_said_before_what_is_not_reliable():
    line = headline(plan(COPYING), [cell(COPYING, COPY, 0.82, 0.01)], [band(COPYING, null=0.98, half=0.005)])
    assert line.startswith("Not reliable: an idle neighbour seemed to change the rate of copy by −2.0 % ± 0.5. copy ")


def test_one_of_several_null_cells_that_chance_moves_does_not_make_a_run_unreliable():
    """Of four bands at 95 %, one fails in one run of five."""
    trials = [trial(COPY, name=f"t{n}", victim=f"v{n}") for n in range(4)]
    cells = [cell(of, COPY, 0.82, 0.01) for of in trials]
    chance = [band(of, null=0.95 if n == 0 else 1.0, half=0.048) for n, of in enumerate(trials)]
    assert chance[0].null.high < 1
    assert "Not reliable" not in headline(plan(*trials), cells, chance)
    clear = [band(of, null=0.9 if n == 0 else 1.0, half=0.048) for n, of in enumerate(trials)]
    assert headline(plan(*trials), cells, clear).startswith("Not reliable: an idle neighbour ")


def test_a_whole_run_reads_well():
    of = trial(COPY, RING)
    line = analyse(evidence(plan(of), Host(0).measure(of, 50, {"memory-copy": 0.8}))).headline
    assert line.startswith(f"copy beside memory-copy {NEXT} loses ")
    assert line.endswith("No other effect above ±5 %.")


def test_only_a_neighbour_placed_by_topology_is_said_to_be_on_the_next_core():
    cells = [cell(COPYING, COPY, 0.82, 0.01)]
    listed = Aggressor(stressor="memory-copy", sandbox=Sandbox(cpus="1"))
    chosen = COPYING.model_copy(update={"aggressors": {"memory-copy": listed}})
    assert "(next core)" in headline(plan(COPYING), cells)
    assert "(another core)" in headline(plan(chosen), cells)


UNDERSTATED = (Warn.AGGRESSOR_IDLE, Warn.AGGRESSOR_NOT_STOPPED, Warn.AGGRESSOR_FELL_SHORT, Warn.CARRY_OVER)


@pytest.mark.parametrize("warning", UNDERSTATED)
def test_a_neighbour_that_may_have_harmed_more_than_was_seen_is_no_clean_bill(warning):
    sound, doubtful = cell(COPYING, COPY, 0.998, 0.004), cell(COPYING, RING, 1.0, 0.01, warnings=(warning,))
    line = headline(plan(COPYING), [sound, doubtful], [band(COPYING)])
    assert line == "1 of 2 cells is not known (copy beside cache); see the warnings."


def test_cells_that_were_not_measured_are_not_known():
    known = judged([cell(COPYING, COPY, 0.82, 0.01)], [], 0.01)
    line = line_of(plan(COPYING, WRITING), KERNELS, known, [])
    assert line.endswith("5 of 6 cells are not known; see the warnings.")


def test_a_harm_in_warning_or_emulated_is_marked_and_one_on_few_blocks_is_not_known():
    marked = cell(COPYING, COPY, 0.32, 0.01, warnings=(Warn.CARRY_OVER, Warn.EMULATED))
    line = headline(plan(COPYING, WRITING), [marked, cell(WRITING, DISK, 0.38, 0.04)])
    assert "68 % ± 1 of memory bandwidth (or more; emulated);" in line
    few = cell(COPYING, COPY, 0.32, 0.01, warnings=(Warn.FEW_BLOCKS,))
    assert headline(plan(COPYING), [few]).startswith("Nothing conclusive: 1 of 1 cell is not known")


@pytest.mark.parametrize("value", [0.8, 1.0])
def test_a_run_that_was_all_emulated_says_so_once(value):
    cells = [cell(COPYING, t, value, 0.004, warnings=(Warn.EMULATED,)) for t in (COPY, DISK)]
    line = headline(plan(COPYING), cells)
    assert line.startswith("Emulated: ")
    assert line.count("mulated") == 1


def test_a_full_stall_is_reported_with_the_ends_of_its_interval():
    stalled = Estimate(value=0.0, low=0.0, high=0.139, n=20, method="m")
    assert percent(stalled) == figures.percent(figures.loss(stalled)) == "100 % (86 to 100)"


# Goals

GOAL = Goal(isolation_factor=0.95)


def test_what_violates_a_goal_comes_first_with_the_goal():
    of = trial(treatment("batch@0.5", intensity=0.5), DISK, victim="api")
    batch = of.treatments[2]
    cells = [cell(of, batch, 0.6, 0.2), cell(of, DISK, 0.3, 0.01)]
    line = headline(plan(of), cells, goals=(GOAL.model_copy(update={"aggressor": "batch"}),))
    assert line.startswith(
        f"Violated: api beside batch at 50 % {NEXT} keeps 60 % ± 20 of memory bandwidth (goal: 95 %); "
        f"limit batch with cpu.max or move it. api beside disk-write {NEXT} loses 70 % ± 1 of memory bandwidth"
    )


def test_goals_that_hold_or_are_not_decided_come_first_too():
    sound = [cell(COPYING, t, 1.0, 0.004) for t in (COPY, DISK)]
    assert headline(plan(COPYING), sound, goals=(GOAL,)).startswith("The goals hold in all 2 cells. ")
    open_ = [cell(COPYING, COPY, 0.95, 0.04)]
    assert headline(plan(COPYING), open_, goals=(GOAL,)).startswith("Not decided: copy beside memory-copy ")


LIMITED = trial(limit("cpu_limit=30%", 0.3), victim="mine", probe="cpu-integer")


def limited(got, half, **more):
    given = CpuTime(promised=0.3, got=estimate(0.9 * got, 0.01), held=estimate(got, half))
    return cell(LIMITED, LIMITED.treatments[-1], 0.9, 0.1, efficiency=estimate(3.0, 0.4), promised=0.3, promise="limit",
                by_baseline=True, cpu_time=given, **more)  # fmt: skip


def test_a_goal_about_a_limit_is_answered_and_an_unlimited_neighbour_is_not_the_subject():
    beside = treatment("hog,30%", aggressor_of="hog", victim_limits=LIMITED.treatments[-1].victim_limits)
    of = LIMITED.model_copy(update={"treatments": (*LIMITED.treatments, treatment("hog"), beside)})
    cells = [
        limited(0.298, 0.002),
        cell(of, treatment("hog"), 0.48, 0.13),
        cell(of, beside, 0.97, 0.03, baseline="cpu_limit=30%"),
    ]
    assert headline(plan(of), cells, goals=(Goal(victim="mine", efficiency=(0.95, 1.05)),)) == (
        "Holds: mine gets 29.8 % ± 0.2 of a CPU, of 30 % promised; beside hog its rate is 97 % ± 3 of that."
    )


def test_limits_are_reported_where_there_are_no_goals():
    assert headline(plan(LIMITED), [limited(0.298, 0.002)]) == "mine gets 29.8 % ± 0.2 of a CPU, of 30 % promised."


def test_a_goal_of_several_figures_names_the_one_at_fault():
    late = {"p99": estimate(3.0, 0.1)}
    goal = Goal(victim="copy", isolation_factor=0.5, latency_impact_p99=0.5)
    line = headline(plan(COPYING), [cell(COPYING, COPY, 0.9, 0.01, latency=late)], goals=(goal,))
    assert line.startswith("Violated: copy beside memory-copy (next core): latency impact at p99 3")


def test_more_time_is_promised_only_for_cells_that_it_would_tell():
    cells = [
        cell(COPYING, COPY, 0.9, 0.11),
        cell(COPYING, RING, 0.9, 0.11, warnings=(Warn.AGGRESSOR_IDLE,)),
    ]
    assert headline(plan(COPYING), cells).partition("would tell")[2].startswith(" 1 of them")
