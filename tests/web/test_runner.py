"""The runner: its queue, its keys, and the command lines it builds."""

import json
import os
import re
import socket
import subprocess
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.guard.document import Policy
from partywall.host.label import start_ticks
from partywall.load.document import LoadPlan
from partywall.migrate.document import MigrationPlan
from partywall.run.document.scenario import Scenario
from partywall.web import deleted, documents, live, pages
from partywall.web import runner as running
from partywall.web.jobs import Folder, Force, Job, Order, State, Want
from partywall.web.runner import ACTIONS, Runner, command
from tests.guard.records import guard_record
from tests.web.web_site import record

DOCUMENT = "partywall: 1\nname: tiny\n"


def ask(runner, action, **fields):
    return runner.answer(json.dumps({"action": action} | fields).encode())


@pytest.fixture
def runner(folder):
    return Runner(folder)


def put(folder, name="job-00001", **changes):
    fields = {"id": name, "order": Order(kind="run", shipped="demo"), "record": f"{name}-r", "created": time.time()}
    return folder.put(Job(**(fields | changes)))


def test_the_same_key_makes_one_job(runner, folder):
    answers = [ask(runner, "start", key="key-00001", order={"kind": "run", "document": DOCUMENT}) for _ in range(3)]
    assert answers[0]["ok"]
    assert all(answer == answers[0] for answer in answers)
    assert len(folder.all()) == 1
    assert folder.document("key-00001").read_text() == DOCUMENT


def test_a_bug_inside_an_action_is_not_called_bad_input_and_leaves_its_traceback(runner, folder, monkeypatch, capfd):
    for raised in (KeyError("inside"), ValueError("inside"), TypeError("inside")):

        def fails(*_, raised=raised):
            raise raised

        monkeypatch.setattr(Folder, "put", fails)
        answer = ask(runner, "start", key="key-00001", order={"kind": "run", "shipped": "demo"})
        assert answer["error"] == f"this is a bug: {raised!r}; {folder.own / 'runner.txt'} has the details"
        said = capfd.readouterr().err
        assert "Traceback" in said
        assert "inside" in said


@pytest.mark.parametrize("line", [b"", b"7", b"[]", b"{}", b'{"action": 7}', b'{"action": "none"}', b"[" * 100_000])
def test_what_is_no_request_is_refused_without_a_traceback(runner, capfd, line):
    assert runner.answer(line) == {"error": "this is not a request"}
    assert capfd.readouterr().err == ""


def test_jobs_survive_in_the_order_of_their_creation(runner, folder):
    for number in range(5):
        ask(runner, "start", key=f"key-0000{number}", order={"kind": "run", "shipped": "demo"})
    assert [job.id for job in Folder(folder.root).all()] == [f"key-0000{number}" for number in range(5)]


def test_the_files_of_old_jobs_are_looked_at_only_after_one_was_stored(folder, monkeypatch):
    put(folder, state=State.ENDED)
    put(folder, "job-00002", state=State.ENDED)
    looks = []
    job = Folder.job
    monkeypatch.setattr(Folder, "job", lambda folder, name: looks.append(name) or job(folder, name))
    deadline, before = time.monotonic() + 10, -1
    while len(looks) != before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        before = len(looks)
        assert len(folder.all()) == 2
    put(folder, "job-00002")
    assert [each.id for each in folder.waiting()] == ["job-00002"]
    put(folder, "job-00002", state=State.CANCELLED)
    assert not folder.waiting()


def test_a_report_is_written_in_formats_that_the_record_has(runner, folder, monkeypatch):
    record(folder, "load-1")
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda words, **_: started.append(words))
    answer = ask(runner, "report", key="press-001", record="load-1", formats=["csv", "--out=/etc"])
    assert "cannot be written as '--out=/etc'" in answer["error"]
    assert "parquet" in answer["error"]
    assert not started
    assert ask(runner, "report", key="press-002", record="load-1", formats=["csv", "svg"])["ok"]
    assert started[0][-4:] == ["--format=html", "--format=json", "--format=csv", "--format=svg"]


def test_a_request_about_a_job_has_an_effect_once(runner, folder):
    put(folder, state=State.PAUSED)
    record(folder, "job-00001-r")
    assert ask(runner, "resume", key="press-001", job="job-00001")["ok"]
    assert folder.job("job-00001").state is State.QUEUED
    folder.put(folder.job("job-00001").model_copy(update={"state": State.PAUSED}))
    assert ask(runner, "resume", key="press-001", job="job-00001")["ok"]
    assert folder.job("job-00001").state is State.PAUSED


