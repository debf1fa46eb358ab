#!/usr/bin/env python3
"""Runs a test program of the agent for cargo: every test in its own process, and with a time limit.

Cargo starts this instead of each program that it has built (`runner` in agent/.cargo/config.toml). A test that hangs is
named and ended, and the others still run. No two tests share a process, its threads or its limits. Programs that are
not tests are executed unchanged, and so is a list of tests. It needs nothing but Python.

PARTYWALL_TEST_LIMIT_S: the limit of one test in seconds, 120 if not set. Time in which this process is stopped does not
count.

PARTYWALL_TEST_UPTIME_S: what the monotonic clock shows when a test begins, by a time namespace, which needs root. Tests
that compare it with the clock of eBPF programs are skipped then.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = int(os.environ.get("PARTYWALL_TEST_LIMIT_S", "120"))
UPTIME_S = os.environ.get("PARTYWALL_TEST_UPTIME_S")
# Options that apply to each test, and those with which the output of tests that passed is shown.
EACH = {"--ignored", "--include-ignored", "--nocapture", "--no-capture", "--show-output"}
SHOWING = {"--nocapture", "--no-capture", "--show-output"}
COUNTS = re.compile(r"(\d+) passed; (\d+) failed; (\d+) ignored")
FAILED = 101


@dataclass(frozen=True)
class Outcome:
    """How one test ended. why: None if it passed or is ignored."""

    name: str
    output: str
    why: str | None

    @property
    def is_ignored(self) -> bool:
        counts = COUNTS.search(self.output)
        return counts is not None and counts[3] != "0"


class Running:
    """The processes of the tests that run now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: set[int] = set()
        self._ended = False

    def start(self, command: list[str], output: int) -> subprocess.Popen[bytes] | None:
        """Starts a test in a session of its own, so that its children end with it. None after the end."""
        with self._lock:
            if self._ended:
                return None
            test = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            self._pids.add(test.pid)
            return test

    def end(self, pid: int) -> None:
        """Kills what is left of a test."""
        with self._lock:
            self._pids.discard(pid)
            kill(pid)

    def end_all(self) -> None:
        with self._lock:
            self._ended = True
            for pid in self._pids:
                kill(pid)


def kill(session: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def threads(pid: int) -> str:
    """The threads of a process, each with the function of the kernel that it waits in."""

    def described(task: Path) -> str:
        return f"{(task / 'comm').read_text().strip()} in {(task / 'wchan').read_text() or 'an unknown place'}"

    try:
        return ", ".join(described(task) for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError as error:
        return str(error)


def run(program: str, name: str, flags: list[str], running: Running) -> Outcome:
    with tempfile.TemporaryFile() as output:
        test = running.start([*up(), program, "--exact", name, *flags], output.fileno())
        if test is None:
            return Outcome(name, "", "it was not started")
        why = waited(test)
        # The status stays until `wait`, so no other process can have this number yet.
        running.end(test.pid)
        code = test.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Outcome(name, text, why or (f"it ended with {code}" if code else None))


def up() -> list[str]:
    """What sets the clock of a test to its uptime."""
    if UPTIME_S is None:
        return []
    ahead_s = int(UPTIME_S) - int(time.monotonic())
    return ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(ahead_s)]


def waited(test: subprocess.Popen[bytes]) -> str | None:
    """Waits for the end of a test. Counts seconds, because a stopped process must not blame its tests for the pause."""
    process = os.pidfd_open(test.pid)
    try:
        if any(select.select([process], [], [], 1)[0] for _ in range(LIMIT_S)):
            return None
    finally:
        os.close(process)
    return f"it did not end within {LIMIT_S} s (PARTYWALL_TEST_LIMIT_S); its threads: {threads(test.pid)}"


def tests(program: str, args: list[str]) -> list[str]:
    command = [program, *args, "--list", "--format", "terse"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if listed.returncode != 0:
        sys.exit(listed.returncode)
    return [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]


def at_once(args: list[str]) -> int:
    """How many tests run at the same time: as in the programs themselves."""
    given = [arg.partition("=")[2] or args[at + 1] for at, arg in enumerate(args) if arg.startswith("--test-threads")]
    return int((given or [os.environ.get("RUST_TEST_THREADS", "")])[-1] or len(os.sched_getaffinity(0)))


def run_all(program: str, args: list[str]) -> list[Outcome]:
    """Runs the tests that the options choose, and prints the output of those that failed."""
    running, flags, outcomes = Running(), sorted(EACH.intersection(args)), []
    with ThreadPoolExecutor(at_once(args)) as pool:
        try:
            for outcome in pool.map(lambda name: run(program, name, flags, running), tests(program, args)):
                outcomes.append(outcome)
                if outcome.why or SHOWING.intersection(args):
                    print(outcome.output.strip(), flush=True)
                if outcome.why:
                    print(f"FAILED {outcome.name}: {outcome.why}", flush=True)
        except KeyboardInterrupt:
            running.end_all()
            raise
    return outcomes


def main() -> int:
    program, args = sys.argv[1], sys.argv[2:]
    if Path(program).parent.name != "deps" or "--list" in args:
        os.execv(program, [program, *args])  # noqa: S606 - cargo names the program
    began = time.monotonic()
    outcomes = run_all(program, args)
    failed = sum(outcome.why is not None for outcome in outcomes)
    ignored = sum(outcome.is_ignored for outcome in outcomes)
    counts = f"{len(outcomes) - failed - ignored} passed, {failed} failed, {ignored} ignored"
    print(f"{Path(program).name.rpartition('-')[0]}: {counts} in {time.monotonic() - began:.1f} s", flush=True)
    return FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main())
