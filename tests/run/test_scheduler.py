"""The disk's I/O scheduler: set for a turn, put back afterwards, also after a kill, and refused by name."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from partywall.errors import TrialError
from partywall.run import scheduler
from partywall.sandbox import block
from partywall.testing import fake_host

HOLD = """
import sys, time
from pathlib import Path
from partywall.run import scheduler
scheduler.setting = lambda folder: Path(sys.argv[1])
with scheduler.held(sys.argv[2], Path("/")):
    print(1, flush=True)
    time.sleep(100)
"""


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A host with one disk that offers two schedulers."""
    file = tmp_path / "host/sys/dev/block/8:0/queue/scheduler"
    file.parent.mkdir(parents=True)
    file.write_text("none [mq-deadline] bfq\n")
    monkeypatch.setattr(block, "device_of", lambda *_: (8, 0))
    return fake_host(root=tmp_path / "host", euid=0), file


def test_a_disk_that_offers_them_has_nothing_against_it(disk):
    host, _ = disk
    assert scheduler.why_not(["none", "bfq"], Path("/var/tmp"), host) == ""


def test_a_scheduler_that_the_kernel_does_not_offer_is_named_with_its_module(disk):
    host, _ = disk
    said = scheduler.why_not(["bfq", "kyber"], Path("/var/tmp"), host)
    assert "offers bfq, mq-deadline, none for the disk of /var/tmp, and not kyber" in said
    assert "modprobe kyber-iosched" in said


def test_a_user_without_root_is_told_so(disk):
    host, _ = disk
    assert "needs root" in scheduler.why_not(["bfq"], Path("/var/tmp"), fake_host(root=host.root, euid=1000))


def test_a_folder_in_memory_has_no_disk(disk, monkeypatch):
    host, _ = disk
    monkeypatch.setattr(block, "device_of", lambda *_: None)
    assert "no disk with an I/O scheduler" in scheduler.why_not(["bfq"], Path("/tmp"), host)


def test_without_a_scheduler_nothing_is_changed(disk):
    _, file = disk
    before = file.read_text()
    with scheduler.held(None, Path("/")):
        assert file.read_text() == before


@pytest.fixture
def real():
    """An unused loop device, whose scheduler the kernel lets choose."""
    for file in sorted(Path("/sys/block").glob("loop*/queue/scheduler")):
        if not (file.parents[1] / "loop").exists() and {"none", "mq-deadline"} <= set(scheduler.offered(file)):
            return file
    pytest.skip("no unused loop device with I/O schedulers")


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
class TestReal:
    def test_the_kernel_has_it_while_the_block_runs_and_its_own_afterwards(self, real, monkeypatch):
        before = scheduler.offered(real)[0]
        monkeypatch.setattr(scheduler, "setting", lambda _folder: real)
        with scheduler.held("mq-deadline", Path("/")):
            assert scheduler.offered(real)[0] == "mq-deadline"
        assert scheduler.offered(real)[0] == before

    def test_a_name_that_the_kernel_refuses_fails_the_turn(self, real, monkeypatch):
        before = scheduler.offered(real)[0]
        monkeypatch.setattr(scheduler, "setting", lambda _folder: real)
        with pytest.raises(TrialError, match="the kernel refuses no-such"), scheduler.held("no-such", Path("/")):
            pass
        assert scheduler.offered(real)[0] == before

    def test_what_a_killed_process_left_is_put_back_and_a_living_ones_is_kept(self, real, monkeypatch):
        before = scheduler.offered(real)[0]
        argv = [sys.executable, "-c", HOLD, str(real), "mq-deadline"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
            holder.stdout.readline()
            assert scheduler.offered(real)[0] == "mq-deadline"
            assert not scheduler.put_back()
            monkeypatch.setattr(scheduler, "setting", lambda _folder: real)
            with pytest.raises(TrialError, match=f"process {holder.pid} has set"), scheduler.held("none", Path("/")):
                pass
            holder.send_signal(signal.SIGKILL)
        assert scheduler.put_back()
        assert scheduler.offered(real)[0] == before
        assert not scheduler.put_back()
