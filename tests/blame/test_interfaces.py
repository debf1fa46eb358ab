"""The lever of what a group sends: its interfaces are shaped, and are as before afterwards, also after kills."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from partywall.blame.job import BlameJob
from partywall.blame.measure.interfaces import Interface, Tc, sent_by
from partywall.blame.measure.levers import Held, Lever, lever
from partywall.blame.measure.owners import Kind, Refused
from partywall.blame.measure.places import undoing
from partywall.blame.measure.suspects import find
from partywall.blame.paste import paste
from partywall.blame.record import Place
from partywall.errors import CapabilityError
from partywall.host import Host, shaping
from partywall.host.settings import ledger
from partywall.sandbox import cgroups
from partywall.sandbox.lab import Lab, ip, lab, lacking, tc
from tests.measured import measured
from tests.waiting import until

NAMES = ["guilty", "innocent"]
SENDS = """
import socket, sys, time
bits, where = float(sys.argv[1]), (sys.argv[2], 9)
out, every = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 8 * 1428 / bits
due = time.monotonic()
while True:
    due = max(due + every, time.monotonic() - 0.01)
    time.sleep(max(0, due - time.monotonic()))
    out.sendto(bytes(1400), where)
"""
DRAINS = """
import socket
stream, _ = socket.create_server(("", 9000)).accept()
while stream.recv(1 << 20): pass
"""
VICTIM = """
import socket, sys
stream = socket.create_connection((sys.argv[1], 9000))
while True:
    stream.sendall(bytes(20000))
    print("x", flush=True)
"""
DEV = """Inter-|   Receive                                        |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:       5     1    0    0    0     0         0         0        5     1    0    0    0     0       0         0
  eth0: 9000000  6000    0    0    0     0         0         0  4000000  3000    0    0    0     0       0         0
