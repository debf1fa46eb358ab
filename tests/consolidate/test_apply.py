"""Plans that are carried out: on a cluster of files, with faults, and with managers that are killed at each step."""

import pytest

from partywall.consolidate import load
from partywall.consolidate.apply import Applying, StoppedError, Timing, as_observed
from partywall.consolidate.practice import LIES, PracticeCluster
from partywall.consolidate.seams import Observed
from partywall.errors import UsageError
from partywall.events import silent
from partywall.placement import plan
from partywall.placement.room import Room
from partywall.placement.state import z_of

QUICK = Timing(settle_s=0.3, moving_s=2.0, look_s=0.01)
CLUSTER = load.load(load.find("cluster"))
PLAN = plan.make(plan.known(CLUSTER), solver="heuristic")


class Lines:
    """A journal in memory, whose manager may be killed before or after its nth line."""

    def __init__(self, dies_at=None):
        self.entries, self.dies_at = [], dies_at

    def add_journal(self, entry):
        if self.dies_at is not None and len(self.entries) >= self.dies_at:
            raise KilledError
        self.entries.append(entry)


class KilledError(BaseException):
    pass


@pytest.fixture
def cluster(tmp_path):
    hosts = dict.fromkeys(CLUSTER.hosts, True)
    return PracticeCluster.create(
        tmp_path / "cluster", hosts, {name: spec.host for name, spec in CLUSTER.guests.items()}, move_s=0.01
    )


def applying(cluster, journal, entries=None):
    powers = {host: cluster.power(host) for host in CLUSTER.hosts}
    known = journal.entries if entries is None else entries
    return Applying(PLAN, cluster, powers, list(known), journal, silent, QUICK)


def places(cluster):
    return {guest: next(iter(hosts)) for guest, hosts in cluster.observe().places.items()}


def as_planned():
    at = {name: spec.host for name, spec in CLUSTER.guests.items()}
    return at | {step.guest: step.host for step in PLAN.moves}


def has_room(cluster):
    """Whether every state of the cluster kept CPUs, memory, promises, anti-affinity and goals."""
    for entry in cluster.log:
        guests = {name: spec.model_copy(update={"host": entry["at"][name]}) for name, spec in CLUSTER.guests.items()}
        what = plan.known(CLUSTER.model_copy(update={"guests": guests}))
        if Room(what.state, what.forecast, z_of(what.rules.overload_risk)).broken().any():
            return False
        if any(not entry["on"][host] for host in entry["at"].values()):
            return False
    return True


def test_a_plan_is_carried_out_and_its_hosts_are_off(cluster):
    journal = Lines()
    assert applying(cluster, journal).carry_out()
    assert places(cluster) == as_planned()
    asleep = {step.host for step in PLAN.steps if step.action == "sleep"}
    assert {host for host, up in cluster.observe().up.items() if not up} == asleep
    assert asleep
    assert has_room(cluster)


@pytest.mark.parametrize("line", range(2 * len(PLAN.steps)))
def test_a_manager_that_is_killed_at_any_line_of_its_journal_goes_on_later(cluster, line):
    killed = Lines(dies_at=line)
    with pytest.raises(KilledError):
        applying(cluster, killed).carry_out()
    later = Lines()
    later.entries = list(killed.entries)
    assert applying(cluster, later).carry_out()
    assert places(cluster) == as_planned()
    assert has_room(cluster)


@pytest.mark.parametrize("host", sorted({step.host for step in PLAN.moves}))
def test_a_destination_that_dies_costs_no_guest_that_was_not_on_it(cluster, host):
    # Only guests that were on the dead host are lost, and the manager says which.
    cluster.die_during_move_to(host)
    journal = Lines()
    before = places(cluster)
    with pytest.raises(StoppedError, match="runs on no host"):
        applying(cluster, journal).carry_out()
    for guest, hosts in cluster.observe().places.items():
        assert len(hosts) == 1 or host in (before[guest], as_planned()[guest])


def test_an_empty_destination_that_dies_leaves_everything_as_it_was(tmp_path):
    guests = {"g": "a"}
    cluster = PracticeCluster.create(tmp_path / "c", {"a": True, "b": True}, guests, move_s=0.01)
    step = PLAN.moves[0].model_copy(update={"number": 0, "batch": 1, "guest": "g", "source": "a", "host": "b"})
    small = PLAN.model_copy(update={"steps": (step,)})
    cluster.die_during_move_to("b")
    journal = Lines()
    powers = {host: cluster.power(host) for host in "ab"}
    assert not Applying(small, cluster, powers, [], journal, silent, QUICK).carry_out()
    assert places(cluster) == {"g": "a"}
    assert "failed" in journal.entries[1].reason


def test_a_host_that_is_said_to_be_off_but_answers_undoes_the_plan(cluster):
    host = next(step.host for step in PLAN.steps if step.action == "sleep")
    cluster.lie(host, LIES[0])
    journal = Lines()
    assert not applying(cluster, journal).carry_out()
    assert places(cluster) == {name: spec.host for name, spec in CLUSTER.guests.items()}
    (failed,) = [entry for entry in journal.entries if entry.outcome == "failed"]
    assert "off by its power control but still answers" in failed.reason
    assert has_room(cluster)


def test_a_manager_that_is_killed_while_it_undoes_goes_on_undoing(cluster):
    cluster.lie(next(step.host for step in PLAN.steps if step.action == "sleep"), LIES[0])
    whole = Lines()
    applying(cluster, whole).carry_out()
    first_undone = next(at for at, entry in enumerate(whole.entries) if entry.outcome == "undone")
    later = Lines()
    later.entries = whole.entries[: first_undone + 1]
    assert not applying(cluster, later).carry_out()
    assert places(cluster) == {name: spec.host for name, spec in CLUSTER.guests.items()}


def test_a_host_is_not_switched_off_while_a_guest_runs_on_it(cluster):
    sleep = next(step for step in PLAN.steps if step.action == "sleep")
    journal = Lines()
    only = PLAN.model_copy(update={"steps": (sleep,)})
    powers = {host: cluster.power(host) for host in CLUSTER.hosts}
    assert not Applying(only, cluster, powers, [], journal, silent, QUICK).carry_out()
    assert all(cluster.observe().up.values())
    assert "runs on it" in journal.entries[1].reason


def test_a_host_that_does_not_wake_gets_no_guests(cluster):
    cluster.switch("a", on=False)
    cluster.lie("a", LIES[1])
    wake = PLAN.steps[0].model_copy(update={"action": "wake", "host": "a", "guest": None})
    journal = Lines()
    powers = {host: cluster.power(host) for host in CLUSTER.hosts}
    only = PLAN.model_copy(update={"steps": (wake,)})
    with pytest.raises(StoppedError):
        # The guests of a were on it.
        Applying(only, cluster, powers, [], journal, silent, QUICK).carry_out()


def test_a_cluster_whose_guest_runs_twice_is_refused():
    up = dict.fromkeys(CLUSTER.hosts, True)
    seen = {name: frozenset([spec.host]) for name, spec in CLUSTER.guests.items()}
    assert as_observed(CLUSTER, Observed(seen, up)) == CLUSTER.model_copy(
        update={"hosts": {name: spec.model_copy(update={"state": "on"}) for name, spec in CLUSTER.hosts.items()}}
    )
    with pytest.raises(UsageError, match=r"db runs on a and b(.|\n)*mail runs on no host"):
        as_observed(CLUSTER, Observed(seen | {"db": frozenset("ab"), "mail": frozenset()}, up))
