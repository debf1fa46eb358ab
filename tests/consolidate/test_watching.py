"""What `watch` measures, records and reports, on clusters of files; and what a plan counts as saved."""

import pytest

from partywall.consolidate import check
from partywall.consolidate.capability import Consolidations
from partywall.consolidate.findings import energy_j, findings
from partywall.consolidate.job import WatchJob
from partywall.consolidate.measure import connect
from partywall.consolidate.measure.apply import Applying, StoppedError, Timing
from partywall.consolidate.measure.managing import Manager, watched
from partywall.consolidate.measure.practice import PracticeCluster
from partywall.consolidate.measure.seams import Observed
from partywall.consolidate.measure.seeing import Seeing
from partywall.consolidate.measure.watch import Watching
from partywall.consolidate.placement import plan
from partywall.consolidate.record import ConsolidationDirectory
from partywall.consolidate.report import solver_text
from partywall.consolidate.values import Acted, Seen, Solver
from partywall.core.capability import Options
from partywall.core.stats.estimate import Outcome, Span
from partywall.errors import TrialError, UsageError
from partywall.events import Note, silent
from partywall.host import Host
from partywall.power.meters import make
from partywall.testing.power import Rapl

TEXT = """partywall_cluster: 1
name: small
hypervisor: practice
folder: {folder}
hosts:
  a: {{cpus: 2, memory: 4GiB, power: hp-ml110-g4}}
  b: {{cpus: 2, memory: 4GiB, power: hp-ml110-g4{more}}}
guests:
  web: {{host: a, memory: 1GiB, demand: 0.2, peak: 0.4, p99: 40ms, slo: {{p99: 100ms}}}}
  mail: {{host: b, memory: 1GiB, demand: 0.2, peak: 0.4}}
limits: {{hold: 1s, horizon: {horizon}}}
"""
NET = Span(value=1.0, low=0.5, high=1.5)


def small(tmp_path, more="", horizon="2h"):
    text = TEXT.format(folder=tmp_path / "cluster", more=more, horizon=horizon)
    return check.loads(text.encode(), "cluster.yaml")


@pytest.fixture
def cluster(tmp_path):
    return small(tmp_path)


def test_a_guest_that_has_moved_counts_as_before_its_move(cluster):
    files, now = connect.hypervisor_of(cluster), [0.0]
    watching = Watching(cluster, files, clock=lambda: now[0])
    watching.look()

    def look(web_s):
        now[0] += 10
        files.use("web", web_s)
        files.use("mail", 1.0)
        return watching.look().demand

    assert look(2.0)["web"] == pytest.approx(0.2)
    files.move("web", "a", "b", 300)
    # Its new host counts from its arrival, and the move itself took time: neither is its demand.
    assert look(9.0)["web"] == pytest.approx(0.2)
    assert look(3.0)["web"] == pytest.approx(0.3)


def test_a_guest_that_moved_before_it_was_ever_measured_counts_as_fully_busy(cluster):
    files, now = connect.hypervisor_of(cluster), [0.0]
    watching = Watching(cluster, files, clock=lambda: now[0])
    watching.look()
    files.move("web", "a", "b", 300)
    now[0] += 10
    assert watching.look().demand["web"] == 1.0


@pytest.mark.parametrize("horizon", ["10min", "2h"])
def test_a_host_saves_from_when_its_last_guest_has_left(tmp_path, horizon):
    cluster = small(tmp_path, horizon=horizon)
    made = plan.make(plan.known(cluster), solver="heuristic")
    (move,) = made.moves
    saved_w = made.before_w.value - made.after_w.value
    assert move.time_s.value > 1
    assert made.saved_j.value == pytest.approx(saved_w * (made.horizon_s - move.time_s.value))


