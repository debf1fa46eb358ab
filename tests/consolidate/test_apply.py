"""Plans that are carried out: on a cluster of files, with faults, and with managers that are killed at each step."""

import contextlib
import threading

import pytest

from partywall.consolidate import check
from partywall.consolidate.measure.apply import Applying, StoppedError, Timing, as_observed
from partywall.consolidate.measure.practice import LIES, PracticeCluster
from partywall.consolidate.measure.seams import Observed
from partywall.consolidate.placement import plan
from partywall.consolidate.placement.room import Room
from partywall.consolidate.placement.state import z_of
from partywall.errors import TrialError, UsageError
from partywall.events import silent

QUICK = Timing(settle_s=0.3, moving_s=2.0, look_s=0.01)
CLUSTER = check.load(check.find("cluster"))
PLAN = plan.make(plan.known(CLUSTER), solver="heuristic")
AT = {name: spec.host for name, spec in CLUSTER.guests.items()}


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


class NoRequests(frozenset):
    """Hosts that were requested to switch off; never any."""

    def __or__(self, _):
        return self


@pytest.fixture
def cluster(tmp_path):
    hosts = dict.fromkeys(CLUSTER.hosts, True)
    return PracticeCluster.create(
        tmp_path / "cluster", hosts, {name: spec.host for name, spec in CLUSTER.guests.items()}, move_s=0.01
    )


def applying(cluster, journal, entries=None):
    powers = {host: cluster.power(host) for host in CLUSTER.hosts}
    known = journal.entries if entries is None else entries
    return Applying(PLAN, cluster, powers, list(known), journal, silent, QUICK, AT)


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


class Meeting(frozenset):
    """Hosts. Two threads that add one at the same time would both start from the same hosts."""

    both = threading.Barrier(2)

    def __or__(self, other):
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(0.2)
        return Meeting(super().__or__(other))


