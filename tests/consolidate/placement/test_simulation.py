"""The simulation: guests are conserved, energy adds up, and published policies do what their description says."""

import tarfile

import numpy as np
import pytest

from partywall.consolidate.document import Cluster
from partywall.consolidate.measure.simulating import Simulating, simulated, unplaced
from partywall.consolidate.placement import traces
from partywall.consolidate.placement.bound import least_energy_j
from partywall.consolidate.placement.policies import POLICIES, beloglazov
from partywall.consolidate.placement.policy import Decisions, MoveTo, Rules
from partywall.consolidate.placement.simulate import first_placement, simulate
from partywall.consolidate.placement.state import OFF, guests_of, hosts_of
from partywall.errors import UsageError


def cluster(hosts=12, guests=30):
    return Cluster.model_validate(
        {
            "partywall_cluster": 1,
            "name": "x",
            "hosts": {"h": {"count": hosts, "cpus": 4, "memory": "32GiB", "power": "cervera-dl120-g6"}},
            "guests": {"g": {"count": guests, "cpus": 1, "memory": "1GiB"}},
        }
    )


def day(policy, hosts=12, guests=30, seed=1):
    content = cluster(hosts, guests)
    machines, own = hosts_of(content), guests_of(content)
    state = first_placement(unplaced(machines, own))
    demand = traces.generated(guests, seed) * own.cpus[:, None]
    return state, demand, simulate(policy, state, demand, 300.0)


class Recording:
    """A policy that decides like another and checks the state that it gets."""

    name = "recording"

    def __init__(self, policy):
        self.policy, self.states, self.histories = policy, [], []

    def decide(self, state, history):
        self.states.append(state)
        self.histories.append(history)
        return self.policy.decide(state, history)


@pytest.mark.parametrize("name", POLICIES)
def test_guests_are_conserved_and_run_on_hosts_that_are_on(name):
    seen = Recording(POLICIES[name](Rules()))
    day(seen)
    for state in seen.states:
        assert len(state.at) == 30
        assert (state.status[state.at] != OFF).all()
        assert (state.sums(state.guests.memory) <= state.hosts.memory).all()


def test_a_policy_never_sees_the_load_that_it_decides_for():
    seen = Recording(POLICIES["static"](Rules()))
    _, demand, _ = day(seen)
    for place, history in enumerate(seen.histories, start=1):
        assert (history[:, -1] == demand[:, place - 1]).all()


def test_without_moves_the_energy_is_that_of_the_power_curve():
    state, demand, result = day(POLICIES["static"](Rules()))
    on = state.status != OFF
    watts = [np.where(on, state.hosts.power(state.sums(load)), state.hosts.off_w).sum() for load in demand.T]
    assert result.energy_kwh == pytest.approx(sum(watts) * 300 / 3.6e6)
    assert result.moves == result.boots == 0
    assert result.pdm == 0


class Once:
    """Moves everything from the last used host once, and switches it off."""

    name = "once"

    def __init__(self, back=False):
        self.done, self.back = 0, back

    def decide(self, state, _history):
        self.done += 1
        if self.done == 1:
            self.source = int(state.at.max())
            self.guests = np.flatnonzero(state.at == self.source)
            moves = [MoveTo(int(g), self.source, 0, "") for g in self.guests]
            return Decisions(moves=tuple(moves), sleep=(self.source,))
        if self.done == 3 and self.back:
            moves = [MoveTo(int(g), 0, self.source, "") for g in self.guests]
            return Decisions(moves=tuple(moves), wake=(self.source,))
        return Decisions()


def test_moves_boots_and_returns_are_counted():
    _, _, result = day(Once(back=True))
    assert result.boots == 1
    assert result.moves == 2 * result.ping_pongs > 0
    assert result.short_cycles == 0
    assert result.pdm > 0


def test_switching_a_host_off_saves_its_idle_power_less_the_shutdown():
    state, demand, still = day(POLICIES["static"](Rules()))
    once = simulate(Once(), state, demand, 300.0)
    assert still.energy_kwh > once.energy_kwh
    # At most one host was off for a day.
    assert still.energy_kwh - once.energy_kwh < 0.110 * 24


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_takes_less_than_the_bound(name):
    state, demand, result = day(POLICIES[name](Rules()))
    assert result.energy_kwh >= least_energy_j(state.hosts, state.guests, demand, 300.0) / 3.6e6 * (1 - 1e-9)


