"""`partywall load` from the command line to its files, against a server of a few lines."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from partywall.agent.binary import find as find_agent
from partywall.host import Host
from partywall.load.findings import load_run
from partywall.load.measure import PreparedLoad, Setup
from partywall.load.quick import Quick, program
from partywall.load.record import LoadDirectory
from partywall.sandbox import qemu
from tests.waiting import until

pytestmark = pytest.mark.long


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        status = 404 if self.path == "/missing" else 200
        body = b"hello token=abc123" if self.path.startswith("/login") else b"hello"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


def partywall(*arguments, command="load"):
    argv = [sys.executable, "-m", "partywall", command, *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_a_load_is_shown_judged_and_kept(url, tmp_path):
    out = tmp_path / "kept"
    said = partywall(url, "--users", 3, "--think", "20ms", "--for", "1s", "--out", out)
    # Whether this host's seconds are good is not for a test to say.
    assert said.returncode in (0, 3), said.stderr
    assert "responses in 1 s" in said.stdout
    assert "errors: none" in said.stdout
    assert "The generator was" in said.stdout
    about = json.loads((out / "load.json").read_text())
    assert about["started"]["labels"][0]["sort"] == "http"
    timings = pq.read_table(out / "timings.parquet").to_pylist()
    done = sum(row["done"] for row in timings)
    assert done > 3
    assert sum(pair["count"] for row in timings for pair in row["corrected"]) == done
    assert sum(row["count"] for row in pq.read_table(out / "statuses.parquet").to_pylist()) == done
    assert pq.read_table(out / "seconds.parquet").num_rows >= 1
    assert not (out / "pending.jsonl").exists()
    assert "Can it be believed?" in (out / "report.html").read_text()
    assert json.loads((out / "findings.json").read_text())["responses"] == done


def test_an_open_load_tells_how_late_its_requests_left(url, tmp_path):
    out = tmp_path / "kept"
    said = partywall(url, "--rate", 50, "--poisson", "--users", 20, "--for", "1s", "--out", out)
    assert said.returncode in (0, 3), said.stderr
    assert "lateness" in said.stdout
    assert sum(row["timed"] for row in pq.read_table(out / "seconds.parquet").to_pylist()) > 10


def test_errors_are_reported_by_kind_and_a_load_of_nothing_else_has_failed(url, tmp_path):
    said = partywall(url + "missing", "--users", 1, "--think", "50ms", "--for", "1s", "--out", tmp_path / "kept")
    assert "status 404" in said.stdout
    assert said.returncode == 5
    assert "every request failed" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["http://127.0.0.1:1/"], "nobody listens there"),
        (["ftp://a/"], "is not an http or https URL"),
        (["http://name.invalid/"], "cannot be resolved"),
        (["http://127.0.0.1:1/", "--for", "soon"], "--for: 'soon' is not a duration"),
        (["http://127.0.0.1:1/", "--rate", "0"], "--rate must be greater than 0 and at most 10,000,000, not 0"),
        (["http://127.0.0.1:1/", "--header", "bad"], "'bad' is not a header"),
        (["http://127.0.0.1:1/", "--method", "get"], "write GET"),
        (["http://127.0.0.1:1/", "--connect-to", "nowhere"], "neither ADDRESS:PORT nor unix:PATH"),
        (["http://127.0.0.1:1/", "--cpus", "x"], "--cpus: 'x' is not a list of CPUs"),
        (["http://127.0.0.1:1/", "--data-file", "/nothing/there"], "is not a file that exists"),
    ],
)
def test_what_cannot_be_begun_is_one_clear_error(arguments, expected, tmp_path):
    said = partywall(*arguments, "--out", tmp_path / "kept")
    assert said.returncode == 2
    assert expected in said.stderr
    assert "Traceback" not in said.stderr
    assert not (tmp_path / "kept").exists()


def test_the_users_of_a_running_load_are_changed_until_its_end(url, tmp_path):
    out = tmp_path / "kept"
    # Ended by a signal: how long the commands take on a busy host does not matter then.
    argv = [sys.executable, "-m", "partywall", "load", url, "--users", "2", "--think", "50ms", "--for", "120s"]
    with subprocess.Popen([*argv, "--out", str(out)], stdout=subprocess.PIPE, text=True) as load:
        try:
            journal = out / "journal.jsonl"
            until(lambda: journal.is_file() and '"event":"second"' in journal.read_text())
            assert partywall("adjust", out, 9).returncode == 0
            until(lambda: "changed to 9 users" in journal.read_text())
            assert partywall("adjust", out, 10_000_000).returncode == 0
            until(lambda: "10,000,000 users are not possible" in journal.read_text())
            until(lambda: '"users":9' in (out / "pending.jsonl").read_text().replace(" ", ""))
            load.send_signal(signal.SIGTERM)
            said, _ = load.communicate(timeout=60)
        finally:
            load.kill()
    assert load.returncode == 130
    assert "changed to 9 users" in said
    users = [row["users"] for row in pq.read_table(out / "seconds.parquet").to_pylist()]
    assert users[0] == 2
    assert 9 in users
    again = partywall("adjust", out, 3)
    assert again.returncode == 2
    assert "has ended" in again.stderr


def test_a_folder_that_is_there_already_is_not_written_to(url, tmp_path):
    said = partywall(url, "--out", tmp_path)
    assert (said.returncode, "exists already" in said.stderr) == (2, True)


MARKS = ("✓ holds", "✗ violated")
PLAN = """
partywall_load: 1
name: shop
base: URL
users:
  buyer:
    init:
      - feed: people
      - http: {url: "/login?${account}", method: POST, extract: {token: {regex: "token=([a-z0-9]+)"}}}
    actions:
      - transaction: {name: buy, steps: [{http: {url: "/item/${token}", checks: [{contains: hello}]}}, {think: 20ms}]}
