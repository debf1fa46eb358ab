"""The contract of engines: the same faults, against each of them, and against a hostile network."""

from __future__ import annotations

import json
import os
import platform
import random
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partywall.errors import CapabilityError, UsageError
from partywall.fleet.engines import dask as dask_engine
from partywall.fleet.engines import engine as engines
from partywall.fleet.engines import kubernetes as kubernetes_engine
from partywall.fleet.engines.dask import Dask, carried
from partywall.fleet.engines.engine import Engine, Unreachable
from partywall.fleet.engines.kubernetes import Kubernetes, manifest
from partywall.fleet.engines.local import Local
from partywall.fleet.engines.slurm import Job, Slurm
from partywall.fleet.engines.ssh import Ssh, options
from partywall.fleet.inventory import Place
from partywall.fleet.job import RunJob
from partywall.fleet.ledger.granting import Order
from partywall.fleet.ledger.lease import Book, Phase, State
from partywall.fleet.ledger.look import Look
from partywall.fleet.record import Home
from partywall.host.label import start_ticks
from partywall.sandbox import measuring
from partywall.testing.engines import Hostile
from tests import kubernetes_cluster, slurm_cluster, ssh_server

SOURCE = Path(__file__).parents[2] / "src"
# `partywall test-sleep SECONDS EXIT` prints a line, sleeps and ends. It stands for a run, which takes longer to start.
# `partywall test-restores FILE` writes a file a moment after SIGTERM, as a run that restores its host.
SLEEP = """
import os, signal, sys, time
def restore(*_):
    time.sleep(1)
    open(sys.orig_argv[5], "w").close()
    os._exit(143)
if sys.orig_argv[1:5] == ["-P", "-m", "partywall", "test-restores"]:
    signal.signal(signal.SIGTERM, restore)
    time.sleep(60)
if sys.orig_argv[1:5] == ["-P", "-m", "partywall", "test-sleep"]:
    print("a line", file=sys.stderr, flush=True)
    time.sleep(float(sys.orig_argv[5]))
    os._exit(int(sys.orig_argv[6]))
"""


