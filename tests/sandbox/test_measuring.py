"""The lock that says whether this host is being measured, and by whom."""

import fcntl
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partywall.events import Left, Note, Started, silent
from partywall.sandbox import measuring as module
from partywall.sandbox.measuring import alone, lock_alone, locked, measuring, others

OTHER = """
import sys
from pathlib import Path
from partywall.events import Left, Started, silent
from partywall.sandbox.measuring import measuring
with measuring("'partywall run demo'", silent) as mark:
    mark(Started(Path("runs/demo-1")))
    mark(Left(120))
    print("measures", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def states(tmp_path, monkeypatch):
    folder = tmp_path / "states"
    monkeypatch.setenv("PARTYWALL_STATE", str(folder))
    return folder


@pytest.fixture
def other():
    """Another process that measures this host until it gets a line."""
    words = [sys.executable, "-c", OTHER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "measures\n"
        yield process
        process.kill()


class Finisher(list):
    """Keeps what it hears, and ends the other process at the first note."""

    def __init__(self, process):
        super().__init__()
        self._process = process

    def __call__(self, note):
        if not self:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        self.append(note)


def test_measurements_share_the_lock_and_who_wants_to_be_alone_waits_for_them():
    with measuring("one", silent), measuring("two", silent):
        assert lock_alone() is None
    descriptor = lock_alone()
    assert lock_alone() is None
    # A measurement may begin beside one that was alone.
    with measuring("three", silent):
        os.close(descriptor)
        assert lock_alone() is None


def test_a_measurement_names_the_other_one_its_record_and_the_time_left(other):
    heard = []
    with measuring("mine", heard.append, wait="--wait begins after it"):
        pass
    (note,) = heard
    assert note.is_warning
    assert re.fullmatch(
        rf"'partywall run demo' \(process {other.pid}, runs/demo-1, about (2 min|1 min \d\d s) left\) measures on this "
        "host too: the two disturb each other; --wait begins after it",
        note.text,
    )


def test_a_measurement_alone_says_nothing_and_does_not_name_itself():
    heard = []
    with measuring("outer", heard.append), measuring("inner", heard.append):
        assert others() == []
    assert heard == []


def test_one_that_waits_begins_when_the_other_has_ended_and_says_whom_it_waits_for(other):
    heard = Finisher(other)
    with measuring("mine", heard, is_waiting=True):
        assert others() == []
        assert lock_alone() is None
    assert [note.text.partition(",")[0] for note in heard] == [f"waiting for 'partywall run demo' (process {other.pid}"]


def test_python_waits_the_same_way_and_its_measurements_share_the_lock(other):
    with alone(Finisher(other)), measuring("mine", silent):
        assert others() == []
        assert lock_alone() is None
    os.close(lock_alone())


def test_a_killed_measurement_is_forgotten(other, states):
    other.kill()
    other.wait()
    assert len(list(states.glob("measuring-*"))) == 1
    assert others() == []
    assert list(states.glob("measuring-*")) == []


def test_the_file_of_a_measurement_is_written_only_if_its_end_moves(monkeypatch):
    written = []
    monkeypatch.setattr(module, "write_whole", lambda _path, content: written.append(content))
    with measuring("mine", silent) as mark:
        mark(Started(Path("here")))
        for left in (100, 99, 101):
            mark(Left(left))
        mark(Left(50))
        mark(Note("not of interest"))
    assert len(written) == 4
    assert f'"ends_s": {round(time.time() + 50)}'[:-1] in written[-1]


def test_a_command_that_made_nothing_leaves_no_folder(states):
    with measuring("mine", silent):
        assert states.is_dir()
    assert not states.exists()


def test_a_folder_that_was_there_or_holds_something_or_is_used_stays(states):
    with measuring("mine", silent):
        (states / "a-run").mkdir()
    assert (states / "a-run").is_dir()
    (states / "a-run").rmdir()
    with measuring("mine", silent):
        pass
    assert states.is_dir()
    states.rmdir()
    with measuring("mine", silent):
        other = locked(fcntl.LOCK_SH)
    assert states.is_dir()
    os.close(other)


def test_a_folder_that_was_removed_before_it_was_locked_is_made_again(states, monkeypatch):
    flock, removed = fcntl.flock, []

    def late(descriptor, how):
        if not removed:
            removed.append(states.rmdir())
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    descriptor = locked(fcntl.LOCK_SH)
    assert os.fstat(descriptor).st_ino == states.stat().st_ino
    os.close(descriptor)
