"""The controller's end of the contract: against golden messages, the real agent, and agents that misbehave."""

import itertools
import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from partywall.agent import binary
from partywall.agent.client import AgentClient
from partywall.errors import AgentError, LackError, Refusal, RefusalError, UsageError
from partywall.run.record.pending import slice_row

GOLDEN = Path(__file__).parents[2] / "schema" / "golden"
PIPE = subprocess.PIPE
# An agent that writes each request to standard error and answers it with nothing.
ECHO = """
import json, sys
for line in sys.stdin:
    print(line.strip(), file=sys.stderr, flush=True)
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": {}}), flush=True)
"""


def client_of(*argv, sink=lambda method, params: None):
    return AgentClient("test", subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, stderr=PIPE), sink)


@pytest.fixture
def agent():
    events = queue.Queue()
    client = client_of(str(binary.find()), "serve", sink=lambda method, params: events.put((method, params)))
    client.greet()
    client.events = events
    yield client
    client.close()


def next_event(client, method, timeout_s=10):
    while True:
        result, params = client.events.get(timeout=timeout_s)
        if result == method:
            return params


def test_the_client_writes_requests_as_the_golden_ones():
    client = client_of(sys.executable, "-c", ECHO)
    golden = [json.loads(line) for line in (GOLDEN / "requests.jsonl").read_text().splitlines()]
    for request in golden:
        client.call(request["method"], **request["params"])
    client.close()
    assert [json.loads(line) for line in client._stderr] == golden


def test_golden_slices_become_rows_of_the_store():
    events = [json.loads(line) for line in (GOLDEN / "events.jsonl").read_text().splitlines()]
    piece = next(e for e in events if e["method"] == "slices")["params"]["slices"][0]
    row = slice_row("t", "victim", piece)
    assert (row["latency_bucket"], row["latency_count"]) == ([512, 600], [3, 1])
    assert (row["start_ns"], row["end_ns"], row["work"]) == (10_000_000, 20_000_123, 5_242_880.0)


@pytest.mark.long
def test_a_probe_reports_slices_that_follow_each_other(agent):
    agent.call("workload.start", id="p", work={"kernel": {"name": "integer"}}, pace="flat_out", work_dir="/var/tmp")
    slices = []
    while len(slices) < 20:
        slices += next_event(agent, "slices")["slices"]
    agent.call("workload.stop", id="p")
    assert all(first["end_ns"] == second["start_ns"] for first, second in itertools.pairwise(slices))
    assert all(piece["work"] > 0 for piece in slices)


@pytest.mark.long
def test_a_stressor_presses_only_when_scheduled(agent):
    agent.call("workload.start", id="s", work={"kernel": {"name": "integer"}}, pace="scheduled", work_dir="/var/tmp")
    agent.call("workload.calibrate", id="s", for_ns=50_000_000)
    now = agent.call("clock")["monotonic_ns"]
    on, off = now + 300_000_000, now + 400_000_000
    agent.call("workload.schedule", id="s", switches=[{"at_ns": on, "intensity": 1}, {"at_ns": off, "intensity": 0}])
    agent.call("workload.schedule", id="s", switches=[{"at_ns": off + 300_000_000, "intensity": 1}])
    slices = []
    while not slices or slices[-1]["end_ns"] < off + 300_000_000:
        slices += next_event(agent, "slices")["slices"]
    agent.call("workload.stop", id="s")
    pressed = [piece for piece in slices if piece["work"] > 0 and now < piece["start_ns"] < off + 300_000_000]
    assert pressed
    assert all(on <= piece["start_ns"] for piece in pressed)
    # The last operation may end after the switch, by its own length and the scheduler's delay.
    assert all(piece["start_ns"] < off for piece in pressed)


KERNEL = {"kernel": {"name": "integer"}}


