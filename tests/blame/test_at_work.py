"""Victims that this process starts in an agent."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.blame.job import BlameJob
from partywall.blame.measure import victim
from partywall.blame.measure.at_work import KEPT_NS, Work, work_of
from partywall.clock import Monotonic
from partywall.core import here
from partywall.errors import UsageError


def piece(start_ms: int, end_ms: int, work: float, thread: int = 0) -> dict[str, float]:
    return {"thread": thread, "start_ns": start_ms * 10**6, "end_ns": end_ms * 10**6, "work": work}


def test_work_within_a_slice_is_even():
    work = Work()
    work.add([piece(0, 10, 100), piece(10, 20, 300)])
    assert work.known_ns == 20 * 10**6
    assert work.until(5 * 10**6) == pytest.approx(50)
    assert work.until(15 * 10**6) - work.until(5 * 10**6) == pytest.approx(200)


def test_no_more_is_known_than_every_thread_has_reported():
    work = Work()
    work.add([piece(0, 30, 3), piece(0, 10, 1, thread=1)])
    assert work.known_ns == 10 * 10**6
    assert work.until(10 * 10**6) == pytest.approx(2)


@given(st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1e6)), min_size=1, max_size=200))
def test_parts_add_up_to_the_whole_and_old_work_is_forgotten(slices: list[tuple[int, float]]):
    work, at, total = Work(), 0, 0.0
    for length, done in slices:
        work.add([piece(at, at + length, done)])
        at, total = at + length, total + done
    begin = max(0, at - KEPT_NS // 10**6)
    middle = (begin + at) // 2
    parts = [work.until(b * 10**6) - work.until(a * 10**6) for a, b in ((begin, middle), (middle, at))]
    assert sum(parts) == pytest.approx(work.until(at * 10**6) - work.until(begin * 10**6))
    assert work.until(at * 10**6) == pytest.approx(total)


@pytest.mark.host
def test_this_process_leaves_the_cpus_of_its_victim_and_comes_back():
    """Its threads would be seen as harm that begins with each pulse."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one CPU only")
    cpu = allowed[-1]
    with victim.started(BlameJob(probe="integer", cpus=str(cpu)), here.this_host()):
        threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        assert [thread for thread in threads if cpu in os.sched_getaffinity(thread)] == []
    assert sorted(os.sched_getaffinity(0)) == allowed


def test_an_unknown_probe_is_refused_with_those_that_there_are():
    with pytest.raises(UsageError, match=r"no probe 'memory-copyy'") as error:
        work_of(BlameJob(probe="memory-copyy"))
    assert "memory-copy" in str(error.value.problems[0].remedy)


@pytest.mark.host
@pytest.mark.parametrize("given", [{"probe": "integer", "cpus": "0"}])
def test_a_probe_has_a_rate_that_becomes_known(given: dict[str, str]):
    clock = Monotonic()
    with victim.started(BlameJob(**given), here.this_host()) as one:
        assert one.pids()
        start = one.read(clock.now_ns() + 300 * 10**6)
        end = one.read(start + 100 * 10**6)
        assert not one.is_known(end)
        while not one.is_known(end):
            assert clock.now_ns() < end + 10 * 10**9, "nothing was reported"
            assert not one.ended()
            clock.sleep_until(clock.now_ns() + 20 * 10**6)
        assert one.rate(start, end) > 1000