class World:
    """An engine with one host. ask: repeats a call until it is answered, as a controller does."""

    def __init__(self, engine: Engine, ledger: Path, home: Path) -> None:
        self.engine, self.book, self.home = engine, Book(ledger), Home(home)

    def ask(self, call: Callable[[], State | Look]):
        for _ in range(100):
            try:
                return call()
            except Unreachable as error:
                if error.is_lasting:
                    raise
                # A job that is ending takes a moment.
                time.sleep(0.05)
        raise AssertionError("no call of 100 was answered")

    def ensure(self, order: Order, token: int = 1) -> State:
        return self.ask(lambda: self.engine.ensure("there", order, token))

    def stop(self, run: str = "a", token: int = 1) -> State:
        return self.ask(lambda: self.engine.stop("there", run, token))

    def state(self, run: str = "a") -> State:
        return self.ask(lambda: self.engine.state("there", run))

    def until(self, *phases: Phase, run: str = "a") -> State:
        deadline = time.monotonic() + 30
        while (state := self.state(run)).phase not in phases:
            assert time.monotonic() < deadline, state
            time.sleep(0.05)
        return state

    def began(self) -> list[tuple[str, int]]:
        lines = (self.book.root / "ledger.jsonl").read_text().splitlines()
        return [(each["run"], each["attempt"]) for each in map(json.loads, lines) if each["what"] == "began"]

    def come_home(self, run: str = "a") -> None:
        """Fetches until nothing is missing."""
        while since := self.home.since(self.state(run)):
            self.home.take(self.ask(lambda: self.engine.fetch("there", run, since)).chunks)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssh_server.SshServer]:
    if why := ssh_server.lacking():
        pytest.skip(why)
    server = ssh_server.SshServer(tmp_path_factory.mktemp("ssh"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.SlurmCluster]:
    if why := slurm_cluster.lacking():
        pytest.skip(why)
    cluster = slurm_cluster.SlurmCluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def workers() -> Iterator[str]:
    """The address of a scheduler with two workers, which are processes of their own."""
    distributed = pytest.importorskip("distributed", reason="distributed not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes_cluster.KubernetesCluster]:
    if why := kubernetes_cluster.lacking():
        pytest.skip(why)
    cluster = kubernetes_cluster.KubernetesCluster(tmp_path_factory.mktemp("kubernetes"))
    yield cluster
    cluster.stop()


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A host with a ledger of its own, on which `test-sleep` stands for a run."""
    (tmp_path / "sitecustomize.py").write_text(SLEEP)
    (tmp_path / "ledger").mkdir(mode=0o700)
    variables = {
        "partywall_ledger": str(tmp_path / "ledger"),
        "partywall_state": str(tmp_path / "state"),
        "partywall_path": f"{tmp_path}:{SOURCE}",
        "partywall_python": sys.executable,
    }
    monkeypatch.setenv("PARTYWALL_STATE", variables["partywall_state"])
    return Place("there", (), variables)


@pytest.fixture(params=["local", "ssh", "slurm", "kubernetes", "dask", "hostile"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    place = prepared(tmp_path, monkeypatch)
    if request.param == "ssh":
        monkeypatch.setenv("PARTYWALL_SSH", request.getfixturevalue("server").client)
        engine: Engine = Ssh([place])
    elif request.param == "slurm":
        monkeypatch.setenv("SLURM_CONF", str(request.getfixturevalue("cluster").configuration))
        engine = Slurm([place])
    elif request.param == "kubernetes":
        engine = in_pods(request.getfixturevalue("nodes"), place)
    elif request.param == "dask":
        engine = through(request.getfixturevalue("workers"), place)
    else:
        engine = Local([place])
    if request.param == "hostile":
        engine = Hostile(engine, random.Random(request.node.name))
    world = World(engine, tmp_path / "ledger", tmp_path / "home")
    yield world
    lease = world.book.lease()
    if lease is not None and lease.pid is not None and start_ticks(lease.pid) == lease.start_ticks:
        os.kill(lease.pid, signal.SIGKILL)
    if request.param == "slurm":
        request.getfixturevalue("cluster").cancel_all()
    if request.param == "kubernetes":
        request.getfixturevalue("nodes").remove_all()


def in_pods(nodes: kubernetes_cluster.KubernetesCluster, place: Place) -> Kubernetes:
    return Kubernetes([Place(place.name, (), {**place.variables, "kubernetes_args": nodes.arguments})])


def through(scheduler: str, place: Place) -> Dask:
    return Dask([Place(place.name, (), {**place.variables, "dask_scheduler": scheduler, "dask_carries": "local"})])


def order(seconds: float = 60, code: int = 0, *, run: str = "a", attempt: int = 1, term_s: float = 60) -> Order:
    return Order(run, ("test-sleep", str(seconds), str(code)), attempt, term_s, {"scenario.yaml": "the text\n"})


pytestmark = [pytest.mark.host, pytest.mark.long]


def test_nothing_is_known_of_a_run_before_it_is_ordered(world: World):
    assert world.state().phase is Phase.NONE


def test_an_attempt_that_is_ordered_many_times_begins_once(world: World):
    for _ in range(3):
        world.ensure(order())
    world.until(Phase.RUNNING)
    for _ in range(3):
        assert world.ensure(order()).phase is Phase.RUNNING
    assert world.began() == [("a", 1)]


def test_an_attempt_that_is_over_is_not_begun_again(world: World):
    world.ensure(order(0.1, 3))
    assert world.until(Phase.ENDED).exit == 3
    assert world.ensure(order(0.1, 3)).phase is Phase.ENDED
    assert world.began() == [("a", 1)]


def test_a_second_run_is_refused_by_name(world: World):
    world.ensure(order())
    refused = world.ensure(order(run="b"))
    assert refused.phase is Phase.REFUSED
    assert "run a holds this host" in refused.why


def test_an_older_token_neither_extends_nor_stops_a_run(world: World):
    world.ensure(order(), token=2)
    world.until(Phase.RUNNING)
    expires_ns = world.book.lease().expires_ns
    assert world.ensure(order(term_s=600), token=1).why == "a newer controller has taken over this run"
    assert world.stop(token=1).phase is Phase.REFUSED
    assert world.book.lease().expires_ns == expires_ns
    assert world.state().phase is Phase.RUNNING


def test_a_newer_controller_takes_over_and_extends_the_lease(world: World):
    world.ensure(order(term_s=30), token=1)
    world.until(Phase.RUNNING)
    assert world.ensure(order(term_s=600), token=2).left_s > 500
    assert world.began() == [("a", 1)]


def test_a_run_that_is_stopped_ends_and_keeps_what_it_said(world: World):
    world.ensure(order())
    world.until(Phase.RUNNING)
    while "output.txt" not in world.state().files or not world.state().files["output.txt"]:
        time.sleep(0.05)
    world.stop()
    assert world.until(Phase.STOPPED).why == "it was stopped"
    world.come_home()
    assert world.home.text("output.txt") == "a line\n"


def test_a_run_without_its_lease_ends_itself(world: World):
    world.ensure(order(term_s=4))
    world.until(Phase.RUNNING)
    # Nothing is asked meanwhile, because a late repetition would extend the lease.
    time.sleep(5)
    while world.state().phase is Phase.RUNNING and world.state().left_s > 0:
        time.sleep(1)
    assert world.until(Phase.LOST).why == "its lease expired"


def test_a_killed_keeper_is_seen_and_the_next_attempt_is_another_one(world: World):
    world.ensure(order())
    world.until(Phase.RUNNING)
    os.kill(world.book.lease().pid, signal.SIGKILL)
    world.until(Phase.DIED)
    assert world.ensure(order()).phase is Phase.DIED
    deadline = time.monotonic() + 20
    while world.ensure(order(0.1, attempt=2)).phase is Phase.REFUSED:
        assert time.monotonic() < deadline
    assert world.until(Phase.ENDED).attempt == 2
    assert world.began() == [("a", 1), ("a", 2)]


def test_no_attempt_is_left_out(world: World):
    assert world.ensure(order(attempt=3)).why == "attempt 1 comes before attempt 3"


def test_a_host_that_is_measured_by_others_is_refused(world: World):
    with measuring.measuring("'partywall run'", lambda _: None):
        assert "this host is being measured by 'partywall run'" in world.ensure(order()).why
    assert world.ensure(order()).phase.is_going


def test_a_damaged_lease_ends_its_run_and_hides_none(world: World):
    world.ensure(order())
    world.until(Phase.RUNNING)
    (world.book.root / "lease.json").write_text("{")
    assert world.until(Phase.LOST).why == "its lease was taken away"
    assert world.ensure(order()).phase is Phase.LOST


def test_a_host_whose_clock_is_days_ahead_keeps_and_loses_its_lease_like_others(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    if why := ssh_server.lacking():
        pytest.skip(why)
    place, server = (
        prepared(tmp_path, monkeypatch),
        ssh_server.SshServer(tmp_path_factory.mktemp("ahead"), ahead_s=300_000, alone=True),
    )
    monkeypatch.setenv("PARTYWALL_SSH", server.client)
    try:
        world = World(Ssh([place]), tmp_path / "ledger", tmp_path / "home")
        world.ensure(order(0.1))
        assert world.until(Phase.ENDED).exit == 0
        world.ensure(order(run="b", term_s=4))
        # By the wrong clock, it would be days.
        assert 0 < world.until(Phase.RUNNING, run="b").left_s < 60
        time.sleep(5)
        assert world.until(Phase.LOST, run="b").why == "its lease expired"
    finally:
        server.stop()


def test_files_come_home_once_and_whole(world: World):
    world.ensure(order(0.1))
    world.until(Phase.ENDED)
    world.come_home()
    world.come_home()
    there = world.book.folder("a")
    names = [file.name for file in there.iterdir() if file.stat().st_size]
    assert {"scenario.yaml", "output.txt", "exit-1"} <= set(names)
    for name in names:
        assert (world.home.folder / name).read_bytes() == (there / name).read_bytes()


def test_a_ledger_that_others_may_write_to_is_refused_with_the_remedy(world: World):
    world.book.root.chmod(0o777)
    with pytest.raises(Unreachable, match="may be written to by others; a ledger needs a private folder") as refused:
        world.ensure(order())
    assert "PARTYWALL_FLEET" in str(refused.value)


def test_a_host_without_python_says_so():
    engine = Local([Place("there", (), {"partywall_python": "/nowhere/python3"})])
    with pytest.raises(Unreachable, match="there: /nowhere/python3"):
        engine.ensure("there", order(), 1)


def test_a_host_with_an_old_python_says_so(tmp_path: Path):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 'Unknown option: -P' >&2\nexit 2\n")
    python.chmod(0o755)
    engine = Local([Place("there", (), {"partywall_python": str(python)})])
    with pytest.raises(Unreachable, match=r"there is older than 3\.11; set") as old:
        engine.ensure("there", order(), 1)
    assert old.value.is_lasting


def test_a_host_without_partywall_gets_it_brought_and_keeps_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Python with the packages of other projects alone: .pth files, by which ours is found, are not read.
    python = tmp_path / "python3"
    others = sysconfig.get_paths()["purelib"]
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{others}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    ledger = tmp_path / "ledger"
    place = Place("there", (), {"partywall_ledger": str(ledger), "partywall_python": str(python)})
    for _ in range(2):
        world = World(Local([place]), ledger, tmp_path / "home")
        world.ensure(Order("a", ("run", "--help")))
        assert world.until(Phase.ENDED).exit == 0
    world.come_home()
    assert "Usage: partywall run" in world.home.text("result.json")
    packages = list((ledger / "packages").iterdir())
    assert len(packages) == 1
    assert (packages[0] / "partywall" / "_bin" / "partywall-agent").exists()


def test_a_host_with_another_processor_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    engine = Local([Place("there", (), {"partywall_ledger": str(tmp_path / "ledger")})])
    with pytest.raises(Unreachable, match="there: its processor is x86_64, and this Partywall is for aarch64"):
        engine._bring(engine.hosts()[0])


@pytest.mark.parametrize(
    ("name", "says"),
    [("unknown-key", "its key is not known here"), ("refused", "it refused us"), ("closed", "it cannot be reached")],
)
def test_a_host_behind_ssh_that_cannot_be_reached_says_why(
    server: ssh_server.SshServer, monkeypatch: pytest.MonkeyPatch, name: str, says: str
):
    monkeypatch.setenv("PARTYWALL_SSH", server.client)
    with pytest.raises(Unreachable, match=f"{name}: {says}"):
        Ssh([Place(name)]).state(name, "a")


def test_variables_of_an_inventory_become_options_of_ssh():
    variables = {"ansible_port": "2222", "ansible_user": "me", "ansible_ssh_common_args": "-o ProxyJump=gate"}
    assert options(variables) == ["-o", "Port=2222", "-o", "User=me", "-o", "ProxyJump=gate"]


def test_jobs_are_known_by_their_comment_and_never_by_their_number():
    listing = """\
7|RUNNING|None|partywall run-1 there 2 5 abc
7|PENDING|Resources|somebody's own job
8|PENDING|Resources|partywall run-2 there 1 5 abd
9|PENDING|Priority|(null)
10|FAILED|NonZeroExitCode|partywall of | mine 1 2 3
"""
    first, second = Job.parsed(listing)
    assert (first.run, first.host, first.attempt, first.token, first.runs) == ("run-1", "there", 2, 5, True)
    assert (second.run, second.runs, second.waits, second.why) == ("run-2", False, True, "Resources")


@pytest.fixture
def slurm(
    cluster: slurm_cluster.SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[slurm_cluster.SlurmCluster, World]]:
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    yield cluster, World(Slurm([prepared(tmp_path, monkeypatch)]), tmp_path / "ledger", tmp_path / "home")
    cluster.cancel_all()


OTHER = "#!/bin/sh\nexec sleep 600\n"


def test_a_run_waits_in_the_queue_of_a_busy_node_and_begins_after_it(slurm):
    cluster, world = slurm
    other = cluster.run("sbatch", "--parsable", "--nodelist=there", "--output=/dev/null", script=OTHER)
    cluster.wait_for("squeue", "--noheader", f"--jobs={other}", "--format=%T", until="RUNNING")
    assert world.state().phase is Phase.NONE
    waiting = world.ensure(order())
    assert (waiting.phase, waiting.attempt) == (Phase.STARTING, 1)
    assert "waits (Resources)" in waiting.why
    assert world.ensure(order()).phase is Phase.STARTING
    assert len(cluster.run("squeue", "--noheader", "--name=partywall").splitlines()) == 1
    cluster.run("scancel", other)
    deadline = time.monotonic() + 60
    while (state := world.state()).left_s is None:
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    # Its job is there, and the ledger was not asked yet. So there is little left of what it may be asked for.
    assert (state.phase, state.attempt) == (Phase.STARTING, 1)
    assert state.left_s < 5
    world.ensure(order())
    world.until(Phase.RUNNING)
    assert world.began() == [("a", 1)]


def test_a_waiting_run_is_stopped_by_the_newest_controller_alone(slurm):
    cluster, world = slurm
    cluster.run("sbatch", "--nodelist=there", "--output=/dev/null", script=OTHER)
    world.ensure(order(), token=2)
    assert world.stop(token=1).why == "a newer controller has taken over this run"
    assert world.stop(token=2).phase is Phase.STOPPED
    assert cluster.run("squeue", "--noheader", "--name=partywall", "--states=PENDING") == ""


def test_a_cancelled_job_takes_its_run_along_and_says_so(slurm):
    cluster, world = slurm
    world.ensure(order())
    world.until(Phase.RUNNING)
    keeper = world.book.lease()
    cluster.run("scancel", "--name=partywall", "--full", "--signal=TERM")
    ended, deadline = world.until(Phase.DIED), time.monotonic() + 30
    while "Slurm ended its job" not in ended.why:
        # The run is over before its job is.
        assert time.monotonic() < deadline, ended.why
        ended = world.state()
    assert start_ticks(keeper.pid) != keeper.start_ticks
    assert not list(Path("/tmp").glob("partywall-job-*"))


def test_a_job_that_never_began_its_run_is_said_to_have_ended(slurm):
    cluster, world = slurm
    cluster.run("sbatch", "--nodelist=there", "--output=/dev/null", script=OTHER)
    world.ensure(order())
    cluster.run("scancel", "--name=partywall")
    cluster.run("scancel", "--me", "--state=RUNNING")
    cluster.wait_for("squeue", "--noheader", until="")
    assert "(CANCELLED)" in world.until(Phase.REFUSED).why


@pytest.fixture
def pods(
    nodes: kubernetes_cluster.KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[kubernetes_cluster.KubernetesCluster, World]]:
    engine = in_pods(nodes, prepared(tmp_path, monkeypatch))
    yield nodes, World(engine, tmp_path / "ledger", tmp_path / "home")
    nodes.remove_all()


def test_a_pod_that_kubernetes_starts_twice_begins_one_run(pods):
    nodes, world = pods
    nodes.starts = 2
    world.ensure(order())
    world.until(Phase.RUNNING)
    assert [pod.phase for pod in nodes.pods] == ["Running", "Running"]
    assert world.ensure(order()).phase is Phase.RUNNING
    assert world.began() == [("a", 1)]


def test_an_evicted_pod_lets_its_run_restore_the_node_and_the_next_attempt_has_another_pod(pods, tmp_path):
    nodes, world = pods
    world.ensure(Order("a", ("test-restores", str(tmp_path / "restored")), 1, 60, {}))
    world.until(Phase.RUNNING)
    time.sleep(1)
    nodes.evict()
    assert (tmp_path / "restored").exists()
    died = world.until(Phase.DIED)
    assert died.attempt == 1
    assert "Kubernetes ended a pod on its node (Evicted)" in died.why
    assert len(nodes.jobs) == 1
    world.ensure(order(0.1, attempt=2))
    assert world.until(Phase.ENDED).attempt == 2
    assert world.began() == [("a", 1), ("a", 2)]


def test_the_end_of_another_pod_on_the_node_does_not_end_a_run(pods):
    nodes, world = pods
    nodes.starts = 2
    world.ensure(order())
    world.until(Phase.RUNNING)
    (other,) = [pod for pod in nodes.pods if world.book.lease().pid not in pod.processes()]
    other.end()
    assert other.phase == "Succeeded"
    assert world.state().phase is Phase.RUNNING
    assert world.began() == [("a", 1)]


def test_the_reason_why_kubernetes_ended_a_pod_is_told(pods):
    nodes, world = pods
    nodes.starts = 2
    world.ensure(order())
    world.until(Phase.RUNNING)
    for pod in nodes.pods:
        if world.book.lease().pid in pod.processes():
            pod.end("Evicted", grace_s=0)
    assert "Kubernetes ended a pod on its node (Evicted)" in world.until(Phase.DIED).why


def test_an_api_that_does_not_answer_for_a_while_costs_no_run(pods):
    nodes, world = pods
    world.ensure(order())
    world.until(Phase.RUNNING)
    nodes.is_down = True
    time.sleep(kubernetes_engine.FRESH_S + 0.5)
    with pytest.raises(Unreachable, match="unable to handle the request") as down:
        world.engine.state("there", "a")
    assert not down.value.is_lasting
    nodes.is_down = False
    time.sleep(3)
    assert world.state().phase is Phase.RUNNING
    assert world.began() == [("a", 1)]


def test_a_node_that_cannot_get_the_image_says_so(pods):
    nodes, world = pods
    nodes.waits = "ErrImageNeverPull"
    with pytest.raises(Unreachable, match=r"cannot start \(ErrImageNeverPull\); set kubernetes_image") as refused:
        world.engine.state("there", "a")
    assert refused.value.is_lasting


def test_a_pod_that_is_on_its_way_is_waited_for(pods, monkeypatch):
    nodes, world = pods
    monkeypatch.setattr(kubernetes_engine, "BEGINS_S", 0.5)
    nodes.waits = "ContainerCreating"
    with pytest.raises(Unreachable, match=r"its pod waits \(ContainerCreating\); look at: kubectl .* job ") as waits:
        world.engine.state("there", "a")
    assert waits.value.within_s == kubernetes_engine.FETCHED_S


def test_a_cluster_without_the_node_says_so(pods):
    nodes, world = pods
    nodes.nodes.remove("there")
    try:
        with pytest.raises(Unreachable, match="the cluster has no node there; set kubernetes_node") as refused:
            world.engine.state("there", "a")
    finally:
        nodes.nodes.append("there")
    assert refused.value.is_lasting
    assert not nodes.jobs


def test_a_pod_that_nobody_asks_ends_itself(pods, monkeypatch):
    nodes, world = pods
    monkeypatch.setattr(kubernetes_engine, "HOLD_S", 3)
    world.engine = in_pods(nodes, world.engine.hosts()[0])
    assert world.state().phase is Phase.NONE
    deadline = time.monotonic() + 20
    while nodes.pods[0].phase == "Running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert nodes.pods[0].phase == "Succeeded"
    # The next request replaces what is left of it.
    assert world.state().phase is Phase.NONE
    assert "Running" in [pod.phase for pod in nodes.pods]


def test_a_job_of_another_image_is_replaced_if_its_pod_never_ran(pods):
    nodes, world = pods
    nodes.waits = "ErrImageNeverPull"
    with pytest.raises(Unreachable, match="cannot start"):
        world.engine.state("there", "a")
    nodes.waits = ""
    place = world.engine.hosts()[0]
    world.engine = Kubernetes([Place("there", (), {**place.variables, "kubernetes_image": "mine:2"})])
    assert world.state().phase is Phase.NONE
    (job,) = nodes.jobs.values()
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "mine:2"


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"refuses": "OutOfcpu"}, r"the node refused its pod \(OutOfcpu\)"),
        ({"limits": {"cpu": "500m"}}, "got a limit of 500m CPUs; a LimitRange of the namespace may do so"),
    ],
)
def test_a_pod_that_could_not_measure_the_node_is_refused_by_name(pods, about, says):
    nodes, world = pods
    for name, value in about.items():
        setattr(nodes, name, value)
    with pytest.raises(Unreachable, match=says) as refused:
        world.engine.state("there", "a")
    assert refused.value.is_lasting


def test_what_engines_need_of_an_inventory_is_kept(tmp_path: Path):
    about = "kubernetes_image=mine:1 dask_scheduler=tcp://x:1 slurm_args=--partition=a ansible_password=secret"
    (tmp_path / "hosts.ini").write_text(f"there {about}\n")
    (place,) = RunJob.parsed({"inventory": str(tmp_path / "hosts.ini"), "scenario": "demo"}).places
    assert place.variables == {
        "kubernetes_image": "mine:1", "dask_scheduler": "tcp://x:1", "slurm_args": "--partition=a",
    }  # fmt: skip


def test_an_inventory_changes_the_job_of_a_node(tmp_path: Path):
    patch = tmp_path / "patch.json"
    spec = {"priorityClassName": "low", "containers": {"resources": {"limits": {"memory": "2Gi"}}}}
    patch.write_text(json.dumps({"spec": {"template": {"spec": spec}}}))
    job = manifest(Place("n1", (), {"kubernetes_patch": str(patch), "kubernetes_image": "mine:1"}))
    pod = job["spec"]["template"]["spec"]
    assert (pod["nodeName"], pod["priorityClassName"]) == ("n1", "low")
    (container,) = pod["containers"]
    assert container["image"] == "mine:1"
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}
    assert job["spec"]["backoffLimit"] == 0
    patch.write_text("[]")
    with pytest.raises(UsageError, match="it is not a mapping — write a JSON merge patch of a Job"):
        manifest(Place("n1", (), {"kubernetes_patch": str(patch)}))


@pytest.mark.parametrize("spec", [{"hostPID": None}, {"volumes": []}, {"containers": {"name": "other"}}])
def test_an_inventory_cannot_change_what_a_ledger_rests_on(tmp_path: Path, spec):
    (tmp_path / "patch.json").write_text(json.dumps({"spec": {"template": {"spec": spec}}}))
    with pytest.raises(UsageError, match="which the ledger rests on"):
        manifest(Place("n1", (), {"kubernetes_patch": str(tmp_path / "patch.json")}))


def test_a_ledger_elsewhere_is_on_the_nodes_disk_too():
    job = manifest(Place("n1", (), {"partywall_ledger": "/srv/ledger", "partywall_state": "/run/partywall/x"}))
    volumes = job["spec"]["template"]["spec"]["volumes"]
    assert {"name": "ledger", "hostPath": {"path": "/srv/ledger", "type": "DirectoryOrCreate"}} in volumes
    assert "states" not in [volume["name"] for volume in volumes]


def test_nodes_with_long_names_have_jobs_of_their_own():
    names = {manifest(Place(f"{'n' * 80}.{last}.example"))["metadata"]["name"] for last in ("a", "b")}
    assert len(names) == 2
    assert all(len(name) <= 63 for name in names)


def test_a_request_that_dask_loses_is_asked_again_and_begins_one_run(workers, tmp_path, monkeypatch):
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nsleep 2\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    place = prepared(tmp_path, monkeypatch)
    place = Place(place.name, (), {**place.variables, "partywall_python": str(slow)})
    world = World(through(workers, place), tmp_path / "ledger", tmp_path / "home")
    asking = threading.Thread(target=world.ensure, args=(order(),))
    asking.start()
    time.sleep(1)
    # Those that carry the request end, and others take their place.
    for worker in world.engine._client.run(os.getpid).values():
        os.kill(worker, signal.SIGKILL)
    asking.join()
    world.until(Phase.RUNNING)
    assert world.ensure(order()).phase is Phase.RUNNING
    assert world.began() == [("a", 1)]
    os.kill(world.book.lease().pid, signal.SIGKILL)


def test_a_client_that_gave_its_scheduler_up_is_made_again(workers, tmp_path, monkeypatch):
    engine = through(workers, prepared(tmp_path, monkeypatch))
    engine._client.close()
    assert engine.state("there", "a").phase is Phase.NONE


def test_what_is_wrong_with_a_worker_is_said_once(workers, tmp_path, monkeypatch):
    place = prepared(tmp_path, monkeypatch)
    engine = Dask([Place("there", (), {**place.variables, "dask_scheduler": workers, "dask_carries": "slrum"})])
    with pytest.raises(Unreachable, match="there is no engine 'slrum'") as wrong:
        engine.state("there", "a")
    assert wrong.value.is_lasting
    with pytest.raises(UsageError, match="dask_carries is what workers use, and cannot be dask"):
        Dask([Place("there", (), {"dask_carries": "dask"})])


def test_workers_with_another_version_are_refused():
    with pytest.raises(Unreachable, match=r"there: the worker has Partywall .*, and the controller 0\.0\.1") as other:
        carried("0.0.1", Place("there"), "state", "a")
    assert other.value.is_lasting


def test_a_scheduler_that_is_not_named_or_not_there_is_said(monkeypatch):
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with pytest.raises(UsageError, match="no scheduler of Dask is named — write dask_scheduler="):
        Dask([Place("there")])
    pytest.importorskip("distributed", reason="distributed not installed")
    monkeypatch.setattr(dask_engine, "JOINS_S", 0.5)
    with pytest.raises(CapabilityError, match=r"tcp://127\.0\.0\.1:9 cannot be reached"):
        Dask([Place("there", (), {"dask_scheduler": "tcp://127.0.0.1:9"})])


def test_engines_are_found_by_their_names():
    assert engines.named("ssh") is Ssh
    with pytest.raises(
        Exception, match="there is no engine 'slrum' — choose one of dask, kubernetes, local, slurm, ssh"
    ):
        engines.named("slrum")
