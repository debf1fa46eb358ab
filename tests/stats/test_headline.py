import re
import textwrap

import pytest

from partywall.model.finding import Band, Cell, Estimate, Warn
from partywall.model.scenario import Aggressor, Sandbox
from partywall.report import figures
from partywall.stats import analyse
from partywall.stats.headline import headline as line_of
from partywall.stats.headline import percent
from partywall.stats.states import with_effects
from tests.stats.builders import KERNELS, Host, evidence, limit, plan, treatment, trial

COPY, DISK, RING = treatment("memory-copy"), treatment("disk-write"), treatment("cache")


def estimate(value, half):
    return Estimate(value=value, low=value - half, high=value + half, n=50, method="m")


def ends(value, low, high):
    return Estimate(value=value, low=low, high=high, n=50, method="m")


def cell(of, t, value, half, seen=True, **more):
    return Cell(
        trial=of.id, victim=of.victim_name, treatment=t.id, label=t.label, role=t.role, aggressor=t.aggressor,
        intensity=1.0, baseline_rate=estimate(1, 0.1), rate=estimate(value, half), isolation=estimate(value, half),
        seen=seen, **more,
    )  # fmt: skip


def band(of, null=1.0, half=0.003):
    return Band(trial=of.id, low=1 - half, high=1 + half, null=estimate(null, half))


def headline(of, kernels, cells, bands):
    """Of a plan that holds no more than what has cells here."""
    measured = {(c.trial, c.treatment) for c in cells}
    trials = tuple(
        item.model_copy(
            update={"treatments": tuple(t for t in item.treatments if not t.aggressor or (item.id, t.id) in measured)}
        )
        for item in of.trials
    )
    judged = with_effects(cells, bands, of.scenario.precision)
    return line_of(of.model_copy(update={"trials": trials}), kernels, judged, bands)


COPYING = trial(COPY, DISK, RING, name="t1")
ODD = trial(treatment("odd-work"))
WRITING = trial(COPY, DISK, RING, name="t2", victim="write", probe="disk-write")


