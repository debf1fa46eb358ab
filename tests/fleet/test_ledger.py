"""The ledger of a host: one run at a time, each attempt once, and nothing goes on without its lease."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partywall.errors import UsageError
from partywall.fleet.job import RunJob
from partywall.fleet.ledger import look
from partywall.fleet.ledger.granting import OLDER, Ledger, Order
from partywall.fleet.ledger.lease import KEPT_S, Book, Kernel, Lease, Phase, State
from partywall.host.label import start_ticks
from partywall.testing.worlds import World
from tests.waiting import until

SLEEP = (sys.executable, "-c", "import sys, time; print('{}', flush=True); time.sleep(float(sys.argv[1]))")


class Host:
    """A host with a clock of its own, whose keepers begin when a test says so."""

    def __init__(self, folder: Path) -> None:
        self.now, self.boot, self.is_busy = 10**9, "first", False
        self.launched: list[Lease] = []
        self.ledger = Ledger(
            folder / "ledger",
            kernel=Kernel(lambda: self.now, lambda: self.boot),
            lock=lambda: None if self.is_busy else os.open(folder, os.O_RDONLY),
            begin=lambda _root, lease, _lock: self.launched.append(lease),
        )
        self.book = self.ledger.book

    def begin(self) -> Lease:
        """What a keeper does first. This process stands for it."""
        lease = dataclasses.replace(self.launched[-1], pid=os.getpid(), start_ticks=start_ticks(os.getpid()))
        (self.book.folder(lease.run) / f"begun-{lease.attempt}").touch()
        return self.book.put(lease)

    def end(self, lease: Lease, phase: Phase = Phase.ENDED) -> None:
        self.book.ended(lease, State(phase, exit=0))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def order(run: str = "a", attempt: int = 1, term_s: float = 100.0) -> Order:
    return Order(run, ("run", "demo"), attempt, term_s)


def test_a_repeated_request_begins_an_attempt_once(host: Host):
    states = [host.ledger.ensure(order(), 1).phase for _ in range(3)]
    host.begin()
    states += [host.ledger.ensure(order(), 1).phase for _ in range(3)]
    assert states == [Phase.STARTING] * 3 + [Phase.RUNNING] * 3
    assert len(host.launched) == 1


def test_an_attempt_that_is_over_is_never_begun_again(host: Host):
    host.ledger.ensure(order(), 1)
    host.end(host.begin())
    assert [host.ledger.ensure(order(), token).phase for token in (1, 2)] == [Phase.ENDED] * 2
    assert len(host.launched) == 1


def test_a_second_run_is_refused_by_name_until_the_first_is_over(host: Host):
    host.ledger.ensure(order("a"), 5)
    lease = host.begin()
    refused = host.ledger.ensure(order("b"), 9)
    assert (refused.phase, refused.why) == (Phase.REFUSED, "run a holds this host for 1 min 40 s at most")
    host.end(lease)
    assert host.ledger.ensure(order("b"), 9).phase is Phase.STARTING


def test_a_run_whose_lease_has_expired_still_holds_the_host_while_its_keeper_lives(host: Host):
    host.ledger.ensure(order("a", term_s=1), 1)
    host.begin()
    host.now += 5 * 10**9
    assert host.ledger.ensure(order("b"), 1).phase is Phase.REFUSED


def test_an_older_token_is_refused_and_a_newer_one_takes_over(host: Host):
    host.ledger.ensure(order(), 1)
    host.begin()
    assert host.ledger.ensure(order(), 2).phase is Phase.RUNNING
    for late in (host.ledger.ensure(order(), 1), host.ledger.stop("a", 1)):
        assert (late.phase, late.why) == (Phase.REFUSED, "a newer controller has taken over this run")
    assert not host.book.lease().is_stopped
    host.ledger.stop("a", 2)
    assert host.book.lease().is_stopped


def test_a_repeated_request_extends_the_lease_and_never_shortens_it(host: Host):
    host.ledger.ensure(order(), 1)
    host.begin()
    host.now += 50 * 10**9
    assert host.ledger.ensure(order(), 1).left_s == 100
    assert host.ledger.ensure(order(term_s=1), 1).left_s == 100


def test_the_next_attempt_waits_for_the_one_before(host: Host):
    assert host.ledger.ensure(order(attempt=2), 1).why == "attempt 1 comes before attempt 2"
    host.ledger.ensure(order(), 1)
    lease = host.begin()
    assert host.ledger.ensure(order(attempt=2), 1).attempt == 1
    host.end(lease, Phase.LOST)
    assert host.ledger.ensure(order(attempt=2), 1).phase is Phase.STARTING
    assert host.ledger.ensure(order(attempt=1), 1).attempt == 2
    assert [each.attempt for each in host.launched] == [1, 2]


def test_after_a_restart_of_the_host_a_run_has_died_and_its_grant_rises_on(host: Host):
    host.ledger.ensure(order(), 1)
    host.begin()
    host.boot, host.now = "second", 10**9
    died = host.ledger.ensure(order(), 1)
    assert (died.phase, died.why) == (Phase.DIED, "the host has restarted")
    host.ledger.ensure(order(attempt=2), 1)
    assert [each.grant for each in host.launched] == [1, 2]


def test_a_keeper_that_never_began_frees_the_host(host: Host):
    host.ledger.ensure(order("a"), 1)
    assert host.ledger.ensure(order("b"), 1).phase is Phase.REFUSED
    host.now += 60 * 10**9
    assert host.ledger.state("a").phase is Phase.DIED
    assert host.ledger.ensure(order("b"), 1).phase is Phase.STARTING


def test_an_attempt_that_never_began_is_known_after_another_run_held_the_host(host: Host):
    host.ledger.ensure(order("a"), 1)
    host.now += 60 * 10**9
    host.ledger.ensure(order("b"), 1)
    host.end(host.begin())
    assert (host.ledger.state("a").phase, host.ledger.state("a").attempt) == (Phase.DIED, 1)
    assert host.ledger.ensure(order("a", attempt=2), 1).phase is Phase.STARTING


def test_a_host_that_somebody_else_measures_is_refused(host: Host):
    host.is_busy = True
    refused = host.ledger.ensure(order(), 1)
    assert refused.phase is Phase.REFUSED
    assert "this host is being measured by" in refused.why
    assert host.ledger.state("a").phase is Phase.NONE


def test_what_old_runs_measured_is_removed_and_they_never_begin_again(host: Host):
    for run in ("old", "young"):
        host.ledger.ensure(order(run), 3)
        lease = host.begin()
        (host.book.folder(run) / "samples").mkdir()
        (host.book.folder(run) / "samples" / "large").write_text("x")
        host.end(lease)
    for file in host.book.folder("old").rglob("*"):
        os.utime(file, (time.time() - KEPT_S - 60,) * 2)
    assert host.ledger.ensure(order("new"), 1).phase is Phase.STARTING
    assert {file.name for file in host.book.folder("old").rglob("*")} == {"token", "begun-1", "exit-1"}
    assert (host.book.folder("young") / "samples" / "large").exists()
    host.end(host.begin())
    assert host.ledger.ensure(order("old"), 3).phase is Phase.ENDED
    assert host.ledger.ensure(order("old"), 2).why == OLDER


@pytest.mark.parametrize("run", ["", "../a", "a/b", ".hidden", "a\nb"])
def test_a_name_that_is_no_folder_is_refused(run: str):
    with pytest.raises(UsageError, match="is not the name of a run"):
        order(run)


def test_a_ledger_that_others_may_write_to_is_refused(tmp_path: Path):
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger").chmod(0o777)
    with pytest.raises(UsageError, match="may be written to by others"):
        Ledger(tmp_path / "ledger")


@pytest.mark.parametrize("seed", range(30))
def test_a_run_is_measured_once_and_comes_home_whatever_goes_wrong(tmp_path: Path, seed: int):
    """`benches/fleet_faults.py` has more schedules, and faults that they find."""
    (tmp_path / "ledger").mkdir(mode=0o700)
    job = RunJob.parsed({"inventory": "localhost", "scenario": "demo", "every_ns": "2s", "lease_ns": "30s"})
    judged = World(tmp_path, job, seed).follow()
    assert (judged.twice, judged.silent, judged.lost, judged.fenced) == (0, 0, 0, 0)
    assert max(judged.late_s, judged.resumed_s / 5) <= 1


# A real host: processes, the shell's look, kill -9.


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    yield tmp_path / "ledger"
    lease = Book(tmp_path / "ledger").lease()
    if lease is not None and lease.pid is not None and start_ticks(lease.pid) == lease.start_ticks:
        os.kill(lease.pid, signal.SIGKILL)


def real(root: Path) -> Ledger:
    return Ledger(root, program=SLEEP)


def sleeping(run: str = "a", seconds: float = 60, attempt: int = 1, term_s: float = 60) -> Order:
    return Order(run, (str(seconds),), attempt, term_s)


def seen(root: Path, run: str = "a", **since: int) -> look.Look:
    answer = subprocess.run(look.words(str(root), run, since), stdout=subprocess.PIPE, check=True).stdout
    return look.parsed(answer, run)


def child_of(pid: int) -> int:
    return int(until(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split())[0])


def ignores(pid: int, number: int) -> bool:
    ignored = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored.split()[1], 16) >> (number - 1) & 1)


def lines(root: Path) -> list[str]:
    return [json.loads(line)["what"] for line in (root / "ledger.jsonl").read_text().splitlines()]


@pytest.mark.host
@pytest.mark.long
def test_a_run_ends_by_itself_and_a_look_from_a_shell_sees_the_same(root: Path):
    ledger = real(root)
    ledger.ensure(sleeping(seconds=0.2), 1)
    until(lambda: ledger.state("a").phase is Phase.ENDED)
    from_shell = seen(root, **{"result.json": 1})
    assert from_shell.load is not None
    assert dataclasses.replace(from_shell.state, files={}) == ledger.state("a") == State(Phase.ENDED, 1, 0)
    assert [(each.name, each.offset, each.content) for each in from_shell.chunks] == [("result.json", 1, b"}\n")]
    until(lambda: lines(root) == ["granted", "began", "ended"])


@pytest.mark.host
@pytest.mark.long
def test_a_run_ends_itself_within_a_second_of_losing_its_lease(root: Path):
    ledger = real(root)
    ledger.ensure(sleeping(term_s=3), 1)
    until(lambda: ledger.state("a").phase is Phase.RUNNING)
    child = child_of(ledger.book.lease().pid)
    expires = ledger.book.lease().expires_ns
    until(lambda: start_ticks(child) is None)
    assert time.clock_gettime_ns(time.CLOCK_BOOTTIME) < expires + 10**9
    until(lambda: ledger.state("a").phase is Phase.LOST)
    assert ledger.state("a").why == "its lease expired"


@pytest.mark.host
@pytest.mark.long
def test_a_command_that_ignores_signals_loses_its_lease_all_the_same(root: Path):
    stubborn = (sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)")
    ledger = Ledger(root, program=stubborn)
    ledger.ensure(Order("a", (), term_s=60), 1)
    until(lambda: ledger.state("a").phase is Phase.RUNNING)
    child = child_of(ledger.book.lease().pid)
    until(lambda: ignores(child, signal.SIGTERM))
    (root / "lease.json").unlink()
    lost = time.monotonic()
    until(lambda: start_ticks(child) is None)
    assert time.monotonic() - lost < 1
    until(lambda: ledger.state("a").phase is Phase.LOST)


@pytest.mark.host
@pytest.mark.long
def test_a_killed_keeper_takes_its_command_along_and_the_next_attempt_goes_on(root: Path):
    ledger = real(root)
    ledger.ensure(sleeping(), 1)
    until(lambda: ledger.state("a").phase is Phase.RUNNING)
    lease = ledger.book.lease()
    child = child_of(lease.pid)
    os.kill(lease.pid, signal.SIGKILL)
    until(lambda: start_ticks(child) is None)
    assert seen(root).state.phase is Phase.DIED
    assert ledger.ensure(sleeping(), 1).phase is Phase.DIED
    until(lambda: ledger.ensure(sleeping(seconds=0.1, attempt=2), 1).phase.is_going)
    until(lambda: ledger.state("a").phase is Phase.ENDED)
    # The keeper writes its last line after the exit code.
    until(lambda: "ended" in lines(root))
    assert [each for each in lines(root) if each != "refused"] == ["granted", "began", "granted", "began", "ended"]


@pytest.mark.host
@pytest.mark.long
def test_a_request_that_is_killed_at_any_moment_leaves_one_run_or_none(root: Path):
    """kill -9 after a random time, then the same request again, and no attempt begins twice."""
    chance = random.Random(3)
    for number in range(6):
        order_ = {"run": f"r{number}", "words": ["doctor", "--help"], "attempt": 1, "term_s": 60}
        request = json.dumps({"verb": "ensure", "order": order_, "token": 1}).encode()
        argv = [sys.executable, "-P", "-m", "partywall.fleet.ledger", str(root)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as asking:
            with contextlib.suppress(subprocess.TimeoutExpired):
                asking.communicate(request, timeout=chance.uniform(0.2, 1.2))
            asking.kill()
        ledger = Ledger(root)
        until(lambda: ledger.ensure(Order.of(order_), 1).phase in (Phase.ENDED, Phase.DIED), 60)  # noqa: B023
    began = [each for each in lines(root) if each == "began"]
    assert len(began) <= 6


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_a_full_disk_is_reported_with_the_file_and_a_remedy(tmp_path: Path):
    request = json.dumps({"verb": "ensure", "order": {"run": "a", "words": ["run"]}, "token": 1})
    asking = f"{sys.executable} -P -m partywall.fleet.ledger {tmp_path}"
    script = f"mount -t tmpfs -o size=64k,mode=700 none {tmp_path} && cat /dev/zero > {tmp_path}/full; exec {asking}"
    argv = ["unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(argv, input=request, capture_output=True, text=True, check=False)
    error = json.loads(done.stdout)["error"]
    assert error.startswith(f"{tmp_path}/")
    assert error.endswith(": No space left on device; free some space there, or set partywall_ledger")


@pytest.mark.host
@pytest.mark.long
def test_a_stopped_run_ends_and_a_second_one_follows(root: Path):
    ledger = real(root)
    ledger.ensure(sleeping("a"), 1)
    until(lambda: ledger.state("a").phase is Phase.RUNNING)
    assert ledger.ensure(sleeping("b"), 1).phase is Phase.REFUSED
    ledger.stop("a", 1)
    until(lambda: ledger.state("a").phase is Phase.STOPPED)
    until(lambda: ledger.ensure(sleeping("b", seconds=0.1), 1).phase.is_going)
    until(lambda: ledger.state("b").phase is Phase.ENDED)
