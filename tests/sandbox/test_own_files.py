"""The user's own files in sandboxes: the command finds them in its working directory, whatever the backend."""

import hashlib
import os
import stat
import time
from pathlib import Path

import pytest

from partywall.agent import binary
from partywall.errors import CapabilityError, TrialError
from partywall.host import Host
from partywall.host.label import Label
from partywall.sandbox import Settings, make, own_files, qemu, reaper
from partywall.sandbox.document import File
from partywall.sandbox.qemu.initramfs import loaded
from partywall.sandbox.ssh.connection import put
from tests import ssh_server
from tests.guests import ACCEL
from tests.sandbox.test_host import RUNTIMES, needs_containers

SCRIPT = b'#!/bin/sh\necho "$(pwd -P) $(cat input.bin)"\n'


def planned(folder, name, content, *, to=None, executable=False):
    (folder / name).write_bytes(content)
    known = {"path": str(folder / name), "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return File.model_validate({"from": name, "to": to, "executable": executable, **known})


@pytest.fixture
def files(tmp_path):
    script = planned(tmp_path, "script.sh", SCRIPT, to="bench", executable=True)
    return script, planned(tmp_path, "in", b"content of the file", to="input.bin")


@pytest.fixture
def label(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    made = Label.create(f"test-files-{os.getpid()}", Path("/var/tmp"))
    yield made
    reaper.clean(made)


def guests_lack():
    return "root" if os.geteuid() != 0 else qemu.lacking(Host.here())


def first_line(settings, label, *arguments):
    """What ./bench prints first in a sandbox, and the sandbox's folder."""
    lines = []
    sandbox = make(settings, label)
    try:
        client = sandbox.start(lambda method, params: lines.extend(params["lines"] if method == "output" else ()))
        work = {"command": {"argv": ["./bench", *arguments], "env": {}}}
        client.call("workload.start", id="w", work=work, pace="flat_out", work_dir=sandbox.work_dir)
        deadline = time.monotonic() + 20
        while not lines:
            assert time.monotonic() < deadline, "the command printed nothing"
            time.sleep(0.01)
        return lines[0]["text"], sandbox.work_dir
    finally:
        sandbox.stop()


def test_a_folder_gets_copies_and_nothing_that_an_earlier_command_left(tmp_path, files):
    folder, target = tmp_path / "work", tmp_path / "of-the-host"
    (folder / "bench").mkdir(parents=True)
    (folder / "left").write_text("by the command of another victim")
    target.write_text("unchanged")
    (folder / "input.bin").symlink_to(target)
    own_files.place(files, folder)
    assert target.read_text() == "unchanged"
    assert sorted(file.name for file in folder.iterdir()) == ["bench", "input.bin"]
    assert (folder / "input.bin").read_bytes() == b"content of the file"
    assert [stat.S_IMODE((folder / name).lstat().st_mode) for name in ("bench", "input.bin")] == [0o700, 0o600]


def test_a_file_that_changed_since_the_plan_is_not_copied(tmp_path, files):
    (tmp_path / "in").write_bytes(b"other content")
    with pytest.raises(TrialError, match="in has changed since the run was planned; restore it") as caught:
        own_files.place(files, tmp_path / "work")
    assert caught.value.is_lasting
    (tmp_path / "in").unlink()
    with pytest.raises(TrialError, match="in cannot be read: No such file"):
        own_files.place(files, tmp_path / "work")
    # Opening it would block.
    os.mkfifo(tmp_path / "in")
    with pytest.raises(TrialError, match="in cannot be read: it is not a regular file; restore it"):
        own_files.place(files, tmp_path / "work")


def test_a_copy_that_cannot_be_written_is_named(tmp_path, files):
    (tmp_path / "work").symlink_to(tmp_path)
    with pytest.raises(
        TrialError,
        match=r"work cannot be written: Cannot call rmtree on a symbolic link; give another folder with --work-dir",
    ):
        own_files.place(files, tmp_path / "work")
    assert (tmp_path / "in").exists()


def test_a_file_is_read_in_parts_and_only_up_to_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(own_files, "PART", 2)
    (tmp_path / "in").write_bytes(b"seven b")
    assert own_files.read(str(tmp_path / "in")) == (7, hashlib.sha256(b"seven b").hexdigest())
    monkeypatch.setattr(own_files, "FILES_BYTES_MAX", 6)
    with pytest.raises(OSError, match="it has more than 6 B"):
        own_files.read(str(tmp_path / "in"))


@pytest.mark.host
def test_a_process_finds_its_files_and_they_go_with_the_run(label, files):
    said, folder = first_line(Settings(name="v", backend="process", cpus=(0,), command=True, copies=files), label)
    assert said == f"{folder} content of the file"
    assert folder.startswith(str(label.work))
    reaper.clean(label)
    assert not Path(folder).exists()


@pytest.mark.host
@needs_containers
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_container_finds_its_files(label, files, monkeypatch, runtime):
    monkeypatch.setenv("PARTYWALL_RUNTIME", runtime)
    settings = Settings(name="v", backend="container", cpus=(0,), command=True, copies=files)
    said, folder = first_line(settings, label)
    assert said == f"{folder} content of the file"


@pytest.mark.host
@pytest.mark.skipif(bool(guests_lack()), reason=f"guests need: {guests_lack()}")
def test_a_guest_finds_its_files_on_its_disk(label, tmp_path):
    # A guest without packages has no shell.
    static = planned(tmp_path, "agent", loaded(binary.find().read_bytes()), to="bench", executable=True)
    settings = Settings(name="v", backend="qemu", accel=ACCEL, cpus=(0,), command=True, copies=(static,))
    said, folder = first_line(settings, label, "peer", "--listen", "127.0.0.1:4000", "udp-send")
    assert (said, folder) == ("127.0.0.1:4000", "/work")


@pytest.mark.host
@pytest.mark.skipif(bool(ssh_server.lacking()), reason=ssh_server.lacking())
def test_a_machine_behind_ssh_finds_its_files_and_keeps_none(label, files, tmp_path, monkeypatch):
    server = ssh_server.SshServer(tmp_path)
    try:
        monkeypatch.setenv("PARTYWALL_SSH", server.client)
        settings = Settings(name="v", backend="ssh", cpus=(0,), host="there", command=True, copies=files)
        said, folder = first_line(settings, label)
        assert said == f"{folder} content of the file"
        deadline = time.monotonic() + 20
        while Path(folder).exists():
            assert time.monotonic() < deadline, "the folder was not removed"
            time.sleep(0.02)
        with pytest.raises(CapabilityError, match=r"there, by ssh: /nowhere/x could not be copied: .*nowhere/x"):
            put("there", "/nowhere/x", files[0], 0o600)
    finally:
        server.stop()
