"""Hostile streams in both directions: each must end in one named error, in time, in bounded memory, with nothing left.

Towards the controller: programs that pretend to be agents send values nested too deeply, answers without a request, a
line or a flood without end, half a line, nothing at all; they stop reading, stop running, or tell a time that never
advances. Every request that waits and every later one must fail with the same reason within the limit. Each case runs
in a process of its own, whose memory is measured.

Towards the agent: the same in requests, and a controller that is stopped (Ctrl-Z) while probes, counters and a command
produce as much as they can. The agent must answer with a named error, stay within its memory, say what it dropped, and
end with its stream.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import queue
import resource
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast
from unittest import mock

from frame import Options, Outcome, Plant, bench
from partywall.agent import binary
from partywall.agent.client import AgentClient, start_agent
from partywall.agent.inbox import Inbox
from partywall.errors import AgentError, PartywallError
from partywall.host.label import Label
from partywall.trace.measure.tracing import Tracing
from partywall.trace.request import Hop, TraceRequest

MUTE = """
import partywall.errors as errors
errors.AgentError.__str__ = lambda self: "the agent failed"
"""
CONTROLLER_MIB = 600
AGENT_MIB = 400
LIMIT_S = 20.0
TIMEOUT_S = 3.0
PRELUDE = """
import json, os, signal, sys, time
def say(text): sys.stdout.write(text); sys.stdout.flush()
def answer(number, result): say(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}) + chr(10))
def event(method, **params): say(json.dumps({"method": method, "params": params}) + chr(10))
def read(): return json.loads(sys.stdin.readline())
"""


@dataclass(frozen=True)
class Agent:
    """A program that pretends to be an agent, and what must be said of it.

    bytes: of the first request. fills: whether it takes time until what it sends is too much.
    """

    name: str
    script: str
    said: str
    bytes: int = 0
    fills: bool = False


@dataclass(frozen=True)
class Ended:
    """What is wrong with how a case went, if anything, and what it took."""

    name: str
    wrong: str
    seconds: float
    mib: float


HOLD = "; time.sleep(60)"
FLOOD = """line = json.dumps({"method": "slices", "params": {"id": "p", "slices": []}}) + chr(10)
while True: say(line * 500)"""
AGENTS = (
    Agent("nested arrays", "read(); say('[' * 500_000 + ']' * 500_000 + chr(10))" + HOLD, "nested too deeply"),
    Agent("nested objects", "read(); say('{\"a\":' * 500_000 + chr(10))" + HOLD, "nested too deeply"),
    Agent("two answers", "n = read()['id']; read(); answer(n, {}); answer(n, {})" + HOLD, "is not open"),
    Agent("an answer to nothing", "read(); answer(999, {})" + HOLD, "request 999, which is not open"),
    Agent("a refusal of nothing", """read(); say('{"id": null, "error": {"message": "what?"}}\\n')""", "what?"),
    Agent("no message", "read(); say('[1, 2, 3]' + chr(10))" + HOLD, "not a valid message"),
    Agent("random bytes", "read(); sys.stdout.buffer.write(os.urandom(1 << 20))" + HOLD, "not a valid message"),
    Agent("half a line, then the end", 'read(); say(\'{"id": 1, "res\')', "not a valid message"),
    Agent("half a line, then silence", 'read(); say(\'{"id": 1, "res\')' + HOLD, "not answered within"),
    Agent("silence", "read()" + HOLD, "not answered within"),
    Agent("the end", "read(); sys.exit('out of luck')", "out of luck"),
    Agent("errors without a line's end", "sys.stderr.write('x' * (64 << 20)); sys.exit(3)", "xxx"),
    Agent("a line without end", "read()\nwhile True: say('x' * (1 << 20))", "a line longer than 64 MiB", fills=True),
    Agent(
        "a line of small values", "say('[' + '[],' * 5_000_000 + '1]' + chr(10))" + HOLD, "MiB of memory", fills=True
    ),
    Agent("a flood of notifications", FLOOD, "faster than its messages are", fills=True),
    Agent(
        "a flood of long ones", "while True: event('ended', id='p', reason='x' * (8 << 20))", "faster than", fills=True
    ),
    Agent("it does not read", HOLD[2:], "stopped reading in the middle", 1 << 20),
    Agent("it is stopped", "read(); os.kill(os.getpid(), signal.SIGSTOP)", "stopped reading in the middle", 1 << 20),
)


def judged(name: str, wrong: Sequence[str], seconds: float, mib: float, most_mib: float) -> Ended:
    """How a case went that was to end in time and within so much memory."""
    limits = [f"{mib:.0f} MiB" if mib > most_mib else "", f"{seconds:.1f} s" if seconds > LIMIT_S else ""]
    return Ended(name, "; ".join(filter(None, [*wrong, *limits])), seconds, mib)


def rss_mib() -> float:
    """The most memory that this process had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reason(client: AgentClient, bytes_: int = 0) -> str:
    """Why a request failed, without what differs between requests."""
    try:
        client.call("clock", timeout_s=TIMEOUT_S, filler="x" * bytes_)
    except AgentError as error:
        return str(error)
    return "answered"


