"""Findings, verdicts and reports of records whose truth is known."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies
from rich.console import Console

from partywall.blame.capability import Blames, end_of
from partywall.blame.corpus.lab import Lab, Neighbour
from partywall.blame.corpus.simulate import simulate
from partywall.blame.decide import State
from partywall.blame.effects import delayed
from partywall.blame.findings import TICKS, Verdict, duration, expect_enough, findings_of, rates_of, rule_of
from partywall.blame.job import BlameJob
from partywall.blame.measure.levers import lever
from partywall.blame.measure.owners import Kind
from partywall.blame.paste import paste
from partywall.blame.record import OF_LATENCY, BlameRecord, Place
from partywall.errors import Exit, TrialError, UsageError
from partywall.sandbox import cgroups
from tests.blame.records import GUILTY, simulated

INNOCENT = tuple(each.model_copy(update={"effect": 0.0}) for each in GUILTY)


def test_a_guilty_neighbour_is_named_with_what_it_takes_and_what_would_help(tmp_path: Path):
    found = findings_of(simulated(tmp_path / "a", blocks=200))
    assert found.verdict is Verdict.NEIGHBOUR
    first, other = found.suspects
    assert (first.name, first.state, other.state) == ("/guilty", State.GUILTY, State.CLEARED)
    assert first.taken.value == pytest.approx(0.2, abs=0.01), "0.24 of what the victim does meanwhile"
    assert first.lost == pytest.approx(0.23, abs=0.01), "half of the time, 93 blocks of 30 % and 107 of 60 %"
    light, deep = found.helps
    assert deep.gain.value == pytest.approx(2 * light.gain.value)
    assert light.check is not None
    assert abs(light.check.value - light.gain.value) < light.check.half_width + light.gain.half_width
    assert Blames().outcome(found) is Exit.VIOLATED


@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    truth=strategies.floats(0.03, 0.8),
    grip=strategies.floats(0.5, 1.0),
    other=strategies.floats(0.0, 0.5),
    depths=strategies.sampled_from([("30%", "30%"), ("30%", "60%"), ("10%", "20%"), ("50%", "100%")]),
    seed=strategies.integers(0, 2**31),
)
def test_a_guilty_neighbour_takes_what_it_takes_in_truth_of_what_the_victim_would_do_without_it(
    truth: float, grip: float, other: float, depths: tuple[str, str], seed: int
):
    """However much it takes, however deep the pulses are, and whoever else is guilty."""
    neighbours = (
        Neighbour(name="/a", resource="cpu", effect=truth, grip=grip),
        Neighbour(name="/b", resource="cpu", effect=other, grip=0.9),
    )
    job = BlameJob.parsed({"victim": "x", "depth": depths[0], "deepest": depths[1], "harm": "100%", "budget_ns": "60s"})
    rule = rule_of(job, 2)
    seen = simulate(
        Lab(name="x", seed=seed, neighbours=neighbours, noise=0.005, drift=0.005),
        rule.blocks_most * rule.code.block_slots * TICKS,
        rule.depths(rule.blocks_most),
    )
    use = seen.use.reshape(-1, TICKS, 2).mean(axis=1)
    standings = {each.suspect: each for each in rule.look(("/a", "/b"), seen.rate, use).standings}
    for each in neighbours:
        found = standings[each.name].taken
        assert abs(found.value - each.effect) < 0.01 + 2.5 * found.half_width
    assert standings["/a"].taken.half_width < 0.1


def test_a_gain_in_a_pulse_is_that_which_is_predicted_for_the_same_reduction(tmp_path: Path):
    large = (GUILTY[0].model_copy(update={"effect": 0.45}), GUILTY[1])
    found = findings_of(simulated(tmp_path / "a", large, blocks=200))
    guilty = found.suspects[0]
    assert guilty.gain.value == pytest.approx(0.135 / 0.55, abs=0.015)
    assert [each.gain.value for each in guilty.doses] == pytest.approx([0.135 / 0.55, 0.27 / 0.55], abs=0.03)


def test_the_check_of_a_prediction_has_the_interval_and_the_delay_of_the_effects(tmp_path: Path):
    late = (GUILTY[0].model_copy(update={"lag_ms": 50}), GUILTY[1])
    record = simulated(tmp_path / "a", late, blocks=12)
    found, rule = findings_of(record), rule_of(record.job, 2)
    guilty, block, slots = found.suspects[0], rule.code.block_slots, list(record.slots())[8 * 8 :]
    assert (guilty.state, guilty.delay_ns, block) == (State.GUILTY, 50_000_000, 8)
    alone = delayed(rates_of(slots), np.array([slot.depths for slot in slots]), block, 2, TICKS)
    assert alone.dof < 20, "so few that Student's distribution is wider than the normal one"
    expected, check = alone.estimate(0), found.helps[0].check
    assert check is not None
    assert check.half_width / check.value == pytest.approx(expected.half_width / expected.value)


def test_a_gain_is_predicted_as_a_share_of_what_the_victim_does_without_pulses(tmp_path: Path):
    large = (GUILTY[0].model_copy(update={"effect": 0.45}), GUILTY[1])
    light, deep = findings_of(simulated(tmp_path / "a", large, blocks=200)).helps
    # It does 55 % of what it could, and 30 % of 45 points are 13.5 points.
    assert light.gain.value == pytest.approx(0.135 / 0.55, abs=0.015)
    assert deep.gain.value == pytest.approx(0.27 / 0.55, abs=0.03)


def test_the_verdict_says_through_what_and_how_the_gain_grows_with_the_depth(tmp_path: Path):
    found = findings_of(simulated(tmp_path / "a", blocks=200))
    guilty, other = found.suspects
    assert found.headline.endswith(", through waiting for a CPU")
    assert [each.resource for each in guilty.waits or ()] == ["a CPU"]
    light, deep = guilty.doses
    assert (light.depth, deep.depth) == (0.3, 0.6)
    assert deep.gain.value == pytest.approx(2 * light.gain.value, rel=0.3)
    assert other.doses == ()


def test_a_harm_that_no_counter_shows_is_said_to_be_unseen(tmp_path: Path):
    unseen = (GUILTY[0].model_copy(update={"resource": "memory"}), GUILTY[1])
    assert "through nothing that the kernel counts" in findings_of(simulated(tmp_path / "a", unseen, 100)).headline


def test_a_victim_stopped_by_its_own_limit_is_blamed_on_itself(tmp_path: Path):
    found = findings_of(simulated(tmp_path / "a", INNOCENT, 200, throttled=0.2))
    assert found.verdict is Verdict.OWN
    assert "own limit stops it for 2" in found.headline
    assert Blames().outcome(found) is Exit.HOLDS


def test_a_host_whose_time_is_stolen_is_named(tmp_path: Path):
    assert findings_of(simulated(tmp_path / "a", INNOCENT, 200, steal=0.15)).verdict is Verdict.HOST


def test_nobody_is_named_if_all_are_cleared_and_not_known_says_how_long_it_would_take(tmp_path: Path):
    assert findings_of(simulated(tmp_path / "a", INNOCENT, 200)).verdict is Verdict.NOBODY
    open_ = findings_of(simulated(tmp_path / "b", INNOCENT, 8, noise=0.2))
    assert open_.verdict is Verdict.UNKNOWN
    assert open_.needed_s is not None
    assert open_.needed_s > open_.seconds
    assert "would be needed" in open_.headline
    assert Blames().outcome(open_) is Exit.INCONCLUSIVE


def test_what_is_open_is_judged_by_the_command_that_the_note_advises(tmp_path: Path):
    """More time alone would change nothing: --harm ends the experiment."""
    job = BlameJob(victim="x")
    rule = rule_of(job, 2)
    found = findings_of(simulated(tmp_path / "a", INNOCENT, rule.blocks_most, job, noise=0.15))
    assert (found.ended, found.verdict) == ("harm", Verdict.UNKNOWN)
    notes = Blames().report(found).notes
    (advice,) = (note for note in notes if "open" in note)
    assert "for a verdict, give the same command with --harm" in advice
    harm, budget_s = parsed(advice, rule.budget_s)
    longer = rule_of(job.model_copy(update={"harm": harm, "budget_ns": round(budget_s * 1e9)}), 2)
    assert found.needed_s is not None
    assert longer.longest_s >= found.needed_s > rule.longest_s


def parsed(advice: str, budget_s: float) -> tuple[float, float]:
    """The harm and the budget that a note advises."""
    harm, budget = re.search(r"--harm ([0-9.]+)%", advice), re.search(r"--budget (\d+)s", advice)
    assert harm is not None
    return float(harm[1]) / 100, float(budget[1]) if budget else budget_s


@pytest.mark.parametrize(
    ("given", "suspects", "said"),
    [
        ({"budget_ns": "1min", "pulse_ns": "30s"}, 3, "--budget: 1 min is too short: 3 suspects need 32 min"),
        ({"budget_ns": "2h", "pulse_ns": "30s"}, 3, "--harm: 2% is too little: 3 suspects need 32 min"),
        ({"budget_ns": "3s"}, 15, "--budget: 3 s is too short: 15 suspects need 12 s"),
    ],
)
def test_options_with_which_nobody_can_be_judged_are_refused_with_what_is_needed(given: dict, suspects: int, said: str):
    job = BlameJob.parsed({"victim": "x"} | given)
    with pytest.raises(UsageError, match=said) as error:
        expect_enough(rule_of(job, suspects), job)
    harm, budget_s = parsed(error.value.problems[0].remedy, job.budget_ns / 1e9)
    better = job.model_copy(update={"harm": harm, "budget_ns": round(budget_s * 1e9)})
    expect_enough(rule_of(better, suspects), better)


@pytest.mark.parametrize("options", [{}, {"harm": "10%"}, {"budget_ns": "2min", "harm": "5%"}])
def test_the_outline_promises_the_end_and_the_depth_that_come(options: dict):
    job = BlameJob.parsed({"victim": "x"} | options)
    rule = rule_of(job, 15)
    deepens = rule.deepens_s
    assert deepens is not None, "deeper pulses say more for the same loss"
    assert rule.depths(rule.blocks_most).max() == job.deepest
    line = end_of(rule, job)
    assert f"after {duration(rule.longest_s)} at the latest" in line
    assert ("--harm" in line) == (rule.ends_by == "harm")


def test_a_suspect_that_its_lever_does_not_hold_leaves_the_verdict_open(tmp_path: Path):
    free = (Neighbour(name="/free", resource="cpu", effect=0.3, grip=0.0), INNOCENT[1])
    found = findings_of(simulated(tmp_path / "a", free, 40))
    assert found.verdict is Verdict.UNKNOWN
    assert "the lever does not hold /free" in found.headline


def test_a_victim_that_says_nothing_most_of_the_time_leaves_the_verdict_open(tmp_path: Path):
    record = simulated(tmp_path / "a", blocks=100)
    whole = findings_of(record).suspects[0].taken
    lines = (tmp_path / "a" / record.LINES).read_text().splitlines()
    for share, verdict in ((0.3, Verdict.NEIGHBOUR), (0.7, Verdict.UNKNOWN)):
        random, silent = np.random.default_rng(1), []
        for line in map(json.loads, lines):
            if line["kind"] == "slot" and random.random() < share:
                line["ticks"] = [None] * TICKS
            silent.append(json.dumps(line))
        (tmp_path / "a" / record.LINES).write_text("\n".join(silent) + "\n")
        found = findings_of(BlameRecord.open(tmp_path / "a"))
        assert found.verdict is verdict
        assert found.suspects[0].taken.value == pytest.approx(whole.value, abs=0.02)
    assert "the victim said nothing in 68 % of the slots; try --pulse 300ms" in found.headline


def test_a_record_with_too_few_slots_says_so(tmp_path: Path):
    with pytest.raises(TrialError, match=r"slots are too few for .* suspects; give it more time"):
        findings_of(simulated(tmp_path / "a", blocks=1))


def test_a_report_says_what_to_do_what_it_costs_and_how_to_undo_it(tmp_path: Path):
    report = Blames().report(findings_of(simulated(tmp_path / "a", blocks=60)))
    now, undo, again = report.notes[:3]
    assert re.fullmatch(
        r"to do now: echo '\d+ 100000' > /sys/fs/cgroup/guilty/cpu.max \(the victim gains \+1\d.* ± .*; /guilty loses "
        r"60 % of its work, and 40 % of the harm stays\)",
        now,
    )
    assert undo == "to undo that: undo /guilty"
    assert "--apply --until 2h" in again
    assert report.badge == "✗ a neighbour is guilty", "nobody stated a goal that could be violated"
    lost = next(column for column in report.sections[0].columns if column.key == "lost")
    assert re.fullmatch(r"\d+\.\d s \(\d+ %\)", lost.cell(report.sections[0].rows[0])), "--harm is in seconds too"


def test_a_victim_whose_latency_is_known_is_told_how_much_shorter_it_would_be(tmp_path: Path):
    found = findings_of(simulated(tmp_path / "a", blocks=60, unit=OF_LATENCY))
    assert re.match(r"without /guilty, requests would take (19|20|21)(\.\d)? % ± .* less time", found.headline)


def test_a_report_has_every_form(tmp_path: Path):
    found = findings_of(simulated(tmp_path / "a", blocks=40))
    console = Console(record=True, width=200)
    files = Blames().files()
    files.show(found, console)
    text = console.export_text()
    assert "/guilty takes" in text
    assert "A/A check passes" in text
    written = {path.name for path in files.write(found, tmp_path / "out", ["html", "json", "csv", "svg"])}
    charts = {"ranking.svg", "pulses.svg", "rate.svg"}
    assert written == {"report.html", "findings.json", "suspects.csv"} | charts
    assert json.loads((tmp_path / "out" / "findings.json").read_text())["verdict"] == "neighbour"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({"tool": "systemd", "known_as": "web.service"}, "systemctl set-property --runtime web.service CPUQuota=50%"),
        ({"tool": "docker", "known_as": "4f2"}, "docker update --cpus 0.50 4f2"),
        ({"tool": "crun", "known_as": "4f2"}, "crun update --cpu-period 100000 --cpu-quota 50000 4f2"),
        (
            {"tool": "libvirt", "known_as": "web", "vcpus": 2},
            "virsh schedinfo web --live vcpu_period=100000 vcpu_quota=25000",
        ),
        ({"folder": "/c/batch", "is_v2": True}, "echo '50000 100000' > /c/batch/cpu.max"),
        (
            {"folder": "/c/my batch", "is_v2": False},
            "echo 100000 > '/c/my batch'/cpu.cfs_period_us; echo 50000 > '/c/my batch'/cpu.cfs_quota_us",
        ),
    ],
)
def test_what_helps_is_a_command_of_the_owner(place: dict, text: str):
    assert paste(Place.model_validate({"folder": "/c/g", "is_v2": True} | place), 0.5) == text


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            {"tool": "systemd", "known_as": "web.service"},
            "systemctl set-property --runtime web.service IOReadBandwidthMax='/dev/block/8:0 1000000' "
            "IOWriteBandwidthMax='/dev/block/8:0 1000000'",
        ),
        ({"is_v2": True}, "echo '8:0 rbps=1000000 wbps=1000000' > /c/g/io.max"),
        (
            {"is_v2": False},
            "echo '8:0 1000000' > /c/g/blkio.throttle.read_bps_device; "
            "echo '8:0 1000000' > /c/g/blkio.throttle.write_bps_device",
        ),
    ],
)
def test_what_helps_with_a_disk_limits_both_ways(place: dict, text: str):
    assert paste(Place.model_validate({"folder": "/c/g", "is_v2": True} | place), 1e6, "8:0") == text


def test_the_commands_for_files_are_accepted_by_this_host(groups_here: list[tuple[str, Place]]):
    for name, place in groups_here:
        subprocess.run(["sh", "-c", paste(place, 0.5)], check=True)
        assert lever(Kind.CPU, name, cgroups.read(), has_systemd=False).capacity == 0.5


@pytest.fixture
def groups_here() -> Iterator[list[tuple[str, Place]]]:
    here, name = cgroups.read(), f"/partywall-paste-{os.getpid()}"
    if os.geteuid() or here.why_not():
        pytest.skip("no right to make cgroups")
    folder = here.folder("cpu", name)
    folder.mkdir()
    try:
        yield [(name, Place(folder=str(folder), is_v2=here.is_v2))]
    finally:
        folder.rmdir()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no victim is given"),
        ({"victim": "a", "pid": 1}, "more than one victim is given"),
        ({"victim": "a", "lever": "x"}, "--lever must be cpu, disk, network, cpuset or freeze, not 'x'"),
        ({"victim": "a", "lever": "disk"}, "--lever disk needs a disk: give its name or number, such as --device sda"),
        ({"victim": "a", "device": "/dev/sda"}, "'/dev/sda' is neither the name nor the number of a disk"),
        (
            {"suspects": ["nginx"]},
            "no victim is given; nginx was read as a suspect: say what is slow by one of --victim",
        ),
        *(
            (
                {"victim": "a", "apply": True, "until": text},
                f"--until: .*{text}.*; give a duration such as 2h, or a time",
            )
            for text in ("25:99", "18", "foo", "2026-99-01", "12:60")
        ),
        ({"victim": "a", "latency": "x"}, "--latency needs --log"),
        ({"log": "a", "latency": "x", "latency_key": "x"}, "--latency or --latency-key: give one"),
        ({"log": "a", "metric": "x"}, "--metric needs --victim"),
        ({"prometheus_url": "http://a"}, "--prometheus-url needs --query"),
        ({"prometheus_url": "a", "query": "up"}, "'a' is no URL"),
        ({"pid": 1, "query": "up"}, "--query needs --prometheus-url"),
        ({"probe": "integer", "cpus": "x"}, "--cpus: "),
        ({"pid": 1, "cpus": "1"}, "--cpus needs --probe or --url"),
        ({"probe": "integer", "users": 2}, "--users needs --url"),
        ({"victim": "a", "smaller_is_better": True}, "--smaller-is-better needs --metric or --query"),
        ({"probe": "integer", "url": "http://a"}, "more than one victim is given"),
        ({"victim": "a", "pulse_ns": "10ms"}, "--pulse must be at least 20 ms"),
        ({"victim": "a", "depth": "90%"}, "--depth must be at most --deepest, which is 60%, not 90%"),
    ],
)
def test_a_bad_job_is_refused_with_a_remedy(given: dict, said: str):
    with pytest.raises(UsageError, match=said):
        BlameJob.parsed(given)
