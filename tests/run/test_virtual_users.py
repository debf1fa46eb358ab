"""Virtual users as victim and as aggressor of a run: what a service's visitors do to each other, with latency."""

import subprocess
import sys

import pytest

from partywall.core import here
from partywall.events import silent
from partywall.run import stages
from partywall.run.capability import with_loads
from partywall.run.document.scenario import Scenario
from partywall.run.record import RunDirectory
from partywall.run.values.observation import Observations
from tests.measured import fresh, measured

pytestmark = pytest.mark.host

# A process of its own, that answers one request after the other: visitors of any kind wait in one queue.
SERVICE = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_):
        pass
HTTPServer.request_queue_size = 64
server = HTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def url():
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as service:
        try:
            yield f"http://127.0.0.1:{int(service.stdout.readline())}/"
        finally:
            service.kill()


@measured
def test_visitors_of_one_service_take_their_part_from_each_other(tmp_path, monkeypatch, url):
    folder = fresh(tmp_path)
    monkeypatch.setenv("PARTYWALL_STATE", str(folder / "state"))
    content = {
        "partywall": 1,
        "name": "visitors",
        "victims": {"ours": {"load": {"url": url, "users": 2}}},
        "aggressors": {"theirs": {"load": {"url": url, "users": 6}}},
        "min_blocks": 8,
        "budget": "12s",
    }
    host = here.this_host()
    scenario = with_loads(Scenario.model_validate(content), folder)
    run = RunDirectory.create(folder / "run", "", stages.plan(scenario, host, 1), host.facts)
    stages.measure(run, silent)
    evidence, findings = stages.analyse(run)
    assert not findings.incomplete
    # In sum: what a slot's first and last slice hold of its neighbours differs where other work runs.
    seen = Observations.joined(list(evidence.observations.values()))
    answered = float((seen.rate * (seen.end_ns - seen.start_ns) / 1e9).sum())
    assert abs(int(seen.latency.entries[2].sum()) - answered) < 0.03 * answered
    assert (seen.rate > 0).all()
    theirs = next(cell for cell in findings.cells if cell.aggressor == "theirs")
    # Two of eight visitors.
    assert theirs.isolation.value < 0.6
    assert "p50" in theirs.latency
