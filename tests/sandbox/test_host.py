"""Sandboxes on this host: they start, hold their limits, and leave nothing, whatever happens."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partywall.core import here
from partywall.errors import CapabilityError
from partywall.host import block, memory_nodes
from partywall.host.block import Throttle
from partywall.host.label import VARIABLE, Label, start_ticks
from partywall.sandbox import Settings, cgroups, make, reap, reaper
from partywall.sandbox.document import Disk, Limits
from tests.measured import measured

pytestmark = pytest.mark.host

RUNTIMES = [name for name in ("crun", "runc") if shutil.which(name)]
needs_containers = pytest.mark.skipif(os.geteuid() != 0 or not RUNTIMES, reason="containers need root and crun or runc")


def labelled(run):
    result = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{VARIABLE}={run}".encode() in (folder / "environ").read_bytes():
                result.append(int(folder.name))
        except OSError:
            continue
    return result


def wait_until(condition, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        os.sched_yield()


@pytest.fixture
def label(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    made = Label.create(f"test-{os.getpid()}-{tmp_path.name[-8:]}", Path("/var/tmp"))
    yield made
    reaper.clean(made)


def cpu_share(slices):
    """CPU time of slices, as a share of their wall time."""
    return sum(s["cpu_ns"] for s in slices) / (max(s["end_ns"] for s in slices) - min(s["start_ns"] for s in slices))


class Busy:
    """A sandbox with a busy workload."""

    def __init__(self, settings, label):
        self.slices = []
        self.sandbox = make(settings, label)
        self.client = self.sandbox.start(lambda method, params: self.slices.extend(params.get("slices", [])))
        work = {"kernel": {"name": "integer"}}
        self.client.call("workload.start", id="v", work=work, pace="flat_out", work_dir=self.sandbox.work_dir)

    def share_over(self, seconds):
        start = len(self.slices)
        wait_until(lambda: len(self.slices) > start and span(self.slices[start:]) > seconds * 1e9)
        return cpu_share(self.slices[start:])


def span(slices):
    return slices[-1]["end_ns"] - slices[0]["start_ns"]


def test_a_process_runs_on_its_cpus_and_ends_with_its_stream(label):
    cpu = min(os.sched_getaffinity(0))
    sandbox = make(Settings(name="victim", backend="process", cpus=(cpu,)), label)
    client = sandbox.start(lambda *_: None)
    assert client.hello["cpus"] == [cpu]
    sandbox.stop()
    assert labelled(label.run) == []


def test_a_process_refuses_limits_by_name(label):
    sandbox = make(Settings(name="victim", backend="process", cpus=(0,)), label)
    with pytest.raises(CapabilityError, match="backend: container"):
        sandbox.limit(Limits(cpu_limit=0.5))
    with pytest.raises(CapabilityError, match="cannot change disk limits"):
        sandbox.limit(Limits(disk=Throttle(read_bps=1)))


@needs_containers
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_container_holds_its_limit_and_takes_another_live(label, monkeypatch, runtime):
    monkeypatch.setenv("PARTYWALL_RUNTIME", runtime)
    cpu = max(os.sched_getaffinity(0))
    busy = Busy(Settings(name="victim", backend="container", cpus=(cpu,), cpu_limit=0.5), label)
    assert busy.share_over(1.5) < 0.56
    busy.sandbox.limit(Limits(cpu_limit=0.2))
    busy.share_over(0.3)
    assert busy.share_over(1.5) < 0.26
    busy.sandbox.stop()
    assert labelled(label.run) == []
    assert not any((path / "victim").exists() for path in cgroups.read().paths(label.cgroup))


def lacking_for_disk_limits():
    if os.geteuid() != 0 or not RUNTIMES:
        return "containers need root and crun or runc"
    try:
        folder = cgroups.read().folder("io", "/")
    except CapabilityError as error:
        return str(error)
    if not cgroups.read().is_v2 and not (folder / "blkio.throttle.read_bps_device").exists():
        return "this kernel cannot throttle disks (CONFIG_BLK_DEV_THROTTLING)"
    return block.lacking(Path("/var/tmp"))


class Reading:
    """A container that reads a disk past the page cache, in requests of 8 KiB."""

    def __init__(self, settings, label):
        self.ends = []
        self.slices = []
        self.sandbox = make(settings, label)
        self.client = self.sandbox.start(lambda _, params: self.slices.extend(params.get("slices", [])))
        work = {"kernel": {"name": "disk-direct-read", "params": {"file_bytes": 4 << 20, "order": "random"}}}
        self.client.call("workload.start", id="r", timeout_s=60, work=work, pace="flat_out", work_dir="/work")

    def under(self, limits):
        """Its rate in bytes a second, some time after these limits came into force."""
        self.sandbox.limit(limits)
        from_ns = time.monotonic_ns() + 300_000_000
        wait_until(lambda: self.slices and self.slices[-1]["end_ns"] > from_ns + 1_000_000_000)
        result = [s for s in self.slices if s["start_ns"] >= from_ns]
        return sum(s["work"] for s in result) * 1e9 / span(result)


@pytest.mark.skipif(bool(lacking_for_disk_limits()), reason=lacking_for_disk_limits())
@pytest.mark.parametrize("runtime", RUNTIMES)
@measured
def test_a_containers_disk_is_limited_live_and_goes_back_to_what_it_was_made_with(label, monkeypatch, runtime):
    monkeypatch.setenv("PARTYWALL_RUNTIME", runtime)
    made = Disk(read_bps=4_000_000)
    settings = Settings(name="victim", backend="container", cpus=(0,), disk=made, disk_switched=True)
    reading = Reading(settings, label)
    try:
        # A disk may give less than a ceiling, and never more than it over a second, but for a period's worth.
        assert reading.under(Limits(disk=Throttle(read_bps=400_000))) < 1.2 * 400_000
        assert reading.under(Limits(disk=Throttle(read_iops=20))) < 1.2 * 20 * 8192
        lifted = reading.under(Limits())
        assert 3 * 400_000 < lifted < 1.2 * 4_000_000
        folder = cgroups.read().folder("io", reading.sandbox.cgroup)
        device = "{}:{}".format(*block.device_of(label.work))
        for name, content in cgroups.disk_files(block.device_of(label.work), made, v2=cgroups.read().is_v2).items():
            said = (folder / name).read_text().strip()
            assert said == ("" if content == f"{device} 0" else content)
    finally:
        reading.sandbox.stop()
    assert not folder.exists()


@needs_containers
def test_a_container_whose_files_are_in_memory_has_no_disk_to_limit(label, monkeypatch):
    monkeypatch.setattr(block, "device_of", lambda *_: None)
    settings = Settings(name="victim", backend="container", cpus=(0,), disk_switched=True)
    with pytest.raises(CapabilityError, match=r"sandbox victim: disk limits need a block device.*--work-dir"):
        make(settings, label).start(lambda *_: None)


@needs_containers
def test_a_container_that_goes_over_its_memory_says_so(label):
    gone = []
    settings = Settings(name="victim", backend="container", cpus=(0,), memory=64 << 20)
    sandbox = make(settings, label)
    client = sandbox.start(lambda method, params: gone.append(params["reason"]) if method == "gone" else None)
    work = {"kernel": {"name": "memory-copy", "params": {"block_bytes": 256 << 20}}}
    with pytest.raises(Exception, match="agent victim"):
        client.call("workload.start", id="v", work=work, pace="flat_out", work_dir=sandbox.work_dir)
    wait_until(lambda: gone)
    assert "memory limit of 64 MiB" in sandbox.reason_gone(gone[0])
    sandbox.stop()


@needs_containers
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_containers_memory_comes_from_the_node_that_is_named(label, monkeypatch, runtime):
    mounted = cgroups.read()
    try:
        mounted.folder("cpuset", "/")
    except CapabilityError as error:
        pytest.skip(str(error))
    if not memory_nodes(here.this_host()):
        pytest.skip("a kernel with NUMA nodes")
    monkeypatch.setenv("PARTYWALL_RUNTIME", runtime)
    cpu, node = min(os.sched_getaffinity(0)), memory_nodes(here.this_host())[0].number
    sandbox = make(Settings(name="victim", backend="container", cpus=(cpu,), memory_nodes=(node,)), label)
    sandbox.start(lambda *_: None)
    held = mounted.folder("cpuset", sandbox.cgroup) / "cpuset.mems"
    assert held.read_text().strip() == str(node)
    status = Path(f"/proc/{sandbox.pid}/status").read_text()
    assert f"Mems_allowed_list:\t{node}\n" in status
    sandbox.stop()
    assert not held.parent.exists()


LEAVE = """
import os, sys
from pathlib import Path
from partywall.host.label import Label
from partywall.sandbox import Settings, make
label = Label.create(sys.argv[1], Path("/var/tmp"))
for n, backend in enumerate(sys.argv[2].split(",")):
    sandbox = make(Settings(name=f"s{n}", backend=backend, cpus=(0,), command=True), label)
    client = sandbox.start(lambda *_: None)
    work = {"command": {"argv": ["sh", "-c", "setsid sleep 1000 & sleep 1000"]}}
    client.call("workload.start", id="c", work=work, pace="flat_out", work_dir="/")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("backends", ["process", pytest.param("process,container", marks=needs_containers)])
def test_what_a_killed_controller_left_is_reaped_strays_and_all(tmp_path, monkeypatch, backends):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    run = f"killed-{os.getpid()}-{len(backends)}"
    argv = [sys.executable, "-c", LEAVE, run, backends]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "state" / run).exists()
    (reaped,) = reap()
    assert reaped.run == run
    assert reaped.left == ()
    assert labelled(run) == []
    assert not Path(f"/var/tmp/partywall-{run}").exists()
    assert not any(path.exists() for path in cgroups.read().paths(f"/partywall/{run}"))
    assert reap() == []


def test_a_run_that_is_at_work_is_never_reaped(label):
    assert reap() == []
    assert label.state.exists()


def test_a_process_number_that_was_used_again_does_not_keep_a_dead_run_alive(label):
    owner = label.state / "owner.json"
    content = json.loads(owner.read_text())
    owner.write_text(json.dumps(content | {"start_ticks": start_ticks(os.getpid()) - 1}))
    assert [reaped.run for reaped in reap()] == [label.run]
    assert not label.state.exists()