@pytest.mark.parametrize("pace", ["flat_out", "scheduled"])
def test_the_last_slice_comes_before_the_answer_that_a_workload_was_stopped(agent, pace):
    agent.call("workload.start", id="w", work=KERNEL, pace=pace, work_dir="/var/tmp", slice_ns=3_600_000_000_000)
    if pace == "scheduled":
        agent.call("workload.schedule", id="w", switches=[{"at_ns": 1, "intensity": 1}])
    # Longer than a flush; whatever is told now is told by the end alone.
    time.sleep(0.5)
    agent.call("workload.stop", id="w")
    pieces = []
    while not agent.events.empty():
        method, params = agent.events.get()
        pieces += params["slices"] if method == "slices" else []
    assert sum(piece["work"] for piece in pieces) > 0


def test_what_a_command_says_last_is_reported(agent, tmp_path):
    said = tmp_path / "said"
    argv = ["sh", "-c", f"yes | head -n 1000; touch {said}; sleep 100"]
    agent.call("workload.start", id="c", work={"command": {"argv": argv}}, pace="flat_out", work_dir="/var/tmp")
    deadline = time.monotonic() + 20
    while not said.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    agent.call("workload.stop", id="c")
    lines = []
    while not agent.events.empty():
        method, params = agent.events.get()
        lines += params["lines"] if method == "output" else []
    assert len(lines) == 1000


def test_slices_come_while_a_stressor_is_calibrated(agent):
    agent.call("workload.start", id="p", work=KERNEL, pace="flat_out", work_dir="/var/tmp")
    agent.call("workload.start", id="s", work=KERNEL, pace="scheduled", work_dir="/var/tmp")
    calibration = threading.Thread(target=lambda: agent.call("workload.calibrate", id="s", for_ns=2_000_000_000))
    while not agent.events.empty():
        agent.events.get()
    calibration.start()
    begun = time.monotonic()
    for _ in range(3):
        next_event(agent, "slices")
    assert calibration.is_alive(), f"the first slices came after {time.monotonic() - begun:.1f} s, with the answer"
    calibration.join()


def test_a_calibration_delays_no_other_request(agent):
    agent.call("workload.start", id="s", work=KERNEL, pace="scheduled", work_dir="/var/tmp")
    calibration = threading.Thread(target=lambda: agent.call("workload.calibrate", id="s", for_ns=4_000_000_000))
    calibration.start()
    # Its request is written before the others.
    time.sleep(0.2)
    agent.call("facts")
    agent.call("monitor.start", id="m")
    agent.call("monitor.stop", id="m")
    agent.call("workload.start", id="p", work=KERNEL, pace="flat_out", work_dir="/var/tmp")
    agent.call("workload.stop", id="p")
    assert calibration.is_alive(), "the others were answered after the calibration"
    calibration.join()


