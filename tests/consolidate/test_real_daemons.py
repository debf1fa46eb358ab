"""The manager on real libvirt daemons: guests move, hosts lose their power, and daemons die amid a move."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from partywall.consolidate import check
from partywall.consolidate.capability import Consolidations
from partywall.consolidate.job import PlanJob, WatchJob
from partywall.consolidate.measure import connect
from partywall.consolidate.measure.apply import Applying, StoppedError, Timing
from partywall.consolidate.measure.managing import watched
from partywall.consolidate.measure.planning import applied
from partywall.consolidate.record import ConsolidationDirectory
from partywall.consolidate.values import Step
from partywall.core.capability import Options
from partywall.errors import CapabilityError
from partywall.events import silent
from partywall.host import Host
from partywall.testing import libvirt

LACKING = libvirt.lacking()
pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(bool(LACKING), reason=f"a libvirtd needs: {LACKING}"),
]
HOSTS = ("a", "b", "c")
TIMING = Timing(settle_s=60.0, look_s=0.1)


class Boards:
    """The power control of hosts by commands: a file for each host that is on. It follows what they say."""

    def __init__(self, hosts, folder):
        self.hosts, self.folder = hosts, folder
        folder.mkdir()
        for name in hosts.names:
            (folder / name).touch()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def control(self, name):
        file = self.folder / name
        return f"{{kind: command, 'on': [touch, {file}], 'off': [rm, {file}], state: [test, -e, {file}]}}"

    def stop(self):
        self._ended.set()
        self._thread.join()

    def _run(self):
        while not self._ended.wait(0.1):
            for name in self.hosts.names:
                if (self.folder / name).exists():
                    self.hosts.switch_on(name)
                else:
                    self.hosts.switch_off(name)


@pytest.fixture
def hosts(tmp_path):
    with libvirt.Hosts(tmp_path, HOSTS) as made:
        yield made


@pytest.fixture
def slow_hosts(tmp_path):
    """A move takes some seconds, so that something can happen meanwhile."""
    with libvirt.Hosts(tmp_path, HOSTS, rate="4mbit") as made:
        yield made


@pytest.fixture
def cluster(hosts, tmp_path):
    boards = Boards(hosts, tmp_path / "boards")
    yield described(hosts, {"web": "a", "mail": "b"}, boards.control)
    boards.stop()


def described(hosts, guests, control=lambda _: "{kind: command, 'on': ['true'], 'off': ['true'], state: ['true']}"):
    """Starts the guests, and describes the cluster. They have the little memory of `libvirt.FIRMWARE`."""
    import libvirt as library  # noqa: PLC0415 - not everywhere

    for guest, host in guests.items():
        connection = library.open(hosts.uri(host))
        connection.createXML(libvirt.FIRMWARE.format(name=guest, devices=""), 0)
        connection.close()
    text = "partywall_cluster: 1\nname: three\nhypervisor: libvirt\nlimits: {hold: 1s, horizon: 24h}\nhosts:\n"
    text += "".join(
        f"  {name}: {{cpus: 4, memory: 1GiB, power: hp-ml110-g4, uri: '{hosts.uri(name)}', control: {control(name)}}}\n"
        for name in HOSTS
    )
    text += "guests:\n" + "".join(f"  {guest}: {{memory: 48MiB, demand: 0.2, peak: 0.4}}\n" for guest in guests)
    return check.loads(text.encode(), "cluster.yaml")


def places(cluster):
    return {guest: set(hosts) for guest, hosts in connect.hypervisor_of(cluster).observe().places.items()}


def moving(cluster, guest, source, destination, timing=TIMING):
    """A plan of one move, while it is carried out; its journal, and what it ended with."""
    step = Step(number=0, batch=1, action="move", host=destination, guest=guest, source=source, limit_ms=300)
    journal, ended = [], []

    class Lines:
        def add_journal(self, entry):
            journal.append(entry)

    class Plan:
        steps = moves = (step,)

    def carry():
        try:
            ended.append(Applying(Plan, connect.hypervisor_of(cluster), {}, [], Lines(), silent, timing).carry_out())
        except StoppedError as error:
            ended.append(error)

    thread = threading.Thread(target=carry)
    thread.start()
    hypervisor = connect.hypervisor_of(cluster)
    deadline = time.monotonic() + 60
    while not hypervisor.is_moving(guest):
        assert thread.is_alive(), (journal, ended)
        assert time.monotonic() < deadline
    return thread, journal, ended


def kill_daemon(hosts, name):
    """Ends the libvirtd of a host, and not its guests."""
    pid = (hosts.daemons[name].folder / "pid").read_text()
    # It is a process number of the host's own.
    inside = ("nsenter", "--target", str(child(hosts.daemons[name].process.pid)), "--pid", "--mount")
    subprocess.run([*inside, "kill", f"-{signal.SIGKILL.value}", pid.strip()], check=True)


def start_daemon(hosts, name):
    folder = hosts.daemons[name].folder
    inside = ("nsenter", "--target", str(child(hosts.daemons[name].process.pid)), "--all")
    for left in ("pid", "libvirt-sock"):
        (folder / left).unlink(missing_ok=True)
    subprocess.run([*inside, "libvirtd", "-d", "-f", f"{folder}/libvirtd.conf", "-p", f"{folder}/pid"], check=True)


def child(pid):
    """The first process of a host: the only child of the one that made its namespaces."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_a_plan_empties_two_hosts_and_switches_them_off(cluster, hosts, tmp_path):
    record = Consolidations().begin(PlanJob(cluster=cluster), Options(Host.here(), out=tmp_path / "plan"), silent)
    plan = record.evidence().plan
    asleep = {step.host for step in plan.steps if step.action == "sleep"}
    assert len(asleep) == 2
    assert applied(record, silent, TIMING)
    (left,) = set(HOSTS) - asleep
    assert places(cluster) == {"web": {left}, "mail": {left}}
    assert set(hosts.daemons) == {left}
    assert {entry.outcome for entry in record.evidence().journal} == {"begun", "done"}


