"""What is read of a victim: a log that is rotated, a command that closes its output."""

import contextlib
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from partywall.blame.code import Code
from partywall.blame.decide import Rule
from partywall.blame.job import BlameJob
from partywall.blame.measure import victim as victims
from partywall.blame.measure.victim import Logged, Printed, Silence, Speaking, Stated, by_group, by_key
from partywall.errors import UsageError
from partywall.host import Host


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
    victim = Stated(Silence.SLOW, is_slowness=False)
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
    victim = Stated(Silence.SLOW, is_slowness=True)
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


def heard(parts: list[bytes]) -> list[float]:
    """The speeds that a command states with this output."""
    victim, said = Speaking.__new__(Speaking), list[float]()
    victim._said, victim._rest = Stated(Silence.SLOW, is_slowness=False), b""
    victim._said.state = lambda value: said.append(float(value or 0))
    victim._number = by_group(re.compile(rb"speed ([0-9.]+)"))
    for part in parts:
        victim._hear(part)
    return said


def test_a_speed_before_a_carriage_return_is_heard():
    assert heard([b"speed 5\rspeed 6\r", b"speed 7\r\nspe", b"ed 8\nspeed 9"]) == [5, 6, 7, 8]


def test_a_line_without_an_end_is_not_kept_for_ever():
    assert heard([b"x" * 1_000_000] * 20 + [b"speed 5\n"]) == [5]


def spoken(silence: Silence, moments_ms: list[int], until_ms: int) -> float | None:
    """The rate in the last second of a victim whose speed is stated as 10 at these moments."""
    victim, before = Stated(silence, is_slowness=False), (0.0, 0.0)
    for at in range(25, until_ms + 1, 25):
        if at in moments_ms:
            victim.state(10.0)
        now = victim.read(at * 10**6)
        before = now if at == until_ms - 1000 else before
    return victim.rate(before, now)


def test_a_speed_that_is_stated_no_more_does_not_hold_for_ever():
    stated = list(range(100, 2001, 100))
    assert spoken(Silence.SLOW, stated, 2000) == pytest.approx(10)
    assert spoken(Silence.UNKNOWN, stated, 2000) == pytest.approx(10)
    assert spoken(Silence.UNKNOWN, stated, 4000) is None
    slow = spoken(Silence.SLOW, stated, 4000)
    assert slow is not None
    assert 1 < slow < 3, "it has done less than in the usual gaps"


def test_a_victim_that_speaks_only_while_its_neighbour_is_pulsed_is_slow_and_the_neighbour_is_named():
    rule = Rule(Code(3, 1), 100_000_000, 30_000_000_000)
    depths = rule.depths(rule.blocks_most)
    victim, ticks, before = Stated(Silence.SLOW, is_slowness=False), [], (0.0, 0.0)
    random = np.random.default_rng(1)
    for slot, pulsed in enumerate(depths):
        for tick in range(4):
            if pulsed[0]:
                victim.state(100 * (1 + 0.02 * random.standard_normal()))
            now = victim.read((slot * 4 + tick + 1) * 25_000_000)
            ticks.append(victim.rate(before, now))
            before = now
    use = (1 - depths[:, :2]) * (1 + 0.02 * random.standard_normal((len(depths), 2)))
    look = rule.look(("guilty", "other"), np.array([np.nan if each is None else each for each in ticks]), use)
    assert [each.suspect for each in look.guilty] == ["guilty"]


def writer(file: Path) -> subprocess.Popen[bytes]:
    """A process that has a log open."""
    script = "import sys\nout = open(sys.argv[1], 'a')\nprint('open', flush=True)\nsys.stdin.read()"
    argv = [sys.executable, "-c", script, str(file)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_the_end_of_all_that_write_a_log_is_told_and_not_that_of_one(log: Path):
    first, second = writer(log), writer(log)
    victim = Logged(log, None, Host({}))
    assert sorted(victim.pids()) == sorted([first.pid, second.pid])
    end(first)
    assert not victim.ended()
    third = writer(log)
    end(second)
    assert not victim.ended(), "the service has started again"
    assert victim.pids() == [third.pid]
    end(third)
    assert victim.ended() == f"has ended: no process has {log} open any more"


def test_a_log_that_nobody_keeps_open_has_no_end(log: Path):
    assert not Logged(log, None, Host({})).ended()


def test_the_outline_names_the_victim_and_its_processes_without_starting_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with victims.outlined(BlameJob(victim="./bench --all"), Host({})) as (said, pids):
        assert (said, pids) == ("victim: ./bench --all, which is started for it", [])
    with victims.outlined(BlameJob(pid=os.getpid()), Host({})) as (said, pids):
        assert said.startswith(f"victim: process {os.getpid()} (of its runnable time), 1 process")
        assert pids == [os.getpid()]
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        victims.check(BlameJob(url=url), Host({}))
        with victims.outlined(BlameJob(url=url, users=3), Host({})) as (said, pids):
            assert said.startswith(f"victim: 3 virtual users of {url}, 1 process")
            assert pids == [os.getpid()], "it is no suspect, as in the experiment"


def test_a_url_at_which_nothing_listens_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UsageError, match=f"--url: nothing answers at http://127.0.0.1:{port}/: .*refused"):
        victims.check(BlameJob(url=f"http://127.0.0.1:{port}/"), Host({}))


def test_a_later_process_with_the_victims_number_is_another_one(monkeypatch: pytest.MonkeyPatch):
    with victims.started(BlameJob(pid=os.getpid()), Host({})) as victim:
        assert (victim.ended(), victim.pids()) == ("", [os.getpid()])
        monkeypatch.setattr(victims, "start_ticks", lambda *_: 1)
        assert (victim.ended(), victim.pids()) == ("has ended", [])