def test_a_queued_job_that_is_stopped_is_cancelled(runner, folder):
    put(folder)
    ask(runner, "stop", key="press-001", job="job-00001")
    assert folder.job("job-00001").state is State.CANCELLED


@pytest.mark.parametrize(
    ("want", "code", "state"),
    [
        (Want.PAUSE, 130, State.PAUSED),
        (Want.STOP, 130, State.ENDED),
        (Want.EXTEND, 130, State.QUEUED),
        (Want.PAUSE, 0, State.ENDED),
        (None, 0, State.ENDED),
        (None, -9, State.ENDED),
    ],
)
def test_what_follows_the_end_of_an_attempt(runner, folder, want, code, state, monkeypatch):
    monkeypatch.setattr(Runner, "_report", lambda *_: None)
    record(folder, "job-00001-r")
    job = put(folder, state=State.RUNNING, want=want, pid=2**22 + 1, start_ticks=1, attempt=1)
    folder.exit_file(job).write_text(str(code))
    runner.step()
    result = folder.job(job.id)
    assert (result.state, result.pid, result.want) == (state, None, None)


def test_a_killed_job_is_noticed(runner, folder):
    put(folder, state=State.RUNNING, pid=2**22 + 1, start_ticks=1, attempt=1)
    runner.step()
    assert folder.job("job-00001").exit == -9


HANGS = "trap '' INT TERM; echo ready; while :; do sleep 600 & wait; done"


@pytest.mark.long
def test_a_job_that_hangs_is_ended_by_force_and_the_queue_goes_on(runner, folder, monkeypatch):
    """SIGINT with the first stop, SIGTERM with the second, SIGKILL after a while; then its leftovers are removed."""
    started, launched = [], []
    monkeypatch.setattr(Runner, "_beside", lambda _, *words: started.append(words[0]))
    monkeypatch.setattr(Runner, "_launch", lambda _, job: launched.append(job.id))
    monkeypatch.setattr(Runner, "_locked", lambda _: True)
    hung = subprocess.Popen(["/bin/sh", "-c", HANGS], stdout=subprocess.PIPE, start_new_session=True)
    hung.stdout.readline()
    runner._process = hung
    job = put(folder, state=State.RUNNING, pid=hung.pid, start_ticks=start_ticks(hung.pid), attempt=1)
    put(folder, "job-00002")
    record(folder, job.record)
    for _ in range(2):
        ask(runner, "stop", key="press-001", job=job.id)
    assert (folder.job(job.id).want, folder.job(job.id).force) == (Want.STOP, None)
    assert pages.buttons(folder.job(job.id)) == pages.Buttons(force=True)
    ask(runner, "stop", key="press-002", job=job.id)
    runner.step()
    assert folder.job(job.id).force is Force.TERMINATE
    assert hung.poll() is None
    assert "SIGKILL follows" in pages.status(folder.job(job.id), live.State(), list, running=True)
    monkeypatch.setattr(running, "KILL_AFTER_S", 0.0)
    runner.step()
    assert hung.wait(60) == -9
    hung.stdout.close()
    runner.step()
    ended = folder.job(job.id)
    assert (ended.state, ended.exit, ended.force) == (State.ENDED, -9, None)
    assert started == ["reap", "report"]
    runner.step()
    assert launched == ["job-00002"]


def test_what_cannot_be_paused_is_refused_with_a_remedy(runner, folder):
    put(folder, state=State.RUNNING, order=Order(kind="load", url="http://127.0.0.1/"))
    assert "stop it instead" in ask(runner, "pause", key="press-001", job="job-00001")["error"]


def test_a_deleted_record_can_be_restored(runner, folder):
    record(folder, "load-1", report_html="<p>")
    for _ in range(2):
        assert ask(runner, "delete", key="press-001", record="load-1") == {"ok": True}
    assert folder.record("load-1") is None
    for _ in range(2):
        assert ask(runner, "restore", key="press-002", record="load-1") == {"ok": True}
    assert (folder.root / "load-1" / "report.html").read_text() == "<p>"


