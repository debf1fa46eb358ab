"""The lock that says whether this host is being measured."""

import fcntl
import os

import pytest

from partywall.sandbox.measuring import locked, measuring


@pytest.fixture(autouse=True)
def states(tmp_path, monkeypatch):
    folder = tmp_path / "states"
    monkeypatch.setenv("PARTYWALL_STATE", str(folder))
    return folder


def test_commands_share_the_lock_and_a_queue_waits_for_them():
    with measuring(), measuring():
        assert locked(fcntl.LOCK_EX) is None
    alone = locked(fcntl.LOCK_EX)
    assert locked(fcntl.LOCK_SH) is None
    # A command does not wait for a queue.
    with measuring():
        pass
    os.close(alone)


def test_a_command_that_made_nothing_leaves_no_folder(states):
    with measuring():
        assert states.is_dir()
    assert not states.exists()


def test_a_folder_that_was_there_or_holds_something_or_is_used_stays(states):
    with measuring():
        (states / "a-run").mkdir()
    assert (states / "a-run").is_dir()
    (states / "a-run").rmdir()
    with measuring():
        pass
    assert states.is_dir()
    states.rmdir()
    with measuring():
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
