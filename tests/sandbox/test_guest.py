"""A real guest on this host: it comes up, works, tells the host's time, is held to its limits and leaves nothing."""

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partywall.core import here
from partywall.errors import CapabilityError, TrialError
from partywall.host import Host, memory_nodes, waits
from partywall.host.block import Throttle
from partywall.host.label import VARIABLE, Label
from partywall.sandbox import Settings, cgroups, make, qemu, reaper
from partywall.sandbox.document import Limits
from partywall.sandbox.qemu.vcpus import VcpuGroup
from tests.guests import ACCEL
from tests.measured import measured


def lacking():
    if os.geteuid() != 0:
        return "root"
    return qemu.lacking(Host.here())


pytestmark = [pytest.mark.host, pytest.mark.skipif(bool(lacking()), reason=f"guests need: {lacking()}")]


def labelled(run):
    return [
        folder.name
        for folder in Path("/proc").glob("[0-9]*")
        if f"{VARIABLE}={run}".encode() in _environment(folder) and folder.name != str(os.getpid())
    ]


def _environment(folder):
    try:
        return (folder / "environ").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def guest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guest")
    before = os.environ.get("PARTYWALL_STATE")
    os.environ["PARTYWALL_STATE"] = str(folder / "state")
    label = Label.create(f"test-guest-{os.getpid()}", Path("/var/tmp"))
    sandbox = make(Settings(name="guest", backend="qemu", accel=ACCEL, cpus=(0,)), label)
    sandbox.messages = []
    try:
        sandbox.start(lambda method, params: sandbox.messages.append((method, params)))
        sandbox.settle()
        yield sandbox
    finally:
        sandbox.stop()
        reaper.clean(label)
        if before is None:
            del os.environ["PARTYWALL_STATE"]
        else:
            os.environ["PARTYWALL_STATE"] = before


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def slices_until(guest, condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition(result := [s for m, p in guest.messages if m == "slices" for s in p["slices"]]):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)
    return result


@contextlib.contextmanager
def working(guest, kernel, **params):
    """Afterwards the guest is as before, whatever its limits were meanwhile."""
    guest.messages.clear()
    work = {"kernel": {"name": kernel, "params": params}}
    guest.client.call("workload.start", timeout_s=60, id="w", work=work, pace="flat_out", work_dir=guest.work_dir)
    try:
        yield
    finally:
        guest.limit(Limits())
        guest.client.call("workload.stop", id="w")


@measured
def test_slices_of_a_guest_lie_on_the_hosts_grid_and_in_its_time(guest):
    assert guest.clock_error_ns() < 1_000_000 * waits.slowness()
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    with working(guest, "integer"):
        result = slices_until(guest, lambda slices: len(slices) >= 5)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert all(before - 1_000_000 < s["start_ns"] < s["end_ns"] < after + 1_000_000 for s in result)
    # Cut at multiples of 10 ms, but for the operation that was under way.
    assert sum(s["end_ns"] % 10_000_000 < 5_000_000 for s in result) >= len(result) / 2
    assert sum(s["work"] for s in result) > 0


def test_the_disk_of_a_guest_is_worked_on_in_its_own_file_system(guest):
    with working(guest, "disk-direct-write", file_bytes=4 << 20):
        assert sum(s["work"] for s in slices_until(guest, lambda slices: len(slices) >= 3)) > 0
    assert (guest.label.work / "guest" / "disk.img").stat().st_blocks > 0


@measured
def test_a_limit_holds_the_vcpu_thread_and_is_lifted_again(guest):
    if "cpu" not in cgroups.read().v1 and not cgroups.read().is_v2:
        pytest.skip("no cgroup cpu controller")
    thread = guest.cgroup_member

    def used_ns(seconds):
        began, from_ns = runtime_ns(guest.pid, thread), time.monotonic_ns()
        time.sleep(seconds)
        return (runtime_ns(guest.pid, thread) - began) / (time.monotonic_ns() - from_ns)

    with working(guest, "integer"):
        guest.limit(Limits(cpu_limit=0.2))
        assert used_ns(1.0) < 0.3
        guest.limit(Limits())
        assert used_ns(0.5) > 0.2


