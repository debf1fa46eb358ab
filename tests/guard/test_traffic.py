"""Counters of the whole host's processors, with an event that every kernel has."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from partywall.study.promises import slots
from partywall.study.promises.traffic import Counters, most_per_s

SOFTWARE, CPU_CLOCK, NOTHING = 1, 0, 1 << 20


def clock_of_every_cpu() -> Counters:
    """A counter that every kernel has; skips where the kernel gives this user none for the whole host."""
    try:
        return Counters(SOFTWARE, CPU_CLOCK)
    except OSError as error:
        pytest.skip(f"perf_event_open for the whole host: {error}")


def test_what_every_cpu_counted_is_added_up() -> None:
    counters = clock_of_every_cpu()
    before, began = counters.read(), time.monotonic_ns()
    time.sleep(0.2)
    spent = (counters.read() - before) / (time.monotonic_ns() - began)
    counters.close()
    assert spent == pytest.approx(os.cpu_count() or 1, rel=0.1)


def test_an_event_that_is_not_counted_is_reported_and_leaves_no_file_open() -> None:
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match=r".+"):
        Counters(SOFTWARE, NOTHING)
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_the_most_is_counted_while_all_cpus_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counters, "where_there_are", clock_of_every_cpu)
    busy, every = slots._cpu_ns()
    most = most_per_s()
    busy_after, every_after = slots._cpu_ns()
    assert most == pytest.approx(1e9 * (os.cpu_count() or 1), rel=0.1)
    allowed = len(os.sched_getaffinity(0)) / (os.cpu_count() or 1)
    assert (busy_after - busy) / (every_after - every) > 0.5 * allowed


def test_nothing_is_copied_on_a_host_that_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counters, "where_there_are", lambda: None)
    assert most_per_s() is None
