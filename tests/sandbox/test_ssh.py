"""Sandboxes on another machine, which here is this one behind a real sshd, an hour ahead of us."""

import http.server
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from partywall import study as studies
from partywall.agent import binary
from partywall.agent.client import AgentClient
from partywall.cli.app import app
from partywall.errors import CapabilityError, TrialError
from partywall.host.label import Label
from partywall.kinds.compared import side_by_side
from partywall.run.record import RunDirectory
from partywall.sandbox import Settings, make, reaper
from partywall.sandbox.ssh import bootstrap, machine_agent, survey
from partywall.sandbox.ssh.connection import Connection, Parcel, explained
from partywall.study.record import StudyDirectory
from tests import ssh_server

AHEAD_S = 3600
STUDY = (Path(__file__).parents[1] / "study" / "small.yaml").read_text(encoding="utf-8")
needs_server = [pytest.mark.host, pytest.mark.skipif(bool(ssh_server.lacking()), reason=ssh_server.lacking())]


def wait_until(condition, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)
    return result


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = ssh_server.SshServer(tmp_path_factory.mktemp("sshd"), ahead_s=AHEAD_S)
    yield server
    server.stop()


@pytest.fixture
def there(server, monkeypatch):
    monkeypatch.setenv("PARTYWALL_SSH", server.client)
    return "there"


@pytest.fixture
def base(tmp_path):
    """A folder in which the other machine may make its own."""
    folder = tmp_path / "base"
    folder.mkdir()
    return folder


