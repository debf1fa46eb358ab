"""Energy of a migration: pure, from moves whose CPU time is known."""

import pytest

from partywall.migrate.document import Move, MoveFinding, Responses
from partywall.power import profiles
from partywall.power.findings.moving import energy

PAPER = profiles.PROFILES["cervera-dl120-g6"]
SECOND = 10**9


def moved(source_s, destination_s, *, work=None, users=False, outcome="completed"):
    """A move of ten seconds. work: the share of its work that the guest did meanwhile."""
    move = Move(
        workload="w", method="m", round=0, number=0, source="a", begin_ns=0, end_ns=10 * SECOND, outcome=outcome
    )
    values = {"source_cpu_s": source_s, "destination_cpu_s": destination_s}
    rates = {}
    if work is not None:
        values["work_ratio"], rates = work, {"before": 1.0, "during": work}
    return MoveFinding(
        move=move, values=values, work=rates, users={"before": Responses(sent=1, lost=0)} if users else {}
    )


def test_an_idle_guest_costs_the_cpu_time_of_both_sides():
    result = energy([moved(2.0, 1.0)], PAPER)[0]
    assert result.parts["source"].value == pytest.approx(2.0 * 22)
    assert result.parts["destination"].value == pytest.approx(1.0 * 22)
    assert result.parts["stretch"].value == 0
    assert result.total.value == pytest.approx(66)
    assert result.own_known


def test_work_that_the_guest_does_anyway_is_taken_off_and_lost_work_is_done_later():
    result = energy([moved(10.0, 0.0, work=0.8)], PAPER)[0]
    # 8 of the 10 s are its own, the rest goes beside a busy core; 2 s of work are left for later.
    assert result.parts["source"].value == pytest.approx(2.0 * 18)
    assert result.parts["stretch"].value == pytest.approx(2.0 * 22)


def test_the_interval_reaches_from_the_cheapest_to_the_dearest_core():
    result = energy([moved(2.0, 0.0)], PAPER)[0].parts["source"]
    assert (result.low, result.high) == pytest.approx((2.0 * 10, 2.0 * 22))


def test_a_guest_whose_own_work_is_unknown_has_an_upper_bound():
    result = energy([moved(9.0, 1.0, users=True)], PAPER)[0]
    assert not result.own_known
    assert result.parts["source"].low == 0


def test_moves_that_did_not_complete_are_left_out():
    assert energy([moved(2.0, 1.0, outcome="gave up")], PAPER) == ()