def test_a_host_is_not_emptied_if_moves_take_longer_than_the_saving_lasts(tmp_path):
    cluster = small(tmp_path, horizon="10min")
    slow = cluster.model_copy(update={"link": cluster.link.model_copy(update={"rate": 20_000_000})})
    made = plan.make(plan.known(slow), solver="heuristic")
    assert plan.make(plan.known(cluster), solver="heuristic").moves
    assert not made.moves
    assert made.net_j.value >= 0


def test_a_watch_records_hosts_guests_demand_and_modelled_watts(cluster, tmp_path):
    # Ends after its first look. What is recorded at the start and at the end does not depend on the time.
    job = WatchJob(cluster=cluster, every_s=1.0, for_s=0.5, out=tmp_path / "runs")
    assert watched(job, Options(Host.here()), silent, Timing(settle_s=1.0, look_s=0.01))
    (path,) = (tmp_path / "runs").glob("watch-*")
    evidence = ConsolidationDirectory.open(path).evidence()
    assert evidence.ended
    assert len(evidence.seen) >= 2
    assert set(evidence.seen[0].places) == {"web", "mail"}
    assert evidence.seen[0].watts["a"] == pytest.approx(86)
    assert set(evidence.seen[-1].demand) == {"web", "mail"}
    assert findings(evidence).headline.endswith("modelled")


def test_a_watch_cannot_be_continued(cluster, tmp_path):
    kept = record(cluster, tmp_path, looks([10.0, 10.0]))
    with pytest.raises(UsageError, match="cannot be continued: what was not watched is gone"):
        Consolidations().resume(kept, Options(Host.here()), silent)


def test_a_dry_watch_leaves_no_record(cluster, tmp_path):
    job = WatchJob(cluster=cluster, every_s=1.0, for_s=1.0, dry_run=True, out=tmp_path / "runs")
    assert watched(job, Options(Host.here()), silent)
    assert not (tmp_path / "runs").exists()


def test_a_meter_that_does_not_answer_leaves_a_gap_and_a_wrong_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_METER_PASSWORD", "secret")
    cluster = small(tmp_path, ", meter: 'redfish://admin@127.0.0.1:1/Chassis/1?tls=off'")
    with Seeing(cluster, connect.hypervisor_of(cluster), Host.here(), lambda _: None, 60.0) as seeing:
        seen = seeing.look()
    assert seen.watts["b"] is None
    assert seen.watts["a"] == pytest.approx(86)
    with pytest.raises(UsageError, match=r"cluster.yaml:7: hosts.b.meter: .*redfish"):
        small(tmp_path, ", meter: 'redfsh://x'")


@pytest.mark.parametrize(
    ("meter", "watts_are"),
    [("simulated", "simulated"), ("replay:x.csv", "simulated"), ("redfish://bmc/Chassis/1", "modelled")],
)
def test_watts_of_a_meter_in_software_are_never_metered(tmp_path, meter, watts_are):
    cluster = small(tmp_path, f", meter: '{meter}'")
    kept = record(cluster, tmp_path, looks([10.0, 10.0]))
    assert kept.evidence().watts_are == watts_are


def record(cluster, tmp_path, seen, acted=()):
    made = ConsolidationDirectory.create(tmp_path / "watch", WatchJob(cluster=cluster, every_s=1.0), {})
    for each in seen:
        made.stream.append(each)
    for each in acted:
        made.stream.append(each)
    return ConsolidationDirectory.open(tmp_path / "watch")


def looks(watts, p99_s=0.05):
    places = {"web": "a", "mail": "b"}
    return [
        Seen(at_s=at, on=("a", "b"), places=places, watts={"a": each, "b": 10.0}, p99_s={"web": p99_s})
        for at, each in enumerate(watts)
    ]


def test_energy_is_the_area_below_the_watts_and_unknown_without_two_readings():
    assert energy_j(looks([10.0, 20.0, 20.0])) == pytest.approx(15 + 20 + 2 * 10)
    assert energy_j(looks([10.0, None, 20.0])) == pytest.approx(30 + 2 * 10)
    assert energy_j(looks([None, None, 20.0])) is None
    assert energy_j([]) is None