def controller_case(case: Agent) -> Ended:
    """Two requests that wait at once and one that comes later."""
    before, begun = rss_mib(), time.monotonic()
    inbox = Inbox()
    client = AgentClient(
        "bad",
        start_agent([sys.executable, "-c", PRELUDE + case.script]),
        lambda method, params: inbox.put("bad", method, params),
    )
    reasons: list[str] = []
    waiting = [threading.Thread(target=lambda: reasons.append(reason(client, case.bytes))) for _ in range(2)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(LIMIT_S)
    # A request may run into its timeout while a flood fills the inbox.
    until = time.monotonic() + LIMIT_S
    last = reason(client)
    while case.fills and case.said not in last and time.monotonic() < until:
        last = reason(client)
    seconds = time.monotonic() - begun
    client.close(timeout_s=2, kill=True)
    left = [thread.name for thread in threading.enumerate() if thread.name.endswith("-bad")]
    wrong = [
        "" if len(reasons) == 2 else "a request still waits",
        "" if case.said in last else f"it said {last[:200]!r}",
        f"threads left: {left}" if left else "",
    ]
    return judged(case.name, wrong, seconds, rss_mib() - before, CONTROLLER_MIB)


STANDS_STILL = """
import threading
def tell():
    seen = [{"recorded": 0, "missed": 0, "untraced": 0}]
    while True:
        event("trace_records", id="t", records="", told_ns=0, hops=seen, flows=[])
        time.sleep(0.1)
while line := sys.stdin.readline():
    request = json.loads(line)
    answer(request["id"], {"monotonic_ns": time.monotonic_ns(), "record_ns": None, "until_ns": 0, "protocol": 1})
    if RELAY and request["method"] == "trace.start":
        threading.Thread(target=tell, daemon=True).start()
"""


def standing_time(_: object) -> Ended:
    """A relay that speaks all the time and tells a time that never advances."""
    before, begun, said = rss_mib(), time.monotonic(), "nothing"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        programs = {}
        for name in ("host", "relay"):
            programs[name] = Path(folder) / name
            programs[name].write_text(f"#!{sys.executable}\n{PRELUDE}\nRELAY = {name == 'relay'}\n{STANDS_STILL}")
            programs[name].chmod(stat.S_IRWXU)
        hops = (Hop(name="a", interface="a"), Hop(name="b", interface="b", agent="far"))
        request = TraceRequest(hops=hops, horizon_ns=500_000_000, agents={"far": (str(programs["relay"]),)})
        with mock.patch.object(binary, "find", return_value=programs["host"]):
            try:
                with Tracing(request, Label("t", Path(folder), Path(folder)), lambda _report: None) as session:
                    session.pump(LIMIT_S)
            except PartywallError as error:
                said = str(error)
    seconds = time.monotonic() - begun
    wrong = "" if "sent nothing for" in said and seconds < LIMIT_S else f"it said {said!r} after {seconds:.0f} s"
    return Ended("a time that never advances", wrong, seconds, rss_mib() - before)


class Wire:
    """A real agent, spoken to by lines."""

    def __init__(self, *options: str) -> None:
        self.process = start_agent([str(binary.find()), "serve", "--die-with-parent", *options])
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._most_mib = 0.0
        self._reader: threading.Thread | None = None
        threading.Thread(target=self._drain, args=(self.process.stderr,), daemon=True).start()

    @staticmethod
    def _drain(stream: IO[bytes]) -> None:
        for _ in iter(lambda: stream.read(1 << 16), b""):
            pass

    def read(self) -> None:
        """Begins to read what the agent sends."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in cast("IO[bytes]", self.process.stdout):
            self._lines.put(line)

    def say(self, text: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            stream = cast("IO[bytes]", self.process.stdin)
            for at in range(0, len(text), 1 << 20):
                stream.write(text[at : at + (1 << 20)])
                stream.flush()
                self.look()

    def ask(self, number: int, method: str, **params: Any) -> None:
        self.say(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n")

    def lines(self, until: float) -> Iterator[dict[str, Any]]:
        """Messages that come before a moment."""
        while (left := until - time.monotonic()) > 0:
            try:
                yield json.loads(self._lines.get(timeout=left))
            except queue.Empty:
                return

    def answer(self, within_s: float = 10) -> str:
        """The next answer's error, or that there was none."""
        for message in self.lines(time.monotonic() + within_s):
            if "id" in message:
                return message.get("error", {}).get("message", "answered")
        return "no answer"

    def look(self) -> float:
        """The most memory it had so far."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.process.pid}/status").read_text()
            most = [int(row.split()[1]) / 1024 for row in text.splitlines() if row.startswith("VmHWM")]
            self._most_mib = max([self._most_mib, *most])
        return self._most_mib

    def end(self) -> str:
        """Closes the stream; what is wrong with how the agent ends."""
        with contextlib.suppress(OSError):
            cast("IO[bytes]", self.process.stdin).close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "it did not end with its stream"
        return ""


def agent_case(name: str, lines: Callable[[], bytes], said: str, *options: str) -> Ended:
    """A line that must be refused by name, and an agent that goes on, or ends."""
    begun = time.monotonic()
    wire = Wire(*options)
    wire.read()
    wire.say(lines())
    answer = wire.answer()
    wrong = "" if said in answer else f"it said {answer[:200]!r}"
    outcome = judged(name, [wrong], time.monotonic() - begun, wire.look(), AGENT_MIB)
    return replace(outcome, wrong="; ".join(filter(None, [outcome.wrong, wire.end()])))


def request(method: str, params: str) -> bytes:
    return f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {params}}}\n'.encode()


def start(**more: Any) -> str:
    work = {"id": "w", "work": {"kernel": {"name": "integer"}}, "pace": "scheduled", "work_dir": "/var/tmp"}
    return json.dumps(work | more)


def refusals() -> Iterator[Ended]:
    """Requests that no controller sends."""
    cases: list[tuple[str, Callable[[], bytes], str, tuple[str, ...]]] = [
        ("nested request", lambda: request("clock", "[" * 500_000 + "]" * 500_000), "recursion limit", ()),
        ("a request of small values", lambda: request("clock", "[" + "[]," * 5_000_000 + "1]"), "values; send", ()),
        ("a long request", lambda: request("monitor.start", f'"{"x" * (9 << 20)}"'), "for monitor.start has", ()),
        ("a request without end", lambda: b"x" * (70 << 20), "its end is unknown", ()),
        ("random bytes as a request", lambda: os.urandom(1 << 16).replace(b"\n", b"") + b"\n", "not JSON", ()),
        ("four thousand million threads", lambda: request("workload.start", start(threads=4 * 10**9)), "at most", ()),
        ("no method", lambda: request("no.such", "{}"), "unknown method", ()),
        ("left out by --only", lambda: request("guard.remove", "{}"), "--only probe", ("--only", "probe,monitor")),
        ("long for --only", lambda: b"x" * (10 << 20), "is longer than 8388608", ("--only", "probe,monitor")),
    ]
    for name, lines, said, options in cases:
        yield agent_case(name, lines, said, *options)


def asks_and_never_reads(seconds: float) -> Ended:
    """Requests without end, none of whose answers is read."""
    wire, begun = Wire(), time.monotonic()
    over = threading.Event()

    def ask() -> None:
        for number in range(1_000_000):
            if over.is_set():
                return
            wire.ask(number, "facts")

    stuck = threading.Thread(target=ask, daemon=True)
    stuck.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        wire.look()
    mib = wire.look()
    over.set()
    wire.process.kill()
    wire.process.wait()
    stuck.join(10)
    wrong = f"{mib:.0f} MiB" if mib > AGENT_MIB else ""
    return Ended("it asks and never reads", wrong, time.monotonic() - begun, mib)


def stopped_controller(seconds: float) -> Ended:
    """Nobody reads while all that can be sent is produced; then somebody does."""
    wire, begun = Wire(), time.monotonic()
    wire.ask(1, "workload.start", **json.loads(start(id="p", pace="flat_out", slice_ns=1, threads=2)))
    yes = {"command": {"argv": ["yes", "x" * 1000]}}
    wire.ask(2, "workload.start", **json.loads(start(id="c", pace="flat_out", work=yes)))
    wire.ask(3, "monitor.start", id="m")
    wire.ask(4, "monitor.schedule", id="m", at_ns=[0] * 20_000)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        wire.look()
    wire.read()
    lost = {}
    for message in wire.lines(time.monotonic() + LIMIT_S):
        if message.get("method") == "dropped":
            lost[message["params"]["what"]] = message["params"]["count"]
        if message.get("method") == "output" and message["params"]["dropped"]:
            lost["output"] = message["params"]["dropped"]
        if {"slices", "output"} <= lost.keys():
            break
    mib = wire.look()
    wrong = [] if {"slices", "output"} <= lost.keys() else [f"only {sorted(lost)} were reported as dropped"]
    wrong += [f"{mib:.0f} MiB"] if mib > AGENT_MIB else []
    wrong += [ended] if (ended := wire.end()) else []
    return Ended("a controller that is stopped", "; ".join(wrong), time.monotonic() - begun, mib)


@bench(plants={"mute": Plant("errors of agents that do not say what happened", python=MUTE)})
def main(options: Options) -> Outcome:
    quick = options.quick
    # A new process for each, so that its memory is its own.
    with multiprocessing.get_context("spawn").Pool(3, maxtasksperchild=1) as pool:
        far = pool.apply_async(standing_time, (None,))
        of_controller = [*pool.imap(controller_case, AGENTS, chunksize=1), far.get(60)]
    of_agent = [*refusals(), asks_and_never_reads(3 if quick else 30), stopped_controller(5 if quick else 120)]
    for outcome in (*of_controller, *of_agent):
        verdict = f"WRONG: {outcome.wrong}" if outcome.wrong else "as it should be"
        print(f"{outcome.name}: {outcome.seconds:.1f} s, {outcome.mib:.0f} MiB, {verdict}")
    everything = [*of_controller, *of_agent]
    good = sum(not outcome.wrong for outcome in everything)
    most = [max(outcome.mib for outcome in side) for side in (of_controller, of_agent)]
    figure = (
        f"{good} of {len(everything)} hostile streams ended in a named error, the slowest after "
        f"{max(outcome.seconds for outcome in of_controller):.0f} s; at most {most[0]:.0f} MiB more in the controller, "
        f"{most[1]:.0f} MiB in the agent"
    )
    return Outcome(figure, good == len(everything))


if __name__ == "__main__":
    main()
