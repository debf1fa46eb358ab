"""Settings of the host: made for a turn, put back afterwards, also after a kill, and refused by name."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from partywall.errors import TrialError
from partywall.host import Host, block
from partywall.host.settings import held, ledger, scheduler, smt
from partywall.host.settings.held import HostSettings
from partywall.run.measure.execute import controller_cpus
from partywall.testing import fake_host

FOLDER = Path("/var/tmp")
HOLD = """
import sys, time
from pathlib import Path
from partywall.host import Host
from partywall.host.settings.held import HostSettings
from partywall.host.settings import held as settings
from partywall.host import block
root, name, level, device = sys.argv[1:]
block.device_of = lambda *_: tuple(map(int, device.split(":")))
with settings.held(HostSettings(**{name: level}), Path("/var/tmp"), Host({}, Path(root), 0)):
    print(1, flush=True)
    time.sleep(100)
"""


@dataclass(frozen=True)
class Case:
    """A setting of a host, a level other than the present one, and the file with both."""

    host: Host
    name: str
    level: str
    file: Path
    device: str = "8:0"

    def now(self) -> str:
        return scheduler.offered(self.file)[0] if self.name == "io_scheduler" else self.file.read_text().strip()

    def held(self, level: str = ""):
        return held.held(HostSettings.model_construct(**{self.name: level or self.level}), FOLDER, self.host)


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


def threaded(root: Path, control: str | None = "on", *, cores: str = "0-1", active: str | None = None) -> Host:
    """A host of one core with two threads, or as in `cores`."""
    folder = root / "sys/devices/system/cpu"
    for cpu in (0, 1):
        (folder / f"cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu{cpu}/topology/core_cpus_list").write_text(f"{cores}\n")
    (folder / "smt").mkdir()
    for name, text in (("control", control), ("active", active)):
        if text is not None:
            (folder / "smt" / name).write_text(f"{text}\n")
    return fake_host(root=root, euid=0)


@pytest.fixture(params=["io_scheduler", "smt"])
def case(request, tmp_path):
    if request.param == "smt":
        host = threaded(tmp_path / "host")
        return Case(host, "smt", "off", host.path(smt.CONTROL))
    host, file = request.getfixturevalue("disk")
    return Case(host, "io_scheduler", "bfq", file)


def _given(numbers, *_):
    return numbers


@pytest.fixture
def real(monkeypatch):
    """An unused loop device, whose scheduler the kernel lets choose."""
    for file in sorted(Path("/sys/block").glob("loop*/queue/scheduler")):
        if not (file.parents[1] / "loop").exists() and {"none", "mq-deadline"} <= set(scheduler.offered(file)):
            device = (file.parents[1] / "dev").read_text().strip()
            numbers = tuple(map(int, device.split(":")))
            monkeypatch.setattr(block, "device_of", functools.partial(_given, numbers))
            return Case(Host.here(), "io_scheduler", "mq-deadline", file, device)
    pytest.skip("no unused loop device with I/O schedulers")


def holds_and_puts_back(case):
    before = case.now()
    with case.held():
        assert case.now() == case.level
    assert case.now() == before
    assert ledger.put_back() == ledger.Restored()


def is_put_back_after_a_kill(case):
    before = case.now()
    argv = [sys.executable, "-c", HOLD, str(case.host.root), case.name, case.level, case.device]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert case.now() == case.level
        assert ledger.put_back() == ledger.Restored()
        refused = f"process {holder.pid} has set {held.SETTINGS[case.name].what} already"
        with pytest.raises(TrialError, match=refused), case.held():
            pass
        holder.send_signal(signal.SIGKILL)
    (restored,) = ledger.put_back().files
    assert Path(restored).samefile(case.file)
    assert case.now() == before
    assert ledger.put_back() == ledger.Restored()


def test_a_setting_holds_while_the_block_runs_and_the_hosts_own_afterwards(case):
    holds_and_puts_back(case)


@pytest.mark.long
def test_what_a_killed_process_left_is_put_back_and_a_living_ones_is_kept(case):
    is_put_back_after_a_kill(case)


def test_the_hosts_own_setting_is_put_back_although_a_process_was_killed_meanwhile(case):
    before = case.now()
    state = Path(os.environ["PARTYWALL_STATE"])
    state.mkdir(mode=0o700)
    left = {"pid": os.getpid(), "start_ticks": 1, "before": {str(case.file): before}}
    (state / held.SETTINGS[case.name].state).write_text(json.dumps(left))
    case.file.write_text(case.level)
    with case.held():
        assert case.now() == case.level
    assert case.now() == before


def test_what_cannot_be_put_back_is_told_and_tried_again_and_what_is_gone_is_forgotten(tmp_path):
    state = Path(os.environ["PARTYWALL_STATE"])
    state.mkdir(mode=0o700)
    refuses, gone, writable = tmp_path / "folder", tmp_path / "group" / "gone", tmp_path / "limit"
    refuses.mkdir()
    before = {str(refuses): "1", str(gone): "2", str(writable): "3"}
    left = {"pid": os.getpid(), "start_ticks": 1, "before": before}
    (state / ledger.LEVERS).write_text(json.dumps(left))
    restored = ledger.put_back()
    assert restored.files == (str(writable),)
    assert restored.left == (f"{refuses}: the kernel refuses 1: Is a directory",)
    with (
        pytest.raises(TrialError, match="could not be undone"),
        ledger.changed(ledger.LEVERS, "limits", {}, dict),
    ):
        pass
    refuses.rmdir()
    refuses.write_text("0")
    assert ledger.put_back() == ledger.Restored((str(refuses),))
    assert refuses.read_text() == "1"
    assert ledger.put_back() == ledger.Restored()


def test_a_setting_that_the_kernel_refuses_fails_the_turn(case, monkeypatch):
    before = case.now()
    written = Path.write_text

    def refusing(path, text, **options):
        if path == case.file and text == case.level:
            raise OSError(16, "Device or resource busy")
        return written(path, text, **options)

    monkeypatch.setattr(Path, "write_text", refusing)
    with pytest.raises(TrialError, match=r"the kernel refuses .*: Device or resource busy"), case.held():
        pass
    assert case.now() == before


def test_without_settings_nothing_is_changed(case):
    before = case.file.read_text()
    with held.held(HostSettings(), FOLDER, case.host):
        assert case.file.read_text() == before
    assert not Path(os.environ["PARTYWALL_STATE"]).exists()


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
class TestReal:
    def test_the_kernel_has_it_while_the_block_runs_and_its_own_afterwards(self, real):
        holds_and_puts_back(real)

    def test_a_name_that_the_kernel_refuses_fails_the_turn(self, real):
        before = real.now()
        with pytest.raises(TrialError, match="the kernel refuses no-such"), real.held("no-such"):
            pass
        assert real.now() == before

    def test_what_a_killed_process_left_is_put_back_and_a_living_ones_is_kept(self, real):
        is_put_back_after_a_kill(real)


# The I/O scheduler


def test_a_disk_that_offers_them_has_nothing_against_it(disk):
    host, _ = disk
    assert scheduler.why_not(["none", "bfq"], FOLDER, host) == ""


def test_a_scheduler_that_the_kernel_does_not_offer_is_named_with_its_module(disk):
    host, _ = disk
    said = scheduler.why_not(["bfq", "kyber"], FOLDER, host)
    assert "offers bfq, mq-deadline, none for the disk of /var/tmp, and not kyber" in said
    assert "modprobe kyber-iosched" in said


def test_a_user_without_root_is_reported_so(disk, tmp_path):
    host, _ = disk
    assert "needs root" in scheduler.why_not(["bfq"], FOLDER, fake_host(root=host.root, euid=1000))
    threaded(tmp_path / "other")
    other = fake_host(root=tmp_path / "other", euid=1000)
    assert smt.why_not(["off"], FOLDER, other) == "switching SMT needs root; run with sudo"
    assert smt.why_not(["on"], FOLDER, other) == ""


def test_a_folder_in_memory_has_no_disk(disk, monkeypatch):
    host, _ = disk
    monkeypatch.setattr(block, "device_of", lambda *_: None)
    assert "no disk with an I/O scheduler" in scheduler.why_not(["bfq"], Path("/tmp"), host)


# SMT


@pytest.mark.parametrize(
    ("control", "active", "cores", "now", "refused", "why"),
    [
        ("on", None, "0-1", "on", set(), ""),
        ("off", None, "0", "off", set(), ""),
        ("2", "1", "0-1", "on", set(), ""),
        ("forceoff", None, "0", "off", {"on"}, "until the next boot .*; boot without nosmt=force, or leave it out, or"),
        (
            "notsupported",
            None,
            "0",
            "off",
            {"on"},
            "no core has a second thread .*; leave it out, or ask for off, which",
        ),
        ("notimplemented", "1", "0-1", "on", {"off"}, "is notimplemented.; switch it in the firmware, or leave it out"),
        ("notimplemented", "0", "0", "off", {"on"}, "is notimplemented"),
        (None, None, "0-1", "on", {"off"}, "there is no usable /sys/devices/system/cpu/smt/control"),
        ("nonsense", None, "0-1", "on", {"off"}, "there is no usable"),
        (None, None, "0", "off", {"on"}, "there is no usable /sys/devices/system/cpu/smt/control"),
    ],
)
def test_smt_is_refused_where_it_cannot_be_switched_unless_it_is_so_already(
    tmp_path, control, active, cores, now, refused, why
):
    host = threaded(tmp_path, control, cores=cores, active=active)
    assert smt.now(host) == now
    reported = held.refused(host)["smt"]
    assert set(reported) == refused
    assert all(re.search(why, text) for text in reported.values()), reported


def test_a_host_that_tells_nothing_of_its_threads_is_refused_both(tmp_path):
    host = fake_host(root=tmp_path)
    assert smt.now(host) == ""
    assert set(held.refused(host)["smt"]) == {"on", "off"}


def test_smt_that_is_so_already_and_cannot_be_switched_is_left_alone(tmp_path):
    host = threaded(tmp_path, "notsupported", cores="0")
    with held.held(HostSettings(smt="off"), FOLDER, host):
        assert host.text(smt.CONTROL) == "notsupported"
    with (
        pytest.raises(TrialError, match=r"host\.smt: no core has a second"),
        held.held(HostSettings(smt="on"), FOLDER, host),
    ):
        pass


def test_a_cpu_that_was_offline_before_is_offline_again_afterwards(tmp_path):
    host = threaded(tmp_path)
    online = [host.path(f"{smt.SYSFS}/cpu{cpu}/online") for cpu in (0, 1)]
    for file, text in zip(online, "10", strict=True):
        file.write_text(f"{text}\n")
    with held.held(HostSettings(smt="off"), FOLDER, host):
        # As the kernel does when SMT is switched on again.
        online[1].write_text("1\n")
    assert host.text(smt.CONTROL) == "on"
    assert [file.read_text().strip() for file in online] == ["1", "0"]


def test_the_controller_is_not_on_cpus_that_go_offline(monkeypatch):
    monkeypatch.setitem(vars(sys.modules["partywall.run.measure.execute"]), "_ALLOWED", set(range(8)))
    here = SimpleNamespace(sandbox=SimpleNamespace(machine=""))
    elsewhere = SimpleNamespace(sandbox=SimpleNamespace(machine="shop"))
    for victim, own in ((here, (0, 2, 3)), (elsewhere, (0, 1, 2, 3))):
        trial = SimpleNamespace(victim=victim, victim_cpus=(1,), offline_cpus=(4, 5, 6, 7))
        assert controller_cpus(trial) == own