def test_records_of_one_name_are_deleted_and_restored_one_by_one(runner, folder):
    for text in ("<p>1", "<p>2"):
        record(folder, "load-1", report_html=text)
        assert ask(runner, "delete", key="press-001", record="load-1") == {"ok": True}
    newer, older = deleted.entries(folder)
    assert ask(runner, "restore", key="press-002", record="load-1", entry=older.id) == {"ok": True}
    assert (folder.root / "load-1" / "report.html").read_text() == "<p>1"
    assert "already" in ask(runner, "restore", key="press-003", record="load-1", entry=newer.id)["error"]
    assert "error" in ask(runner, "restore", key="press-003", record="load-2", entry="../../x")
    assert [each.id for each in deleted.entries(folder)] == [newer.id]


def test_the_bin_is_emptied_up_to_what_was_listed_and_while_nothing_is_measured(runner, folder):
    for name in ("load-1", "load-2"):
        record(folder, name, report_html="<p>")
        ask(runner, "annotate", key="press-000", record=name, note="x")
        ask(runner, "delete", key="press-001", record=name)
    listed = deleted.of_name(folder, "load-1")
    later = listed.path.parent.rename(folder.trash / "1000000000000-abcd")
    assert ask(runner, "empty", key="press-002", before=1e9) == {"ok": True, "records": 1}
    assert not later.exists()
    assert [each.name for each in deleted.entries(folder)] == ["load-2"]
    assert [file.name for file in folder.notes.iterdir()] == ["load-2.json"]
    job = put(folder, state=State.RUNNING, pid=os.getpid(), start_ticks=start_ticks(os.getpid()))
    runner.step()
    assert len(deleted.hidden(folder)) == 1
    folder.put(job.model_copy(update={"state": State.ENDED}))
    runner.step()
    assert [process.wait(60) for process in runner._reports] == [0]
    assert deleted.hidden(folder) == []


def test_a_record_that_was_deleted_a_month_ago_is_removed_by_itself(runner, folder):
    for name in ("load-1", "load-2"):
        record(folder, name)
        ask(runner, "delete", key="press-001", record=name)
    old = deleted.of_name(folder, "load-1").path.parent
    month_ms = int((time.time() - 86400 * (deleted.KEPT_DAYS + 1)) * 1000)
    old.rename(folder.trash / f"{month_ms}-abcd")
    runner.step()
    assert [process.wait(60) for process in runner._reports] == [0]
    assert [each.name for each in deleted.entries(folder)] == ["load-2"]
    assert len(list(folder.trash.iterdir())) == 1


def test_a_clock_that_is_ten_years_ahead_removes_nothing_for_good(runner, folder, monkeypatch):
    for name in ("load-1", "load-2"):
        record(folder, name)
        ask(runner, "delete", key="press-001", record=name)
    put(folder, state=State.ENDED, created=time.time())
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + 10 * 365 * 86400)
    runner.step()
    assert [each.name for each in deleted.entries(folder)] == ["load-2", "load-1"]
    assert folder.job("job-00001") is not None


def test_a_step_that_fails_is_said_once_and_tried_again(runner, folder, monkeypatch, capsys):
    """On a full disk, the runner ended at the end of each job, and so did each that was started in its place."""
    monkeypatch.setattr(running, "AGAIN_S", 0.0)
    job = put(folder, state=State.RUNNING, pid=2**22 + 1, start_ticks=1, attempt=1)
    write, full = Folder.put, [OSError(28, "No space left on device")] * 2

    def kept(self, changed):
        if full:
            raise full.pop()
        return write(self, changed)

    monkeypatch.setattr(Folder, "put", kept)
    with running._telling(folder) as runner._tell:
        assert folder.why_stalled() == ""
        for _ in range(2):
            runner.try_step()
        assert folder.job(job.id).state is State.RUNNING
        said = pages.status(job, live.State(), list, running=False, stalled=folder.why_stalled)
        assert said.startswith("the queue stands still: [Errno 28] No space left on device; it is tried again")
        assert ask(runner, "ping")["ok"]
        runner.try_step()
        assert folder.job(job.id).state is State.ENDED
        assert folder.why_stalled() == ""
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_after_a_step_that_failed_the_runner_waits(runner, monkeypatch):
    steps = []
    monkeypatch.setattr(Runner, "step", lambda _: steps.append(1) or 1 / 0)
    for _ in range(3):
        runner.try_step()
    assert len(steps) == 1


