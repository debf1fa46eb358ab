"""Plans: feasible step by step, with figures that add up, and bound to the state they were made for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partywall.consolidate import check
from partywall.consolidate.placement import costs, exact, plan
from partywall.consolidate.placement.interference import between, factors, losses
from partywall.consolidate.placement.room import Room
from partywall.consolidate.placement.state import z_of
from tests.consolidate.placement.clusters import cluster, known


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_every_step_of_a_plan_leaves_every_host_with_room(seed):
    what = known(seed)
    made = plan.make(what, solver="heuristic")
    hosts, guests = what.state.hosts, what.state.guests
    room = Room(what.state, what.forecast, z_of(what.rules.overload_risk))
    before = room.broken()
    for batch in sorted({step.batch for step in made.moves}):
        own = [step for step in made.moves if step.batch == batch]
        assert len(own) <= what.cluster.limits.moves_at_once
        for step in own:
            guest, host = guests.names.index(step.guest), hosts.names.index(step.host)
            # Guests that leave in the same batch still need their memory.
            leaving = sum(guests.memory[guests.names.index(each.guest)] for each in own if each.source == step.host)
            arrived = room.memory[host] + guests.memory[guest]
            assert arrived <= hosts.memory[host] + 1 or leaving == 0
            assert not guests.pinned[guest]
            room.move(guest, host)
        assert not (room.broken() & ~before).any()
    for step in made.steps:
        if step.action == "sleep":
            assert not (room.at == hosts.names.index(step.host)).any()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_what_a_plan_saves_is_what_it_saves_less_what_it_spends(seed):
    made = plan.make(known(seed), solver="heuristic")
    for end in ("value", "low", "high"):
        assert made.net_j.low <= getattr(made.net_j, end) <= made.net_j.high
    assert made.net_j.value == pytest.approx(made.saved_j.value - made.moves_j.value - made.switching_j.value)
    assert made.net_j.value >= -1e-6
    assert made.moves_j.low <= made.moves_j.value <= made.moves_j.high


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_the_exact_solver_keeps_all_limits_and_is_never_worse_than_the_heuristic(seed):
    pytest.importorskip("ortools")
    what = known(seed, hosts=5, guests=10)
    rough = plan.make(what, solver="heuristic")
    best = plan.make(what, solver="exact")
    assert best.solver.objective_j <= rough.solver.objective_j + 1e-6
    assert best.solver.bound_j <= best.solver.objective_j * (1 + 1e-6)
    at = what.state.at.copy()
    for step in best.moves:
        at[what.state.guests.names.index(step.guest)] = what.state.hosts.names.index(step.host)
    assert not Room(replace(what.state, at=at), what.forecast, z_of(what.rules.overload_risk)).broken().any()
    # The solver rounds demand up to thousandths of a core; its energy is that of the placement.
    solution = exact.solve(what.state, what.forecast, what.rules, 5.0, at)
    ours = exact.objective_j(what.state, what.forecast, what.rules, solution.at)
    assert solution.objective_j == pytest.approx(ours, rel=0.01)


def test_a_changed_state_has_another_digest():
    what = known(1)
    first = plan.digest(what.cluster, what.state)
    assert plan.digest(what.cluster, what.state) == first
    moved = what.state.at.copy()
    moved[0] = (moved[0] + 1) % len(what.state.hosts)
    assert plan.digest(what.cluster, replace(what.state, at=moved)) != first
    assert plan.digest(cluster(1, moves_at_once=1), what.state) != first


def test_the_shipped_cluster_has_a_plan_that_saves():
    made = plan.make(plan.known(check.load(check.find("cluster"))), solver="heuristic")
    assert made.net_j.low > 0
    assert made.hosts_on_after < made.hosts_on_before


def test_a_guest_whose_blackout_would_break_its_goal_stays():
    content = cluster(2).model_dump(mode="json", exclude_unset=True)
    for spec in content["guests"].values():
        spec["slo"] = {"downtime": "50ms"}
    what = plan.known(type(cluster(2)).model_validate(content))
    assert what.state.guests.pinned.all()
    made = plan.make(what, solver="heuristic")
    assert not made.moves
    assert any("breaks its goal" in note for note in made.notes)


def test_a_move_of_a_guest_with_a_goal_uses_a_downtime_limit_that_keeps_it():
    content = cluster(2).model_dump(mode="json", exclude_unset=True)
    for spec in content["guests"].values():
        spec["slo"] = {"downtime": "200ms"}
        spec["pinned"] = False
    changed = type(cluster(2)).model_validate(content)
    for cost in costs.moves(changed):
        assert cost.limit_ms == 100
        assert cost.blackout_s.high <= 0.2


def test_a_move_costs_the_cpu_that_was_measured_with_a_narrower_interval():
    content = cluster(2).model_dump(mode="json", exclude_unset=True)
    made = type(cluster(2)).model_validate
    assumed = costs.moves(made(content))[0].energy_j
    same, half = (
        costs.moves(made(content | {"link": {"source_cores": 1.0 * share, "destination_cores": 0.5 * share}}))[
            0
        ].energy_j
        for share in (1.0, 0.5)
    )
    assert same.value == pytest.approx(assumed.value)
    assert half.value == pytest.approx(assumed.value / 2)
    assert assumed.low < same.low < same.value < same.high < assumed.high


def test_memory_that_changes_faster_than_the_link_carries_does_not_converge():
    content = cluster(2).model_dump(mode="json", exclude_unset=True)
    content["link"] = {"rate": "100Mbit/s"}
    content["guests"]["g0"] |= {"dirty_rate": "50MB/s", "working_set": "1GiB"}
    assert not costs.moves(type(cluster(2)).model_validate(content))[0].converges


def test_losses_add_up_over_neighbours_and_use_the_lower_end_of_the_interval():
    what = check.load(check.find("cluster"))
    loss, use = factors(list(what.guests.values()))
    harm = between(loss, use)
    names = list(what.guests)
    db, build, backup = (names.index(name) for name in ("db", "build", "backup"))
    # (1 − 0.7)·0.5 of memory bandwidth and (1 − 0.55)·0.4 of the disk.
    assert harm[db, build] == pytest.approx(0.3 * 0.5 + 0.45 * 0.4)
    at = np.zeros(len(names), np.int64)
    assert losses(loss, use, at)[db] == pytest.approx(harm[db].sum())
    assert harm[db, backup] == pytest.approx(0.45 * 0.3)


def test_a_blackout_shows_in_the_p99_if_it_is_longer_than_a_hundredth_of_the_window():
    spec = check.load(check.find("cluster")).guests["web-1"]
    assert costs.p99_s(spec, blackout_s=0.3, loss=0.0) == pytest.approx(0.04)
    assert costs.p99_s(spec, blackout_s=4.0, loss=0.0) == pytest.approx(1.0)
    assert costs.p99_s(spec, blackout_s=0.3, loss=0.5) == pytest.approx(0.08)
