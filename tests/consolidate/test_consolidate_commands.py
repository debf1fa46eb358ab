"""The commands of the manager, on recorded and practice clusters, and the documentation's example."""

import datetime
import http.server
import json
import re
import threading
from pathlib import Path

import pytest

import partywall
from partywall import kinds
from partywall.consolidate import check
from partywall.consolidate.capability import Consolidations
from partywall.consolidate.document import Control
from partywall.consolidate.job import PlanJob, SimulationJob
from partywall.consolidate.measure import connect
from partywall.consolidate.measure.apply import Timing
from partywall.consolidate.measure.control import CONTROLS
from partywall.consolidate.measure.planning import applied
from partywall.consolidate.measure.practice import PracticeCluster
from partywall.consolidate.measure.watch import Watching
from partywall.consolidate.record import ConsolidationDirectory
from partywall.consolidate.values import Journal
from partywall.core.capability import Options
from partywall.errors import Exit, TrialError, UsageError
from partywall.events import silent
from partywall.testing import fake_host

DOCS = Path(__file__).parents[2] / "docs" / "consolidate.md"
QUICK = Timing(settle_s=0.3, moving_s=2.0, look_s=0.01)


@pytest.fixture
def practice(tmp_path):
    cluster = check.load(check.find("cluster"))
    return cluster.model_copy(update={"hypervisor": "practice", "folder": str(tmp_path / "practice")})


def made(cluster, path, solver="heuristic"):
    options = Options(fake_host(), path)
    return Consolidations().begin(PlanJob(cluster=cluster, solver=solver), options, silent)


def test_the_example_of_the_documentation_is_a_good_cluster_with_a_good_curve():
    cluster, curve = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert check.loads((cluster + curve).encode(), "docs").power["mine"].error == 0.05


def test_every_key_of_a_cluster_file_is_documented():
    text = DOCS.read_text()
    from partywall.consolidate import document  # noqa: PLC0415

    for model in (
        document.Cluster,
        document.HostSpec,
        document.GuestSpec,
        document.Limits,
        document.Slo,
        document.LinkSpec,
    ):
        for key in model.model_fields:
            assert re.search(rf"\b{key}\b", text), key


def test_a_plan_is_a_record_with_a_report(tmp_path):
    result = partywall.plan_consolidation("cluster", solver="heuristic", out=tmp_path / "plan")
    assert result.outcome == Exit.HOLDS
    assert {row["action"] for row in result.rows()} == {"move", "sleep"}
    page, got_back = result.write()
    assert "modelled" in page.read_text()
    assert json.loads(got_back.read_text())["evidence"]["plan"]["digest"]
    assert kinds.opened(tmp_path / "plan").KIND == "consolidation"


def test_a_simulation_is_a_record_with_a_report(tmp_path):
    cluster = check.load(check.find("cluster"))
    job = SimulationJob(cluster=cluster, policies=("partywall", "lr-mmt", "static"), orders=2)
    record = Consolidations().begin(job, Options(fake_host(), tmp_path / "simulation"), silent)
    got_back = Consolidations().findings(record)
    assert [each.policy for each in got_back.compared] == ["partywall", "lr-mmt", "static"]
    assert len(Consolidations().files().rows(got_back)) == 6
    page, *_ = Consolidations().files().write(got_back, record.path)
    assert "simulated" in page.read_text()


def test_a_practice_plan_is_carried_out_once(practice, tmp_path):
    record = made(practice, tmp_path / "plan")
    assert applied(record, silent, QUICK)
    assert Consolidations().findings(record).headline.startswith("all ")
    with pytest.raises(UsageError, match="has been carried out"):
        applied(record, silent, QUICK)


def test_a_plan_is_refused_if_the_cluster_has_changed_since(practice, tmp_path):
    record = made(practice, tmp_path / "plan")
    files = PracticeCluster(Path(practice.folder))
    files.move("mail", "d", "b", 300)
    with pytest.raises(UsageError, match="guest mail was on d and is on b now"):
        applied(record, silent, QUICK)


def test_a_plan_that_was_changed_by_hand_is_refused(practice, tmp_path):
    record = made(practice, tmp_path / "plan")
    mark = record.path / "consolidation.json"
    mark.write_text(mark.read_text().replace('"memory": 1073741824', '"memory": 2147483648', 1))
    with pytest.raises(UsageError, match="not the one that the plan was made for"):
        applied(record, silent, QUICK)


