"""A trace on this host: namespaces of the test's own, real datagrams, and nothing left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from partywall.agent import binary
from partywall.agent.client import AgentClient, start_agent
from partywall.errors import PartywallError
from partywall.host.label import Label
from partywall.sandbox import reap, reaper
from partywall.trace.hops import ask
from partywall.trace.measure.tracing import Present, Tracing
from partywall.trace.record import counted, merged
from tests.trace.spaces import hooked, lacking, run, wait

pytestmark = pytest.mark.host
A, B = f"pwh{os.getpid()}a", f"pwh{os.getpid()}b"


@pytest.fixture(scope="module")
def path():
    """Two namespaces joined by a veth pair."""
    if why := lacking():
        pytest.skip(why)
    try:
        run("ip", "netns", "add", A)
        run("ip", "netns", "add", B)
        run("ip", "link", "add", "va", "netns", A, "type", "veth", "peer", "name", "vb", "netns", B)
    except subprocess.CalledProcessError as error:
        clean()
        pytest.skip(f"network namespaces: {error.stderr.strip()}")
    for space, name, last in ((A, "va", 1), (B, "vb", 2)):
        run("ip", "-n", space, "addr", "add", f"10.78.0.{last}/24", "dev", name)
        run("ip", "-n", space, "link", "set", name, "up")
    yield f"{A}/va", f"{B}/vb"
    clean()


def clean():
    for space in (A, B):
        run("ip", "netns", "del", space, check=False)


@pytest.fixture
def label(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    label = Label.create(f"trace-test-{tmp_path.name}", tmp_path)
    yield label
    reaper.clean(label)


def hooks():
    return hooked(f"{A}/va", f"{B}/vb")


@pytest.fixture(params=["links", "filters"])
def manner(request, monkeypatch):
    """Both ways of hooking, whatever this kernel would choose."""
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if request.param == "links" and release < (6, 6):
        pytest.skip("links to interfaces need kernel 6.6")
    if request.param == "filters":
        monkeypatch.setenv("PARTYWALL_NO_TCX", "1")
    return request.param


def send(count, size=100):
    """Marked datagrams from one namespace to the other."""
    code = (
        "import socket,sys\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
        "for n in range(int(sys.argv[1])):\n"
        " s.sendto(b'PWALLTAG'+n.to_bytes(8,'big')+bytes(int(sys.argv[2])),('10.78.0.2',9000))"
    )
    run("nsenter", f"--net=/run/netns/{A}", sys.executable, "-c", code, str(count), str(size))


@contextlib.contextmanager
def tracing(label, hops, **options):
    """A session, and the reports it gave; skips without the programs."""
    reports = []
    session = Tracing(ask(hops, protocol="udp", horizon="200ms", **options), label, reports.append)
    try:
        session.__enter__()
    except PartywallError as error:
        session.close()
        if "without eBPF programs" in str(error):
            pytest.skip(str(error))
        raise
    try:
        yield session, reports
    finally:
        session.close()


def delivered(reports):
    return sum(report.ways[0].delivered for report in reports)


@pytest.mark.usefixtures("manner")
def test_every_datagram_is_accounted_for_and_no_hook_is_left(path, label):
    with tracing(label, [f"{path[0]}:out", f"{path[1]}:in"]) as (session, reports):
        assert hooks()
        send(500)
        session.finish()
    assert (delivered(reports), sum(report.ways[0].steps[1].lost for report in reports)) == (500, 0)
    assert hooks() == 0


@pytest.mark.usefixtures("manner")
def test_one_packet_in_some_is_recorded_at_both_hops_and_all_are_counted(path, label):
    hops = [f"{path[0]}:out", f"{path[1]}:in"]
    with tracing(label, hops, one_in=16) as (session, reports):
        send(2000)
        session.finish()
    recorded = merged(reports)
    assert 60 < recorded.ways[0].delivered < 250
    assert recorded.ways[0].steps[1].lost == 0
    ways = counted(ask(hops, one_in=16), recorded).ways
    assert [step.packets for step in ways[0].steps] == [2000, 2000]
    assert ways[0].steps[1].lost == 0


def test_a_second_agent_traces_its_hop_with_its_clock_aligned(path, label):
    bounds = []
    agent = f"b=nsenter --net=/run/netns/{B} {binary.find()} serve"
    reports = []
    session = Tracing(
        ask([f"{path[0]}:out", "b/vb:in"], protocol="udp", agents=[agent]), label, reports.append, bounds.append
    )
    with session:
        send(300)
        session.pump(0.5)
        session.finish()
    assert delivered(reports) == 300
    assert bounds[0].agent == "b"
    # Both agents read one clock, so what was measured must hold within what was said of it.
    assert all(abs(bound.offset_ns) <= bound.bound_ns for bound in bounds)
    assert sum(report.hops[1].recorded for report in reports) >= 300
    assert hooks() == 0


@pytest.mark.parametrize("finishes", [True, False])
def test_an_agent_that_runs_already_traces_its_hop_and_goes_on(path, label, finishes):
    listeners = []

    def hear(method, params):
        if listeners and listeners[-1]:
            listeners[-1](method, params)

    process = start_agent(["nsenter", f"--net=/run/netns/{B}", str(binary.find()), "serve"])
    client = AgentClient("b", process, hear)
    client.greet()
    reports = []
    request = ask([f"{path[0]}:out", "b/vb:in"], protocol="udp", present=["b"])
    session = Tracing(request, label, reports.append, present={"b": Present(client, listeners.append)})
    try:
        with session:
            send(300)
            session.pump(0.5)
            if finishes:
                session.finish()
        if finishes:
            assert delivered(reports) == 300
            assert session.relays_record_ns["b"] > 0
        assert listeners[-1] is None
        assert hooks() == 0
        assert client.call("clock")
    finally:
        client.close()


def test_a_tracer_that_is_killed_leaves_nothing_that_the_next_start_does_not_take_off(path, label, manner):
    with tracing(label, list(path)) as (session, _):
        os.kill(session.pid, signal.SIGKILL)
        assert wait(lambda: not Path(f"/proc/{session.pid}/exe").exists())
    if manner == "links":
        # Theirs ends with the process.
        assert wait(lambda: not hooks())
        return
    assert hooks()
    owner = json.loads((label.state / "owner.json").read_text())
    (label.state / "owner.json").write_text(json.dumps(owner | {"start_ticks": 1}))
    reaped = [each for each in reap() if each.run == label.run]
    assert any("partywall_" in removed for each in reaped for removed in each.removed), reaped
    assert hooks() == 0


def test_when_the_controller_is_killed_its_agent_takes_the_hooks_off(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    argv = [sys.executable, "-m", "partywall", "trace", *path, "--out", str(tmp_path / "run")]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait(lambda: hooks() or process.poll() is not None)
        if process.poll() is not None:
            pytest.skip(process.stderr.read().decode())
        process.kill()
    assert wait(lambda: not hooks())
    (reaped,) = reap()
    assert reaped.run.startswith("trace-")
    assert not list(Path("/var/tmp").glob(f"partywall-{reaped.run}"))


@pytest.mark.parametrize(
    ("hops", "words"),
    [
        (["{a}/nosuch", "{b}/vb"], ['no interface "nosuch"', "give one of lo, va"]),
        (["nowhere/va", "{b}/vb"], ['network namespace "nowhere" cannot be opened', "ip netns lists"]),
        (["{a}/va", "4194304000/vb"], ["4194304000"]),
    ],
)
@pytest.mark.usefixtures("path")
def test_what_is_not_there_is_named(hops, words):
    hops = [hop.format(a=A, b=B) for hop in hops]
    done = run(sys.executable, "-m", "partywall", "trace", *hops, "--for", "1s", check=False)
    assert done.returncode == 2 or "without eBPF programs" in done.stderr, done.stderr
    for word in words if done.returncode == 2 else ():
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert hooks() == 0


def test_a_run_directory_holds_report_findings_and_packets(path, tmp_path):
    out = tmp_path / "run"
    argv = [sys.executable, "-m", "partywall", "trace", *path, "--for", "2s", "--protocol", "udp", "--out", str(out)]
    stop = threading.Event()

    def keep_sending():
        while not stop.wait(0.2):
            send(50)

    sender = threading.Thread(target=keep_sending)
    sender.start()
    try:
        done = run(*argv, check=False)
    finally:
        stop.set()
        sender.join()
    if "without eBPF programs" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    result = json.loads((out / "findings.json").read_text())
    assert result["ways"][0]["delivered"] > 0
    assert (out / "packets.pcapng").stat().st_size > 1000
    again = run(sys.executable, "-m", "partywall", "report", str(out), "-f", "json", check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads((out / "findings.json").read_text()) == result
