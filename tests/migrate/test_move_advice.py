"""Which method is advised, for goals of two kinds, from predictions of one guest."""

import math

import numpy as np
import pytest

from partywall.migrate.document import Goal, Method
from partywall.migrate.findings.advice import advise
from partywall.migrate.findings.prediction import Curve, Facts, Fixed
from partywall.migrate.findings.response import Service

MIB = 1 << 20
DEFAULT = Method()
WINDOWS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.4)


def advised(goal, rate=10 * MIB, start_s=0.05, service=True, method=DEFAULT):
    changed = [min(rate * window, 64 * MIB) for window in WINDOWS]
    facts = Facts(
        256 * MIB, 100 * MIB, math.inf, curve=Curve(WINDOWS, np.array([changed])),
        service=Service((0.004,) * 10, 500.0) if service else None,
    )  # fmt: skip
    fixed = Fixed(
        (0.1, 0.12), (0.005,), (50 * MIB, 55 * MIB), (400 * MIB, 400 * MIB), (0.01, 0.02), (0.02, 0.03),
        start_s=(start_s, start_s * 1.1),
    )  # fmt: skip
    return advise("writer", {"own": method}, Goal(**goal), facts, {False: fixed}, 60.0, 1)


def test_the_fastest_method_that_reaches_the_goal_is_advised():
    wide, narrow = advised({"downtime": "2s"}), advised({"downtime": "200ms"})
    assert wide.reaches
    assert narrow.reaches
    assert wide.chosen.prediction.spans["total_s"].value < narrow.chosen.prediction.spans["total_s"].value
    assert narrow.chosen.prediction.spans["longest_s"].high <= 0.2
    assert "the goal of a wait of at most 200 ms" in narrow.text


def test_settings_are_changed_only_for_a_gain():
    """A quiet guest moves as fast by any limit, but for one second, whose wait is too long."""
    quiet = advised({"downtime": "450ms"}, rate=MIB / 64)
    assert quiet.chosen.method == DEFAULT


def test_of_other_methods_that_take_as_long_the_one_with_the_shortest_wait_is_advised():
    quiet = advised({"downtime": "450ms"}, rate=MIB / 64, method=Method(downtime="200ms"))
    waits = {each.name: each.prediction.spans["longest_s"].value for each in quiet.considered}
    assert quiet.chosen.name == min(waits, key=waits.get) == "downtime 30 ms"


def test_a_wait_at_the_start_counts_for_the_goal():
    late = advised({"downtime": "200ms"}, start_s=0.4)
    assert not late.reaches
    assert "no method is sure to reach the goal" in late.text


def test_a_goal_can_be_a_p99():
    found = advised({"p99": "250ms"})
    assert found.reaches
    assert found.chosen.prediction.spans["p99_s"].high <= 0.25
    assert "a p99 of at most 250 ms" in found.text
    assert "its p99 response is" in found.text
    both = advised({"p99": "150ms", "downtime": "1ms"})
    assert not both.reaches
    assert "a wait of at most 1 ms and a p99 of at most 150 ms" in both.text


def test_a_p99_that_cannot_be_predicted_is_not_promised():
    assert not advised({"p99": "10s"}, service=False).reaches


@pytest.mark.parametrize("goal", [{}, {"downtime": "300ms"}])
def test_a_guest_that_changes_more_than_the_link_carries_has_no_method(goal):
    none = advised(goal, rate=200 * MIB)
    assert none.chosen is None
    assert "no pre-copy is likely to end" in none.text


def test_a_guest_whose_move_may_not_end_gets_the_likeliest_method():
    doubtful = advised({}, rate=44 * MIB)
    chances = {each.name: each.prediction.chance for each in doubtful.considered}
    assert 0.5 < chances[doubtful.chosen.name] == max(chances.values()) < 0.95
    assert f"ends within 1 min with a chance of {100 * max(chances.values()):.0f} %" in doubtful.text
