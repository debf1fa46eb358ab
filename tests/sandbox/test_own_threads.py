"""Partywall's own threads stay off the CPUs of what is measured."""

import os
import threading
from pathlib import Path

import pytest

from partywall.sandbox.own_threads import keep_on


def affinities():
    """The CPUs on which each thread of this process may run."""
    return {int(task.name): os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()}


def test_all_threads_move_also_those_that_began_before_and_during_the_move():
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one CPU")
    ended = threading.Event()

    def spawn():
        while not ended.wait(0.001):
            threading.Thread(target=ended.wait, args=(5,)).start()

    before = threading.Thread(target=spawn)
    before.start()
    try:
        keep_on({allowed[0]})
        threads = affinities()
        assert len(threads) >= 2
        assert set(map(frozenset, threads.values())) == {frozenset({allowed[0]})}
    finally:
        ended.set()
        before.join()
        keep_on(allowed)
    assert set(map(frozenset, affinities().values())) == {frozenset(allowed)}