def test_an_agent_for_some_capabilities_refuses_the_others_by_name():
    client = client_of(str(binary.find()), "serve", "--only", "probe,monitor")
    client.greet()
    assert client.call("clock")["monotonic_ns"] > 0
    client.call("workload.start", id="p", work=KERNEL, pace="flat_out", work_dir="/var/tmp")
    client.call("monitor.start", id="m")
    for method, params, left_out in [
        ("workload.start", {"id": "s", "work": KERNEL, "pace": "scheduled", "work_dir": "/var/tmp"}, "a stressor"),
        ("guard.remove", {"id": "g", "hooks": []}, "guard.remove"),
        ("trace.start", {}, "trace.start"),
        ("memory.check", {"bytes": 1, "budget_ns": 1}, "memory.check"),
    ]:
        with pytest.raises(LackError, match=f"--only probe,monitor, which leaves out {left_out}; add"):
            client.call(method, **params)
    with pytest.raises(AgentError, match=r"a message is longer than 8388608 bytes"):
        client.call("workload.start", id="x" * (16 << 20))
    client.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "params", "said", "refusal"),
    [
        (
            "workload.start",
            {"id": "x", "work": KERNEL, "pace": "flat_out", "work_dir": "/", "threads": 4_000_000_000},
            "threads: 4000000000 are too many; give at most 1024",
            Refusal.USAGE,
        ),
        (
            "workload.start",
            {"id": "x", "work": {"kernel": {"name": "memory-cpy"}}, "pace": "flat_out", "work_dir": "/"},
            "memory-copy",
            Refusal.USAGE,
        ),
        (
            "workload.start",
            {
                "id": "x",
                "work": {"kernel": {"name": "integer", "params": {"no": 1}}},
                "pace": "flat_out",
                "work_dir": "/",
            },
            "no",
            Refusal.USAGE,
        ),
        (
            "workload.start",
            {"id": "x", "work": {"command": {"argv": ["/no/such"]}}, "pace": "flat_out", "work_dir": "/"},
            "/no/such",
            Refusal.LASTING,
        ),
        ("workload.schedule", {"id": "x", "switches": []}, "no workload", Refusal.PASSING),
        ("workload.start", {"nonsense": 1}, "nonsense", Refusal.LASTING),
        (
            "memory.check",
            {"bytes": 1 << 60, "budget_ns": 10_000_000},
            "free memory or request less",
            Refusal.PASSING,
        ),
        ("nothing", {}, "unknown method", Refusal.LASTING),
    ],
)
def test_what_cannot_be_done_is_refused_in_words_and_with_the_kind_of_refusal(agent, method, params, said, refusal):
    with pytest.raises(RefusalError, match=said) as caught:
        agent.call(method, **params)
    assert caught.value.refusal is refusal


def test_an_agent_that_dies_fails_open_requests_and_says_so():
    gone = queue.Queue()
    client = client_of(
        sys.executable, "-c", "import sys; input(); sys.exit('out of luck')", sink=lambda m, p: gone.put((m, p))
    )
    with pytest.raises(AgentError, match="out of luck"):
        client.call("hello")
    assert gone.get(timeout=10)[0] == "gone"
    client.close()


def test_an_agent_that_speaks_nonsense_is_an_error_not_a_crash():
    client = client_of(sys.executable, "-c", "input(); print('not json', flush=True)")
    with pytest.raises(AgentError):
        client.call("hello")
    client.close()


def test_what_is_too_long_for_an_agent_is_refused_before_it_is_sent(monkeypatch):
    monkeypatch.setattr("partywall.agent.client.LINE_MAX", 1000)
    client = client_of(sys.executable, "-c", ECHO)
    with pytest.raises(UsageError, match="make the files"):
        client.call("workload.start", work={"load": "x" * 1000})
    assert client.call("hello") == {}
    client.close()


@pytest.mark.long
def test_an_agent_takes_the_files_of_a_load_in_one_message(agent):
    with pytest.raises(AgentError, match="invalid type: string"):
        agent.call("workload.start", work={"load": "x" * (16 << 20)})


def test_other_requests_are_not_that_long(agent):
    with pytest.raises(AgentError, match=r"the message for workload.schedule has 167\d+ bytes; send at most 8388608"):
        agent.call("workload.schedule", id="x" * (16 << 20), switches=[])


def test_an_agent_that_does_not_answer_runs_into_its_timeout():
    client = client_of("sleep", "100")
    with pytest.raises(AgentError, match="not answered within"):
        client.call("hello", timeout_s=0.1)
    client.close(timeout_s=0.1)
    assert client.process.returncode == -9


class Stuck(subprocess.Popen):
    """A program that does not end by a kill, as on a host whose kernel is stuck."""

    def kill(self):
        pass


def test_an_agent_that_does_not_end_by_a_kill_is_reported_in_words():
    process = Stuck(["sleep", "100"], stdin=PIPE, stdout=PIPE, stderr=PIPE)
    client = AgentClient("test", process, lambda method, params: None)
    try:
        with pytest.raises(AgentError, match=rf"process {process.pid} was killed and has not ended within 0\.1 s"):
            client.close(timeout_s=0.1, killed_s=0.1)
    finally:
        subprocess.Popen.kill(process)
        client.close()
