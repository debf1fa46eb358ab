"""The program `partywall-watch`: options, metrics and readiness on a port, a file, the ring, and its end."""

import contextlib
import errno
import http.client
import http.server
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

from partywall import __version__
from partywall.errors import UsageError
from partywall.watch.stalls import otlp, resident
from partywall.watch.stalls.reading import Reader
from partywall.watch.stalls.resident import Options, Resident, parsed
from partywall.watch.stalls.ring import lines
from partywall.watch.stalls.serving import Server
from partywall.watch.stalls.totals import Family
from tests.waiting import until
from tests.watch.hosts import S, Tree

LARGE = ("pydantic", "numpy", "pyarrow", "rich", "typer", "http.server", "asyncio")


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


class Waiting:
    """A group that waits because of another, a second more each time. One time may fall between two files' readings."""

    def __init__(self, tree):
        self._tree, self._times = tree, 0

    def more(self):
        self._times += 1
        self._tree.host(busy_s=3, cpu=1.0)
        self._tree.group("batch.service", used_s=3 * self._times)
        self._tree.group("web.service", cpu=(self._times, self._times))
        return True


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
        row = 'partywall_stalled_seconds_total{victim="web.service",suspect="batch.service",resource="cpu"} '
        waiting = Waiting(tree)
        status, kind, text = until(
            lambda: answer if waiting.more() and row in (answer := get(running.port, "/metrics"))[2] else None,
            "the pair is not there",
        )
        assert status == 200
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert text.endswith("# EOF\n")
        assert "partywall_watch_ready{} 1" in text


def test_what_a_host_does_not_show_is_said_and_it_is_ready_all_the_same(tmp_path):
    """As on each node without PSI: a pod that is never ready ends no roll-out."""
    tree = Tree(tmp_path / "host", is_v2=False, psi=False)
    tree.group("web.service")
    with Running(tree) as running:
        text = until(lambda: said[2] if (said := get(running.port, "/ready"))[0] == 200 else "", "it is not ready")
        assert text.startswith("ready\nmissing: no PSI")
        assert "boot with psi=1" in text
        assert any(line.startswith("missing: no PSI") for line in running.said)
        metrics = get(running.port, "/metrics")[2]
        assert "partywall_watch_ready{} 1" in metrics
        assert 'partywall_watch_lacks{what="psi_memory"} 1' in metrics


def test_only_two_pages_and_one_method_are_answered(tree):
    with Running(tree) as running:
        assert get(running.port, "/")[0] == 404
        assert get(running.port, "/metrics", "POST")[0] == 405


