"""Clean-up that cannot remove something says so, and keeps the notes that the next one needs."""

import contextlib
import os
import signal
import subprocess

import pytest

from partywall.host.label import Label
from partywall.sandbox import hooks, networks, reaper


@pytest.fixture(autouse=True)
def _runtime(tmp_path, monkeypatch):
    """An OCI runtime that fails to delete the container `stuck`."""
    program = tmp_path / "crun-stub"
    program.write_text('#!/bin/sh\nfor last; do :; done\n[ "$last" != stuck ] || { echo "device busy" >&2; exit 1; }\n')
    program.chmod(0o755)
    monkeypatch.setenv("PARTYWALL_RUNTIME", str(program))
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))


def test_a_container_that_cannot_be_deleted_is_left_and_its_notes_are_kept(tmp_path):
    label = Label.create("reaped", tmp_path / "work")
    for name in ("stuck", "gone"):
        (label.state / "runtime" / name).mkdir(parents=True)
    try:
        reaped = reaper.clean(label)
        assert "container gone" in reaped.removed
        assert not any("stuck" in removed for removed in reaped.removed)
        assert any("container stuck" in left and "device busy" in left for left in reaped.left)
        assert (label.state / "runtime").is_dir()
    finally:
        with contextlib.suppress(OSError):
            reaper.clean(label, forget=True)
    assert not label.state.exists()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a shell script in the place of a program."""

    def put(name, script):
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return file

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return put


@pytest.mark.parametrize("script", ["echo busy >&2; exit 1", "exec sleep 30"])
def test_hooks_that_cannot_be_removed_are_left_and_their_notes_are_kept(program, tmp_path, monkeypatch, script):
    agent = program("agent", script)
    monkeypatch.setattr(hooks.binary, "find", lambda: agent)
    monkeypatch.setattr(hooks, "TIMEOUT_S", 0.5)
    label = Label.create("hooked", tmp_path / "work")
    hooks.note(label, [(None, "eth0"), ("web", "eth1")])
    reaped = reaper.clean(label)
    assert any(left.startswith("hooks at =eth0, web=eth1 (") for left in reaped.left)
    assert (label.state / hooks.FILE).is_file()
    program("agent", "echo hook of eth0")
    reaped = reaper.clean(label)
    assert ("hook of eth0" in reaped.removed, reaped.left, label.state.exists()) == (True, (), False)


@pytest.mark.parametrize(("script", "why"), [("echo busy >&2; exit 1", "busy"), ("exec sleep 30", "timed out")])
def test_a_namespace_that_cannot_be_deleted_is_left_and_its_note_is_kept(program, tmp_path, monkeypatch, script, why):
    program("ip", script)
    monkeypatch.setattr(networks, "NETNS", tmp_path / "netns")
    monkeypatch.setattr(networks, "TIMEOUT_S", 0.5)
    (tmp_path / "netns").mkdir()
    (tmp_path / "netns" / "own").touch()
    label = Label.create("networked", tmp_path / "work")
    networks.note(label, ["own", "gone"])
    (left,) = reaper.clean(label).left
    assert left.startswith("network namespace own (")
    assert why in left
    program("ip", f"rm {tmp_path}/netns/$3")
    assert reaper.clean(label).removed[0] == "network namespace own"
    assert not label.state.exists()


def test_a_process_that_does_not_end_by_a_kill_is_left_and_not_called_removed(tmp_path, monkeypatch):
    label = Label.create("stuck", tmp_path / "work")
    argv, env = ["sleep", "100"], os.environ | label.environment
    with subprocess.Popen(argv, env=env) as stuck, subprocess.Popen(argv, env=env) as other:
        kill = os.kill
        try:
            monkeypatch.setattr(os, "kill", lambda pid, number: None if pid == stuck.pid else kill(pid, number))
            reaped = reaper.clean(label)
            assert f"process {other.pid}" in reaped.removed
            assert f"process {stuck.pid}" in reaped.left
            assert f"process {stuck.pid}" not in reaped.removed
        finally:
            kill(stuck.pid, signal.SIGKILL)
    assert reaper.clean(label).left == ()
