"""A disk of a set rate: requests wait in it, its rate is kept, and nothing of it is left, also after a kill."""

import os
import threading
import time
from pathlib import Path

import pytest

from partywall.host import Host, mounts
from partywall.host.label import Label
from partywall.sandbox import reaper
from partywall.sandbox.slow_disk import missing, slow_disk
from partywall.testing import fake_host

RATE = 2_000_000
WRITERS, EACH = 12, 50_000

here = pytest.mark.skipif(bool(missing(Host.here())), reason=missing(Host.here()))


@pytest.fixture
def label(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    made = Label.create("slow", tmp_path)
    yield made
    reaper.clean(made)


def test_what_a_host_lacks_is_said_with_a_remedy():
    assert missing(fake_host(euid=1000)).endswith("run it with sudo")
    assert "qemu-utils" in missing(fake_host(which=lambda name: None if name.startswith("qemu") else name))
    assert missing(fake_host()).endswith("modprobe fuse")


@pytest.mark.host
@here
def test_requests_wait_in_the_disk_and_its_rate_is_kept(label):
    with slow_disk(label, RATE) as disk:
        before, begin = stat(disk.device), time.monotonic()
        writers = [threading.Thread(target=write, args=(disk.folder / str(n), begin + 2)) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        length_s, after = time.monotonic() - begin, stat(disk.device)
    written = (after["sectors"] - before["sectors"]) * 512 / length_s
    queue = (after["waited_ms"] - before["waited_ms"]) / 1e3 / length_s
    # A throttle may let through a short burst.
    assert written < 1.3 * RATE
    assert WRITERS / 3 < queue < WRITERS * 2


@pytest.mark.host
@here
def test_nothing_is_left_on_the_host(label):
    with slow_disk(label, RATE) as disk:
        assert any(mount.point == disk.folder for mount in mounts(Path("/")))
        device = disk.device
    assert_gone(label, device)


@pytest.mark.host
@here
def test_a_killed_controllers_disk_is_removed(label):
    abandoned = slow_disk(label, RATE)
    device = abandoned.__enter__().device
    reaped = reaper.clean(label)
    assert reaped.left == ()
    assert f"/dev/{device}" in reaped.removed
    assert_gone(label, device)


def assert_gone(label, device):
    assert [mount.point for mount in mounts(Path("/")) if mount.point.is_relative_to(label.work)] == []
    backing = Path(f"/sys/block/{device}/loop/backing_file")
    deadline = time.monotonic() + 10
    while backing.exists() and str(label.work) in backing.read_text():
        assert time.monotonic() < deadline, backing.read_text()
        time.sleep(0.02)


def write(file, until):
    with file.open("wb", buffering=0) as opened:
        while time.monotonic() < until:
            os.truncate(opened.fileno(), 0)
            opened.seek(0)
            opened.write(os.urandom(EACH))
            os.fdatasync(opened.fileno())


def stat(device):
    numbers = [int(word) for word in Path(f"/sys/block/{device}/stat").read_text().split()]
    return {"sectors": numbers[6], "waited_ms": numbers[10]}