@measured
def test_what_counters_call_its_cgroup_is_its_virtual_cpus_and_nobody_elses(guest):
    if "cpuacct" not in cgroups.read().v1:
        pytest.skip("no cgroup cpuacct controller")
    messages = []
    monitor = make(Settings(name="monitor", backend="process", cpus=(1,)), guest.label)
    client = monitor.start(lambda method, params: messages.append((method, params)))
    with working(guest, "integer"):
        guest.limit(Limits(cpu_limit=0.2))
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            targets = {"cgroups_of": {"guest": guest.cgroup_member}, "cgroups_below": guest.label.cgroup}
            header = client.call("monitor.start", id="m", **targets)
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            client.call("monitor.schedule", id="m", at_ns=[now + 100_000_000, now + 1_100_000_000])
            wait_until(lambda: sum(method == "sample" for method, _ in messages) == 2)
        finally:
            busy.kill()
            busy.wait()
            monitor.stop()
    mine = [n for n, info in enumerate(header["counters"]) if info["subject"] == "guest"]
    # Nothing holds its memory in a cgroup of its own, and the host's is not its.
    assert {header["counters"][n]["resource"] for n in mine} == {"cpu"}
    first, last = (params for method, params in messages if method == "sample")
    used = next(n for n in mine if header["counters"][n]["name"] == "cgroup_cpu_usage_ns")
    share = (last["values"][used] - first["values"][used]) / (last["at_ns"] - first["at_ns"])
    assert 0.1 < share < 0.3


@measured
def test_the_disk_of_a_guest_is_limited_while_it_runs_and_lifted_again(guest):
    def rate_under(limits):
        guest.limit(limits)
        from_ns = time.monotonic_ns() + 300_000_000
        slices = slices_until(guest, lambda slices: slices and slices[-1]["end_ns"] > from_ns + 700_000_000)
        result = [s for s in slices if s["start_ns"] >= from_ns]
        return sum(s["work"] for s in result) * 1e9 / (result[-1]["end_ns"] - result[0]["start_ns"])

    with working(guest, "disk-direct-write", file_bytes=4 << 20):
        limited = rate_under(Limits(disk=Throttle(write_bps=400_000)))
        assert limited < 1.2 * 400_000
        assert rate_under(Limits(disk=Throttle(write_iops=20))) < 1.2 * 20 * 8192
        assert rate_under(Limits()) > 2 * limited


def test_memory_is_taken_from_a_guest_while_it_runs_and_given_back(guest):
    def seen():
        command = ["facts"]
        return guest.client.call(*command)["memory"]["total_bytes"]

    whole = seen()
    guest.limit(Limits(memory=256 << 20))
    assert whole - seen() > 200 << 20
    guest.limit(Limits())
    assert seen() == whole


def runtime_ns(pid, thread):
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])


def test_its_clock_cannot_be_shifted_under_a_workload(guest):
    with working(guest, "integer"), pytest.raises(Exception, match="while something runs \\(workload\\)"):
        guest.client.call("clock.adjust", shift_ns=1)


@pytest.mark.usefixtures("guest")
def test_a_guest_whose_kernel_panics_is_reported_with_the_end_of_its_console(monkeypatch):
    # Its first process needs libraries that the initramfs does not hold.
    monkeypatch.setenv("PARTYWALL_AGENT", shutil.which("true"))
    label = Label.create(f"test-panic-{os.getpid()}", Path("/var/tmp"))
    try:
        with pytest.raises(TrialError, match=r"(?s)did not come up.*console ended with.*Kernel panic"):
            make(Settings(name="guest", backend="qemu", accel=ACCEL, cpus=(0,), files=False), label).start(
                lambda *_: None
            )
    finally:
        reaper.clean(label)
    assert labelled(label.run) == []