def test_no_host_is_forgotten_that_was_switched_off_at_the_same_time_as_another(cluster):
    applied = applying(cluster, Lines())
    applied._off = Meeting()
    first, second = sorted(CLUSTER.hosts)[:2]
    threads = [threading.Thread(target=applied._note, args=(host,), kwargs={"off": True}) for host in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert applied._off == {first, second}


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


def test_no_guest_returns_to_a_host_that_is_said_to_be_off_but_answers(cluster):
    # It may carry the request out later.
    host = next(step.host for step in PLAN.steps if step.action == "sleep")
    cluster.lie(host, LIES[0])
    journal = Lines()
    assert not applying(cluster, journal).carry_out()
    assert all(step.host != host for step in PLAN.moves)
    assert host not in places(cluster).values()
    (failed,) = [entry for entry in journal.entries if entry.outcome == "failed"]
    assert "off by its power control but still answers" in failed.reason
    assert has_room(cluster)


def test_a_manager_that_is_killed_while_it_undoes_goes_on_undoing(cluster):
    cluster.lie(next(step.host for step in PLAN.steps if step.action == "sleep"), LIES[0])
    whole = Lines()
    manager = applying(cluster, whole)
    # As if nothing had been sent, so that all is undone.
    manager._requested = NoRequests()
    manager.carry_out()
    first_undone = next(at for at, entry in enumerate(whole.entries) if entry.outcome == "undone")
    later = Lines()
    later.entries = whole.entries[: first_undone + 1]
    manager = applying(cluster, later)
    manager._requested = NoRequests()
    assert not manager.carry_out()
    assert places(cluster) == {name: spec.host for name, spec in CLUSTER.guests.items()}


def test_a_host_is_not_switched_off_while_a_guest_runs_on_it(cluster):
    sleep = next(step for step in PLAN.steps if step.action == "sleep")
    journal = Lines()
    only = PLAN.model_copy(update={"steps": (sleep,)})
    powers = {host: cluster.power(host) for host in CLUSTER.hosts}
    assert not Applying(only, cluster, powers, [], journal, silent, QUICK).carry_out()
    assert all(cluster.observe().up.values())
    assert "because it runs" in journal.entries[1].reason


class Beside:
    """A cluster on which a host has one more guest, which the cluster file does not name, or stops to answer."""

    def __init__(self, files, host, *, answers=True):
        self._files, self._host, self._answers = files, host, answers

    def active(self, host):
        return self._files.active(host) | ({"other"} if host == self._host else set())

    def observe(self):
        seen = self._files.observe()
        return Observed(seen.places, dict(seen.up) | ({} if self._answers else {self._host: False}))

    def __getattr__(self, name):
        return getattr(self._files, name)


@pytest.mark.parametrize(("answers", "said"), [(True, "because it runs other"), (False, "not known what runs on it")])
def test_a_host_with_a_guest_that_the_file_does_not_name_or_that_is_silent_is_not_switched_off(cluster, answers, said):
    sleep = next(step for step in PLAN.steps if step.action == "sleep")
    journal = Lines()
    beside = Beside(cluster, sleep.host, answers=answers)
    powers = {host: cluster.power(host) for host in CLUSTER.hosts}
    assert not Applying(PLAN, beside, powers, [], journal, silent, QUICK).carry_out()
    assert all(cluster.observe().up.values())
    assert said in next(entry.reason for entry in journal.entries if entry.outcome == "failed")


def test_a_host_to_which_a_guest_is_on_its_way_is_not_switched_off(tmp_path):
    cluster = PracticeCluster.create(tmp_path / "c", {"a": True, "b": True}, {"g": "a"}, move_s=5.0)
    with cluster._changed() as state:
        state["moves"]["g"] = {"to": "b", "ends": 2e9 * 2}
    sleep = next(step for step in PLAN.steps if step.action == "sleep")
    only = PLAN.model_copy(update={"steps": (sleep.model_copy(update={"number": 0, "host": "b"}),)})
    journal = Lines()
    powers = {host: cluster.power(host) for host in "ab"}
    assert not Applying(only, cluster, powers, [], journal, silent, QUICK).carry_out()
    assert "b is not switched off, because it runs g" in journal.entries[1].reason


def test_an_outdated_plan_is_not_continued_after_somebody_else_has_moved_a_guest(cluster):
    killed = Lines(dies_at=3)
    with pytest.raises(KilledError):
        applying(cluster, killed).carry_out()
    stays = next(name for name in AT if name not in {step.guest for step in PLAN.moves})
    other = next(host for host in CLUSTER.hosts if host != AT[stays])
    cluster.move(stays, AT[stays], other, 300)
    later = Lines()
    later.entries = list(killed.entries)
    before = places(cluster)
    with pytest.raises(StoppedError, match=f"guest {stays} is on {other}, where this plan has not put it"):
        applying(cluster, later).carry_out()
    assert places(cluster) == before


def test_nothing_before_a_step_that_cannot_be_undone_is_undone(cluster, monkeypatch):
    # Each state between two steps has room for all guests; one in which steps are left out may not.
    sleep = next(step for step in PLAN.steps if step.action == "sleep")
    last = next(step for step in reversed(PLAN.moves) if step.number < sleep.number)
    monkeypatch.setattr(Applying, "_sleep", lambda *_: (_ for _ in ()).throw(TrialError("no power")))
    move = PracticeCluster.move

    def never_back(self, guest, source, destination, limit_ms):
        if guest == last.guest and destination == last.source:
            raise TrialError("the link is down")
        move(self, guest, source, destination, limit_ms)

    monkeypatch.setattr(PracticeCluster, "move", never_back)
    journal = Lines()
    assert not applying(cluster, journal).carry_out()
    assert places(cluster)[last.guest] == last.host
    done = {entry.number for entry in journal.entries if entry.outcome == "done"}
    undone = {entry.number for entry in journal.entries if entry.outcome == "undone"}
    assert not {number for number in undone if number in done and number < last.number}
    assert has_room(cluster)


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


def test_a_host_with_a_guest_that_the_cluster_file_does_not_name_is_refused():
    up = dict.fromkeys(CLUSTER.hosts, True)
    seen = {name: frozenset([spec.host]) for name, spec in CLUSTER.guests.items()}
    with pytest.raises(UsageError, match="host a runs other, which the cluster file does not name"):
        as_observed(CLUSTER, Observed(seen, up, {"a": frozenset(["other"])}))