def test_files_that_cannot_be_removed_do_not_hold_up_the_queue(runner, folder, monkeypatch):
    record(folder, "load-1")
    ask(runner, "delete", key="press-001", record="load-1")
    ask(runner, "empty", key="press-002")
    popen, tried = subprocess.Popen, []
    monkeypatch.setattr("subprocess.Popen", lambda words, **more: tried.append(words) or popen(["false"], **more))
    for _ in range(3):
        runner.step()
        for process in runner._reports:
            process.wait(60)
    assert len(tried) == 1


def test_a_record_that_an_earlier_version_deleted_is_restored(runner, folder):
    record(folder, "load-1").rename(folder.trash / "load-1")
    assert [(each.id, each.name) for each in deleted.entries(folder)] == [("load-1", "load-1")]
    assert ask(runner, "restore", key="press-001", record="load-1") == {"ok": True}
    assert folder.record("load-1")


def test_a_running_record_cannot_be_deleted(runner, folder):
    record(folder, "job-00001-r")
    put(folder, state=State.RUNNING, pid=1, start_ticks=1)
    assert "stop it first" in ask(runner, "delete", key="press-001", record="job-00001-r")["error"]


@pytest.mark.parametrize("name", ["../x", "/etc", ".partywall", "", "a/b", "a\0b", ".."])
def test_only_records_of_the_folder_can_be_named(runner, name):
    for action in ("annotate", "delete", "restore", "report"):
        assert "error" in ask(runner, action, key="press-001", record=name)


@pytest.mark.parametrize(
    "line", [b"", b"[" * 5000, b"{}", b'{"action": "exec"}', b"\xff", b'{"action": []}', b"1", b'{"action":"start"}']
)
def test_what_is_not_a_request_is_refused(runner, line):
    assert "error" in runner.answer(line)


def test_the_users_of_a_running_load_are_changed_once_for_a_key(runner, folder):
    job = put(folder, order=Order(kind="load", url="http://127.0.0.1/"), state=State.RUNNING)
    path = record(folder, job.record)
    for _ in range(2):
        assert ask(runner, "adjust", key="press-001", job=job.id, level=200)["ok"]
    assert [json.loads(line) for line in (path / "control.jsonl").read_text().splitlines()] == [{"level": 200.0}]
    for level in (-1, "many", 1e9):
        assert "error" in ask(runner, "adjust", key="press-002", job=job.id, level=level)


@pytest.mark.parametrize(("kind", "state"), [("run", State.RUNNING), ("load", State.QUEUED), ("load", State.ENDED)])
def test_what_has_no_users_now_is_not_adjusted(runner, folder, kind, state):
    order = Order(kind="load", url="http://127.0.0.1/") if kind == "load" else Order(kind="run", shipped="demo")
    job = put(folder, order=order, state=state)
    record(folder, job.record)
    assert "has no users" in ask(runner, "adjust", key="press-001", job=job.id, level=2)["error"]


def test_the_list_of_actions_is_short_and_fixed():
    assert set(ACTIONS) == {
        "start", "stop", "pause", "resume", "extend", "adjust", "annotate", "delete", "restore", "empty", "report",
        "forecast", "doctor", "ping",
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"shipped": "--allow-commands"},
        {"shipped": "../../etc/passwd"},
        {"shipped": "/etc/passwd"},
        {"shipped": "demo", "budget": "-x"},
        {"kind": "load", "url": "file:///etc/passwd"},
        {"kind": "load", "url": "--out=/etc"},
        {"kind": "trace", "options": {"hops": ["--out=/tmp/x", "b"], "for_ns": "1s"}},
        {"kind": "exec"},
        {"command": "id"},
        {"out": "/etc"},
        {"document": "x" * (513 * 1024)},
    ],
)
def test_an_order_cannot_carry_options_paths_or_commands(runner, folder, changes):
    assert "error" in ask(runner, "start", key="key-00001", order={"kind": "run"} | changes)
    assert folder.all() == []


WORDS = st.from_regex(r"^[A-Za-z0-9][A-Za-z0-9._ %/-]{0,20}$", fullmatch=True)


@given(st.builds(Order, kind=st.just("run"), shipped=WORDS, budget=st.none() | WORDS))
def test_no_word_of_a_command_line_is_an_option_that_was_not_built_here(tmp_path_factory, order):
    if ".." in (order.shipped or ""):
        return
    words = command(order, tmp_path_factory.getbasetemp() / "document", tmp_path_factory.getbasetemp() / "record")
    assert all(word.startswith(("--out=", "--budget=")) for word in words if word.startswith("-"))