@pytest.fixture
def label(tmp_path, base, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    label = Label.create(f"test-ssh-{os.getpid()}", base)
    yield label
    reaper.clean(label)


def is_below(process, folder):
    """True if a process of /proc works in a folder."""
    try:
        return (process / "cwd").readlink() == folder
    except OSError:
        return False


def ssh_folders(base):
    return list(base.glob("partywall-ssh-*"))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class TestReal:
    pytestmark = needs_server

    def test_an_agent_there_works_in_our_time_and_takes_its_folder_along(self, there, base, label):
        seen = []
        sandbox = make(Settings(name="far", backend="ssh", cpus=(0,), host=there), label)
        client = sandbox.start(lambda method, params: seen.append((method, params)))
        sandbox.settle()
        assert client.hello["cpus"] == [0]
        assert Path(sandbox.work_dir).parent == base
        # Its own clock is an hour ahead, and the agent tells ours.
        assert sandbox.clock_error_ns() < 50_000_000
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        work = {"kernel": {"name": "integer", "params": {}}}
        client.call("workload.start", id="w", work=work, pace="flat_out", work_dir=sandbox.work_dir)
        slices = wait_until(lambda: [s for m, p in seen if m == "slices" for s in p["slices"]])
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        assert all(before - 10_000_000 < s["start_ns"] < after + 10_000_000 for s in slices)
        assert sum(s["work"] for s in slices) > 0
        sandbox.stop()
        wait_until(lambda: not ssh_folders(base))
        assert not ssh_server.is_alive(sandbox.pid)

    def test_its_rate_is_corrected_by_the_agent_and_not_on_the_machine(self, there, label):
        sandbox = make(Settings(name="far", backend="ssh", cpus=(0,), host=there), label)
        client = sandbox.start(lambda *_: None)
        before = client.call("clock")["monotonic_ns"] - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        client.call("clock.adjust", frequency_ppb=500_000)
        # Half a millisecond a second: ten of them in less than half a minute.
        wait_until(
            lambda: (
                client.call("clock")["monotonic_ns"] - time.clock_gettime_ns(time.CLOCK_MONOTONIC) > before + 1_000_000
            )
        )
        sandbox.stop()

    def test_the_users_configuration_is_honoured_but_for_what_is_meant_for_people(self, there, base):
        # `there` has a LocalForward that cannot be bound and a RemoteCommand.
        with machine_agent(there, str(base), "test") as agent:
            assert agent.call("facts")["kernel"]["release"] == platform.release()

    def test_what_a_machine_is_and_what_it_lacks_is_known_beforehand(self, there, base):
        assert survey(there, str(base), ["sh"])["cpus_allowed"] == sorted(os.sched_getaffinity(0))
        with pytest.raises(CapabilityError, match="there, by ssh: no-such-tool is not installed"):
            survey(there, str(base), ["sh", "no-such-tool"])
        wait_until(lambda: not ssh_folders(base))

    def test_nothing_is_left_there_after_the_controller_was_killed(self, server, base, tmp_path):
        code = (
            "import sys; from pathlib import Path\n"
            "from partywall.host.label import Label; from partywall.sandbox import Settings, make\n"
            "label = Label.create('killed-ssh', Path(sys.argv[1]))\n"
            "sandbox = make(Settings(name='far', backend='ssh', cpus=(0,), host='there'), label)\n"
            "client = sandbox.start(lambda *_: None)\n"
            "work = {'command': {'argv': ['sh', '-c', 'setsid sleep 1000 & sleep 1000']}}\n"
            "client.call('workload.start', id='c', work=work, pace='flat_out', work_dir='/')\n"
            "print(sandbox.pid, flush=True); sys.stdin.read()"
        )
        env = os.environ | {"PARTYWALL_SSH": server.client, "PARTYWALL_STATE": str(tmp_path / "state")}
        argv = [sys.executable, "-c", code, str(base)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
            agent = int(process.stdout.readline())
            assert len(ssh_folders(base)) == 1
            process.send_signal(signal.SIGKILL)
        wait_until(lambda: not ssh_server.is_alive(agent))
        wait_until(lambda: not ssh_folders(base))

    def test_an_agent_that_hears_nothing_ends_itself(self, there, base):
        connection = Connection(there, str(base), "test", ["serve", "--patience", "1"], {})
        connection.ready()
        client = AgentClient("far", connection.process, lambda *_: None)
        client.greet()
        wait_until(lambda: not ssh_folders(base))
        client.close()

    def test_the_servers_host_under_load_is_read_by_ssh_on_our_clock(self, there, base, tmp_path):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url, out = f"http://127.0.0.1:{server.server_port}/", tmp_path / "kept"
        options = ["--users", "1", "--think", "50ms", "--for", "3s", "--server-host", there, "--work-dir", base]
        argv = [sys.executable, "-m", "partywall", "load", url, *options, "--out", out]
        said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        server.shutdown()
        assert said.returncode in (0, 3), said.stderr
        seconds = {}
        for row in pq.read_table(out / "samples.parquet").to_pylist():
            seconds.setdefault(row["host"], set()).add(row["at_ns"])
        assert len(seconds["server"] & seconds["generator's host"]) >= 2
        wait_until(lambda: not ssh_folders(base))

    def test_two_generators_there_share_the_users_on_our_clock_and_are_reported_apart(self, there, base, tmp_path):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        plan, out = tmp_path / "plan.yaml", tmp_path / "kept"
        (tmp_path / "body").write_text("from a file")
        plan.write_text(
            "partywall_load: 1\nname: two\nclosed: {users: 4, hold: 3s}\n"
            f"base: http://127.0.0.1:{server.server_port}\n"
            "users: {one: {actions: [{http: {url: /, body: {file: body}}}, {think: 50ms}]}}\n"
            f"generators: {{east: {there}, west: {{host: {there}, cpus: 0}}}}\n"
        )
        argv = [sys.executable, "-m", "partywall", "load", plan, "--work-dir", base, "--out", out]
        said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        server.shutdown()
        assert said.returncode in (0, 3), said.stderr
        assert "east (there)" in said.stdout
        seconds = pq.read_table(out / "seconds.parquet").to_pylist()
        parts = pq.read_table(out / "generators.parquet").to_pylist()
        assert max(second["users"] for second in seconds) == 4
        sent = {name: sum(p["requests"] for p in parts if p["generator"] == name) for name in ("east", "west")}
        assert sum(sent.values()) == sum(second["requests"] for second in seconds)
        assert min(sent.values()) > 20
        begin_ns = json.loads((out / "load.json").read_text())["begin_ns"]
        # Their own clocks are an hour ahead.
        assert all(abs(second["start_ns"] - begin_ns) < 60 * 10**9 for second in seconds)
        hosts = {row["host"] for row in pq.read_table(out / "samples.parquet").to_pylist()}
        assert hosts == {"east", "west"}
        page = (out / "report.html").read_text()
        assert "clock within" in page
        wait_until(lambda: not ssh_folders(base))

    def test_a_load_that_loses_a_generator_names_it_and_keeps_its_seconds(self, there, base, tmp_path):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        out = tmp_path / "kept"
        options = ["--think", "50ms", "--for", "60s", "--generator", there, "--work-dir", base, "--out", out]
        argv = [sys.executable, "-m", "partywall", "load", f"http://127.0.0.1:{server.server_port}/", *options]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            wait_until(lambda: (out / "pending.jsonl").exists() and (out / "pending.jsonl").read_text().count("\n") > 1)
            (folder,) = ssh_folders(base)
            os.kill(int(folder.name.rpartition("-")[2]), signal.SIGKILL)
            agents = [int(p.name) for p in Path("/proc").glob("[0-9]*") if is_below(p, folder)]
            for pid in agents:
                os.kill(pid, signal.SIGKILL)
            _, said = running.communicate(timeout=60)
        server.shutdown()
        assert running.returncode == 5
        assert f"the generator {there} ended: the connection to {there} ended" in said
        assert "Traceback" not in said
        assert pq.read_table(out / "seconds.parquet").num_rows > 0

    @pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the neighbour needs a CPU other than the victim's")
    def test_a_study_is_measured_there_goes_on_and_is_compared_with_one_of_here(
        self, there, base, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
        file, out, here = tmp_path / "small.yaml", tmp_path / "out", tmp_path / "here"
        file.write_text(STUDY)
        own = ["--work-dir", str(base)]
        said = CliRunner().invoke(app, ["study", str(file), "--on", there, "--out", str(out), *own])
        assert said.exit_code in (0, 5), said.output
        record, run = StudyDirectory.open(out), RunDirectory.open(out / "runs" / "cache")
        assert {trial.victim.sandbox.machine for trial in run.plan.trials} == {there}
        assert record.about["host"]["cpus_allowed"] == run.host["machines"][there]["cpus_allowed"]
        report = studies.report(record)
        assert {(row["backend"], row["treatment"]) for row in report.rows} == {("ssh", "null"), ("ssh", "ring@1")}
        assert report.notes[0].startswith(f"Measured on {there}: ")
        assert f"Measured on {there}: " in (out / "report.html").read_text()
        # What a kill left of a part is taken away and measured again, on the same machine.
        (run.path / "plan.json").unlink()
        again = CliRunner().invoke(app, ["study", "--resume", str(out), *own], catch_exceptions=False)
        assert again.exit_code == said.exit_code
        run = RunDirectory.open(run.path)
        assert run.ended
        assert {trial.victim.sandbox.machine for trial in run.plan.trials} == {there}
        CliRunner().invoke(app, ["study", str(file), "--out", str(here), *own], catch_exceptions=False)
        both = side_by_side(record, StudyDirectory.open(here))
        assert any(label.startswith("fig 5: ") for label, _ in both.rows)
        assert both.hosts
        wait_until(lambda: not list(base.iterdir()))

    def test_a_folder_whose_keeper_was_killed_goes_at_the_next_start(self, there, base):
        dead = subprocess.Popen(["true"])
        dead.wait()
        stale = base / f"partywall-ssh-{os.getuid()}-{dead.pid}"
        stale.mkdir()
        (stale / "agent").write_text("left")
        with machine_agent(there, str(base), "test"):
            assert not stale.exists()

    def test_an_agent_of_this_version_on_the_path_there_is_not_copied(self, base):
        words = bootstrap.command(str(base), Parcel.packed().hashes, 1, platform.machine(), "test", ["--version"])
        env = os.environ | {"PATH": f"{binary.find().parent}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-c", words], capture_output=True, env=env, stdin=subprocess.DEVNULL, check=False)
        assert b"want" not in done.stdout
        assert b"partywall-agent" in done.stdout

    @pytest.mark.usefixtures("there")
    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("refused", r"refused, by ssh: it refused us \(publickey"),
            ("unknown-key", r"its key is not known here; run 'ssh unknown-key true' once"),
            ("closed", r"cannot be reached \(Connection refused\)"),
            ("no.such.name.invalid", r"its name is not known"),
        ],
    )
    def test_a_machine_that_does_not_let_us_in_is_reported_in_one_sentence(self, label, name, says):
        sandbox = make(Settings(name="far", backend="ssh", cpus=(0,), host=name), label)
        with pytest.raises(TrialError, match=says) as caught:
            sandbox.start(lambda *_: None)
        assert "\n" not in str(caught.value)
        sandbox.stop()

    def test_a_folder_that_is_not_there_is_reported(self, there, base):
        with pytest.raises(CapabilityError, match=r"no folder can be made in .*gone there: .*--work-dir"):
            survey(there, str(base / "gone"), [])

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ("noexec,size=200m", r"cannot be executed in .* there: .*[Pp]ermission denied; is it mounted noexec"),
            ("size=64k", r"could not be copied to .* there: .*[Nn]o space left"),
        ],
    )
    def test_a_file_system_that_cannot_hold_or_run_the_agent_is_reported(self, there, base, options, says):
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", base], check=True)
        try:
            with pytest.raises(CapabilityError, match=says):
                survey(there, str(base), [])
            wait_until(lambda: not ssh_folders(base))
        finally:
            subprocess.run(["umount", base], check=True)

    def test_a_login_shell_that_runs_something_else_is_reported(self, tmp_path, base, monkeypatch):
        server = ssh_server.SshServer(tmp_path, force="ForceCommand echo no shells here")
        monkeypatch.setenv("PARTYWALL_SSH", server.client)
        try:
            with pytest.raises(CapabilityError, match="no shell answered; the last line of output was: no shells here"):
                survey("there", str(base), [])
        finally:
            server.stop()


