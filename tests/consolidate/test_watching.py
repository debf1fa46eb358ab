"""What `watch` measures, records and reports, on clusters of files; and what a plan counts as saved."""

import pytest

from partywall.consolidate import connect, load
from partywall.consolidate.apply import Applying, StoppedError, Timing
from partywall.consolidate.practice import PracticeCluster
from partywall.consolidate.seams import Observed
from partywall.consolidate.seeing import Seeing
from partywall.consolidate.watch import Watching
from partywall.errors import UsageError
from partywall.events import silent
from partywall.host import Host
from partywall.kinds.consolidation import Consolidations, WatchJob, watched
from partywall.kinds.kind import Options
from partywall.model.consolidation import Acted, Seen
from partywall.model.finding import Outcome
from partywall.model.migration import Span
from partywall.placement import plan
from partywall.stats.consolidation import energy_j, findings
from partywall.store.consolidation import ConsolidationDirectory

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
    return load.loads(text.encode(), "cluster.yaml")


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
    job = WatchJob(cluster, every_s=1.0, for_s=3.0, out=tmp_path / "runs")
    assert watched(job, Options(Host.here()), silent, Timing(settle_s=1.0, look_s=0.01))
    (path,) = (tmp_path / "runs").glob("watch-*")
    evidence = ConsolidationDirectory.open(path).evidence()
    assert evidence.ended
    assert len(evidence.seen) >= 3
    assert set(evidence.seen[0].places) == {"web", "mail"}
    assert evidence.seen[0].watts["a"] == pytest.approx(86)
    assert findings(evidence).headline.endswith("modelled")


def test_a_watch_cannot_be_continued(cluster, tmp_path):
    kept = record(cluster, tmp_path, looks([10.0, 10.0]))
    with pytest.raises(UsageError, match="cannot be continued: what was not watched is gone"):
        Consolidations().resume(kept, Options(Host.here()), silent)


def test_a_dry_watch_leaves_no_record(cluster, tmp_path):
    job = WatchJob(cluster, every_s=1.0, for_s=1.0, dry_run=True, out=tmp_path / "runs")
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
    made = ConsolidationDirectory.create(tmp_path / "watch", "watch", cluster, {}, {"started_at": "today"})
    for each in seen:
        made.add_seen(each)
    for each in acted:
        made.add_acted(each)
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


def test_a_missed_goal_or_an_undone_plan_violates(cluster, tmp_path):
    acted = Acted(at_s=1, ended_s=2, done=True, record="x", steps=("move web from a to b", "switch a off"), net_j=NET)
    kept = record(cluster, tmp_path / "1", looks([10.0, 10.0]), [acted])
    found = Consolidations().findings(kept)
    assert found.outcome is Outcome.HOLDS
    assert found.headline.startswith("1 plans with 1 moves and 1 switched hosts in 1 s; 2 of 2 hosts on")
    page = Consolidations().files().documents["html"][1](found)
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