def test_a_document_that_names_files_is_refused(runner, folder):
    document = "partywall: 1\nname: x\nvictims:\n  a:\n    load: /etc/shadow\n"
    answer = ask(runner, "start", key="key-00001", order={"kind": "run", "document": document})
    assert "may not name the file" in answer["error"]
    assert folder.all() == []


SCENARIO = "partywall: 1\nname: x\nvictims:\n  a: {%s}\naggressors:\n  b: {stressor: cache}\n%s"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (SCENARIO % ("load: {plan: /etc/shadow}", ""), "may not name the file '/etc/shadow'"),
        (SCENARIO % ("command: [x], files: [secret]", ""), "may not name the file 'secret'"),
        (SCENARIO % ("command: [x], files: [{from: secret}]", ""), "may not name the file 'secret'"),
        (SCENARIO % ("command: [x], files: [{source: secret}]", ""), "may not name the file 'secret'"),
        (SCENARIO % ("probe: disk-write, params: {path: /boot}", ""), "may not name the file '/boot'"),
        (
            SCENARIO % ("probe: pipe", "factors: {'victims.a.sandbox.disk.{cache,device}': [sda]}\n"),
            "may not name the file 'sda'",
        ),
        (SCENARIO % ("probe: pipe", "factors: {victim.sandbox.disk.device: [/dev/sda]}\n"), "the file '/dev/sda'"),
        (SCENARIO % ("probe: disk-write", "factors: {victim.params.path: [/boot]}\n"), "the file '/boot'"),
        (
            SCENARIO % ("probe: pipe, sandbox: {backend: libvirt, uri: 'qemu+ext://h/system?command=/tmp/x'}", ""),
            "may not name the libvirt address",
        ),
        (
            SCENARIO % ("probe: pipe", "factors: {victim.sandbox.uri: ['qemu+ssh://h/system?command=/tmp/x']}\n"),
            "may not name the libvirt address",
        ),
        ("partywall_migration: 1\nname: x\nhosts: {a: {qmp: /run/docker.sock}}\n", "the file '/run/docker.sock'"),
        (SCENARIO % ("probe: pipe, sandbox: {backend: libvirt, uri: 'qemu:///system', boot: /any}", ""), "file '/any'"),
        (SCENARIO % ("probe: pipe", "factors: {victim.sandbox.boot: [any]}\n"), "may not name the file 'any'"),
        ("partywall_power_study: 1\nname: x\nmeter: replay:/etc/shadow\n", "the file 'replay:/etc/shadow'"),
        ("partywall_power_study: 1\nmeter: 'snmp://h/1?password=file:/etc/shadow'\n", "password=file:/etc/shadow'"),
        ("partywall_migration: 1\nname: x\nguest: {service: [id, -u]}\n", "may not contain the command 'id'"),
    ],
)
def test_a_document_names_no_file_and_no_program_by_a_detour(runner, folder, document, said):
    answer = ask(runner, "start", key="key-00001", order={"kind": "run", "document": document})
    assert said in answer["error"]
    assert folder.all() == []
    ask(Runner(folder, allow_commands=True), "start", key="key-00001", order={"kind": "run", "document": document})
    assert len(folder.all()) == 1


@pytest.mark.parametrize("uri", ["qemu:///system", "qemu+ssh://root@one/system", "xen+tcp://two/system"])
def test_a_document_may_name_another_machine(runner, uri):
    document = SCENARIO % (f"probe: pipe, sandbox: {{backend: libvirt, uri: '{uri}', domain: web}}", "")
    assert ask(runner, "start", key="key-00001", order={"kind": "run", "document": document})["ok"]


POLICY = "partywall_guard: 1\nname: edge\nlink: {capacity: 1Gbit/s}\nvifs: {vm1: {interface: eth1}}\n"


