"""What is read of a victim: a log that is rotated, a command that closes its output."""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

from partywall.blame.measure.victim import Logged, Printed, Speaking, Stated, by_group, by_key


def append(file: Path, lines: int) -> None:
    with file.open("a") as out:
        out.write("GET / rt=0.5\n" * lines)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "access.log"
    append(file, 7)
    return file


def test_a_log_is_followed_from_its_end(log: Path):
    victim = Logged(log, by_group(re.compile(rb"rt=([0-9.]+)")))
    append(log, 3)
    assert victim.read(0) == (3, 1.5)


def test_a_log_that_is_rotated_is_read_to_its_end_and_the_new_one_from_its_beginning(log: Path):
    victim = Logged(log, None)
    append(log, 2)
    log.rename(log.with_suffix(".1"))
    append(log.with_suffix(".1"), 1)
    assert victim.read(0)[0] == 3, "the service still writes to the old one, and there is no new one yet"
    append(log, 4)
    assert victim.read(0)[0] == 7
    append(log, 1)
    assert victim.read(0)[0] == 8


def test_a_log_that_is_truncated_is_read_from_its_beginning(log: Path):
    victim = Logged(log, None)
    append(log, 2)
    assert victim.read(0)[0] == 2
    os.truncate(log, 0)
    append(log, 5)
    assert victim.read(0)[0] == 7


@contextlib.contextmanager
def printed(script: str) -> Iterator[Printed]:
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        try:
            yield Printed(process)
        finally:
            process.kill()


def test_a_command_that_closes_its_output_has_an_unknown_rate_and_says_so():
    closes = "import os, sys\nprint('x', flush=True)\nos.close(1)\nsys.stdin.read()"
    with printed(closes) as victim:
        deadline = time.monotonic() + 10
        while not victim.ended():
            assert time.monotonic() < deadline, "the end of the output was not seen"
            time.sleep(0.01)
        assert victim.ended() == "has closed its output"
        before, after = victim.read(1_000_000_000), victim.read(2_000_000_000)
    assert victim.rate(before, after) is None


def test_a_command_that_prints_has_a_rate():
    with printed("import sys\nsys.stdin.read()") as victim:
        assert not victim.ended()
        assert victim.rate(victim.read(1_000_000_000), victim.read(2_000_000_000)) == 0


def test_a_stated_speed_holds_until_another_is_stated():
    victim = Stated(is_slowness=False)
    assert victim.rate(victim.read(10**9), victim.read(2 * 10**9)) is None, "nothing is stated yet"
    victim.state(4.0)
    begin = victim.read(2 * 10**9)
    victim.read(3 * 10**9)
    victim.state(8.0)
    middle = victim.read(4 * 10**9)
    victim.state(None)
    assert victim.rate(begin, middle) == 6.0, "4 for a second, then 8"
    assert victim.rate(middle, victim.read(5 * 10**9)) is None


def test_a_stated_time_is_a_speed_by_its_reciprocal():
    victim = Stated(is_slowness=True)
    begin = victim.read(10**9)
    victim.state(0.25)
    assert victim.rate(begin, victim.read(2 * 10**9)) == 4.0
    victim.state(0.0)
    before = victim.read(2 * 10**9)
    assert victim.rate(before, victim.read(3 * 10**9)) is None, "a time of 0 says nothing"


def test_a_command_that_prints_its_speed_is_read_line_by_line():
    prints = "print('warm up'), print('ops=12.5/s'), print('ops=9', end='', flush=True)"
    script = f"import sys; {prints}; sys.stdin.read()"
    argv = [sys.executable, "-uc", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        victim = Speaking(process, by_group(re.compile(rb"ops=([0-9.]+)")), is_slowness=False)
        try:
            at, deadline, before = 10**9, time.monotonic() + 10, victim.read(10**9)
            while (got := victim.rate(before, victim.read(at := at + 10**9))) is None:
                assert time.monotonic() < deadline, "the speed was not read"
                time.sleep(0.01)
            assert got == 12.5, "half a line is none"
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"upstream": {"time": 0.25}}', 0.25),
        (b'{"upstream": {"time": "0.5"}}', 0.5),
        (b'{"upstream": {"time": "-"}}', None),
        (b'{"upstream": {"time": NaN}}', None),
        pytest.param(b'{"upstream": {"time": 1%s}}' % (b"0" * 400), None, id="400 digits"),
        pytest.param(b'{"upstream": {"time": "1%s"}}' % (b"0" * 400), None, id="a text of 400 digits"),
        pytest.param(b"[" * 100_000, None, id="lists in lists"),
        (b'{"upstream": {}}', None),
        (b'{"upstream": 3}', None),
        (b"[1]", None),
        (b'{"upstream": {"time": 0.2', None),
        (b"", None),
    ],
)
def test_a_latency_is_found_in_a_line_of_json(line: bytes, found: float | None):
    assert by_key("upstream.time")(line) == found


JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.sampled_from(["a", "b", "0"]), inner),
)


@settings(max_examples=80, deadline=None)
@given(JSON | strategies.integers(10**300, 10**500), strategies.sampled_from(["a", "a.b", "0", "a.0", ""]))
def test_whatever_a_line_of_json_has_a_latency_is_a_number_or_none(value: object, key: str):
    for line in (json.dumps(value).encode(), json.dumps({"a": value}).encode()):
        found = by_key(key)(line)
        assert found is None or math.isfinite(found)


def test_a_command_whose_output_cannot_be_read_any_more_is_told_to_be_silent(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Printed, "_hear", fails)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with printed("import sys\nprint('x', flush=True)\nsys.stdin.read()") as victim:
        deadline = time.monotonic() + 10
        while not victim.ended():
            assert time.monotonic() < deadline, "its end was not told"
            time.sleep(0.01)