def test_energy_of_times_in_which_a_meter_was_dead_is_not_made_up(cluster, tmp_path):
    dead = looks([10.0] * 5 + [None] * 10)
    assert energy_j(dead) == pytest.approx(4 * 10.0 + 14 * 10.0)
    holed = looks([10.0] * 5 + [None] * 10 + [30.0] * 5)
    assert energy_j(holed) == pytest.approx(4 * 10.0 + 4 * 30.0 + 19 * 10.0)
    found = findings(record(cluster, tmp_path / "1", holed).evidence())
    assert found.notes == ("a: its watts are not known for 11 s, whose energy is not included",)
    assert "(without times that are not known)" in found.headline
    whole = findings(record(cluster, tmp_path / "2", looks([10.0, None, 20.0])).evidence())
    assert whole.notes == ()
    never = findings(record(cluster, tmp_path / "3", looks([None, None])).evidence())
    assert "Wh" not in never.headline
    assert never.notes == ("a: its watts are not known for 1 s, whose energy is not included",)


def test_a_meter_that_counts_joules_gives_watts(tmp_path, monkeypatch):
    monkeypatch.setattr("partywall.power.meters.base.LEAST_MEAN_S", 0.01)
    server = Rapl(tmp_path / "host")
    server.begin()
    cluster = small(tmp_path, ", meter: rapl")
    reads = iter(range(100))
    read = type(make("rapl", server.host)).read

    def counting(meter):
        server.count(0.5 * next(reads))
        return read(meter).model_copy(update={"time_ns": 10**8 * next(reads)})

    monkeypatch.setattr("partywall.power.meters.rapl.Rapl.read", counting)
    with Seeing(cluster, connect.hypervisor_of(cluster), server.host, lambda _: None, 60.0) as seeing:
        assert seeing.look().watts["b"] == pytest.approx(5.0, rel=0.01)


def test_a_missed_goal_or_an_undone_plan_violates(cluster, tmp_path):
    acted = Acted(at_s=1, ended_s=2, done=True, record="x", steps=("move web from a to b", "switch a off"), net_j=NET)
    kept = record(cluster, tmp_path / "1", looks([10.0, 10.0]), [acted])
    result = Consolidations().findings(kept)
    assert result.outcome is Outcome.HOLDS
    assert result.headline.startswith("1 plans with 1 moves and 1 switched hosts in 1 s; 2 of 2 hosts on")
    page = Consolidations().files().documents["html"][1](result)
    assert "switch a off" in page
    assert "watts modelled" in page
    slow = Consolidations().findings(record(cluster, tmp_path / "2", looks([10.0, 10.0], p99_s=0.2)))
    assert slow.outcome is Outcome.VIOLATED
    assert any(note.startswith("web: p99 of up to 200 ms") for note in slow.notes)
    undone = acted.model_copy(update={"done": False})
    assert Consolidations().findings(record(cluster, tmp_path / "3", looks([1.0, 1.0]), [undone])).outcome is (
        Outcome.VIOLATED
    )


class Silent:
    """A hypervisor one of whose hosts does not answer at first. back: after so many looks; None: never."""

    def __init__(self, files, host, back):
        self._files, self._host, self._left = files, host, back

    def observe(self):
        seen = self._files.observe()
        if self._left is not None and self._left <= 0:
            return seen
        self._left = None if self._left is None else self._left - 1
        places = {guest: hosts - {self._host} for guest, hosts in seen.places.items()}
        return Observed(places, dict(seen.up) | {self._host: False})

    def __getattr__(self, name):
        return getattr(self._files, name)