def test_a_machine_of_another_kind_is_refused_by_name(tmp_path):
    words = bootstrap.command(str(tmp_path), ["0" * 64], 1, "s390x", "test", [])
    done = subprocess.run(["sh", "-c", words], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    said = bootstrap.answer(done.stdout)
    assert said == bootstrap.Answer("no", f"architecture {platform.machine()}")
    assert f"its processor is {platform.machine()}" in bootstrap.refusal(said.rest, "/var/tmp")
    assert list(tmp_path.iterdir()) == []


def test_the_script_passes_any_login_shell_unchanged():
    script = bootstrap.command("/var/tmp", ["0" * 64], 1, "x86_64", "run", ["serve"])
    assert "\n" not in script
    assert "!" not in script
    assert script.count("'") == 2


def test_what_login_scripts_print_is_no_answer():
    assert bootstrap.answer(b"Welcome to partywall\n") is None
    assert bootstrap.answer(b"partywall ready /x y\n") == bootstrap.Answer("ready", "/x y")


def test_words_that_are_not_known_are_handed_on():
    assert "the last line of output was: kaputt" in explained("first\nkaputt", "there")
    assert "nothing" in explained("", "there")


@pytest.mark.long
def test_a_client_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTYWALL_SSH", "no-such-ssh -v")
    with pytest.raises(CapabilityError, match=r"\$PARTYWALL_SSH names no-such-ssh, which was not found"):
        survey("there", str(tmp_path), [])
