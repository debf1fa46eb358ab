"""Counters of the whole host's processors, with an event that every kernel has."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from partywall.study.promises.traffic import Counters

SOFTWARE, CPU_CLOCK, NOTHING = 1, 0, 1 << 20


def test_what_every_cpu_counted_is_added_up() -> None:
    try:
        counters = Counters(SOFTWARE, CPU_CLOCK)
    except OSError as error:
        pytest.skip(f"perf_event_open for the whole host: {error}")
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
