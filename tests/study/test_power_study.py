"""The study of power: its file, and the paper's table and figures from slots and moves whose truth is known."""

import numpy as np
import pytest

from partywall import study
from partywall.errors import TrialError, UsageError
from partywall.migrate.document import Move
from partywall.power import ladder, profiles
from partywall.power.findings.fitting import Observation
from partywall.power.values import Activity, Slot, chances
from partywall.study import papers
from partywall.study.agreement import Likeness, judge
from partywall.study.paper import Place
from partywall.study.power import findings

PAPER = profiles.PROFILES["cervera-dl120-g6"]
SECOND = 10**9


def slots(points, blocks=3, noise=0.1):
    """A ladder on a node with these watts."""
    chance, result, cpus = np.random.default_rng(1), [], len(points) - 1
    for block in range(blocks):
        for count in range(cpus + 1):
            for intensity in (0.5, 1.0) if count else (0.0,):
                share = chances([intensity] * count, cpus)
                watts = float(share @ np.array(points)) + chance.normal(0, noise)
                slot = Slot(block=block, begin_ns=0, end_ns=SECOND, level=ladder.level_name(count, intensity))
                result.append(Observation(slot, watts, np.cumsum(share[::-1])[::-1][1:]))
    return result


def guest(idle, works, busy=1.0, blocks=3):
    """Slots with a guest that is idle, and at work on a share of a core."""
    result = []
    for block in range(blocks):
        for level, watts, share in ((findings.GUEST_IDLE, idle, 0.0), (findings.GUEST_WORKS, works, busy)):
            slot = Slot(block=block, begin_ns=0, end_ns=SECOND, level=level)
            result.append(Observation(slot, watts + 0.01 * block, np.array([share, 0.0])))
    return result


def besides(points=(50, 72, 90, 100, 110), with_guest=None, *, simulated=False):
    result = findings.comparisons(
        slots(points), with_guest or [], PAPER, papers.load("power-cervera"), (), simulated=simulated
    )
    return {each.table.id: each for each in result}


def test_the_shipped_study_is_read_and_every_table_is_measured():
    file = study.find("papers/power-cervera")
    read = study.kind_of(file).read(file.read_bytes(), str(file))
    assert read.meter.startswith("simulated:")
    assert set(besides()) == {shown.id for shown in papers.load("power-cervera").exhibits}


def test_every_point_of_a_simulated_meter_says_that_it_confirms_nothing():
    finding = besides(simulated=True).values()
    assert all(point.simulated for beside in finding for point in beside.measured)
    assert {judge(beside).likeness for beside in finding} <= {Likeness.MODELLED, Likeness.MISSING}


def test_all_mistakes_of_a_study_file_are_reported_at_once():
    file = study.find("papers/power-cervera")
    spoiled = file.read_bytes().replace(b"slot: 2s", b"slot: 2ms").replace(b"states:", b"sates:")
    with pytest.raises(UsageError) as refused:
        study.kind_of(file).read(spoiled, str(file))
    assert len(refused.value.problems) >= 2


def test_the_papers_node_gives_the_papers_table_and_its_calculation():
    result = besides()
    assert judge(result["table I"]).likeness is Likeness.SAME_ORDER
    assert judge(result["consolidation"]).likeness is Likeness.SAME_ORDER
    points = result["consolidation"].points
    assert points[Place("four nodes", "one load each")].value == pytest.approx(288, abs=2)
    assert points[Place("four nodes", "all on one, three off")].value == pytest.approx(137, abs=2)
    assert points[Place("four nodes", "all on one, three idle")].value == pytest.approx(260, abs=2)


def test_a_node_on_which_consolidation_does_not_pay_is_not_as_in_the_paper():
    assert judge(besides((10, 20, 60, 100, 140))["consolidation"]).likeness is not Likeness.SAME_ORDER


def test_a_guest_that_got_part_of_a_core_is_scaled_to_one():
    result = besides(with_guest=guest(52.5, 63.5, busy=0.5))["fig 7"]
    assert result.points[Place("guest", "1 core")].value == pytest.approx(74.5, abs=0.1)
    assert judge(result).likeness is Likeness.SAME_ORDER


def test_a_study_without_a_value_has_a_reason():
    with pytest.raises(TrialError, match="no value in any of the slots"):
        findings.block_points([])


def test_power_of_both_nodes_follows_a_guest_that_moves():
    times = range(41)
    activity = [
        Activity(time_ns=s * SECOND, cpus_s=(float(min(s, 20)), float(max(0, s - 20)))) for s in times
    ]  # the guest works on a up to second 20, and on b from then on
    move = Move(
        workload="busy", method="default", round=0, number=0, source="a", begin_ns=15 * SECOND, end_ns=20 * SECOND,
        outcome="completed",
    )  # fmt: skip
    section = findings.moving([move], activity, PAPER)
    assert section.rows == (
        ("busy", "source", "72.0 W", "72.0 W", "50.0 W"),
        ("busy", "destination", "50.0 W", "50.0 W", "72.0 W"),
    )
