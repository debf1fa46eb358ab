"""A test of a measured effect fails on a quiet host, and is repeated and then inconclusive on a busy one."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.measured import ATTEMPTS, Seen, measured

pytestmark = [pytest.mark.long, pytest.mark.host]
BUSY_S = 0.4
ORPHAN = """
import os
if os.fork():
    os._exit(0)
os.setsid()
os.nice({niceness})
print(os.getpid(), flush=True)
while True: pass
"""


@contextlib.contextmanager
def others(niceness: int = 0):
    """A program on each CPU that is no descendant of this process."""
    source = ORPHAN.format(niceness=niceness)
    pids = []
    try:
        for _ in range(os.cpu_count() or 1):
            done = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
            pids.append(int(done.stdout.readline()))
            done.wait()
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, 9)


def counted(holds_at: int | None, error: Exception) -> tuple[list[int], Callable[[], None]]:
    """The attempts so far, and a test that fails until one of them."""
    tries: list[int] = []

    @measured
    def test() -> None:
        tries.append(len(tries))
        time.sleep(BUSY_S)
        if tries[-1] != holds_at:
            raise error

    return tries, test


def test_it_is_repeated_beside_other_programs_and_then_inconclusive_with_a_name():
    tries, test = counted(None, AssertionError("no effect"))
    with (
        others(),
        pytest.raises(pytest.skip.Exception, match=r"inconclusive: .+ and others took \d+%"),
    ):
        test()
    assert tries == list(range(ATTEMPTS))


def test_it_passes_if_one_attempt_holds():
    tries, test = counted(1, AssertionError("no effect"))
    with others():
        test()
    assert tries == [0, 1]


def test_other_errors_are_never_repeated():
    tries, test = counted(None, ZeroDivisionError())
    with others(), pytest.raises(ZeroDivisionError):
        test()
    assert tries == [0]


def test_it_fails_at_once_on_a_host_that_does_nothing_else(monkeypatch):
    monkeypatch.setattr(Seen, "until", lambda began, end: "")
    tries, test = counted(None, AssertionError("no effect"))
    with pytest.raises(AssertionError, match="no effect"):
        test()
    assert tries == [0]


def test_what_this_test_starts_and_what_waits_for_it_does_not_compete():
    own = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    lower = 1 if os.nice(0) < 19 else 0
    try:
        before = Seen.now()
        with others() as rivals, others(lower) as waiting:
            time.sleep(BUSY_S)
            took = before.took(Seen.now())
    finally:
        own.kill()
        own.wait()
    assert set(rivals) <= set(took)
    assert not lower or not set(waiting) & set(took)
    assert own.pid not in took