def test_costs_come_worst_first_with_what_was_not_seen():
    cells = [
        cell(COPYING, COPY, 0.82, 0.01),
        cell(WRITING, DISK, 0.38, 0.04),
        cell(COPYING, RING, 0.999, 0.005, seen=False),
    ]
    assert headline(plan(COPYING, WRITING), KERNELS, cells, [band(COPYING), band(WRITING)]) == (
        "A file-writing neighbour on the next core costs 62 % ± 4 of disk throughput; "
        "a memory-copying one 18 % ± 1 of memory bandwidth; no other effect above ±0.6 %."
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
    assert headline(plan(apart), KERNELS, [cell(apart, COPY, 0.82, 0.01)], []) == (
        "A memory-copying neighbour on another machine costs 18 % ± 1 of memory bandwidth."
    )


def test_as_many_neighbours_are_spelt_out_as_two_lines_hold_and_the_rest_is_counted():
    cells = [
        cell(COPYING, COPY, 0.82, 0.01), cell(COPYING, DISK, 0.95, 0.004), cell(COPYING, RING, 0.5, 0.01),
        cell(WRITING, DISK, 0.38, 0.04), cell(WRITING, COPY, 0.9, 0.02),
    ]  # fmt: skip
    assert headline(plan(COPYING, WRITING), KERNELS, cells, []) == (
        "A file-writing neighbour on the next core costs 62 % ± 4 of disk throughput; "
        "a cache-walking one 50 % ± 1 of memory bandwidth; 3 more cost 5 to 18 %."
    )


def test_a_neighbour_that_is_the_worst_of_several_victims_is_named_once():
    cells = [
        cell(COPYING, COPY, 0.82, 0.01), cell(WRITING, COPY, 0.38, 0.04),
    ]  # fmt: skip
    assert headline(plan(COPYING, WRITING), KERNELS, cells, []) == (
        "A memory-copying neighbour on the next core costs 62 % ± 4 of disk throughput "
        "and 18 % ± 1 of memory bandwidth."
    )


def test_others_that_cost_the_same_are_not_given_a_range():
    trials = [trial(COPY, name=f"t{n}", victim=f"v{n}") for n in range(5)]
    cells = [cell(of, COPY, 0.5 if n < 2 else 0.78, 0.09 + n / 100) for n, of in enumerate(trials)]
    assert headline(plan(*trials), KERNELS, cells, []).endswith("; 3 more cost about 22 % each.")


@pytest.mark.parametrize("victims", [1, 2, 5, 20])
def test_the_headline_is_at_most_two_lines_whatever_was_measured(victims):
    trials = [trial(COPY, DISK, RING, name=f"t{n}", victim=f"victim-{n}") for n in range(victims)]
    costs = ((COPY, 0.2), (DISK, 0.4), (RING, 0.9))
    cells = [cell(of, t, value + n / 100, 0.01) for n, of in enumerate(trials) for t, value in costs]
    for bands in ([], [band(of, null=0.98, half=0.005) for of in trials]):
        assert len(textwrap.wrap(headline(plan(*trials), KERNELS, cells, bands), 80)) <= 2


SAME = trial(RING, name="t9", victim="compute", probe="cpu-integer", cpus=0)


def test_a_neighbour_on_another_core_comes_before_one_on_the_victims_own():
    cells = [cell(SAME, RING, 0.5, 0.01), cell(COPYING, COPY, 0.75, 0.01)]
    assert headline(plan(SAME, COPYING), KERNELS, cells, []) == (
        "A memory-copying neighbour on the next core costs 25 % ± 1 of memory bandwidth; "
        "a cache-walking one on the same core 50 % ± 1 of CPU speed."
    )
    more = [*cells, cell(WRITING, DISK, 0.76, 0.01), cell(WRITING, COPY, 0.9, 0.01)]
    line = headline(plan(SAME, COPYING, WRITING), KERNELS, more, [])
    assert line.startswith("A memory-copying neighbour on the next core costs 25 % ± 1 of memory bandwidth")
    assert "24 % ± 1 of disk throughput" in line
    assert "50 %" not in line.partition(" more cost ")[0]


def test_on_the_same_core_only_a_loss_beyond_an_equal_share_is_a_surprise():
    cells = [cell(SAME, RING, 0.1, 0.01), cell(COPYING, COPY, 0.75, 0.01)]
    assert headline(plan(SAME, COPYING), KERNELS, cells, []).startswith(
        "A cache-walking neighbour on the same core costs 90 % ± 1 of CPU speed; "
    )


def test_losses_that_anyone_expects_are_counted_as_such():
    of = [trial(RING, name=f"s{n}", victim=f"v{n}", probe="cpu-integer", cpus=0) for n in range(4)]
    cells = [cell(COPYING, COPY, 0.75, 0.01), *(cell(each, RING, 0.5 + n / 50, 0.01) for n, each in enumerate(of))]
    line = headline(plan(COPYING, *of), KERNELS, cells, [])
    assert line.endswith("; 4 more on the same core cost 44 to 50 %.")


def test_gains_are_counted_without_a_cause_and_only_where_there_is_room():
    faster = cell(WRITING, DISK, 1.06, 0.01)
    assert headline(plan(COPYING, WRITING), KERNELS, [cell(COPYING, COPY, 0.75, 0.01), faster], []).endswith(
        "of memory bandwidth; 1 made the victim faster."
    )
    assert headline(plan(WRITING), KERNELS, [faster], []) == "1 made the victim faster."


@pytest.mark.parametrize(
    ("impact", "reported"),
    [
        (estimate(0.4, 0.1), "by 40 % ± 10 without"),
        (estimate(9.0, 1.0), "to 10 times ± 1 without"),
        (estimate(24.0, 12.0), "to 25 times ± 12 without"),
        (ends(50.0, 9.67, 900.0), "to at least 10 times without"),
    ],
)
def test_a_longer_latency_is_reported_in_the_words_of_the_tables(impact, reported):
    slowed = cell(COPYING, COPY, 1.0, 0.01, seen=False, latency={"p99": impact}, latency_seen=("p99",))
    line = headline(plan(COPYING), KERNELS, [slowed], [])
    assert reported in line
    assert figures.impact(impact, sign=False) in line


def test_a_longer_latency_beside_a_throughput_that_is_not_known_says_so():
    slowed = cell(COPYING, COPY, 1.0, 0.3, seen=False, latency={"p99": estimate(0.4, 0.1)}, latency_seen=("p99",))
    line = headline(plan(COPYING), KERNELS, [slowed], [])
    assert "without a loss" not in line
    assert line.endswith("by 40 % ± 10; whether it costs throughput is not known.")


def test_no_effect_and_not_known_are_reported_apart():
    cells = [cell(COPYING, COPY, 0.999, 0.005, seen=False), cell(COPYING, RING, 0.9, 0.2, seen=False)]
    assert headline(plan(COPYING), KERNELS, cells, [band(COPYING)]) == (
        "No neighbour shows an effect above ±0.6 %, but 1 of 2 is not known (up to ±30 %)."
    )
    harm = cell(WRITING, COPY, 0.5, 0.01)
    assert headline(plan(COPYING, WRITING), KERNELS, [*cells, harm], [band(COPYING), band(WRITING)]).endswith(
        "; no other effect above ±0.6 %, but 1 of 2 is not known (up to ±30 %)."
    )


def test_wide_intervals_are_called_noise_and_not_a_bound_on_the_harm():
    cells = [cell(COPYING, COPY, 0.5, 0.05), cell(COPYING, RING, 0.7, 0.328, seen=False)]
    line = headline(plan(COPYING), KERNELS, cells, [])
    assert line.endswith("; nothing else could be distinguished from noise (up to ±63 %).")


def test_a_kernel_may_name_what_its_victim_loses():
    walking = trial(COPY, victim="walk", probe="memory-latency")
    line = headline(plan(walking), KERNELS, [cell(walking, COPY, 0.8, 0.01)], [])
    assert line == "A memory-copying neighbour on the next core costs 20 % ± 1 of memory access speed."


def test_a_neighbour_whose_kernel_this_version_does_not_know_is_called_by_its_name():
    cells = [cell(ODD, treatment("odd-work"), 0.8, 0.01)]
    assert headline(plan(ODD), KERNELS, cells, []).startswith("An odd-work-running neighbour")


def test_of_several_intensities_the_worst_is_reported():
    half = treatment("memory-copy@0.5", intensity=0.5)
    both = trial(half, COPY)
    cells = [cell(both, half, 0.9, 0.01), cell(both, COPY, 0.8, 0.01)]
    assert headline(plan(both), KERNELS, cells, []) == (
        "A memory-copying neighbour on the next core costs 20 % ± 1 of memory bandwidth."
    )


def test_nothing_seen_is_said_with_its_resolution():
    cells = [cell(COPYING, COPY, 0.998, 0.004, seen=False)]
    assert headline(plan(COPYING), KERNELS, cells, [band(COPYING)]) == "No neighbour shows an effect above ±0.6 %."


def test_a_coarse_run_is_not_a_clean_bill():
    cells = [cell(COPYING, COPY, 1.0, 0.2, seen=False)]
    assert headline(plan(COPYING), KERNELS, cells, [band(COPYING)]).startswith("Nothing conclusive: ")


def test_a_failed_check_comes_first():
    cells = [cell(COPYING, COPY, 0.82, 0.01)]
    line = headline(plan(COPYING), KERNELS, cells, [band(COPYING, null=0.98, half=0.005)])
    assert line == (
        "Not reliable: a neighbour that does nothing seemed to change the rate of copy by −2.0 % ± 0.5. "
        "1 neighbour costs about 18 %."
    )


def test_a_command_is_called_by_its_name():
    noisy = treatment("noisy")
    of = trial(noisy, cpus=0).model_copy(update={"aggressors": {"noisy": Aggressor(command=("/usr/bin/fio", "x"))}})
    assert headline(plan(of), KERNELS, [cell(of, noisy, 0.7, 0.02)], []) == (
        "A neighbour running fio on the same core costs 30 % ± 2 of memory bandwidth."
    )


def test_two_victims_that_lose_the_same_resource_are_reported_apart():
    other = trial(COPY, name="t3", victim="second")
    cells = [cell(COPYING, COPY, 0.82, 0.01), cell(other, COPY, 0.7, 0.01)]
    line = headline(plan(COPYING, other), KERNELS, cells, [])
    assert "of memory bandwidth (second) and " in line
    assert "of memory bandwidth (copy)." in line


def test_limits_are_reported_where_there_are_no_neighbours():
    of = trial(limit("half", 0.5))
    cells = [cell(of, of.treatments[-1], 0.45, 0.01, efficiency=estimate(0.9, 0.02))]
    assert headline(plan(of), KERNELS, cells, []) == (
        "Limits gave their sandboxes 0.90 ± 0.02 of the promised share or nearer to it."
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_line_of_a_whole_run_reads_well(seed):
    of = trial(COPY, RING)
    result = analyse(evidence(plan(of), Host(seed).measure(of, 50, {"memory-copy": 0.8})))
    assert re.match(r"A memory-copying neighbour on the next core costs (19|20)\.\d+ % ± 0\.\d+ of", result.headline)
    assert "no other effect above ±" in result.headline


def test_only_a_neighbour_placed_by_topology_is_said_to_be_on_the_next_core():
    cells = [cell(COPYING, COPY, 0.82, 0.01)]
    listed = Aggressor(stressor="memory-copy", sandbox=Sandbox(cpus="1"))
    chosen = COPYING.model_copy(update={"aggressors": {"memory-copy": listed}})
    assert "on the next core" in headline(plan(COPYING), KERNELS, cells, [])
    assert "on another core" in headline(plan(chosen), KERNELS, cells, [])


def test_a_latency_probe_does_not_lose_bandwidth():
    of = trial(COPY, victim="walk", probe="memory-latency")
    kernels = KERNELS | {"memory-latency": {"resource": "memory_bandwidth"}}
    line = headline(plan(of), kernels, [cell(of, COPY, 0.82, 0.01)], [])
    assert line.endswith("costs 18 % ± 1 of memory access speed.")


UNDERSTATED = (
    Warn.AGGRESSOR_IDLE, Warn.AGGRESSOR_NOT_STOPPED, Warn.AGGRESSOR_FELL_SHORT, Warn.CARRY_OVER,
)  # fmt: skip


@pytest.mark.parametrize("warning", UNDERSTATED)
def test_a_neighbour_that_may_have_harmed_more_than_was_seen_is_no_clean_bill(warning):
    sound = cell(COPYING, COPY, 0.998, 0.004, seen=False)
    doubtful = cell(COPYING, RING, 0.9, 0.2, seen=False, warnings=(warning,))
    line = headline(plan(COPYING), KERNELS, [sound, doubtful], [band(COPYING)])
    assert line == "No neighbour shows an effect above ±0.6 %; 1 other could not be judged; see the warnings."
    assert headline(plan(COPYING), KERNELS, [doubtful], [band(COPYING)]).startswith(
        "Nothing conclusive: no neighbour could be judged"
    )


def test_trials_that_failed_are_counted_as_not_judged():
    cells = [cell(COPYING, COPY, 0.82, 0.01)]
    assert line_of(plan(COPYING, WRITING), KERNELS, cells, [band(COPYING)]) == (
        "A memory-copying neighbour on the next core costs 18 % ± 1 of memory bandwidth; "
        "5 others could not be judged; see the warnings."
    )


def test_a_harm_in_warning_on_few_blocks_or_emulated_is_marked():
    more = (Warn.CARRY_OVER, Warn.FEW_BLOCKS, Warn.EMULATED)
    cells = [cell(COPYING, COPY, 0.32, 0.01, warnings=more), cell(WRITING, DISK, 0.38, 0.04)]
    line = headline(plan(COPYING, WRITING), KERNELS, cells, [])
    assert "68 % ± 1 of memory bandwidth (or more; on only 50 blocks; emulated);" in line
    assert line.endswith("; 1 more costs about 62 %.")


def test_harms_that_are_only_counted_are_marked_too():
    trials = [trial(COPY, name=f"t{n}", victim=f"v{n}") for n in range(5)]
    marked = {"warnings": (Warn.FEW_BLOCKS, Warn.EMULATED)}
    cells = [cell(of, COPY, 0.5 + n / 10, 0.01, **(marked if n == 4 else {})) for n, of in enumerate(trials)]
    line = headline(plan(*trials), KERNELS, cells, [])
    assert line.endswith("(1 on few blocks, 1 emulated).")


@pytest.mark.parametrize("seen", [True, False])
def test_a_run_that_was_all_emulated_says_so_once(seen):
    cells = [cell(COPYING, t, 0.8 if seen else 1.0, 0.004, seen=seen, warnings=(Warn.EMULATED,)) for t in (COPY, DISK)]
    line = headline(plan(COPYING), KERNELS, cells, [])
    assert line.startswith("Emulated: ")
    assert line.count("mulated") == 1


def test_a_full_stall_is_reported_with_the_ends_of_its_interval():
    stalled = Estimate(value=0.0, low=0.0, high=0.139, n=20, method="m")
    assert percent(stalled) == figures.percent(figures.loss(stalled)) == "100 % (86 to 100)"
