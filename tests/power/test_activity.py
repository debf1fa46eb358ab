"""CPU time of processes whose threads end, and of hosts whose CPUs come and go."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from partywall.host import Host
from partywall.power.activity import HostCpus, Process, consumer
from partywall.power.findings import sharing
from partywall.power.findings.meter import Load, cpu_rows
from partywall.power.findings.node import core_time, findings
from partywall.power.values import Activity, PowerEvidence

SECOND = 10**9
OWN = Path(f"/proc/{os.getpid()}")
TICKS_S = 0.02
"""User and system time are rounded down to a tick each."""


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def in_threads(seconds, number):
    threads = [threading.Thread(target=burn, args=(seconds,)) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_cpu_time_of_threads_that_ended_counts():
    process = Process(OWN)
    before, true = process(), time.process_time()
    in_threads(0.1, 3)
    passed, true = process() - before, time.process_time() - true
    assert true > 0.25
    assert passed == pytest.approx(true, abs=2 * TICKS_S)


def test_the_error_of_ended_threads_does_not_add_up():
    process = Process(OWN)
    before, true = process(), time.process_time()
    for _ in range(40):
        in_threads(0.005, 1)
        process()
    passed, true = process() - before, time.process_time() - true
    assert passed == pytest.approx(true, abs=2 * TICKS_S)


def test_a_process_that_was_given_as_a_consumer_counts_its_ended_threads():
    read = consumer(f"own=pid:{os.getpid()}", Host.here()).read
    before = read()
    in_threads(0.1, 1)
    assert read() - before > 0.1 - TICKS_S


def test_a_name_with_parentheses_and_any_bytes_is_no_field(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "stat").write_bytes(b"7 (a) b (c\xff)) S " + b"0 " * 10 + b"150 50 0 0\n")
    assert Process(tmp_path)() == pytest.approx(2.0)


def test_a_process_that_has_ended_has_no_cpu_time(tmp_path):
    with pytest.raises(ProcessLookupError):
        Process(tmp_path)()


class Stat:
    """A /proc/stat in which CPUs come and go."""

    def __init__(self, root):
        self.host = Host({}, root=root)
        (root / "proc").mkdir()
        self._file = root / "proc" / "stat"

    def write(self, **ticks):
        self._file.write_text("cpu  1 0 0 0 0 0 0 0 0 0\n" + "".join(
            f"{cpu} {busy} 0 0 500 0 0 0 0 0 0\n" for cpu, busy in ticks.items()
        ))  # fmt: skip


def test_a_cpu_that_goes_offline_keeps_its_time_and_a_new_one_is_added(tmp_path):
    stat = Stat(tmp_path)
    stat.write(cpu0=100, cpu1=200, cpu2=300)
    cpus = HostCpus(stat.host)
    assert cpus() == pytest.approx((1.0, 2.0, 3.0))
    stat.write(cpu0=110, cpu2=310)
    assert cpus() == pytest.approx((1.1, 2.0, 3.1))
    stat.write(cpu0=120, cpu1=205, cpu2=320, cpu3=7)
    assert cpus() == pytest.approx((1.2, 2.05, 3.2, 0.07))


def test_cpus_that_a_host_could_have_but_never_had_online_are_left_out(tmp_path):
    """The group lists a value for each CPU that a socket has room for."""
    stat = Stat(tmp_path)
    for path, text in {
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n",
        "proc/cgroups": "cpuacct 1 1 1\n",
        "sys/devices/system/cpu/possible": "0,2-5\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    usage = tmp_path / "sys/fs/cgroup/cpuacct/cpuacct.usage_percpu"
    usage.parent.mkdir(parents=True)
    usage.write_text("1000000000 2000000000 0 4000000000 0 \n")
    stat.write(cpu0=1, cpu2=1)
    cpus = HostCpus(stat.host)
    assert cpus() == (1.0, 2.0)
    stat.write(cpu0=1, cpu4=1)
    usage.write_text("1500000000 2000000000 0 4000000000 0 \n")
    assert cpus() == (1.5, 2.0, 4.0)


def changing():
    """Activity of two CPUs, of which one appears after two readings, with time that it used before."""
    rows = [(1.0,), (1.5,), (2.0, 9.0), (2.5, 9.25)]
    return tuple(Activity(time_ns=n * SECOND, cpus_s=row) for n, row in enumerate(rows))


def test_a_cpu_that_appears_was_not_busy_before_and_is_noted():
    activity = changing()
    assert np.diff(cpu_rows(activity), axis=0).tolist() == [[0.5, 0.0], [0.5, 0.0], [0.5, 0.25]]
    assert sum(core_time(activity).states.values()) == pytest.approx(3.0)
    assert Load.of(activity).integrals.shape == (4, 2)
    used = sharing.usage(activity)
    assert used.cpus == 2
    assert used.cpu_s == pytest.approx([1.75])
    found = findings(
        PowerEvidence(
            name="x", task="read", host={}, about={}, meters=(), readings=(), faults=(), activity=activity, slots=(),
        )
    )  # fmt: skip
    assert any("number of CPUs changed from 1 to 2" in note for note in found.notes)