def test_a_host_that_does_not_answer_is_left_alone_until_it_does(cluster):
    files, now = connect.hypervisor_of(cluster), [0.0]
    flaky = Silent(files, "b", back=0)
    watching = Watching(cluster, flaky, clock=lambda: now[0])

    def look():
        now[0] += 100
        return watching.look()

    look()
    assert look().plan.moves
    flaky._left = 2
    for _ in range(2):
        silent_look = look()
        assert silent_look.unknown == ("b",)
        assert set(silent_look.cluster.hosts) == {"a"}
        assert set(silent_look.cluster.guests) == {"web"}
        assert silent_look.plan is None
    back = look()
    assert back.unknown == ()
    assert set(back.demand) == {"web", "mail"}
    assert look().plan.moves


def test_a_host_is_known_to_be_off_if_its_power_control_says_so_or_the_watch_switched_it_off(cluster):
    files, now, says_off = connect.hypervisor_of(cluster), [0.0], set()
    files.move("mail", "b", "a", 300)
    watching = Watching(cluster, files, clock=lambda: now[0], is_off=lambda host: host in says_off)
    assert watching.look().unknown == ()
    files.switch("b", on=False)
    now[0] += 100
    assert watching.look().unknown == ("b",)
    says_off.add("b")
    look = watching.look()
    assert look.unknown == ()
    assert look.cluster.hosts["b"].state == "off"


def test_a_host_that_a_watch_switches_off_is_off_at_its_next_look(cluster, tmp_path):
    files, said = connect.hypervisor_of(cluster), []
    job = WatchJob(cluster=cluster, every_s=0.05, for_s=1.5, out=tmp_path / "runs")
    assert watched(job, Options(Host.here()), said.append, Timing(settle_s=5.0, look_s=0.01))
    assert sum(files.observe().up.values()) == 1
    assert not [event for event in said if isinstance(event, Note) and event.is_warning]


class Failing:
    """A hypervisor that fails at some looks, counted from 1."""

    def __init__(self, files, looks):
        self._files, self._looks, self._count = files, looks, 0

    def observe(self):
        self._count += 1
        if self._count in self._looks:
            raise TrialError("libvirt on b does not answer: connection reset")
        return self._files.observe()

    def __getattr__(self, name):
        return getattr(self._files, name)


def test_a_watch_goes_on_after_a_passing_fault_and_notes_it(cluster, monkeypatch):
    flaky, said = Failing(connect.hypervisor_of(cluster), {1, 3, 4, 6}), []
    monkeypatch.setattr(connect, "hypervisor_of", lambda _: flaky)
    assert watched(WatchJob(cluster=cluster, every_s=0.02, for_s=0.5, dry_run=True), Options(Host.here()), said.append)
    notes = [event.text for event in said if isinstance(event, Note) and "came to nothing" in event.text]
    numbers = [note.partition(")")[0].partition("(")[2] for note in notes]
    assert numbers == ["1 of 5", "1 of 5", "2 of 5", "1 of 5"]
    assert "connection reset" in notes[0]


def test_a_watch_ends_by_name_after_a_stated_number_of_fruitless_looks(cluster, monkeypatch):
    flaky = Failing(connect.hypervisor_of(cluster), range(2, 100))
    monkeypatch.setattr(connect, "hypervisor_of", lambda _: flaky)
    with pytest.raises(TrialError, match="5 looks in a row came to nothing; the last: libvirt on b does not answer"):
        watched(WatchJob(cluster=cluster, every_s=0.02, dry_run=True), Options(Host.here()), silent)
    assert flaky._count == 6


def test_a_guest_that_does_not_run_is_told_at_once(cluster):
    files = connect.hypervisor_of(cluster)
    files.switch("b", on=False)
    with pytest.raises(UsageError, match="guest mail runs on no host that answers"):
        watched(WatchJob(cluster=cluster, every_s=0.02, dry_run=True), Options(Host.here()), silent)


def test_what_was_added_to_the_cluster_file_after_its_practice_folder_was_made_is_named(cluster, tmp_path):
    connect.hypervisor_of(cluster)
    more = TEXT.replace("guests:", "  c: {{cpus: 2, memory: 4GiB, power: hp-ml110-g4}}\nguests:\n  new: {{host: a}}")
    text = more.format(folder=tmp_path / "cluster", more="", horizon="2h")
    added = check.loads(text.encode(), "cluster.yaml")
    with pytest.raises(UsageError) as refused:
        connect.observed(added)
    assert [each.message.partition(" is")[0] for each in refused.value.problems] == ["host c", "guest new"]
    assert "is made again" in str(refused.value)