@pytest.mark.usefixtures("guest")
def test_the_reaper_takes_a_guest_whose_controller_forgot_it():
    label = Label.create(f"test-orphan-{os.getpid()}", Path("/var/tmp"))
    orphan = make(Settings(name="guest", backend="qemu", accel=ACCEL, cpus=(0,)), label)
    orphan.launch(lambda *_: None)
    # Between two programs a process has no environment for a moment.
    deadline = time.monotonic() + 10
    while not labelled(label.run):
        assert time.monotonic() < deadline, "the guest never began"
    reaped = reaper.clean(label)
    assert labelled(label.run) == []
    assert reaped.left == ()
    assert not label.work.exists()
    orphan.stop()


@pytest.mark.usefixtures("guest")
def test_a_guest_that_dies_before_it_is_settled_fails_its_trial_with_the_reason():
    label = Label.create(f"test-dead-{os.getpid()}", Path("/var/tmp"))
    dead = make(Settings(name="guest", backend="qemu", accel=ACCEL, cpus=(0,), files=False), label)
    try:
        dead.start(lambda *_: None)
        os.kill(dead.pid, signal.SIGKILL)
        dead.client.process.wait(30)
        with pytest.raises(TrialError, match=r"sandbox guest: its virtual CPUs .* the guest is gone"):
            dead.settle()
    finally:
        dead.stop()
        reaper.clean(label)


@pytest.mark.usefixtures("guest")
def test_a_guests_memory_comes_from_the_node_that_is_named():
    nodes = memory_nodes(here.this_host())
    if not nodes or not Path("/proc/self/numa_maps").exists():
        pytest.skip("a kernel with NUMA nodes and numa_maps")
    label = Label.create(f"test-node-{os.getpid()}", Path("/var/tmp"))
    node = nodes[0].number
    settings = Settings(name="bound", backend="qemu", accel=ACCEL, cpus=(0,), files=False, memory_nodes=(node,))
    sandbox = make(settings, label)
    try:
        sandbox.start(lambda *_: None)
        lines = Path(f"/proc/{sandbox.pid}/numa_maps").read_text().splitlines()
        held = [line for line in lines if f" bind:{node} " in line]
        assert any(f" N{node}=" in line for line in held), lines
    finally:
        sandbox.stop()
        reaper.clean(label)


def test_what_the_host_refuses_of_a_live_guests_threads_names_the_file(guest, monkeypatch, tmp_path):
    monkeypatch.setattr(guest, "_group", VcpuGroup(cgroups.Cgroups(v1={"cpu": tmp_path / "none"}), "/x"))
    with pytest.raises(TrialError, match=rf"sandbox guest: its virtual CPUs .*{tmp_path}/none/x/cpu\S+"):
        guest.limit(Limits(cpu_limit=0.5))


def test_where_cgroups_may_not_be_written_a_guest_runs_unless_it_is_to_be_held_back(guest, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system", "/sys/fs/cgroup/cpu/partywall")

    monkeypatch.setattr(VcpuGroup, "create", refuse)
    # So that they are put back for the tests after this one.
    monkeypatch.setattr(guest, "_group", guest._group)
    monkeypatch.setattr(guest, "_ungrouped", "")
    requested = dataclasses.replace(guest.settings, cpu_limit=0.5)
    with monkeypatch.context() as limited:
        limited.setattr(guest, "settings", requested)
        with pytest.raises(TrialError, match="pinned or limited: Read-only file system"):
            guest._group_vcpus(guest.pid)
    guest._group_vcpus(guest.pid)
    assert guest.cgroup is None
    with pytest.raises(CapabilityError, match="Read-only file system"):
        guest.limit(Limits(cpu_limit=0.5))
