"""Agents that send what no agent sends: one reason for all requests, in time, and no thread left waiting."""

import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from partywall.agent import client as client_module
from partywall.agent.client import AgentClient
from partywall.agent.inbox import Inbox, Received
from partywall.errors import AgentError

PIPE = subprocess.PIPE
PRELUDE = """
import json, sys, time
def say(text): sys.stdout.write(text); sys.stdout.flush()
def answer(result): say(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": result}) + chr(10))
"""


@pytest.fixture
def hostile():
    """Makes the client of an agent that runs `script`; `line` holds its first request."""
    clients = []

    def make(script, sink=None):
        inbox = Inbox()
        source = f"{PRELUDE}\nline = sys.stdin.readline()\n{script}\n"
        process = subprocess.Popen([sys.executable, "-c", source], stdin=PIPE, stdout=PIPE, stderr=PIPE)
        client = AgentClient("bad", process, sink or (lambda method, params: inbox.put("bad", method, params)))
        client.inbox = inbox
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close(timeout_s=2, kill=True)
        assert not any(thread.is_alive() for thread in client._threads)


def reason_of(client, timeout_s=10):
    with pytest.raises(AgentError) as caught:
        client.call("clock", timeout_s=timeout_s)
    return str(caught.value)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("say('[' * 200_000 + ']' * 200_000 + chr(10)); time.sleep(60)", "nested too deeply"),
        (
            """say('{"method": "slices", "params": ' + '{"a":' * 100_000 + chr(10)); time.sleep(60)""",
            "nested too deeply",
        ),
        ("answer({}); answer({}); time.sleep(60)", "answered request 1, which is not open"),
        ("line = json.dumps({'id': 99}); answer({}); time.sleep(60)", "answered request 99, which is not open"),
        ("say('{\"id\": 1'); sys.exit(0)", "not a valid message"),
        ("say('null' + chr(10)); time.sleep(60)", "not a valid message"),
        ('say(\'{"id": null, "error": {"message": "too long"}}\' + chr(10)); time.sleep(60)', "too long"),
        ("sys.stderr.write('x' * 200_000); sys.stderr.flush(); sys.exit(3)", "xxx"),
    ],
)
def test_every_request_gets_the_one_reason_for_which_the_connection_ended(hostile, script, said):
    client = hostile(script)
    begin = time.monotonic()
    reasons = []
    # Requests that wait, and later ones. Of two answers to one request the first is fine.
    waiting = [threading.Thread(target=lambda: reasons.append(reason_of(client))) for _ in range(3)]
    if "answer({}); answer" in script:
        client.call("clock", timeout_s=10)
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(15)
    reasons += [reason_of(client), reason_of(client)]
    assert len(reasons) == 5
    assert len(set(reasons)) == 1
    assert said in reasons[0]
    assert time.monotonic() - begin < 9, "it waited for the timeout"
    name, method, params = client.inbox.get(timeout=5)
    assert (name, method) == ("bad", "gone")
    assert params["reason"] in reasons[0]


def test_a_request_that_begins_while_the_connection_ends_gets_its_reason(hostile, monkeypatch):
    client = hostile("say('null' + chr(10)); time.sleep(60)")
    begin, reasons = client._begin, []

    def late():
        begun = begin()
        monkeypatch.setattr(client, "_begin", begin)
        reasons.append(reason_of(client))
        client._threads[0].join(10)
        assert client.process.stdin.closed
        return begun

    monkeypatch.setattr(client, "_begin", late)
    reasons.append(reason_of(client))
    assert len(set(reasons)) == 1


def test_an_answer_that_comes_too_late_is_no_violation(hostile):
    client = hostile("time.sleep(0.5); answer({}); line = sys.stdin.readline(); answer({'good': 1}); time.sleep(60)")
    with pytest.raises(AgentError, match=r"not answered within 0.1 s"):
        client.call("clock", timeout_s=0.1)
    assert client.call("clock", timeout_s=10) == {"good": 1}


def test_an_agent_that_does_not_read_runs_into_the_timeout_of_whoever_writes(hostile):
    client = hostile("time.sleep(60)")
    client.call_many = [threading.Thread(target=lambda: reason_of(client, 1)) for _ in range(3)]
    begin = time.monotonic()
    for thread in client.call_many:
        thread.start()
    with pytest.raises(AgentError):
        client.call("workload.start", timeout_s=1, work="x" * (1 << 20))
    for thread in client.call_many:
        thread.join(5)
    assert time.monotonic() - begin < 5
    # Half a request has gone; nothing can follow it.
    assert "in the middle of a request" in reason_of(client, 1)