def test_what_is_written_can_be_read_afterwards(tree, tmp_path):
    with Running(tree, file=tmp_path / "watch.prom", ring=tmp_path / "ring") as running:
        until(lambda: get(running.port, "/ready")[0] == 200, "it is not ready")
        waiting, suspect = Waiting(tree), 'suspect="batch.service"'
        until(lambda: waiting.more() and suspect in get(running.port, "/metrics")[2], "the pair is not there")
    text = (tmp_path / "watch.prom").read_text()
    assert 'suspect="batch.service"' in text
    assert "# EOF" not in text
    assert (tmp_path / "watch.prom").stat().st_mode & 0o777 == 0o644
    pairs = [pair[:3] for line in lines(tmp_path / "ring") for pair in line.get("pairs", ())]
    assert ["web.service", "batch.service", "cpu"] in pairs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "x"], "--port: 'x' is not a port; write for example 9753"),
        (["--port", "70000"], "'70000' is not a port"),
        (["--from", "0%"], "--from must be greater than 0 and at most 100 %, got 0%"),
        (["--for", "5"], "--for: '5' is not a duration"),
        (["--for"], "--for: has no value"),
        (["--perhaps"], "--perhaps: there is no such option — see partywall-watch --help"),
        (["9753"], "9753: is not an option"),
        (["--address", "192.0.2.1"], "--address: needs --port — add for example --port 9753"),
        (["--port=x", "--from=x"], "--from: 'x'"),
        (["--address", "here"], "--address: 'here' is not an address; write for example 127.0.0.1"),
    ],
)
def test_wrong_options_are_said_with_a_remedy(words, said, capsys):
    assert resident.main(words) == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_in_use_or_an_address_that_is_not_there_yet_may_be_right_later(tree, capsys):
    """The unit starts it again after this, as before the network is up; not after a mistake."""
    unit = (Path(__file__).parents[2] / "packaging/systemd/partywall-watch.service").read_text()
    not_again = re.search("^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)[1].split()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for address, port in (("127.0.0.1", taken.getsockname()[1]), ("192.0.2.1", 0)):
            code = resident.main(["--port", str(port), "--address", address], tree.root)
            assert code == 5
            assert str(code) not in not_again
            assert f"--port: {address}:{port} cannot be used: " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--prot", "9753"], ["--prot=9753"]])
def test_a_mistyped_option_is_one_mistake_with_a_guess(words, capsys):
    assert resident.main(words) == 2
    assert capsys.readouterr().err == "partywall-watch: --prot: there is no such option — did you mean --port?\n"


def test_help_and_version_are_plain_text(capsys):
    assert resident.main(["--help"]) == resident.main(["--version"]) == 0
    said = capsys.readouterr().out
    assert "`" not in said
    assert said.endswith(f"\npartywall-watch {__version__}\n")


def test_a_full_disk_ends_nothing_and_is_written_to_again(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(resident, "FILE_NS", 50_000_000)
    monkeypatch.setattr("partywall.watch.stalls.watching.RING_NS", 50_000_000)
    ring, textfile = tmp_path / "ring", tmp_path / "watch.prom"
    ring.mkdir()
    places = [*(ring / f"{minute:02}.jsonl" for minute in range(60)), textfile]
    for place in places:
        place.symlink_to("/dev/full")
    with Running(tree, file=textfile, ring=ring) as running:
        waiting = Waiting(tree)

        def waits():
            waiting.more()
            return get(running.port, "/ready")[2]

        text = until(lambda: found if "the ring" in (found := waits()) else None, "the ring is not named")
        assert f"missing: the file {textfile} cannot be written: No space left on device" in text
        assert get(running.port, "/ready")[0] == 200
        metrics = get(running.port, "/metrics")[2]
        assert {'partywall_watch_lacks{what="ring"} 1', 'partywall_watch_lacks{what="file"} 1'} <= set(
            metrics.splitlines()
        )
        pair = 'victim="web.service",suspect="batch.service",resource="cpu"'
        until(lambda: waits() and pair in get(running.port, "/metrics")[2], "the totals do not go on")
        for place in places:
            place.unlink()
        until(lambda: "cannot be written" not in waits(), "it is not written again")
        assert {"the ring can be written again", "the file can be written again"} <= set(running.said)
        assert sum("cannot be written" in line for line in running.said) == 2, "each is said once"
    assert 'suspect="batch.service"' in textfile.read_text()
    assert [line for line in lines(ring) if "pairs" in line]


def test_a_place_that_is_wrong_is_refused_at_the_start(tree, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for option in ("--ring", "--prometheus"):
        assert resident.main([option, str(tmp_path / "file/below"), "--for", "1s"], tree.root) == 2
        assert f"{option}: {tmp_path}/file/below cannot be written to: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "is_served"), [("--port 0 --for 1s", True), ("--help", False), ("--version", False)]
)
@pytest.mark.parametrize(("to", "code"), [("| true", 0), (">/dev/full", 5), (">&-", 5)])
def test_output_that_nobody_reads_or_that_has_no_room_is_no_traceback(arguments, is_served, to, code):
    code = 0 if is_served else code
    pipe = f'set -o pipefail; "$0" -m partywall.watch.stalls {arguments} {to}'
    done = subprocess.run(
        ["bash", "-c", pipe, sys.executable], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == code, done.stderr
    assert re.fullmatch("(partywall-watch: cannot write: .* elsewhere\n)?", done.stderr)
    assert bool(done.stderr) == bool(code)


def test_without_readers_of_its_lines_it_goes_on_only_if_it_serves_something_else(tmp_path):
    def say(_text):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    tree = Tree(tmp_path / "host", is_v2=False, psi=False)
    tree.group("web.service")
    with pytest.raises(BrokenPipeError):
        Resident(Options(for_ns=S), Reader(tree.root), say).run()
    served = Resident(Options(for_ns=S // 10, port=0), Reader(tree.root), say)
    served.run()
    assert "lines cannot be written: Broken pipe" in [lack.text for lack in served.lacks()]


@pytest.fixture
def without_descriptors():
    """Uses up all descriptors of this process. Returns what gives some back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    taken = []

    def use_up():
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))

    yield use_up
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def serving(clients):
    server = Server("127.0.0.1", 0, lambda _path: (200, "text/plain", "here\n"))
    for client in clients:
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    return server


def test_clients_are_answered_while_all_descriptors_are_in_use(without_descriptors):
    clients = [socket.socket() for _ in range(3)]
    server = serving(clients)
    without_descriptors()
    server.wait(time.monotonic_ns() + 200_000_000, time.monotonic_ns)
    server.close()
    assert all(client.recv(1000).startswith(b"HTTP/1.1 200") for client in clients)
    for client in clients:
        client.close()


def test_a_client_that_no_descriptor_is_left_for_costs_no_cpu_time(without_descriptors, monkeypatch):
    monkeypatch.setattr("partywall.watch.stalls.serving.CLIENTS_MAX", 0)
    with socket.socket() as client:
        server = serving([client])
        without_descriptors()
        spent_ns = time.process_time_ns()
        server.wait(time.monotonic_ns() + 500_000_000, time.monotonic_ns)
        assert time.process_time_ns() - spent_ns < 100_000_000
        server.close()


def test_options_are_read():
    assert parsed(["--port=0", "--from", "20%", "--for", "2min"]) == Options(port=0, threshold=0.2, for_ns=120 * 10**9)
    assert parsed(["--textfile", "x"]) == parsed(["--prometheus", "x"]) == Options(file=Path("x"))


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


class Collector:
    """Takes documents on a free port. status: of its answers."""

    def __init__(self):
        self.taken, self.status = [], 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outer.taken.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


def test_a_collector_of_opentelemetry_gets_what_a_scrape_would_see():
    collector = Collector()
    pairs = {("shop", "batch", "cpu"): 2_500_000_000, ("shop", "itself", "cpu"): 500_000_000}
    families = [
        Family("partywall_stalls_total", "Stalls.", "counter", [({}, 3)]),
        Family("partywall_watch_ready", "Ready.", "gauge", [({}, 1)]),
        Family("partywall_stall", "Going on.", "gauge", []),
    ]
    try:
        content = otlp.document(families, pairs, {"host.name": "h1"}, 1_000, 2_000)
        otlp.Collector.parsed(collector.url).send(content)
        ((path, body),) = collector.taken
        assert path == "/v1/metrics"
        request = metrics_service_pb2.ExportMetricsServiceRequest()
        json_format.Parse(body, request)
        (resource_metrics,) = request.resource_metrics
        assert [(each.key, each.value.string_value) for each in resource_metrics.resource.attributes] == [
            ("host.name", "h1")
        ]
        stalled, stalls, ready = resource_metrics.scope_metrics[0].metrics
        assert (stalled.name, stalled.unit) == ("partywall_stalled_seconds", "s")
        assert stalled.sum.is_monotonic
        assert stalled.sum.aggregation_temporality == 2
        first = stalled.sum.data_points[0]
        assert {each.key: each.value.string_value for each in first.attributes} == {
            "victim": "shop", "suspect": "batch", "resource": "cpu",
        }  # fmt: skip
        assert (first.as_double, first.start_time_unix_nano, first.time_unix_nano) == (2.5, 1000, 2000)
        assert (stalls.name, stalls.sum.data_points[0].as_double) == ("partywall_stalls", 3)
        assert (ready.name, ready.gauge.data_points[0].as_double) == ("partywall_watch_ready", 1)
        collector.status = 503
        with pytest.raises(OSError, match="it answered 503"):
            otlp.Collector.parsed(collector.url).send(content)
    finally:
        collector.stop()
    with pytest.raises(OSError, match="refused"):
        otlp.Collector.parsed(collector.url).send(content)


def test_a_collector_that_is_away_is_said_once_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(resident, "FILE_NS", 0)
    collector = Collector()
    collector.status = 500
    tree = Tree(tmp_path / "host")
    said = []
    watch = Resident(parsed(["--otlp", collector.url]), Reader(tree.root), said.append)
    running = threading.Thread(target=watch.run)
    running.start()
    try:
        until(lambda: len(collector.taken) > 1, "it was not tried again")
        assert sum("cannot be reached: it answered 500" in line for line in said) == 1
        collector.status = 200
        until(lambda: "the collector can be reached again" in said, "it was not said that it is back")
    finally:
        watch.stop()
        running.join()
        collector.stop()


@pytest.mark.parametrize("url", ["https://127.0.0.1:4318", "127.0.0.1:4318", "http://"])
def test_an_address_that_is_none_of_a_collector_is_refused(url):
    with pytest.raises(UsageError, match="is no address of a collector; write for example"):
        parsed(["--otlp", url])
