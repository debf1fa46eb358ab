"""The policy: what it never does, whatever the cluster."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partywall.consolidate.placement.exact import objective_j
from partywall.consolidate.placement.improve import improved
from partywall.consolidate.placement.policy import Rules, after, decide
from partywall.consolidate.placement.room import Room
from partywall.consolidate.placement.state import OFF, ON, Forecast, z_of
from tests.consolidate.placement.clusters import known

SEEDS = st.integers(0, 10_000)


def broken(state, forecast, risk=0.01):
    return Room(state, forecast, z_of(risk)).broken()


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_no_host_that_had_room_is_overfilled_and_no_goal_is_broken(seed):
    what = known(seed)
    decided = after(what.state, decide(what.state, what.forecast, what.rules))
    assert not (broken(decided, what.forecast) & ~broken(what.state, what.forecast)).any()


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_only_empty_hosts_are_switched_off_and_guests_are_on_hosts_that_are_on(seed):
    what = known(seed)
    decided = after(what.state, decide(what.state, what.forecast, what.rules))
    assert (decided.status[decided.at] == ON).all()
    assert (decided.status != OFF).sum() >= what.rules.keep_on


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_pinned_guests_stay_and_guests_kept_apart_stay_apart(seed):
    what = known(seed)
    decided = after(what.state, decide(what.state, what.forecast, what.rules))
    pinned = what.state.guests.pinned
    assert (decided.at[pinned] == what.state.at[pinned]).all()
    for group in what.state.guests.group.T:
        assert len(set(decided.at[group])) == group.sum()


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_second_decision_in_the_same_state_changes_nothing_within_the_hold_time(seed):
    what = known(seed)
    state = after(what.state, decide(what.state, what.forecast, what.rules))
    again = decide(state, what.forecast, what.rules)
    relieved = {move.source for move in again.moves}
    # Only hosts that are still likely to be overloaded may change.
    assert not again.sleep
    assert relieved <= set(np.flatnonzero(broken(state, what.forecast, what.rules.relief_risk)))


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.floats(0.0, 1.0))
def test_a_longer_hold_time_never_means_more_switching(seed, share):
    what = known(seed)
    rules = replace(what.rules, hold_s=1800.0)
    state = replace(
        what.state,
        status_s=np.full(len(what.state.hosts), 3600.0 * share),
        moved_s=np.full(len(what.state.guests), 3600.0 * share),
    )
    short = decide(state, what.forecast, rules)
    long = decide(state, what.forecast, replace(rules, hold_s=7200.0))
    assert len(long.sleep) <= len(short.sleep)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.floats(0, 142))
def test_no_host_is_woken_or_switched_off_before_its_break_even_time(seed, seconds):
    what = known(seed)
    state = replace(what.state, status_s=np.full(len(what.state.hosts), seconds))
    hot = Forecast(what.state.guests.cpus * 1.0, what.forecast.variance)
    for forecast in (what.forecast, hot):
        decisions = decide(state, forecast, replace(what.rules, hold_s=0.0))
        early = state.status_s < state.hosts.break_even_s
        assert not any(early[host] for host in (*decisions.wake, *decisions.sleep))


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_the_heuristic_takes_no_more_energy_than_leaving_everything_or_first_fit(seed):
    what = known(seed)
    start = after(what.state, decide(what.state, what.forecast, what.rules)).at
    result = improved(what.state, what.forecast, what.rules, start)

    def energy(at):
        return objective_j(what.state, what.forecast, what.rules, at)

    assert energy(result) <= energy(start) + 1e-6
    first = first_fit(what)
    if first is not None and not broken(what.state, what.forecast).any():
        assert energy(result) <= energy(first) + 1e-6


def first_fit(what):
    """Guests one after the other, each on the first host with room."""
    room = Room(what.state, what.forecast, z_of(what.rules.overload_risk))
    for guest in np.flatnonzero(~what.state.guests.pinned):
        hosts = np.arange(len(what.state.hosts))
        others = hosts[hosts != room.at[guest]]
        fitting = [host for host in others if host < room.at[guest] and room.fits(int(guest), np.array([host]))[0]]
        if fitting:
            room.move(int(guest), int(fitting[0]))
    return room.at


def test_demand_that_may_exceed_the_cpus_is_moved_away_and_a_host_woken_for_it():
    what = known(3, hosts=3, guests=6)
    at = np.zeros(6, np.int64)
    status = np.array([ON, OFF, OFF])
    guests = replace(
        what.state.guests,
        pinned=np.zeros(6, bool),
        group=np.zeros((6, 0), bool),
        use=np.zeros((6, 1)),
        promise=np.zeros(6),
    )
    state = replace(what.state, at=at, status=status, guests=guests)
    hot = Forecast(np.full(6, 1.5), np.full(6, 0.01))
    decisions = decide(state, hot, what.rules)
    assert decisions.wake
    assert decisions.moves
    assert not broken(after(state, decisions), hot, what.rules.relief_risk).any()


def test_a_saving_that_does_not_pay_for_the_boot_is_not_made():
    what = known(5, hosts=4, guests=8)
    assert decide(what.state, what.forecast, replace(what.rules, horizon_s=7200)).sleep
    assert not decide(what.state, what.forecast, replace(what.rules, horizon_s=60)).sleep


def test_hosts_are_not_emptied_outside_the_permitted_hours():
    what = known(5, hosts=4, guests=8)
    assert not decide(what.state, what.forecast, Rules(may_empty=False)).moves


@pytest.mark.parametrize("seed", range(5))
def test_the_room_that_is_kept_while_guests_move_equals_a_room_made_afterwards(seed):
    what = known(seed)
    chance = np.random.default_rng(seed)
    room = Room(what.state, what.forecast, 2.0)
    for _ in range(30):
        room.move(int(chance.integers(len(what.state.guests))), int(chance.integers(len(what.state.hosts))))
    fresh = Room(replace(what.state, at=room.at), what.forecast, 2.0)
    for name in ("mean", "variance", "memory", "promise", "groups", "used"):
        assert getattr(room, name) == pytest.approx(getattr(fresh, name), abs=1e-6)
    assert (room.broken() == fresh.broken()).all()