def test_watching_empties_hosts_and_leaves_a_record_of_what_it_saw(cluster, tmp_path):
    job = WatchJob(cluster=cluster, every_s=1.0, for_s=40.0, out=tmp_path / "runs")
    assert watched(job, Options(Host.here()), silent, TIMING)
    (path,) = (tmp_path / "runs").glob("watch-*")
    evidence = ConsolidationDirectory.open(path).evidence()
    assert len(evidence.seen[0].on) == 3
    assert len(evidence.seen[-1].on) == 1
    assert all(each.done for each in evidence.acted)
    assert sum(title.startswith("switch ") for each in evidence.acted for title in each.steps) == 2
    assert set(evidence.seen[-1].places.values()) == set(evidence.seen[-1].on)
    findings = Consolidations().findings(ConsolidationDirectory.open(path))
    assert "1 to 3 of 3 hosts on" in findings.headline
    assert "What was seen" in Consolidations().files().documents["html"][1](findings)


def test_a_guest_that_is_not_where_it_is_said_to_be_is_not_moved(hosts):
    hypervisor = connect.hypervisor_of(described(hosts, {"web": "a"}))
    hypervisor.move("web", "a", "b", 300)
    assert hypervisor.observe().places["web"] == frozenset({"b"})
    with pytest.raises(CapabilityError, match="does not run on"):
        hypervisor.move("web", "a", "b", 300)


def test_a_destination_that_loses_its_power_during_a_move_leaves_the_guest_where_it_was(slow_hosts):
    cluster = described(slow_hosts, {"web": "a"})
    thread, journal, ended = moving(cluster, "web", "a", "b")
    slow_hosts.switch_off("b")
    thread.join(120)
    assert ended == [False], (journal, ended)
    assert [entry.outcome for entry in journal] == ["begun", "failed", "undone"]
    assert places(cluster) == {"web": {"a"}}


def test_the_source_s_daemon_dies_during_a_move_and_the_manager_waits_until_it_is_back(slow_hosts):
    cluster = described(slow_hosts, {"web": "a"})
    thread, journal, ended = moving(cluster, "web", "a", "b")
    kill_daemon(slow_hosts, "a")
    time.sleep(2)
    start_daemon(slow_hosts, "a")
    thread.join(120)
    # The move is lost, the guest is not: the daemon cancels what it finds unfinished.
    assert ended == [False], (journal, ended)
    assert places(cluster) == {"web": {"a"}}


def test_a_guest_whose_daemon_stays_away_is_not_called_lost_without_a_remedy(slow_hosts):
    cluster = described(slow_hosts, {"web": "a"})
    thread, _, ended = moving(cluster, "web", "a", "b", Timing(settle_s=2.0, look_s=0.1))
    kill_daemon(slow_hosts, "a")
    thread.join(120)
    (error,) = ended
    assert "runs on no host that answers, and a does not answer; start it only if it does not run there" in str(error)