def test_the_policy_of_a_running_guard_is_changed_after_a_check(runner, folder):
    job = put(folder, order=Order(kind="guard", document=POLICY, duration="1h"), state=State.RUNNING)
    path = folder.root / job.record
    guard_record(path, POLICY)
    control = path / "control.jsonl"
    for refused, said in (
        (POLICY.replace("1Gbit/s", "fast"), "capacity"),
        (POLICY.replace("vm1", "vm2"), "'vm2' is not in the running policy"),
        (None, "no policy is given"),
    ):
        assert said in ask(runner, "adjust", key="press-001", job=job.id, policy=refused)["error"]
    assert not control.exists()
    changed = POLICY.replace("1Gbit/s", "2Gbit/s")
    for _ in range(2):
        assert ask(runner, "adjust", key="press-002", job=job.id, policy=changed)["ok"]
    assert [json.loads(line) for line in control.read_text().splitlines()] == [{"policy": changed}]


def sent(runner, action):
    """The connection on which a request was made, after the runner has seen it."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    ours.sendall(json.dumps({"action": action}).encode() + b"\n")
    running._serve_one(runner, theirs, {os.geteuid()})
    return ours


def replied(connection):
    with connection, connection.makefile() as stream:
        return json.loads(stream.readline())


def test_examining_the_host_holds_up_no_other_request(runner, monkeypatch):
    """At most four at a time: each is a process that reads the whole host."""
    goes_on = threading.Event()
    monkeypatch.setattr(running, "doctor", lambda: goes_on.wait(60) and {"checks": []})
    slow = [sent(runner, "doctor") for _ in range(4)]
    assert replied(sent(runner, "ping"))["ok"]
    assert "try again" in replied(sent(runner, "doctor"))["error"]
    goes_on.set()
    assert [replied(connection) for connection in slow] == [{"ok": True, "doctor": {"checks": []}}] * 4


def test_another_user_gets_no_answer(runner):
    ours, theirs = socket.socketpair()
    running._serve_one(runner, theirs, {os.geteuid() + 1})
    with ours:
        assert ours.recv(1) == b""


def test_every_key_that_is_described_as_a_path_of_the_host_is_marked_as_one():
    """A new key that names a file must be marked in its model, or be named here with the reason."""
    elsewhere = {
        "to": "inside a sandbox",
        "from": "below `files`, which is refused whole",
        "uri": "an address of libvirt, see `_has_program`",
        "network": "a kind of network",
        "namespace": "a namespace, which whoever may start a guard may name",
    }
    words = re.compile(
        r"\b(PEM|CSV|JSON object on each line|file with|a file,|folder there|Unix socket|block device of)\b"
    )
    found = set()
    for model in (Scenario, LoadPlan, MigrationPlan, Policy):
        for schema in [model.model_json_schema(), *model.model_json_schema().get("$defs", {}).values()]:
            for key, field in schema.get("properties", {}).items():
                if words.search(field.get("description", "")):
                    found.add(key)
    assert {"boot", "csv", "device", "authorities", "qmp"} <= found
    assert found - documents.file_keys() - set(elsewhere) == set()


def test_a_report_that_hangs_is_killed_and_the_queue_goes_on(runner, folder, monkeypatch, capfd):
    monkeypatch.setattr(running, "BESIDE_S", 0.2)
    runner._follow(subprocess.Popen(["sleep", "60"]))
    put(folder)
    launched = []
    monkeypatch.setattr(Runner, "_launch", lambda _, job: launched.append(job.id))
    monkeypatch.setattr(Runner, "_locked", lambda _: True)
    deadline = time.monotonic() + 10
    while not launched and time.monotonic() < deadline:
        runner.step()
        time.sleep(0.02)
    assert launched == ["job-00001"]
    assert "killed after 0.2 s: ['sleep', '60']" in capfd.readouterr().err


def test_a_job_whose_record_was_removed_for_good_leaves_nothing(folder):
    for number, state in enumerate((State.ENDED, State.ENDED, State.RUNNING), start=1):
        job = put(folder, f"job-0000{number}", state=state)
        record(folder, job.record)
        folder.document(job.id).write_text("secret")
        folder.output(job.id).write_text("secret")
        folder.exit_file(job).write_text("0")
    for name in ("job-00001-r", "job-00003-r"):
        deleted.put(folder, folder.root / name)
    old = put(folder, "job-00004", state=State.CANCELLED, created=time.time() - 40 * 86400)
    deleted.hide(folder, time.time() + 60)
    assert [job.id for job in Folder(folder.root).all()] == ["job-00002", "job-00003"]
    left = {file.name for part in ("jobs", "documents", "output") for file in (folder.own / part).iterdir()}
    assert not any("job-00001" in name or old.id in name for name in left)
    assert folder.document("job-00002").exists()
