"""What a run's state folder says is believed only if nobody else could have said it, and is whole at any moment."""

import json
import os
import threading
from pathlib import Path

import pytest

from partywall.errors import UsageError
from partywall.files import write_whole
from partywall.host.label import Label, start_ticks, state_root
from partywall.host.settings import governor, ledger
from partywall.sandbox import networks, reap, reaper, switch, vif
from partywall.sandbox.qemu import accelerator
from partywall.testing import fake_host

DEAD = {"pid": 999_999_999, "start_ticks": 0}


@pytest.fixture
def root(tmp_path, monkeypatch):
    root = tmp_path / "state"
    monkeypatch.setenv("PARTYWALL_STATE", str(root))
    return root


def leave(state, run, **owner):
    """What a dead run leaves."""
    (state / run).mkdir(parents=True, mode=0o700)
    (state / run / "owner.json").write_text(json.dumps(DEAD | owner))


def test_the_state_folder_is_made_for_its_owner_alone_whatever_the_umask(root, tmp_path):
    before = os.umask(0o002)
    try:
        label = Label.create("r", tmp_path)
    finally:
        os.umask(before)
    assert root.stat().st_mode & 0o777 == 0o700
    reaper.clean(label)


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_state_folder_that_others_may_write_to_is_refused_and_what_it_says_is_not_done(root, tmp_path, mode):
    home = tmp_path / "partywall-x"
    home.mkdir()
    leave(root, "x", work=str(home))
    root.chmod(mode)
    with pytest.raises(UsageError, match=r"state: may be written to by others.*\$PARTYWALL_STATE"):
        reap()
    with pytest.raises(UsageError, match="may be written to by others"):
        Label.create("r", tmp_path)
    assert home.exists()


def test_a_state_folder_of_somebody_elses_is_refused(root, monkeypatch):
    leave(root, "x", work="/nowhere")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UsageError, match=f"belongs to user {owner}"):
        reap()


def test_a_link_in_the_place_of_the_state_folder_is_refused_wherever_it_leads(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a symbolic link"):
        state_root()
    root.unlink()
    root.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is a symbolic link"):
        Label.create("r", tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_a_state_folder_that_is_a_file_is_reported(root, tmp_path):
    root.write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        Label.create("r", tmp_path)


def test_a_run_in_whose_folder_others_may_write_is_left_alone(root, tmp_path):
    home = tmp_path / "partywall-x"
    home.mkdir()
    leave(root, "x", work=str(home))
    (root / "x").chmod(0o707)
    assert reap() == []
    assert home.exists()


def test_only_a_folder_called_after_the_run_is_deleted_as_its_work(root, tmp_path):
    home, work = tmp_path / "home", tmp_path / "partywall-y"
    home.mkdir()
    work.mkdir()
    leave(root, "x", work=str(home))
    leave(root, "y", work=str(work))
    assert [reaped.run for reaped in reap()] == ["x", "y"]
    assert home.exists()
    assert not work.exists()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"pid": null, "start_ticks": 0, "work": "/w"}'])
def test_a_run_whose_owner_cannot_be_reported_is_being_made(root, content):
    leave(root, "x")
    (root / "x" / "owner.json").write_text(content)
    assert reap() == []
    assert (root / "x").exists()


def test_a_dead_runs_containers_are_reported_where_the_runtime_is_gone_and_other_runs_are_cleaned(
    root, tmp_path, monkeypatch
):
    for run in ("a", "b"):
        leave(root, run, work=str(tmp_path / f"partywall-{run}"))
    (root / "a" / "runtime" / "box").mkdir(parents=True)
    monkeypatch.setenv("PARTYWALL_RUNTIME", "/no/such/runtime")
    first, second = reap()
    assert len(first.left) == 1
    assert first.left[0].startswith("container box (")
    assert "/no/such/runtime" in first.left[0]
    assert second.left == ()
    # Known until the runtime is back, or it is asked to be forgotten.
    assert sorted(path.name for path in root.iterdir()) == ["a"]
    reap(forget=True)
    assert list(root.iterdir()) == []


def test_a_reader_never_sees_half_of_a_file(tmp_path):
    file = tmp_path / "file"
    contents = {letter * 100_000 for letter in "ab"}
    write_whole(file, "a" * 100_000)

    def write():
        for content in sorted(contents) * 100:
            write_whole(file, content)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    looks = 0
    while any(writer.is_alive() for writer in writers):
        assert file.read_text() in contents
        looks += 1
    assert looks > 0
    assert list(tmp_path.iterdir()) == [file]


def on_the_disk(root):
    return {path: path.read_text() for path in root.rglob("*.json")}


@pytest.mark.parametrize("what", ["owner", "networks", "ports", "vif", "governor", "kvm"])
def test_whatever_ends_us_while_state_is_written_leaves_what_was_there_before(root, tmp_path, monkeypatch, what):
    """As if killed between opening the file and writing to it."""
    label = Label.create("r", tmp_path)
    sysfs = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    sysfs.mkdir(parents=True)
    (sysfs / "scaling_available_governors").write_text("ondemand performance")
    (sysfs / "scaling_governor").write_text("ondemand")
    (root / ledger.GOVERNOR).write_text(
        json.dumps({"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "before": {}})
    )
    host = fake_host(root=tmp_path)

    def hold():
        with governor.held("performance", host):
            raise AssertionError

    def attempt(failure):
        return accelerator.Attempt(failure, within_s=7.0, at="2026-01-01 00:00")

    writes = {
        "owner": lambda: Label.create("other", tmp_path),
        "networks": lambda: networks.note(label, ["second"]),
        "ports": lambda: switch.Switch(label)._number("second"),
        "vif": lambda: vif.note(label, "guest", "namespace", "second"),
        "governor": hold,
        "kvm": lambda: accelerator._remember(attempt("second"), host),
    }
    networks.note(label, ["first"])
    switch.Switch(label)._number("first")
    vif.note(label, "guest", "namespace", "first")
    accelerator._remember(attempt("first"), host)
    before = on_the_disk(root)

    def killed(path, _content, **_):
        path.open("w").close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", killed)
        with pytest.raises(KeyboardInterrupt):
            writes[what]()
    assert on_the_disk(root) == before
    reaper.clean(label)