def test_a_recorded_cluster_cannot_be_changed(tmp_path):
    record = made(check.load(check.find("cluster")), tmp_path / "plan")
    with pytest.raises(UsageError, match="recorded state"):
        applied(record, silent, QUICK)


def test_a_failed_plan_is_violated_and_says_why(practice, tmp_path):
    record = made(practice, tmp_path / "plan")
    record.add_journal(Journal(number=0, outcome="failed", at="now", reason="the destination died"))
    got_back = Consolidations().findings(record)
    assert Consolidations().outcome(got_back) == Exit.VIOLATED
    assert "the destination died" in got_back.headline


def test_a_damaged_record_is_refused(tmp_path):
    record = made(check.load(check.find("cluster")), tmp_path / "plan")
    (record.path / "consolidation.json").write_text('{"mode": "plan"}')
    with pytest.raises(UsageError, match="it has no about"):
        ConsolidationDirectory.open(record.path).evidence()


def test_watching_measures_demand_and_empties_a_host_when_load_falls(practice):
    now = [0.0]
    files = connect.hypervisor_of(practice)
    watching = Watching(practice, files, clock=lambda: now[0])
    assert watching.look().plan is None
    looks = []
    for _ in range(6):
        now[0] += 300
        for name in practice.guests:
            files.use(name, 0.05 * 300)
        looks.append(watching.look())
    assert looks[-1].demand["web-1"] == pytest.approx(0.05)
    assert any(step.action == "sleep" for step in looks[-1].plan.steps)
    watching.done(looks[-1])
    # What has just changed stays as it is.
    moved = {step.guest for step in looks[-1].plan.moves}
    now[0] += 300
    for name in practice.guests:
        files.use(name, 0.05 * 300)
    again = watching.look().plan
    assert again is None or not moved & {step.guest for step in again.moves}


@pytest.mark.parametrize(
    ("hours", "time", "expected"),
    [(None, 12, True), ("20:00-06:00", 23, True), ("20:00-06:00", 3, True), ("20:00-06:00", 12, False),
     ("08:00-18:00", 12, True), ("08:00-18:00", 18, False)],
)  # fmt: skip
def test_hosts_are_emptied_in_the_permitted_hours_only(hours, time, expected):
    assert connect.may_empty(hours, datetime.time(time)) is expected


class Service(http.server.BaseHTTPRequestHandler):
    """A Redfish service with one system, whose power follows Reset."""

    state = "On"
    requested: tuple[str, ...] = ()

    def do_GET(self):
        self._answer({"PowerState": Service.state} if self.path == "/redfish/v1/Systems/1" else None)

    def do_POST(self):
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Service.requested = (self.headers["Authorization"], content["ResetType"])
        Service.state = "On" if content["ResetType"] == "On" else "Off"
        self._answer({})

    def _answer(self, content):
        self.send_response(200 if content is not None else 404)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def redfish(tmp_path):
    server = http.server.HTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "password").write_text("secret\n")
    yield Control(
        kind="redfish", address=f"http://127.0.0.1:{server.server_port}", system="1",
        user="admin", password_file=str(tmp_path / "password"),
    )  # fmt: skip
    server.shutdown()


def test_redfish_switches_a_system_and_reads_its_state(redfish):
    power = CONTROLS["redfish"](redfish)
    power.switch_off()
    assert Service.requested == ("Basic YWRtaW46c2VjcmV0", "ForceOff")
    assert not power.is_on()
    power.switch_on()
    assert power.is_on()


def test_a_redfish_service_that_is_absent_or_knows_no_such_system_is_named(redfish):
    with pytest.raises(TrialError, match="404"):
        CONTROLS["redfish"](redfish.model_copy(update={"system": "2"})).is_on()
    with pytest.raises(TrialError, match=r"127\.0\.0\.1:1"):
        CONTROLS["redfish"](redfish.model_copy(update={"address": "http://127.0.0.1:1"})).is_on()


def test_commands_switch_a_host_and_say_whether_it_is_on(tmp_path):
    flag = tmp_path / "on"
    control = Control(
        kind="command", on=("touch", str(flag)), off=("rm", str(flag)), state=("test", "-e", str(flag))
    )  # fmt: skip
    power = CONTROLS["command"](control)
    assert not power.is_on()
    power.switch_on()
    assert power.is_on()
    power.switch_off()
    with pytest.raises(TrialError, match="rm failed with exit code 1"):
        power.switch_off()