def test_a_guest_of_a_practice_folder_that_the_cluster_file_no_longer_names_is_told(cluster):
    connect.hypervisor_of(cluster)
    fewer = cluster.model_copy(update={"guests": {"web": cluster.guests["web"]}})
    with pytest.raises(UsageError, match="host b runs mail, which the cluster file does not name"):
        connect.observed(fewer)


def test_a_placement_that_takes_no_power_has_no_gap():
    assert Solver(name="exact", objective_j=0.0, bound_j=0.0).gap == 0.0
    assert Solver(name="exact", objective_j=2.0, bound_j=0.0).gap is None
    assert Solver(name="exact", objective_j=3.0, bound_j=2.0).gap == 0.5
    assert Solver(name="heuristic", objective_j=3.0).gap is None


def test_a_cluster_whose_idle_hosts_take_no_power_is_planned(tmp_path):
    text = TEXT.format(folder=tmp_path / "cluster", more="", horizon="2h").replace("hp-ml110-g4", "free")
    boot = "boot: {time: 1s, energy: 0J}, shutdown: {time: 1s, energy: 0J}"
    cluster = check.loads((text + f"power: {{free: {{watts: [0, 10], {boot}}}}}\n").encode(), "cluster.yaml")
    idle = {name: spec.model_copy(update={"demand": 0.0, "peak": 0.0}) for name, spec in cluster.guests.items()}
    made = plan.make(plan.known(cluster.model_copy(update={"guests": idle})), solver="exact")
    assert solver_text(made)


def applying(cluster, hypervisor, settle_s):
    files = PracticeCluster(hypervisor.folder)
    made = plan.make(plan.known(cluster), solver="heuristic")
    lines = type("Lines", (), {"add_journal": lambda *_: None})()
    powers = {host: files.power(host) for host in cluster.hosts}
    timing = Timing(settle_s=settle_s, moving_s=2.0, look_s=0.01)
    return Applying(made, hypervisor, powers, [], lines, silent, timing)


def test_a_host_that_stops_to_answer_for_a_while_is_waited_for(cluster):
    files = connect.hypervisor_of(cluster)
    plan_of = applying(cluster, files, settle_s=5.0)
    plan_of._off = frozenset()
    plan_of._hypervisor = Silent(files, "a", back=3)
    assert plan_of._at("web") == "a"


def test_a_guest_on_a_host_that_stays_silent_is_named_with_it(cluster):
    files = connect.hypervisor_of(cluster)
    plan_of = applying(cluster, files, settle_s=0.05)
    plan_of._hypervisor = Silent(files, "a", back=None)
    with pytest.raises(StoppedError, match="web runs on no host that answers, and a does not answer; start it only if"):
        plan_of._at("web")


def test_a_look_that_cannot_be_kept_is_told_and_ends_nothing(cluster):
    """A full disk ended the thread, and the record ended early without a note."""
    taken, notes = [], []

    def take(seen):
        taken.append(seen)
        if len(taken) == 1:
            raise OSError(28, "No space left on device")

    hypervisor = connect.hypervisor_of(cluster)
    with Seeing(cluster, hypervisor, Host.here(), take, 60.0) as seeing:
        assert "No space left" in repr(seeing.failed)
        watch = Manager(
            WatchJob(cluster=cluster, every_s=60.0, dry_run=True),
            hypervisor,
            Options(Host.here()),
            notes.append,
            None,
            None,
        )
        watch._keeping = (seeing, None)
        watch._tell_failed()
        watch._tell_failed()
    assert [note.text for note in notes] == [f"the record lacks looks at the cluster: {seeing.failed!r}"]
    assert len(taken) == 2
