"""The program `partywall-watch`: options, metrics and readiness on a port, a file, the ring, and its end."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from partywall.watch.stalls import resident
from partywall.watch.stalls.reading import Reader
from partywall.watch.stalls.resident import Options, Resident, parsed
from tests.watch.hosts import Tree

POLL_S, POLLS = 0.02, 1500
LARGE = ("pydantic", "numpy", "pyarrow", "rich", "typer", "http.server", "asyncio")


def until(condition, what):
    # Counted, so that a machine that stands still for a while uses up no deadline.
    for _ in range(POLLS):
        if value := condition():
            return value
        time.sleep(POLL_S)
    return pytest.fail(what)


def get(port, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


class Running:
    """A watch of a tree in a thread, until the block ends."""

    def __init__(self, tree, **options):
        self.said = []
        # Long enough for any test: a condition ends it.
        self.resident = Resident(Options(port=0, for_ns=None, **options), Reader(tree.root), self.said.append)
        self.port = self.resident._server.port
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        self.resident.run()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.resident.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path / "host")
    made.group("web.service")
    made.group("batch.service")
    return made


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(resident, "GATE_NS", 20_000_000)
    monkeypatch.setattr("partywall.watch.stalls.budget.SOON_NS", 20_000_000)
    monkeypatch.setattr("partywall.watch.stalls.budget.QUIET_NS", 40_000_000)
    monkeypatch.setattr("partywall.watch.stalls.budget.SHARE", 1.0)


def test_metrics_name_the_pairs_and_it_is_ready(tree):
    with Running(tree) as running:
        until(lambda: get(running.port, "/ready")[0] == 200, "it is not ready")
        tree.host(busy_s=3, cpu=1.0)
        tree.group("batch.service", used_s=3)
        tree.group("web.service", cpu=(1.0, 1.0))
        row = 'partywall_stalled_seconds_total{victim="web.service",suspect="batch.service",resource="cpu"} 1\n'
        status, kind, text = until(
            lambda: answer if row in (answer := get(running.port, "/metrics"))[2] else None, "the pair is not there"
        )
        assert status == 200
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert text.endswith("# EOF\n")
        assert "partywall_watch_ready{} 1" in text


def test_it_is_not_ready_while_something_is_not_seen(tmp_path):
    tree = Tree(tmp_path / "host", is_v2=False, psi=False)
    tree.group("web.service")
    with Running(tree) as running:
        status, _, text = until(
            lambda: answer if "PSI" in (answer := get(running.port, "/ready"))[2] else None, "it names nothing"
        )
        assert status == 503
        assert "boot with psi=1" in text
        assert any(line.startswith("missing: no PSI") for line in running.said)
        assert "partywall_watch_ready{} 0" in get(running.port, "/metrics")[2]


def test_only_two_pages_and_one_method_are_answered(tree):
    with Running(tree) as running:
        assert get(running.port, "/")[0] == 404
        assert get(running.port, "/metrics", "POST")[0] == 405


def test_what_is_written_can_be_read_afterwards(tree, tmp_path):
    with Running(tree, textfile=tmp_path / "watch.prom", ring=tmp_path / "ring") as running:
        until(lambda: get(running.port, "/ready")[0] == 200, "it is not ready")
        tree.host(busy_s=3, cpu=1.0)
        tree.group("batch.service", used_s=3)
        tree.group("web.service", cpu=(1.0, 1.0))
        until(lambda: "batch.service" in get(running.port, "/metrics")[2], "the pair is not there")
    text = (tmp_path / "watch.prom").read_text()
    assert 'suspect="batch.service"' in text
    assert "# EOF" not in text
    assert (tmp_path / "watch.prom").stat().st_mode & 0o777 == 0o644
    (file,) = (tmp_path / "ring").iterdir()
    assert '["web.service","batch.service","cpu",1000.0]' in file.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "x"], "--port: 'x' is not a port; write for example 9753"),
        (["--port", "70000"], "'70000' is not a port"),
        (["--from", "0%"], "--from must be greater than 0 and at most 100 %, got 0%"),
        (["--for", "5"], "--for: '5' is not a duration"),
        (["--for"], "--for: has no value"),
        (["--perhaps"], "--perhaps: there is no such option"),
        (["--port=x", "--from=x"], "--from: 'x'"),
        (["--address", "here"], "--address: 'here' is not an address; write for example 127.0.0.1"),
    ],
)
def test_wrong_options_are_said_with_a_remedy(words, said, capsys):
    assert resident.main(words) == 2
    assert said in capsys.readouterr().err


def test_options_are_read():
    assert parsed(["--port=0", "--from", "20%", "--for", "2min"]) == Options(port=0, threshold=0.2, for_ns=120 * 10**9)


@pytest.mark.long
def test_it_ends_at_a_signal_and_imports_nothing_large(tree):
    code = (
        "import sys, pathlib; from partywall.watch.stalls import resident;"
        "resident._say = lambda text: print(text, [n for n in sys.argv[2].split() if n in sys.modules], flush=True);"
        "sys.exit(resident.main(['--port', '0'], pathlib.Path(sys.argv[1])))"
    )
    argv = [sys.executable, "-c", code, str(tree.root), " ".join(LARGE)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as running:
        line = running.stdout.readline()
        assert line.startswith("metrics: http://127.0.0.1:")
        assert line.rstrip().endswith("[]"), "a large library costs megabytes on every host"
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
