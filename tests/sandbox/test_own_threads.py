"""Partywall's own threads stay off the CPUs of what is measured."""

import contextlib
import os
import threading
from pathlib import Path

import pytest

from partywall.cli import kernel
from partywall.power import ladder
from partywall.sandbox.own_threads import keep_on
from partywall.session import Session


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


@pytest.fixture
def two_cpus():
    """The CPU that is measured, and the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("one CPU")
    ended = threading.Event()
    before = threading.Thread(target=ended.wait, args=(60,))
    before.start()
    yield first, frozenset(others)
    ended.set()
    before.join()
    assert set(map(frozenset, affinities().values())) == {frozenset({first, *others})}


def test_the_threads_of_probe_and_stress_are_off_the_cpu_of_their_kernel(two_cpus, monkeypatch, tmp_path):
    """The thread that draws the rate took time of the very CPU whose rate it drew."""
    measured, others = two_cpus
    seen = []

    class Sandbox:
        def __init__(self, settings, _label):
            assert settings.cpus == (measured,)

        def start(self, _sink):
            seen.append(affinities())

        def stop(self):
            pass

    monkeypatch.setattr(kernel, "make", Sandbox)
    monkeypatch.setattr(kernel, "measuring", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(kernel.leftovers, "clean_up", lambda: None)
    with kernel._sandbox(str(measured), tmp_path):
        seen.append(affinities())
    assert [set(map(frozenset, each.values())) for each in seen] == [{others}] * 2


def test_the_threads_of_a_power_measurement_are_off_the_cpus_of_its_load(two_cpus, monkeypatch):
    measured, others = two_cpus
    seen = []
    monkeypatch.setattr(Session, "add", lambda *_: seen.append(affinities()))
    monkeypatch.setattr(ladder.Load, "_begin", lambda *_: None)
    with ladder.Load(None, ladder.workers([measured])):
        seen.append(affinities())
    assert [set(map(frozenset, each.values())) for each in seen] == [{others}] * 2
