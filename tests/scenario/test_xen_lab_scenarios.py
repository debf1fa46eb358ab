"""The parts of the Xen lab, which itself takes too long to run here: good scenarios that fit its guests."""

from __future__ import annotations

from pathlib import Path

import pytest

from partywall import pipeline
from partywall.plan import Topology
from partywall.plan import make as make_plan
from partywall.preflight import room
from partywall.scenario import loads

LAB = Path(__file__).parents[2] / "labs" / "xen"
URI = "xen+tcp://127.0.0.1:1/system"
TWO = Topology((0, 1), ((0, 1),))


@pytest.mark.parametrize("part", ["shares", "cache", "memory", "communication"])
def test_a_part_of_the_xen_lab_can_be_planned_and_fits_its_guests(part):
    text = (LAB / f"{part}.yaml").read_text().replace("@URI@", URI)
    plan = make_plan(loads(text, part), TWO, pipeline.catalogue(), elsewhere={URI: TWO})
    assert plan.trials
    assert not [problem for trial in plan.trials for problem in room.beyond_memory(trial, {})]
    assert plan.estimate_ns < 10 * 60 * 10**9