"""


def test_what_an_interface_has_sent_is_read_from_the_kernels_table():
    assert sent_by(DEV) == {"lo": 5, "eth0": 4_000_000}
    assert sent_by("") == {}


def test_a_bucket_holds_two_whole_packets_or_a_millisecond():
    assert shaping.burst(1e6, 1500) == 3000
    assert shaping.burst(1e9, 1500) == 1_000_000
    assert shaping.bucket(1e6, 3000) == "tbf rate 8000000bit burst 3000 latency 5ms"


def test_a_suspect_that_sends_too_little_is_not_held():
    one = Lever(Kind.NETWORK, Interface(Path("/g"), 7, 9, "eth0", 1500, 0))
    assert one.limit(0.3, 100_000) is None
    assert one.limit(0.3, 1e6) == pytest.approx(700_000)


def test_what_helps_is_a_command_in_the_suspects_network_and_so_is_its_end():
    one = Interface(Path("/g"), 7, 9, "a;b", 1500, 0)
    where = {"interface": one.interface, "mtu": one.mtu}
    place = Place(tool="tc", known_as=str(one.namespace), folder="/g", is_v2=True, **where)
    words = "nsenter --net=/proc/7/ns/net tc qdisc"
    assert paste(place, 1e6) == f"{words} replace dev 'a;b' root tbf rate 8000000bit burst 3000 latency 5ms"
    assert undoing(Lever(Kind.NETWORK, one)) == f"{words} del dev 'a;b' root"


@contextlib.contextmanager
def groups(made: dict[str, list[str]]) -> Iterator[dict[str, str]]:
    """A group of this host for each program. Yields the groups by name."""
    here = cgroups.read()
    if os.geteuid() or here.why_not():
        pytest.skip("no right to make cgroups")
    paths = {name: f"/partywall-net-{os.getpid()}-{name}" for name in made}
    with contextlib.ExitStack() as stack:
        for name, argv in made.items():
            folder = here.folder("cpu", paths[name])
            folder.mkdir()
            stack.callback(folder.rmdir)
            process = stack.enter_context(subprocess.Popen(argv))
            stack.callback(process.wait)
            stack.callback(process.kill)
            (folder / "cgroup.procs").write_text(str(process.pid))
        yield paths


def inside(made: Lab, name: str, *argv: str) -> list[str]:
    return ["ip", "netns", "exec", made.namespace(name), *argv]


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))


@pytest.fixture
def link(own_state: None) -> Iterator[Lab]:  # noqa: ARG001 - what is noted stays in this test
    if why := lacking():
        pytest.skip(why)
    with lab([*NAMES, "victim"], "40mbit") as made:
        yield made


@pytest.fixture
def suspects(link: Lab) -> Iterator[dict[str, str]]:
    """Two groups that send: the first one 24 Mbit/s over the link, the other 4 to a neighbour that is nearer."""
    rates = {"guilty": ("24e6", "10.9.3.1"), "innocent": ("4e6", "10.9.1.1")}
    sends = {name: inside(link, name, sys.executable, "-c", SENDS, *where) for name, where in rates.items()}
    with groups(sends) as paths:
        until(lambda: all(has_sent(path) for path in paths.values()))
        yield paths


def has_sent(path: str) -> bool:
    try:
        owner = _lever(path).owner
    except CapabilityError:
        # `ip netns exec` has not entered its namespace yet.
        return False
    return isinstance(owner, Interface) and owner.sent() > 100_000


def _lever(path: str) -> Lever:
    return lever(Kind.NETWORK, path, cgroups.read(), has_systemd=False)


def queue(made: Lab, name: str) -> str:
    return tc(made.namespace(name), "qdisc", "show", "dev", "eth0")


@pytest.mark.host
def test_a_suspect_sends_at_the_limit_while_it_is_held_and_as_before_afterwards(link: Lab, suspects: dict[str, str]):
    ip("-n", link.namespace("guilty"), "link", "set", "eth0", "txqueuelen", "0")
    one, before = _lever(suspects["guilty"]), queue(link, "guilty")
    owner = one.owner
    assert isinstance(owner, Interface)

    def rate() -> float:
        sent, at = owner.sent(), time.monotonic()
        time.sleep(1)
        return (owner.sent() - sent) / (time.monotonic() - at)

    free = rate()
    with Held({"a": one}) as held:
        assert held.hold("a", 0.5, free)
        during = rate()
        held.beat()
        assert "tbf 7077:" in queue(link, "guilty")
        held.release("a")
        assert rate() == pytest.approx(free, rel=0.1)
    assert during == pytest.approx(0.5 * free, rel=0.1)
    assert queue(link, "guilty") == before
    assert "qlen" not in ip("-n", link.namespace("guilty"), "link", "show", "eth0"), "the kernel makes 0 a thousand"


@pytest.mark.host
def test_a_killed_experiment_leaves_the_queues_as_they_were(link: Lab, suspects: dict[str, str]):
    before = {name: queue(link, name) for name in NAMES}
    code = (
        "import sys, time\n"
        "from partywall.blame.measure.levers import Held, lever\n"
        "from partywall.blame.measure.owners import Kind\n"
        "from partywall.sandbox import cgroups\n"
        "made = {name: lever(Kind.NETWORK, name, cgroups.read(), has_systemd=False) for name in sys.argv[1:]}\n"
        "with Held(made) as held:\n"
        "  for name in made: held.hold(name, 0.3, 1e6)\n"
        "  print('held', flush=True)\n"
        "  time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, *suspects.values()], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "held\n"
        assert all("tbf" in queue(link, name) for name in NAMES)
        one.send_signal(signal.SIGKILL)
    until(lambda: {name: queue(link, name) for name in NAMES} == before)
    assert ledger.put_back().left == ()


@pytest.mark.host
def test_a_queue_that_somebody_chose_is_left_alone(link: Lab, suspects: dict[str, str]):
    tc(link.namespace("guilty"), "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "pfifo", "limit", "50")
    with pytest.raises(CapabilityError, match=r"its interface eth0 has a queue \(pfifo\) that could not be put back"):
        _lever(suspects["guilty"])
    assert "pfifo 1:" in queue(link, "guilty")


@pytest.mark.host
def test_a_group_without_a_network_of_its_own_is_refused_and_left_out_if_nobody_named_it():
    with groups({"shares": [sys.executable, "-c", "import time; time.sleep(60)"]}) as paths:
        with pytest.raises(CapabilityError, match="it uses the host's own network — use --lever cpu"):
            _lever(paths["shares"])
        job = BlameJob(victim="x", suspects=(paths["shares"],), lever="network")
        with pytest.raises(CapabilityError, match="cannot be held: it uses the host's own network"):
            find(job, Host.here(), [])


@pytest.mark.host
def test_a_network_in_which_others_are_is_left_alone(link: Lab, suspects: dict[str, str]):
    with subprocess.Popen(inside(link, "guilty", "sleep", "60")) as other:
        try:
            until(lambda: has_entered(other.pid, suspects["guilty"]))
            said = f"others are in its network too, such as process {other.pid} — name the group around all of them"
            with pytest.raises(CapabilityError, match=said):
                _lever(suspects["guilty"])
        finally:
            other.kill()


def has_entered(pid: int, path: str) -> bool:
    (first, *_) = cgroups.read().folder("cpu", path).joinpath("cgroup.procs").read_text().split()
    return Path(f"/proc/{pid}/ns/net").stat().st_ino == Path(f"/proc/{first}/ns/net").stat().st_ino


@pytest.mark.host
def test_what_tc_refuses_is_said_and_a_group_that_has_ended_is_too(suspects: dict[str, str]):
    owner = _lever(suspects["guilty"]).owner
    assert isinstance(owner, Interface)
    with pytest.raises(Refused, match='eth7: tc refuses: Cannot find device "eth7"'):
        dataclasses.replace(owner, interface="eth7").hold(1e6)
    with pytest.raises(Refused, match="the group has ended"):
        dataclasses.replace(owner, folder=Path("/nowhere")).hold(1e6)
    with pytest.raises(Refused, match="its network cannot be entered"):
        dataclasses.replace(owner, number=owner.number + 1, pid=os.getpid()).hold(1e6)


@pytest.mark.host
def test_an_answer_belongs_to_its_command_whatever_came_before(suspects: dict[str, str]):
    owner = _lever(suspects["guilty"]).owner
    assert isinstance(owner, Interface)
    tc_there = Tc(owner.namespace, owner.number)
    assert tc_there.ask("qdisc show dev eth7") == 'Cannot find device "eth7"'
    assert tc_there.ask("qdisc show dev eth0") == ""
    assert tc_there.ask("nonsense").startswith("Object")


@pytest.mark.host
@pytest.mark.slow
@measured
def test_the_tenant_that_fills_a_shared_link_is_named(
    tmp_path_factory: pytest.TempPathFactory, link: Lab, suspects: dict[str, str]
):
    folder, before = tmp_path_factory.mktemp("blame"), {name: queue(link, name) for name in NAMES}
    script = folder / "victim.py"
    script.write_text(VICTIM)
    victim = " ".join(inside(link, "victim", sys.executable, str(script), "10.9.2.3"))
    command = [sys.executable, "-m", "partywall", "blame", *suspects.values(), "--lever", "network"]
    command += ["--victim", victim, "--budget", "60s", "--harm", "30%", "--out", str(folder / "out")]
    with subprocess.Popen(inside(link, "victim-sink", sys.executable, "-c", DRAINS)) as drains:
        try:
            time.sleep(0.5)
            done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=False)
        finally:
            drains.kill()
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)["result"]
    first = result["suspects"][0]
    assert (first["suspect"], first["state"]) == (suspects["guilty"], "guilty")
    # It sends 24 of 40 Mbit/s. An innocent one may be named by chance, in one of twenty experiments.
    assert first["taken"] == pytest.approx(0.6, abs=0.15)
    assert "through what it sends" in result["headline"] or "waiting for" in result["headline"]
    assert "tc qdisc replace dev eth0 root tbf" in result["helps"][0]["text"]
    assert {name: queue(link, name) for name in NAMES} == before