def test_a_lossy_inbox_drops_what_is_above_its_limit_and_the_agent_goes_on():
    inbox = Inbox(most=2400, lossy=True)
    for number in range(10):
        inbox.put("guard", "guard", Received.of({"number": number}, "guard", 1000))
    inbox.put("guard", "gone", {"reason": "killed"})
    assert [inbox.get_nowait()[2] for _ in range(3)] == [{"number": 0}, {"number": 1}, {"reason": "killed"}]
    inbox.put("guard", "guard", Received.of({"number": 10}, "guard", 1000))
    assert inbox.get_nowait()[2] == {"number": 10}, "it takes messages again once they are read"


def test_a_lossy_inbox_that_is_full_keeps_the_end_of_a_workload():
    inbox = Inbox(most=2400, lossy=True)
    for number in range(10):
        inbox.put("guard", "guard", Received.of({"number": number}, "guard", 1000))
    inbox.put("guard", "ended", Received.of({"id": "edge", "reason": "its thread panicked"}, "guard", 500))
    assert [inbox.get_nowait()[1] for _ in range(3)] == ["guard", "guard", "ended"]
    inbox.put("guard", "guard", Received.of({"number": 10}, "guard", 2400))
    assert inbox.get_nowait()[2] == {"number": 10}, "what was read takes no space"


def test_only_sandboxes_and_the_shared_session_start_agents():
    source = Path(client_module.__file__).parents[1]
    places = {
        file.relative_to(source).parts[0] for file in source.rglob("*.py") if "start_agent(" in file.read_text("utf-8")
    }
    assert places == {"agent", "sandbox"}


def test_a_flood_that_nobody_reads_ends_the_connection(hostile):
    client = hostile("""
flood = '{"method": "slices", "params": {"id": "x", "slices": [1, 2, 3]}}' + chr(10)
while True: say(flood * 1000)
""")
    client.inbox._most = 1 << 20
    assert "faster than its messages are read" in reason_of(client, 20)
    assert client.inbox.qsize() < 3000
    assert client.process.wait(10) != 0, "it was not told that nobody listens"


def test_what_is_read_makes_room_and_the_end_is_reported_even_if_there_is_none():
    inbox = Inbox(most=2400)
    messages = [client_module._message(b'{"method": "sample", "params": {"id": "m"}}', "a") for _ in range(4)]
    for message in messages[:3]:
        inbox.put("a", "sample", message["params"])
    with pytest.raises(ValueError, match="faster than its messages are read"):
        inbox.put("a", "sample", messages[3]["params"])
    inbox.put("b", "sample", messages[3]["params"])
    inbox.put("a", "gone", {"reason": "flood"})
    inbox.get()
    inbox.put("a", "sample", messages[3]["params"])
    assert [inbox.get_nowait()[:2] for _ in range(5)] == [
        ("a", "sample"), ("a", "sample"), ("b", "sample"), ("a", "gone"), ("a", "sample")
    ]  # fmt: skip
    with pytest.raises(queue.Empty):
        inbox.get_nowait()


def test_a_message_that_would_fill_memory_is_refused_before_it_is_read(hostile):
    client = hostile("say('{\"id\": 1, \"result\": [' + '[],' * 2_500_000 + '[]]}' + chr(10)); time.sleep(60)")
    assert "takes more than 256 MiB of memory" in reason_of(client, 20)


def test_a_line_without_end_is_refused(hostile, monkeypatch):
    monkeypatch.setattr(client_module, "LINE_MAX", 1 << 20)
    assert "a line longer than 1 MiB" in reason_of(hostile("say('x' * (2 << 20)); time.sleep(60)"), 20)


def test_what_an_answer_lacks_is_named(hostile):
    client = hostile("answer({'rate': 1}); time.sleep(60)")
    answer = client.call("workload.calibrate", timeout_s=10)
    with pytest.raises(AgentError, match=r"agent bad: a message lacks 'rate_max'"):
        answer["rate_max"]


def test_a_sink_that_fails_ends_the_connection(hostile):
    def sink(method, params):
        if method != "gone":
            raise KeyError(params["no such"])

    client = hostile('say(\'{"method": "ended", "params": {}}\' + chr(10)); time.sleep(60)', sink)
    assert "could not be handled" in reason_of(client)