closed: {users: 3, hold: 1s}
feeders: {people: {csv: people.csv}}
good_seconds: 1%
thresholds: [{errors: 0%}, {of: buy, rate: RATE}]
"""


def plan_file(folder, url, rate="1", **changed):
    (folder / "people.csv").write_text("account\nada\nalan\n")
    text = PLAN.replace("URL", url).replace("RATE", rate)
    for before, after in changed.items():
        text = text.replace(before, after)
    (folder / "plan.yaml").write_text(text)
    return folder / "plan.yaml"


@pytest.mark.parametrize(("rate", "code"), [("1", 0), ("1000000", 1)])
def test_a_plan_is_carried_out_and_its_thresholds_decide(url, tmp_path, rate, code):
    said = partywall(plan_file(tmp_path, url, rate), "--out", tmp_path / "kept")
    # On a host that is busy otherwise no second may be good, which is inconclusive.
    assert said.returncode in (code, 3), said.stderr
    assert "errors: none" in said.stdout
    assert "transaction buy" in said.stdout
    assert any("buy: rate at least" in line and MARKS[code] in line for line in said.stdout.splitlines())
    labels = {row["label"] for row in pq.read_table(tmp_path / "kept" / "timings.parquet").to_pylist()}
    assert labels == {"POST /login?${account}", "GET /item/${token}", "buy"}


def test_what_only_the_agent_can_judge_is_reported_by_the_plans_line(url, tmp_path):
    file = plan_file(tmp_path, url, **{"token=([a-z0-9]+)": "token=(["})
    said = partywall(file, "--out", tmp_path / "kept")
    assert said.returncode == 2
    assert f"{file}:9: users.buyer.init[1].http.extract.token" in said.stderr


def test_options_that_a_plan_decides_are_refused_by_name(url, tmp_path):
    said = partywall(plan_file(tmp_path, url), "--users", "5", "--rate", "3")
    assert said.returncode == 2
    assert "--users: this is part of the plan" in said.stderr
    assert "--rate: this is part of the plan" in said.stderr


def test_a_plan_is_checked_without_sending_anything(tmp_path):
    file = plan_file(tmp_path, "http://127.0.0.1:1/")
    said = partywall("check", file)
    assert said.returncode == 0, said.stderr
    assert "no mistakes" in said.stdout
    file.write_text(file.read_text().replace("feed: people", "feed: peeple"))
    said = partywall("check", file)
    assert said.returncode == 2
    assert "no feeder is called 'peeple' — did you mean people?" in said.stderr


def test_a_second_agent_tells_of_the_servers_host_and_partywall_report_opens_the_run(url, tmp_path):
    out = tmp_path / "kept"
    agent = f"server={find_agent()} serve"
    said = partywall(url, "--users", 2, "--think", "20ms", "--for", "3s", "--out", out, "--watch", agent)
    assert said.returncode in (0, 3), said.stderr
    hosts = {row["host"] for row in pq.read_table(out / "samples.parquet").to_pylist()}
    assert hosts == {"generator's host", "server"}
    (out / "report.html").unlink()
    argv = [sys.executable, "-m", "partywall", "report", out, "-f", "html", "-f", "csv", "-f", "parquet"]
    again = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == said.returncode, again.stderr
    assert "server: CPU, programs (cores)" in (out / "seconds.csv").read_text().splitlines()[0]
    assert pq.read_table(out / "findings.parquet").num_rows >= 3
    assert (out / "report.html").exists()


@pytest.mark.parametrize("wrong", ["", "-oProxyCommand=x", "two words"])
def test_a_server_host_that_ssh_could_not_know_is_refused(url, tmp_path, wrong):
    said = partywall(url, f"--server-host={wrong}", "--out", tmp_path / "kept")
    assert (said.returncode, "is not a host for ssh" in said.stderr) == (2, True)


def test_the_server_is_called_so_by_one_option_alone(url, tmp_path):
    said = partywall(url, "--server-host", "shop", "--watch", "server=agent", "--out", tmp_path / "kept")
    assert (said.returncode, "two hosts are called 'server'" in said.stderr) == (2, True)


def test_a_loads_tables_answer_queries(url, tmp_path):
    out = tmp_path / "kept"
    said = partywall(url, "--users", 1, "--think", "50ms", "--for", "1s", "--out", out)
    requested = partywall(out, "select label, sum(done) > 0 as some from timings group by 1", command="sql")
    assert (said.returncode in (0, 3), requested.returncode) == (True, 0), requested.stderr
    assert "True" in requested.stdout
    with LoadDirectory(out).exclusive():
        refused = partywall(out, "show tables", command="sql")
    assert (refused.returncode, "is in use by another" in refused.stderr) == (2, True)


def test_a_killed_loads_whole_seconds_are_kept(url, tmp_path):
    out = tmp_path / "kept"
    partywall(url, "--users", 1, "--think", "50ms", "--for", "1s", "--out", out)
    # As a kill leaves it: a line is torn.
    (out / "pending.jsonl").write_text('{"start_ns": 1')
    requested = partywall(out, "select count(*) from seconds", command="sql")
    assert (requested.returncode, "0" in requested.stdout) == (0, True), requested.stderr


@pytest.mark.parametrize("planned", [False, True])
def test_a_host_that_cannot_be_watched_is_reported_by_its_option(url, tmp_path, planned):
    target = plan_file(tmp_path, url) if planned else url
    said = partywall(target, "--watch", "db=/nothing/agent", "--out", tmp_path / "kept")
    assert said.returncode == 2
    assert "--watch: 'db' cannot be watched: /nothing/agent cannot be started" in said.stderr
    assert "plan.yaml" not in said.stderr
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("wrong", ["server", "=agent", "server="])
def test_an_agent_to_watch_needs_a_name_and_a_command(url, tmp_path, wrong):
    said = partywall(url, "--watch", wrong, "--out", tmp_path / "kept")
    assert (said.returncode, "is not NAME=COMMAND" in said.stderr) == (2, True)


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="containers need root")
@pytest.mark.skipif(not (shutil.which("crun") or shutil.which("runc")), reason="no OCI runtime is installed")
def test_containers_share_the_users_and_none_is_lost(url, tmp_path):
    out = tmp_path / "kept"
    file = plan_file(tmp_path, url)
    said = partywall(file, "--sandbox", "container", "--sandboxes", 2, "--cpu-limit", "90%", "--out", out)
    assert said.returncode in (0, 3), said.stderr
    assert "errors: none" in said.stdout
    assert max(row["users"] for row in pq.read_table(out / "seconds.parquet").to_pylist()) == 3
    assert "2 of them sharing the users" in json.loads((out / "load.json").read_text())["generator"]


@pytest.mark.host
@pytest.mark.slow
@pytest.mark.skipif(bool(qemu.lacking(Host.here())), reason=qemu.lacking(Host.here()) or "-")
def test_a_generator_in_a_guest_reaches_a_service_on_this_hosts_loopback(url, tmp_path):
    out = tmp_path / "kept"
    said = partywall(url, "--users", 2, "--think", "50ms", "--for", "3s", "--sandbox", "qemu", "--out", out)
    assert said.returncode in (0, 3), said.stderr
    assert "errors: none" in said.stdout
    about = json.loads((out / "load.json").read_text())
    assert about["generator"].startswith("a guest of QEMU")
    assert about["started"]["origins"][0]["addresses"][0].startswith("10.0.2.2:")


def test_a_guest_does_not_see_this_hosts_sockets(tmp_path):
    if why := qemu.lacking(Host.here()):
        pytest.skip(why)
    said = partywall("http://x/", "--connect-to", "unix:/run/x", "--sandbox", "qemu", "--out", tmp_path / "kept")
    assert (said.returncode, "unix:/run/x is a socket on this host" in said.stderr) == (2, True)


def test_the_load_has_its_cpus_to_itself(url, tmp_path):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two CPUs")
    own = min(allowed)
    setup = Setup(name="test-room", cpus=(own,), work_root=tmp_path)
    with PreparedLoad(program(Quick(url=url, for_ns=10**9, users=1)), setup):
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        readers = [t for t in threading.enumerate() if t.name.startswith("read-")]
        assert readers
        assert all(thread.native_id in tasks for thread in readers)
        assert all(own not in os.sched_getaffinity(thread.native_id) for thread in readers)
    assert os.sched_getaffinity(0) == allowed


def ended_by(number: signal.Signals, url: str, out: Path) -> tuple[int, str]:
    """Exit code and output of a load of a minute that gets a signal after its second second."""
    argv = [sys.executable, "-m", "partywall", "load", url, "--users", "1", "--think", "10ms", "--for", "60s"]
    running = subprocess.Popen([*argv, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        pending = out / "pending.jsonl"
        deadline = time.monotonic() + 30
        while not (pending.exists() and len(pending.read_text().splitlines()) > 2):
            assert time.monotonic() < deadline, "no second was written down"
            assert running.poll() is None, running.communicate()[0]
            time.sleep(0.05)
        assert json.loads((out / "load.json").read_text())["begin_ns"] > 0
        running.send_signal(number)
        said, _ = running.communicate(timeout=30)
        return running.returncode, said
    finally:
        running.kill()
        running.communicate()


def test_an_interrupted_load_is_shown_and_has_a_report(url, tmp_path):
    out = tmp_path / "kept"
    code, said = ended_by(signal.SIGTERM, url, out)
    assert code == 130
    assert "response" in said
    assert f"interrupted; kept in {out}" in said
    assert "ended early" in (out / "report.html").read_text()


def test_a_killed_load_says_so_and_has_the_rate_of_what_there_was(url, tmp_path):
    out = tmp_path / "kept"
    ended_by(signal.SIGKILL, url, out)
    directory = LoadDirectory(out)
    directory.settle()
    run = load_run(directory)
    assert run.ended_early
    assert run.length_s < 30
    assert run.rate == pytest.approx(run.responses / run.length_s)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sandbox", "vm"], "--sandbox: 'vm' is not a sandbox for a load"),
        (["--cpu-limit", "50%"], "--cpu-limit: a process has no CPU limit"),
        (["--sandbox", "container", "--cpu-limit", "much"], "--cpu-limit: 'much'"),
    ],
)
def test_sandboxes_that_cannot_be_are_refused(url, tmp_path, arguments, expected):
    said = partywall(url, *arguments, "--out", tmp_path / "kept")
    assert (said.returncode, expected in said.stderr) == (2, True), said.stderr