def test_the_bound_is_reached_when_demand_fits_exactly():
    content = cluster(hosts=2, guests=4)
    machines, own = hosts_of(content), guests_of(content)
    demand = np.ones((4, 1))
    best = float(machines.power(np.array([4.0, 0.0]))[0] + machines.off_w[1])
    assert least_energy_j(machines, own, demand, 1.0) == pytest.approx(best)


def test_local_regression_extends_a_line():
    weights = beloglazov._regression(10)
    assert weights @ (3.0 + 0.5 * np.arange(10)) == pytest.approx(3.0 + 0.5 * 10)


def test_the_adaptive_threshold_falls_with_the_spread():
    state, demand, _ = day(POLICIES["static"](Rules()))
    calm, noisy = demand * 0 + 0.1, demand
    assert (beloglazov.mad(state, calm[:, :40]).limit == state.hosts.cpus).all()
    used = np.unique(state.at)
    assert (beloglazov.mad(state, noisy[:, :40]).limit[used] < state.hosts.cpus[used]).any()
    few = beloglazov.mad(state, noisy[:, :5])
    assert few.limit == pytest.approx(0.7 * state.hosts.cpus)


def test_the_same_seed_gives_the_same_day():
    assert (traces.generated(5, 3) == traces.generated(5, 3)).all()
    assert (traces.generated(5, 3) != traces.generated(5, 4)).any()
    quiet, busy = (traces.generated(2000, 1)[:, hours].mean() for hours in (slice(12, 60), slice(150, 190)))
    assert busy > 1.3 * quiet


def test_a_trace_is_read_from_a_folder_and_from_an_archive(tmp_path):
    folder = tmp_path / "day"
    folder.mkdir()
    (folder / "vm-1").write_text("10\n20\n30\n")
    (folder / "vm-2").write_text("0\n100\n50\n")
    with tarfile.open(tmp_path / "day.tar.gz", "w:gz") as archive:
        archive.add(folder, "day")
    assert traces.read(folder).tolist() == [[0.1, 0.2, 0.3], [0.0, 1.0, 0.5]]
    assert traces.read(tmp_path / "day.tar.gz").tolist() == traces.read(folder).tolist()


def test_traces_of_other_systems_are_read(tmp_path):
    """A byte-order mark, files that macOS puts beside others, a value that was rounded up."""
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf10\r\n20\r\n")
    (tmp_path / "b").write_text("100.0000001\n7")
    (tmp_path / "._a").write_bytes(b"\0\5\26\7")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    with tarfile.open(tmp_path.parent / "odd.tar", "w") as archive:
        archive.add(tmp_path, "day")
    assert traces.read(tmp_path).tolist() == [[0.1, 0.2], [1.0, 0.07]]
    assert traces.read(tmp_path.parent / "odd.tar").tolist() == [[0.1, 0.2], [1.0, 0.07]]


def test_a_folder_of_days_and_a_value_that_is_just_too_large_say_what_is_wrong(tmp_path):
    (tmp_path / "20110303").mkdir()
    with pytest.raises(UsageError, match=r"holds no traces, but 1 folder — give one day: .*/20110303"):
        traces.read(tmp_path)
    (tmp_path / "a").write_text("100.2\n7")
    with pytest.raises(UsageError, match=r"line 1 is 100\.2, not between 0 and 100"):
        traces.read(tmp_path)


def test_mistakes_in_traces_are_reported_at_once(tmp_path):
    folder = tmp_path / "day"
    folder.mkdir()
    (folder / "a").write_text("10\nx\n")
    (folder / "b").write_text("10\n130\n")
    (folder / "c").write_text("10\n")
    with pytest.raises(UsageError) as raised:
        traces.read(folder)
    texts = [str(problem) for problem in raised.value.problems]
    assert len(texts) == 3
    assert "line 2 is 'x'" in texts[0]
    assert "130, not between 0 and 100" in texts[1]


def test_every_order_and_day_is_simulated():
    days = tuple((f"day {number}", traces.generated(30, number)) for number in range(2))
    job = Simulating(cluster(), days, ("partywall", "static"), orders=2, seed=1)
    outcome = list(simulated(job, lambda _: None))
    assert [(each.trace, each.order) for each in outcome] == [("day 0", 0), ("day 0", 1), ("day 1", 0), ("day 1", 1)]
    assert len({each.results[1].energy_kwh for each in outcome}) == 4
