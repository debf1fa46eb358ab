"""The parts of the Xen lab, which itself takes too long to run here: good scenarios that fit its guests."""

from __future__ import annotations

from pathlib import Path

import pytest

from labs.xen.lab import VITS
from labs.xen.machine import DOM0_MIB, MEMORY_MIB
from partywall.agent.catalogue import shipped
from partywall.run.check import loads
from partywall.run.plan import Topology, room
from partywall.run.plan import make as make_plan
from partywall.study import papers
from partywall.study.document import StudyRequest
from partywall.study.isolation import Isolation
from partywall.testing import fake_host

LAB = Path(__file__).parents[3] / "labs" / "xen"
URI = "xen+tcp://127.0.0.1:1/system"
TWO = Topology((0, 1), ((0, 1),))


def fits(scenario):
    plan = make_plan(scenario, TWO, shipped(), elsewhere={URI: TWO})
    assert plan.trials
    assert not [problem for trial in plan.trials for problem in room.beyond_memory(trial, {})]
    assert plan.estimate_ns < 10 * 60 * 10**9
    return plan


def text(name):
    return (LAB / f"{name}.yaml").read_text().replace("@URI@", URI)


def test_the_shares_of_the_xen_lab_can_be_planned_and_fit_its_guests():
    fits(loads(text("shares"), "shares"))


def test_the_papers_small_guests_can_be_planned_and_fit_the_lab():
    for trial in fits(loads(text("small"), "small")).trials:
        assert {(box.machine, box.memory, box.vcpus) for box in trial.sandboxes} == {(URI, 128 << 20, 1)}


@pytest.mark.parametrize("part", VITS)
def test_a_part_of_vits_can_be_planned_on_the_papers_guests_and_fits_the_lab(part):
    study = Isolation().read(text("vits").encode(), "vits.yaml")
    scenarios = Isolation().scenarios(study, StudyRequest(parts=(f"{part}*",)), fake_host())
    assert scenarios
    for scenario in scenarios:
        for trial in fits(scenario).trials:
            assert {(box.machine, box.memory, box.vcpus) for box in trial.sandboxes} == {(URI, 256 << 20, 2)}
            # And a null guest.
            assert (len(trial.sandboxes) + 1) * (256 << 20) < (MEMORY_MIB - DOM0_MIB - 256) << 20


def test_every_figure_of_the_labs_study_has_the_papers_series():
    study = Isolation().read(text("vits").encode(), "vits.yaml")
    paper = papers.load(study.paper)
    for name, places in Isolation().places(study, StudyRequest(), fake_host()).items():
        (shown,) = [each for each in paper.exhibits if each.id == name]
        named = {place for claim in shown.claims for place in (claim.left, claim.than)} | set(shown.values)
        assert places
        assert {place.series for place in places} <= {place.series for place in named}
